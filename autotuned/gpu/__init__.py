"""GPUs: their identity in keys, which there are, which may be used, their clocks; `device.py` first."""
