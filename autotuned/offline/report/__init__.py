"""Listings, reports and comparisons of stored choices; `report.py` first."""
