"""No test asserts how long something took: a count, or a comparison within the run, says the same on a busy machine."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FILES = sorted(path for path in TESTS.rglob("*.py") if path.parent.name != "bench")  # scripts that measure
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time", "now", "utcnow"}
CLOCKS |= {f"{name}_ns" for name in CLOCKS}
STAMPS = {"st_mtime", "st_mtime_ns", "st_atime", "st_ctime"}  # of files, from the same clock
TIMERS = {"timeit", "autorange", "elapsed_time"}  # answer how long something took
ASKED = re.compile(rf"\b(?:{'|'.join(CLOCKS | TIMERS)})\(|{'|'.join(STAMPS)}")
GATHERS = {"append", "extend", "add", "insert"}


def faults(tree: ast.AST) -> Iterator[int]:
    """Lines of the assertions on a clock, and of strings that hold a program with one."""
    clock, inside_loops = Clock(tree), inside(tree, ast.While)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and (
            clock.limits(node.test) or (clock.is_asked(node.test) and node not in inside_loops)
        ):
            yield node.lineno
        elif program := program_in(node):
            yield from (node.lineno for _ in faults(program))


class Clock:
    """What a clock says in a module: moments, and how long something took.

    Both are followed by name through the whole module: assignments, attributes, lists, loops, and what functions return.
    """

    def __init__(self, tree: ast.AST) -> None:
        self._flows = list(flows(tree))
        self._moments: set[str] = set()
        self._spans: set[str] = set()
        self._follow(self._moments, self._is_moment)
        self._follow(self._spans, self._holds_span)

    def limits(self, node: ast.AST) -> bool:
        """Whether a condition says how long something may take: both sides may be times of this run, or none."""
        compared = [part for part in ast.walk(node) if isinstance(part, ast.Compare)]
        if not compared:
            return self._holds_span(node)
        sides = [{self._holds_span(side) for side in (part.left, *part.comparators)} for part in compared]
        return {True, False} in sides

    def is_asked(self, node: ast.AST) -> bool:
        """Whether a condition reads a clock. A loop may: a limit ends it if what it waits for never comes."""
        return any(map(is_clock, ast.walk(node)))

    def _follow(self, names: set[str], is_one: object) -> None:
        while found := {name for name, value in self._flows if is_one(value)} - names:  # type: ignore[operator]
            names |= found

    def _is_moment(self, node: ast.AST) -> bool:
        if isinstance(node, ast.BinOp):  # a limit, or a time in the past
            return self._is_moment(node.left) != self._is_moment(node.right)
        if isinstance(node, (ast.Tuple, ast.Call)) and not is_clock(node):
            return any(map(self._is_moment, node.elts if isinstance(node, ast.Tuple) else node.args))
        return is_clock(node) or name_of(node) in self._moments | STAMPS

    def _holds_span(self, node: ast.AST) -> bool:
        if isinstance(node, ast.BinOp):
            sides = [node.left, node.right]
            if isinstance(node.op, ast.Sub) and all(map(self._is_moment, sides)):
                return True
            if isinstance(node.op, ast.Div) and all(map(self._holds_span, sides)):
                return False  # how many times as long
        if isinstance(node, ast.Dict):
            return False  # its keys are followed
        if isinstance(node, ast.Constant):
            return node.value in self._spans
        if name_of(node) in self._spans or (isinstance(node, ast.Call) and name_of(node.func) in TIMERS):
            return True
        return any(map(self._holds_span, ast.iter_child_nodes(node)))


def name_of(node: ast.AST) -> str:
    """What a value is known by: a name, an attribute, what is called or indexed."""
    while isinstance(node, (ast.Call, ast.Subscript, ast.Starred)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def is_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and name_of(node) in CLOCKS


def flows(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Each name, and a value that it may have."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from ((name, node.value) for target in node.targets for name in names_in(target))
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value:
            yield from ((name, node.value) for name in names_in(node.target))
        elif isinstance(node, (ast.For, ast.comprehension)):
            yield from ((name, node.iter) for name in names_in(node.target))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in GATHERS:
            yield from ((name_of(node.func.value), value) for value in node.args)
        elif isinstance(node, ast.FunctionDef):
            own = ast.walk(node)
            yield from ((node.name, part.value) for part in own if isinstance(part, ast.Return) and part.value)
        elif isinstance(node, ast.Dict):
            yield from (
                (key.value, value) for key, value in zip(node.keys, node.values) if isinstance(key, ast.Constant)
            )


def names_in(target: ast.AST) -> set[str]:
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    return {name_of(part) for part in parts} - {""}


def inside(tree: ast.AST, kind: type[ast.AST]) -> set[ast.AST]:
    return {child for node in ast.walk(tree) if isinstance(node, kind) for child in ast.walk(node)}


def program_in(node: ast.AST) -> ast.AST | None:
    """A program that a test writes or starts; what is put into it is left out."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    text = "".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in parts)
    if "assert" not in text or not isinstance(node, (ast.JoinedStr, ast.Constant)):
        return None
    try:
        return ast.parse(text)
    except SyntaxError:
        return None


