"""Triton as decorating and keys see it, against the real one."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

from autotuned.launch import codegen
from autotuned.triton_compat import compiled, kernel, launcher


@pytest.mark.parametrize("what", ["as it is", "scratch", "gsan", "patched", "unknown", "computes", "another class"])
def test_tritons_launcher_is_passed_over_only_where_it_passes_things_on(what, monkeypatch):
    """What reaches the function in C is what Triton's own launcher gives it."""
    pytest.importorskip("torch")
    import fake_cuda

    fake_cuda.install(monkeypatch)
    calls = []
    run = fake_cuda.tritons_launcher(lambda *given: calls.append(given))
    if what == "scratch":
        run.global_scratch_size = 64
    elif what == "gsan":
        run.gsan_enabled = True
    elif what == "patched":
        monkeypatch.setattr(type(run), "__call__", lambda self, *given: self.launch(*given))
    elif what == "unknown":
        run.something_new = 1
    elif what == "computes":
        monkeypatch.setattr(compiled.kernel, "is_tritons", lambda function: True)
        monkeypatch.setattr(type(run), "__call__", lambda self, x, *given: self.launch(x + 1, *given))
    elif what == "another class":
        run = type("Launcher", (), {"__call__": lambda self, *given: calls.append(given)})()
    function, leading, one_by_one = launcher.beneath(run, 7, ("packed",), codegen.PLACES)
    assert (function is run) is (what != "as it is")
    assert calls == []
    if function is run:
        return
    x, n = object(), object()
    order, names = ["x", "BLOCK", "n"], ["x", "n"]
    submit = codegen.submitter(names, order, {"BLOCK": 64}, function, leading, one_by_one)
    submit(2, 3, 4, 0x77, (x, n))
    run(2, 3, 4, 0x77, 7, ("packed",), None, None, None, x, 64, n)
    assert calls[0] == calls[1]


def test_the_current_device_is_asked_of_whoever_replaced_torchs_function(monkeypatch):
    """Of torch's own, what it calls is asked directly; once Triton's driver is there, that is asked."""
    torch = pytest.importorskip("torch")
    driver = SimpleNamespace(_active=None, _default=None, active=SimpleNamespace(get_current_device=lambda: 7))
    monkeypatch.setattr(kernel, "_driver", lambda: driver)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 5, raising=False)
    assert kernel.current_device() == 5
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "current_device", lambda: 3)
        assert kernel.current_device() == 3
    driver._active = object()
    assert kernel.current_device() == 7


LOOK = """
import sys, types
from triton.runtime.jit import JITFunction
from autotuned.triton_compat import kernel

def double(x_ptr):
    pass

before = "triton.runtime.interpreter" in sys.modules
there = sys.modules.get("triton.runtime.interpreter")
sys.modules["triton.runtime.interpreter"] = types.ModuleType("interpreter")  # another thread has begun to import it
assert not kernel.is_interpreted(JITFunction(double))
del sys.modules["triton.runtime.interpreter"]
if there is not None:
    sys.modules["triton.runtime.interpreter"] = there
assert not kernel.is_interpreted(JITFunction(double))
assert ("triton.runtime.interpreter" in sys.modules) == before
from triton.runtime.interpreter import InterpretedFunction
assert kernel.is_interpreted(InterpretedFunction(double)) and not kernel.is_interpreted(JITFunction(double))
"""


def test_whether_a_kernel_is_interpreted_is_found_without_importing_the_interpreter(tmp_path):
    """The import takes some 4 ms of a process's first call."""
    (tmp_path / "look.py").write_text(LOOK)
    subprocess.run([sys.executable, str(tmp_path / "look.py")], check=True, timeout=120)
