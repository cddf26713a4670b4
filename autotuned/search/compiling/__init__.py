"""Compile configs before their first launch, several at once; `compile.py` first."""
