"""When two calls are the same: keys, of a call, its tensors and the kernel's source; `key.py` first."""
