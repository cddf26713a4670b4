"""Triton's private names, here and nowhere else; `kernel.py` first, for compiled kernels `compiled.py`."""
