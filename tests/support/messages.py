"""All messages that the sources raise or warn with, collected from their text."""

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trees import nodes_of

ROOT = Path(__file__).resolve().parents[2]
FILES = [*sorted((ROOT / "autotuned").rglob("*.py")), *sorted((ROOT / "cli").rglob("*.py"))]
WARNINGS = {"exception", "warn_once", "warning", "_say_once"}
# Other sources of messages than exception classes and warnings: functions that return an exception.
MAKERS = {
    "BadParameter", "cannot_write", "fail", "refusal", "refuse", "wrong", "_call_error", "_error", "_not_tuned",
    "_too_late",
}  # fmt: skip
KNOWN = "<the names there are>"  # the text added by `suggestion`: the nearest name, or all


@dataclass(frozen=True)
class Message:
    """One message as in the source, with `{}` for inserted values."""

    file: str
    line: int
    maker: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def is_warning(self) -> bool:
        return self.maker in WARNINGS


@functools.cache
def messages() -> tuple[Message, ...]:
    """All messages, in the order of files and lines."""
    return tuple(message for path in FILES for message in _of_file(path))


def _of_file(path: Path) -> Iterator[Message]:
    nodes = nodes_of(path)
    texts, named = _assigned(nodes), set()
    for node in nodes:
        if isinstance(node, ast.Call) and (maker := _name(node.func)) and _makes(maker):
            words = [_template(argument, texts) for argument in node.args]
            words = [word for word in words if re.search(r"[a-z]{3}", word.replace("{}", ""))]
            # The other arguments of a warning are the name under which it is logged once, and inserted values.
            text = max(words, key=len, default="") if maker in WARNINGS else " | ".join(words)
            if text and text not in named:
                named |= {text} & set(texts.values())  # defined once, used in several places
                yield Message(path.relative_to(ROOT).as_posix(), node.lineno, maker, text)


def _makes(name: str) -> bool:
    return name in MAKERS | WARNINGS or (name.endswith("Error") and name[:1].isupper())


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Names that a file assigns to a single text, for use in messages."""
    found: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, set()).add(_template(node.value, {}))
    return {name: next(iter(texts)) for name, texts in found.items() if len(texts) == 1}


def _template(node: ast.expr, texts: dict[str, str]) -> str:
    match node:
        case ast.Constant(value=str(value)):
            return re.sub(r"%[-.\d]*[sdrfg]", "{}", value)
        case ast.JoinedStr(values=values):
            return "".join(_template(value, texts) for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _template(left, texts) + _template(right, texts)
        case ast.Name(id=name):
            return texts.get(name, "{}")
        case ast.Call() if _name(node.func) == "suggestion":
            return KNOWN
    return "{}"
