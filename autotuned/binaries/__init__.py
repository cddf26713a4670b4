"""Compiled kernels that ship beside config files: the file, who may give code, loading without Triton's compiler."""
