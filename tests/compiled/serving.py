"""One process of `test_binaries.py`: serves a kernel from shipped binaries where nothing can be compiled.

It counts the function calls, of Python and of C, of each launch, on a machine where time says little.
"""

import json
import sys

import no_compiler
import pytest
import torch

import autotuned


def main(folder):
    """Launch two sizes twice, and print what was counted."""
    with pytest.MonkeyPatch.context() as patch:
        no_compiler.pretend(patch)
        autotuned.register_configs(folder, binaries=True)
        from shipped_kernel import add

        calls = []
        for n in (96, 100, 96, 100):
            x, seen = torch.zeros(n), [0]
            sys.setprofile(lambda frame, event, argument, seen=seen: seen.append(event in ("call", "c_call")))
            kernel = add[(4,)](x, x, n, 1)
            sys.setprofile(None)
            calls.append(sum(seen))
        info = add.cache_info()
        print(json.dumps({"hits": info.hits, "searches": info.searches, "name": kernel.name, "calls": calls}))


if __name__ == "__main__":
    main(sys.argv[1])
