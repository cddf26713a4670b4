"""Compiled kernels shipped with config files: the file, who may provide code, building, loading; `serve.py` first."""
