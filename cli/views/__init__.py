"""The page that `report` writes, its plots, and names that shells complete; `page.py` first."""
