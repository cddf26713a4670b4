"""Source files taken apart once for all tests that read them: that takes most of the time of each."""

import ast
import functools
from pathlib import Path


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """A file's syntax tree, which nobody changes."""
    return ast.parse(path.read_text())


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All of its nodes."""
    return (*ast.walk(tree_of(path)),)
