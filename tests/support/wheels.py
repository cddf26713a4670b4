"""Builds the wheel and the source distribution of this checkout, without network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def build_wheel(source_distribution: Path, folder: Path) -> Path:
    """Build a wheel from a source distribution."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder]
    subprocess.run([*command, source_distribution], check=True, capture_output=True, text=True)
    return next(folder.glob("*.whl"))


def build_source_distribution(source: Path, folder: Path) -> Path:
    """Build the source distribution of a checkout, without stray files."""
    for name in ("autotuned", "cli", "configs"):
        copy_sources(ROOT / name, source / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, folder], cwd=source, check=True, capture_output=True, text=True)
    return next(folder.glob("*.tar.gz"))


def copy_sources(source: Path, target: Path) -> None:
    """Copy all files except those that running creates."""
    for path in source.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".so", ".pyc"):
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (target / path.relative_to(source)).write_bytes(path.read_bytes())
