"""What whoever has no C compiler gets: everything, and a line that says so."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import forked
import pytest

ROOT = Path(__file__).parents[2]
CPYTHON = {"-DPy_GIL_DISABLED_HERE": '#define Py_GIL_DISABLED 1\n#include "cpython.h"\n#undef Py_GIL_DISABLED'}

WITHOUT_C = """
import sys

sys.modules["autotuned._launch"] = None  # as where no C compiler was when the package was built
import torch
import triton
import triton.language as tl
from autotuned import Config, autotune, heuristics
from autotuned.launch import launcher as launch


@heuristics({"TWICE": lambda args: args["n"] > 50})
@autotune([Config({"BLOCK": 16}), Config({"BLOCK": 32})], key=["n"])
@triton.jit
def add(x, n, TWICE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + (2 if TWICE else 1), mask=i < n)


x = torch.zeros(100)
for _ in range(3):
    add[(7,)](x, 100)  # no callable: in Triton 3.6 the interpreter hands it tensors of its own
print(x.unique().tolist(), add.fn.cache_info().hits, add.fn.tuner.launcher.name, *launch.in_use())
"""


def test_without_the_extension_everything_works_and_says_so(tmp_path):
    path = tmp_path / "without_c.py"
    path.write_text(WITHOUT_C)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "AUTOTUNED_CACHE_DIR": str(tmp_path / "store")}
    done = forked.run([sys.executable, path], env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[6.0] 2 python python the C extension is missing (")


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("-DAUTOTUNED_PYTHON_HEX=0x030E0000", "the C launcher was tried with Python 3.10 to 3.13 only"),
        ("-DPy_GIL_DISABLED_HERE", "the C launcher needs the interpreter lock"),
    ],
    ids=["newer", "free-threaded"],
)
def test_in_a_python_that_it_does_not_know_the_launcher_steps_aside(flag, words, tmp_path):
    """Built here as for that Python: it refuses to be imported, and one line says so."""
    folder = ROOT / "autotuned" / "launch" / "c"
    source = (
        (folder / "module.c").read_text().replace('#include "cpython.h"', CPYTHON.get(flag, '#include "cpython.h"'))
    )
    (tmp_path / "module.c").write_text(source)
    built = tmp_path / f"_launch{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = ["-I", sysconfig.get_path("include"), "-I", folder]
    flags = ["-Wall", "-Werror", "-Wno-missing-field-initializers", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, flag, *include, tmp_path / "module.c", "-o", built], check=True)
    script = f"""
import importlib.util, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "autotuned._launch":
            return importlib.util.spec_from_file_location(name, {str(built)!r})

sys.meta_path.insert(0, Finder())
from autotuned import _native
import autotuned.launch.launcher as launch
print(*launch.in_use())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("python the C extension is missing (" + words)
    assert done.stderr.count("\n") == 1 and f"Launches go through the Python twin: {words}" in done.stderr
