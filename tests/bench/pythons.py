"""Cost of the C launcher in each Python: before 3.12 it compares versions, since dictionaries cannot be watched.

Needs no GPU, torch or Triton: `python tests/bench/pythons.py PYTHON...`, with a C compiler and the Pythons to compare.
A stand-in (`standin.c`) replaces torch and the driver, so that only the launcher is timed: with three tensors and an
integer, by tuple and by grid callable. Shows the minimum of many short rounds of each Python in turn.
"""

import json
import subprocess
import sys
import sysconfig
import tempfile
import time
import weakref
from pathlib import Path
from types import ModuleType, SimpleNamespace

HERE = Path(__file__).resolve().parent
NAMES = ("a", "b", "out", "n")
ROUNDS, CALLS, TIMES = 400, 200, 5


def build(folder: Path) -> None:
    """Build both extensions for this Python, as setuptools would."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    flags = ["-O3", "-DNDEBUG", "-shared", "-fPIC", "-I", sysconfig.get_path("include")]
    launcher = HERE.parent.parent / "autotuned" / "launch" / "c" / "module.c"
    for name, source in (("standin", HERE / "standin.c"), ("_launch", launcher)):
        subprocess.run(["cc", *flags, source, "-o", folder / f"{name}{suffix}", "-ldl"], check=True)


class Compiled:
    """A kernel in Triton's cache."""


def bound_kernel(launch: ModuleType, standin: ModuleType):
    """A kernel as from `Tuned`, bound for one call, with the dictionaries that a bound kernel relies on."""
    compiled, knobs, compilation, scope = Compiled(), {"debug": None}, {"mode": ""}, {"SCALE": 2}
    cache = {"key": compiled}

    class Kernel(launch.Base):
        def _still_ours(self):
            return True

        def _slow_run(self, args, kwargs, grid, warmup):
            raise AssertionError("expected a hit")

    def holds():
        return True

    table = launch.Table(NAMES, 4, {}, (0, 0, 0, 2), {}, (), lambda: 0)
    kernel = Kernel()
    kernel.configs = ["config"]
    kernel._attach(table)
    watched = (cache, knobs, compilation, scope)
    for one in (*watched, Compiled):
        launch.watch(one)
    constants = {**dict.fromkeys(NAMES), "BLOCK": 1024}
    direct = (
        weakref.ref(compiled),
        1,
        128,
        0,
        "ppp4",
        (),
        cache,
        "key",
        [],
        [],
        [],
        holds,
        constants,
        watched,
        1,
        None,
        {},
        (),
        0,
    )
    values = (*(standin.Tensor(4096 * i, 4096) for i in range(1, 4)), 4096)
    assert table.bind(values, SimpleNamespace(config="config", before=None, direct=direct, run=None))
    return kernel, values, cache


def best_us(call) -> float:
    """Minimum of `ROUNDS` rounds of `CALLS` calls, each far shorter than a time slice."""
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        found.append((time.perf_counter() - start) / CALLS * 1e6)
    return min(found)


def measure() -> dict:
    """The rows of this Python."""
    with tempfile.TemporaryDirectory() as name:
        build(Path(name))
        sys.path.insert(0, name)
        import _launch
        import standin

        torch, parameter = ModuleType("torch"), ModuleType("torch.nn.parameter")
        torch.Tensor, parameter.Parameter = standin.Tensor, type("Parameter", (), {})
        sys.modules.update({"torch": torch, "torch.nn.parameter": parameter})
        _launch.use_driver(*standin.driver())
        kernel, (a, b, out, n), keep = bound_kernel(_launch, standin)

        def grid(meta):
            return ((meta["n"] + meta["BLOCK"] - 1) // meta["BLOCK"],)

        sizes = (4, 1, 1)
        assert kernel[sizes](a, b, out, n) is keep["key"]
        return {
            "tuple grid": best_us(lambda: kernel[sizes](a, b, out, n)),
            "grid callable": best_us(lambda: kernel[grid](a, b, out, n)),
            "an empty call": best_us(lambda: None),
        }


def main() -> None:
    """Run each Python several times in turn; print the minimum of each row."""
    found: dict = {}
    for _ in range(TIMES):
        for python in sys.argv[1:] or [sys.executable]:
            command = [python, __file__, "--measure"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            version, rows = json.loads(done.stdout)
            best = found.setdefault(version, rows)
            found[version] = {name: min(us, best[name]) for name, us in rows.items()}
    for version, rows in found.items():
        print(f"Python {version:8s}", "  ".join(f"{name} {us:.3f} us" for name, us in rows.items()))


if __name__ == "__main__":
    if sys.argv[1:] == ["--measure"]:
        print(json.dumps([sys.version.split()[0], measure()]))
    else:
        main()
