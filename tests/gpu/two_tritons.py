"""One call under one Triton: tune or be served, print how it was answered, and fail where that is not as expected.

Usage: two_tritons.py {searched|stored} {none|hit|VERSION}   (what answers, and what `explain` says of it before)
"""

from __future__ import annotations

import os
import sys

import torch
import triton
import triton.language as tl

import autotuned

CONFIGS = [autotuned.Config({"BLOCK": block}) for block in (128, 256)]
N = 4096


@autotuned.autotune(CONFIGS, key=["n"], name="two_tritons.add")
@triton.jit
def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


def grid(meta):
    return (triton.cdiv(N, meta["BLOCK"]),)


def main(answer: str, before: str) -> None:
    """Explain, launch, compare."""
    device = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
    x, y = torch.arange(N, device=device, dtype=torch.float32), torch.zeros(N, device=device)
    found = add.explain(x, y, N, grid=grid)
    print(f"-- Triton {triton.__version__}\n{found}")
    if before == "none":
        assert (found.reason, found.answer, found.nearest) == ("absent", "search", None), found
    elif before == "hit":
        assert (found.reason, found.answer) == ("hit", "store"), found
    else:
        assert before != triton.__version__, "expected two versions of Triton, got one twice"
        assert (found.reason, found.answer) == ("other toolchain", "search"), found
        changed = {change.path: (change.theirs, change.ours) for change in found.changes}
        assert changed.pop("context.triton") == (before, triton.__version__), found
        assert "context.triton_key" in changed, found
        assert all(path.startswith(("context.triton", "context.ptxas", "context.environment")) for path in changed)
    add[grid](x, y, N)
    assert add.cache_info().searches == (answer == "searched"), add.cache_info()
    assert torch.equal(y, x + 1)
    print(f"-- {answer}: {add.best_config}")


if __name__ == "__main__":
    main(*sys.argv[1:])
