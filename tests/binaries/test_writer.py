"""Binaries beside config files: what is there stays."""

import errno
from pathlib import Path
from typing import Any

import made_binaries
import pytest

from autotuned import disk
from autotuned.binaries import writer
from autotuned.errors import BinaryError


def test_a_file_that_the_system_does_not_let_us_read_is_not_replaced(tmp_path: Path, monkeypatch: Any) -> None:
    path = made_binaries.ship(tmp_path)
    before, read = (path.read_bytes(), path.with_suffix(".bin").read_bytes()), disk.read_bytes

    def refused(at: Any, *args: Any) -> bytes:
        if Path(at).suffix == ".bin":
            raise OSError(errno.EIO, "Input/output error")
        return read(at, *args)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "read_bytes", refused)
        with pytest.raises(BinaryError, match="Input/output error"):
            writer.ship(path, {})
    assert (path.read_bytes(), path.with_suffix(".bin").read_bytes()) == before


def test_a_damaged_file_is_rebuilt(tmp_path: Path) -> None:
    path = made_binaries.ship(tmp_path)
    path.with_suffix(".bin").write_bytes(b"damaged")
    writer.ship(path, {})
    assert "compiled" not in path.read_text() and not path.with_suffix(".bin").exists()
