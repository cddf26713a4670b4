"""One file per command: parse arguments, call the library once, print the result; `list.py` first."""
