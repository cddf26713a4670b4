"""Worker processes of an offline session, on this machine or a Ray cluster; `pool.py` first."""
