"""Which config a call gets that the launch table does not know; `tuner.py` first."""
