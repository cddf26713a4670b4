"""Record calls and build them again: recorder, file, arguments, grids; `recorder.py` first."""
