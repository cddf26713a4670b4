"""The shared store: read at a miss, written in the background, with leases for searches; `client.py` first."""
