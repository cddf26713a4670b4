"""Change what a running process launches: newer choices, another GPU; `refresh.py` first."""
