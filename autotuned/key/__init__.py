"""Keys, which decide when two calls are the same: of call, tensors and the kernel's source; `key.py` first."""
