"""From a call to its kernel: the table of bound kernels and the launcher, in Python and in C; `table.py` first."""
