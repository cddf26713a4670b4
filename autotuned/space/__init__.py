"""Declared spaces of configs, and the strategies that choose what to try in them; `space.py` first."""
