"""This user's tuning records on disk, with the locks and logs of searches; `records.py` first."""
