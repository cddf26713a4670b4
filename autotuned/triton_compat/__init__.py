"""Triton's private names, here and nowhere else; `kernel.py` first."""
