"""Keep the caller's data, and wrong results out, while configs are tried; `protection.py` first."""
