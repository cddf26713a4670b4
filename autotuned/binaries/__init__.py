"""Compiled kernels beside config files: the file, who may give code, building, loading; `serve.py` first."""
