"""The page that `report` writes, its plots, and completion of names in shells; `page.py` first."""
