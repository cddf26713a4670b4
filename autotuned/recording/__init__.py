"""Write down calls and make them again: recorder, file, arguments, grids; `recorder.py` first."""
