"""Rules from a call's sizes to a config, with their error; `rule.py` first."""