def test_no_test_asserts_how_long_something_took() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in FILES}
    lines = {path: sorted(set(faults(ast.parse(text)))) for path, text in texts.items() if ASKED.search(text)}
    wrong = {path: found for path, found in lines.items() if found}
    assert not wrong, f"these lines assert on a clock: {wrong}. Count what was done, or compare with a control."


START = "start = time.monotonic()"
TOOK = f"{START}\ntook = time.monotonic() - start"
CONDITIONS = {  # what was done before, the condition that is asserted, and whether it is one on a clock
    "a difference": (START, "time.monotonic() - start < 5", True),
    "a name": (TOOK, "took < 5", True),
    "imported by itself": ("start = perf_counter()", "perf_counter() - start < 5", True),
    "a list": (f"{TOOK}\nrounds.append(took)", "sorted(rounds)[0] < 1e-4", True),
    "a function": ("def f():\n    start = time.time()\n    return time.time() - start", "f() < 1", True),
    "a loop": (f"{TOOK}\nrounds = [took]", "all(one < 1 for one in rounds)", True),
    "an attribute": ("self.start = time.time()\nself.took = time.time() - self.start", "one.took < 3", True),
    "of a file": ("", "time.time() - path.stat().st_mtime < 60", True),
    "above another": (TOOK, "took - plain < 10", True),
    "a lower limit": (TOOK, "took > 0.2", True),
    "timeit": ("", "timeit.timeit(f) < 1", True),
    "of an event": ("", "start.elapsed_time(end) < 1", True),
    "a limit, once": ("end = time.monotonic() + 3", "time.monotonic() < end", True),
    "an answer": (f"{TOOK}\nanswer = {{'seconds': took}}", "answer['seconds'] < 1", True),
    "beside a control": (TOOK, "took < 2 * took and took < 5", True),
    "a control": (f"{TOOK}\nplain = time.monotonic() - start", "took < 2 * plain", False),
    "a ratio": (f"{TOOK}\nplain = time.monotonic() - start", "took / plain < 2", False),
    "a count": (TOOK, "count < 5", False),
    "a clock that is played": ("now = [0.0]", "now[0] - 1 < 5", False),
    "a time in the past": ("then = time.time() - 86400", "kept(then) == [1]", False),
    "a file that is left alone": ("before = path.stat().st_mtime", "path.stat().st_mtime == before", False),
}


@pytest.mark.parametrize("program", ["{}\n{}", "P = f'''{}\n{} or {{x}}'''"], ids=["a test", "a program in a string"])
def test_what_is_an_assertion_on_a_clock(program: str) -> None:
    found = {}
    for name, (before, condition, _) in CONDITIONS.items():
        if program.startswith("P"):
            before = before.replace("{", "{{").replace("}", "}}")
        text = program.format(before, f"assert {condition}")
        found[name] = bool(list(faults(ast.parse(text))))
    assert found == {name: is_fault for name, (_, _, is_fault) in CONDITIONS.items()}


def test_a_limit_that_ends_a_wait_is_none() -> None:
    wait = "end = time.monotonic() + 3\nwhile not done():\n    {} time.monotonic() < end".format("assert")
    assert not list(faults(ast.parse(wait)))
