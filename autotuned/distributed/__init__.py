"""One choice for all ranks of a distributed job; `agreement.py` first."""
