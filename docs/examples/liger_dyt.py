"""Put `@autotuned.autotune` over the two kernels of Liger's DyT, as one who maintains it would try this package.

    PYTHONPATH=docs/examples python -m pytest -p liger_dyt test/transformers/test_dyt.py

runs Liger's own tests (from a checkout of Liger) over the changed kernels; importing this module changes them.
"""

from liger_kernel.ops import dyt

import autotuned

for name in ("_dyt_fwd_kernel", "_dyt_bwd_kernel"):
    theirs = getattr(dyt, name)
    ours = autotuned.autotune(theirs.configs, key=theirs.keys, reset_to_zero=theirs.reset_to_zero or None)
    setattr(dyt, name, ours(theirs.fn))
