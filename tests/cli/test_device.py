"""What `tune` tunes on: a GPU or the interpreter, decided before Triton is imported."""

import json
import os
import subprocess
import sys

import forked
import pytest
from commands import error as _error
from commands import in_fork as _in_fork
from commands import in_process as _in_process
from commands import run as _run
from given import Write
from given import work as _work

pytestmark = pytest.mark.usefixtures("wide_output")

KERNEL = """
import torch, triton, triton.language as tl
from autotuned import Config, autotune

@autotune(configs=[Config({"BLOCK": 16}), Config({"BLOCK": 32})], key=["n"])
@triton.jit
def add(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)

@add.case
def cases(device):
    x = torch.zeros(32, device=device)
    yield {"args": (x, torch.zeros_like(x), 32), "grid": lambda meta: (triton.cdiv(32, meta["BLOCK"]),)}
"""
WHO = """
if __name__ == "__main__":
    [case] = cases("cpu")
    call = add.tuner.call(case["args"], {}, case["grid"])
    print(add.tuner.tunable.name, add.tuner.chooser.key(call).digest)
"""


def test_a_kernel_is_tuned_in_the_interpreter_and_has_one_name_on_every_way(write: Write) -> None:
    write("pkg_ways/__init__.py", "")
    path = write("pkg_ways/kernels.py", KERNEL + WHO)
    seen = []
    first = _in_process("tune", str(path), "--json", AUTOTUNED_DEVICE="interpreter", TRITON_INTERPRET="")
    for out, err in (first, _in_fork("tune", "pkg_ways.kernels", "--json", TRITON_INTERPRET="1")):
        data = json.loads(out)
        [row] = data["cases"]
        assert data["device"] == "interpreter" and row["device"] == "cpu-interpreter" and "Traceback" not in err
        seen.append((row["kernel"], row["digest"], row["source"]))
    assert [source for *_, source in seen] == ["measured", "stored"]
    script = forked.run([sys.executable, path], env={**os.environ, "TRITON_INTERPRET": "1"}, check=True)
    assert {tuple(script.stdout.split()), *((name, digest) for name, digest, _ in seen)} == {
        ("pkg_ways.kernels.add", seen[0][1])
    }


def test_torch_does_not_import_triton() -> None:
    # `tune` looks for a GPU with torch and can still choose the interpreter afterwards.
    code = "import sys, torch; torch.cuda.is_available(); sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_gpu_that_is_asked_for_must_be_there(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNED_DEVICE", "cuda")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "expected a GPU to tune on, and TRITON_INTERPRET is set" in _error("tune", _work(write))
    monkeypatch.setenv("AUTOTUNED_DEVICE", "gpu")
    assert "AUTOTUNED_DEVICE: expected one of cuda, interpreter" in _run("tune", "mod_work", code=2).stderr


@pytest.mark.parametrize(
    ("asked", "interpret", "gpu", "chosen"),
    [("", "", True, "cuda"), ("", "1", True, "interpreter"), ("", "", False, "interpreter"), ("cuda", "", True, "cuda"),
     ("interpreter", "", True, "interpreter")],
)  # fmt: skip
def test_the_device_is_decided_before_triton_is_imported(
    monkeypatch: pytest.MonkeyPatch, asked: str, interpret: str, gpu: bool, chosen: str
) -> None:
    from autotuned.offline import device

    monkeypatch.setenv("AUTOTUNED_DEVICE", asked)
    monkeypatch.setenv("TRITON_INTERPRET", interpret)
    monkeypatch.setattr(device, "_has_gpu", lambda: gpu)
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    assert device.use_device() == chosen
    assert (os.environ["TRITON_INTERPRET"] == "1") == (chosen == "interpreter")


def test_a_triton_that_is_there_already_is_too_late(monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
    monkeypatch.setenv("AUTOTUNED_DEVICE", "interpreter")
    monkeypatch.setenv("TRITON_INTERPRET", "")
    monkeypatch.setitem(sys.modules, "triton", sys)
    monkeypatch.setattr("autotuned.env._chose_interpreter", False)
    assert "Triton was imported before" in _error("tune", "mod")
