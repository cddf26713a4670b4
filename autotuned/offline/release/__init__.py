"""Prepare config files for shipping: export, check, compress, prune, push and pull; `export.py` first."""
