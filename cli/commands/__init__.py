"""One file a command: arguments in, one call of the library, words out; `list.py` first."""
