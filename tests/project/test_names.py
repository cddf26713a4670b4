"""Comments and docstrings name modules and what is in them as they are called today."""

from __future__ import annotations

import ast
import functools
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from trees import nodes_of

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted([*(ROOT / "autotuned").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])
QUALIFIED = re.compile(r"`([a-z_]\w\w+)\.([A-Za-z_]\w*)[^`\n]*`")  # what is shorter is an example of a variable
OTHERS = {"autotuned", "torch", "triton", "numpy", "cupy", "knobs", "sitecustomize", "pkg", "app", "call", "self"}
FILE_SUFFIXES = {"py", "c", "json", "jsonl"}
PARTS = (ast.FunctionDef, ast.ClassDef, ast.Name, ast.Attribute, ast.arg, ast.alias, ast.keyword)


@functools.cache
def words_of(path: Path) -> frozenset[str]:
    """Every name in the code of a file: defined, imported, read or passed."""
    found: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, PARTS):
            word = getattr(node, "name", None) or getattr(node, "id", None) or getattr(node, "attr", None)
            found.update((word or node.arg or "").split("."))
    return frozenset(found)


@functools.cache
def modules() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in FILES:
        for name in {path.stem, path.parent.name}:
            found.setdefault(name, set()).update(words_of(path))
    return found


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        is_docstring = token.type == tokenize.STRING and token.string.lstrip("r").startswith('"""')
        if token.type == tokenize.COMMENT or is_docstring:
            yield token.start[0], token.string


def test_prose_names_what_there_is() -> None:
    known, others = modules(), OTHERS | set(sys.stdlib_module_names)
    wrong = []
    for path in [path for path in FILES if QUALIFIED.search(path.read_text())]:
        for line, text in prose_of(path):
            for first, second in QUALIFIED.findall(text):
                is_here = second in known.get(first, ()) or (first not in known and first in words_of(path))
                if not (is_here or second in FILE_SUFFIXES or first in others):
                    wrong.append(f"{path}:{line}: `{first}.{second}`")
    assert not wrong


def test_helpers_of_the_tests_have_names_of_their_own() -> None:
    """They are imported by name from folders that lie on the path together: of two that are alike, one is hidden."""
    folders = ("acceptance", "bench", "support")
    names = [path.name for folder in folders for path in sorted((ROOT / "tests" / folder).glob("*.py"))]
    assert sorted(names) == sorted(set(names))
