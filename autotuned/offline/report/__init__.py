"""What is stored and what it is worth: listings, reports, two of them side by side; `report.py` first."""
