"""All use of Triton's private names; `kernel.py` first."""
