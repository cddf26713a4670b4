"""Choose the config of a call that misses the launch table; `tuner.py` first."""
