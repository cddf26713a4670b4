"""Processes by number."""

import time
from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie: in a container nobody may wait for orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def has_ended(pid: int) -> bool:
    """Whether a process that was asked to end does, within 10 s."""
    return any(not is_running(pid) or time.sleep(0.05) for _ in range(200))
