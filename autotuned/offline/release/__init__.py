"""Make config files ready to ship: export, check, compress, prune, push and pull; `export.py` first."""
