"""GPUs: their identity in keys, which there are, which may be used, their clocks; `gpu/device.py` first."""
