"""The recipe for runs that are equal to the bit, as the page on modes has it: files, mode `strict`, and the digest."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import forked
import pytest
from commands import in_fork

KERNELS = '''
import numpy as np
from autotuned import Config, autotune

def bench(call, quantiles):
    call()
    return [1.0, 1.0, 1.0] if LAST["step"] == BEST else [2.0, 2.0, 2.0]

LAST, BEST = {"step": 0}, 7

@autotune([Config({"step": step}) for step in (3, 7, 11)], key=["x"], do_bench=bench, version=1)
def total(x, out, *, step):
    """In another order with another step: other bits."""
    globals()["LAST"]["step"] = step
    out[0] = sum((x[start : start + step].sum(dtype=np.float32) for start in range(0, len(x), step)), np.float32(0))

@total.case
def cases(device):
    for n in (100, 1000):
        yield {"args": (np.zeros(n, np.float32), np.zeros(1, np.float32))}
'''
APP = """
import json
import numpy as np
import autotuned
from kernels_of_app import total

found = []
for n in (100, 1000):
    x, out = np.random.default_rng(0).random(n, dtype=np.float32), np.zeros(1, np.float32)
    total(x, out)
    found.append(out.tobytes().hex())
print(json.dumps([found, autotuned.choices_digest()]))
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "kernels_of_app.py").write_text(KERNELS)
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path[1:]]))
    in_fork("tune", "kernels_of_app", "--out", "tuned", AUTOTUNED_CACHE_DIR="store")
    return tmp_path


def strictly(number: int, files: str = "tuned") -> dict[str, str]:
    return {"AUTOTUNED_MODE": "strict", "AUTOTUNED_CONFIG_PATH": files, "AUTOTUNED_CACHE_DIR": f"empty-{number}"}


def run(number: int, files: str = "tuned") -> tuple[list[str], str]:
    """Results of one run, as bits, and the digest of what it used."""
    done = forked.run([sys.executable, "app.py"], env={**os.environ, **strictly(number, files)})
    assert done.returncode == 0, done.stderr
    bits, digest = json.loads(done.stdout)
    return bits, digest


def test_two_runs_have_the_same_bits_and_one_digest(app: Path) -> None:
    first, second = run(1), run(2)
    assert first == second
    assert in_fork("list", "--digest", **strictly(3))[0].strip() == first[1]


def test_another_choice_is_seen_in_the_digest_and_found_by_diff(app: Path) -> None:
    [file] = (app / "tuned").glob("*/*.json")
    other = app / "other" / file.parent.name / file.name
    other.parent.mkdir(parents=True)
    before, _, after = file.read_text().rpartition('"step": 7')
    other.write_text(before + '"step": 11' + after)
    (one, digest), (two, changed) = run(1), run(2, "other")
    assert digest != changed and sum(mine != theirs for mine, theirs in zip(one, two)) == 1
    said = in_fork("diff", "tuned", "other", "--exit-code", code=1)[0]
    assert "0 added, 0 removed, 1 changed" in said


def test_a_call_that_nobody_tuned_is_an_error(app: Path) -> None:
    (app / "app.py").write_text(APP.replace("(100, 1000)", "(100, 2000)"))
    with pytest.raises(AssertionError, match="NotTunedError"):
        run(1)
