"""Measure candidates and pick one: compile, protect the user's data, race, check; `search.py` first."""
