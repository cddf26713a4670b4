"""This user's tuning records on disk, and the locks and logs of searches; `records.py` first."""
