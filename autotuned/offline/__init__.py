"""Tune, check and warm up outside the application: targets, cases, replayed calls; `tuning.py` first."""
