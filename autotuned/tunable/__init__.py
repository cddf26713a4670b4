"""What is tuned: a call bound to its names, a Triton kernel or a plain function, and its configs; `kernel.py` first."""
