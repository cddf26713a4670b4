"""`autotuned compress`: what it says, its exit codes, and wrong usage."""

import json
from types import SimpleNamespace

import pytest
from autotuned.cli.commands import compress
from commands import run, run_json
from fakes import make_key
from ruled import TUNED, files, keep, keep_all, key

from autotuned.store import layout


def test_it_says_what_came_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    keep_all()
    done = run("compress", str(layout.kernel_folder("app.k")), "--within", "5%", "--out", str(tmp_path / "few"))
    assert "80 calls, 2 configs, as before, worst loss 0.0%" in done.stdout
    assert "M: a rule of 2 leaves serves 100% of the left-out calls" in done.stdout
    assert f"wrote {tmp_path / 'few'}" in done.stdout


def test_what_keeps_its_config_is_named(tmp_path):
    keep_all()
    files(tmp_path)
    data = run_json(
        "compress", tmp_path / "few", "--within", "0.05", "--max-configs", "1", "--out", tmp_path / "one", code=3
    )
    assert len(data["left"]) == len([m for m in TUNED if m % 64 == 0]) and data["kernels"][0]["exact"]


def test_wrong_usage_is_two(tmp_path):
    keep(64)
    folder = str(layout.record_path(key(64)).parent)
    done = run("compress", folder, "--within", "some", "--out", str(tmp_path / "few"), code=2)
    assert "--within" in done.stderr and "expected a share above 0" in done.stderr
    done = run("compress", folder, "--within", "5%", "--max-configs", "0", "--out", str(tmp_path / "few"), code=2)
    assert "--max-configs" in done.stderr
    assert json.dumps(sorted(path.name for path in tmp_path.iterdir())) == "[]"


@pytest.mark.parametrize(
    ("before", "now", "words"), [(1, 1, "3 calls, 1 config, as before"), (4, 2, "3 calls, 2 configs instead of 4")]
)
def test_counts_are_said_in_words(before, now, words):
    context = {"device": make_key(1).context["device"]}
    kernel = SimpleNamespace(
        kernel="k", context=context, calls=3, before=before, configs=range(now), is_exact=True, least=now, worst=0.0
    )
    assert f": {words}, worst loss 0.0%" in compress._words(kernel)
