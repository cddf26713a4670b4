"""Which file system a path lies on: on a network one locks may not work."""

from __future__ import annotations

import os
from pathlib import Path

_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "panfs", "pvfs2")
_LOCAL_FUSE = ("fuse.fuse-overlayfs", "fuse.overlayfs", "fuse.lxcfs", "fuse.ntfs", "fuse.ntfs-3g", "fuse.exfat")
_MOUNTS = Path("/proc/self/mountinfo")


def network_file_system(path: Path) -> str:
    """The type of the network file system that a path lies on, such as "nfs4"; "" if it is local or not known."""
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        place = os.path.realpath(path)
    except OSError:
        return ""
    kinds = dict(map(_mount, filter(None, mounts)))  # of two on one point the later hides the other
    kind = kinds.get(max((point for point in kinds if _is_below(place, point)), key=len, default=""), "")
    return kind if kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE) else ""


def _mount(line: str) -> tuple[str, str]:
    """Mount point and type in a line of mountinfo, whose optional fields end with a lone dash."""
    fields, _, rest = line.partition(" - ")
    point = fields.split(" ")[4]
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(code, letter)
    return point, rest.split(" ")[0]


def _is_below(place: str, point: str) -> bool:
    return place == point or place.startswith(point.rstrip("/") + "/")
