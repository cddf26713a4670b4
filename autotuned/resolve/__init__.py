"""Which config a call gets that the launch table does not know; `resolve/tuner.py` first."""
