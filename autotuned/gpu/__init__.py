"""GPUs: their identity in keys, inventory, visibility and clocks; `device.py` first."""
