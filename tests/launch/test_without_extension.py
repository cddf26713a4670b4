"""What whoever has no C compiler gets: everything, and a line that says so."""

import os
import subprocess
import sys

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
    done = subprocess.run([sys.executable, path], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[6.0] 2 python python the C extension is not there (")
