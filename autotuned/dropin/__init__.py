"""`install()`: memory and launches for programs that use `triton.autotune`; `install.py` first."""
