"""Protect the caller's data, and reject wrong results, while configs are tried; `protection.py` first."""
