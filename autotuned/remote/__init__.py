"""The shared store: asked at a miss, written behind, and who in the fleet searches; `client.py` first."""
