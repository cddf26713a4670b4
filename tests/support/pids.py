"""Processes by number."""

from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie: in a container nobody may wait for orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
