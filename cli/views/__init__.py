"""What several commands show: stored choices, usage, speedups, the report's page; `stored.py` first."""
