"""Tune, check and warm up outside of the application: targets, cases, replayed calls; `tuning.py` first."""
