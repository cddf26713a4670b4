"""Choices that ship as JSON: reading, look-up, what serves on another machine or shape, writing; `file.py` first."""
