"""Finds which arguments a Triton kernel reads and writes, from the text of its TTIR."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache


@dataclass(frozen=True)
class AccessByPosition:
    """Which pointer or descriptor arguments, by position among these, are read and written."""

    read: frozenset[int]
    written: frozenset[int]
    count: int


# Effects of operations by name. Unknown operations give None: protecting all arguments costs memory, but never data.
_WRITE = {
    "tt.store", "tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_store", "tt.descriptor_reduce",
    "tt.descriptor_scatter",
    "tt.experimental_descriptor_store", "tt.experimental_descriptor_scatter",
}  # fmt: skip
_READ = {
    "tt.load", "tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_load", "tt.descriptor_gather", "tt.descriptor_reduce",
    "tt.experimental_descriptor_load", "tt.experimental_descriptor_gather",
}  # fmt: skip
_FIRST = {"tt.addptr", "tt.make_tensor_descriptor", "tt.make_tensor_ptr", "tt.advance"}  # the rest are numbers
_PURE = {
    "tt.splat", "tt.unsplat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.bitcast", "tt.cat",
    "tt.join", "tt.split", "tt.make_range", "tt.ptr_to_int", "tt.get_program_id", "tt.get_num_programs", "tt.dot",
    "tt.dot_scaled", "tt.fp_to_fp", "tt.clampf", "tt.mulhiui", "tt.precise_sqrt", "tt.precise_divf", "tt.histogram",
    "tt.gather", "tt.reduce", "tt.scan", "tt.map_elementwise", "tt.reduce.return", "tt.scan.return",
    "tt.map_elementwise.return",
}  # fmt: skip
_FOREIGN = {"tt.elementwise_inline_asm", "tt.extern_elementwise"}  # foreign code: accepted on numbers if pure
_SILENT = {"tt.return", "tt.print", "tt.assert", "gpu.barrier", "ttg.barrier", "ttg.local_barrier", "llvm.intr.assume",
           "ub.poison"}  # fmt: skip

_NAME = r"%[\w.$-]+"
_VALUE = re.compile(rf"{_NAME}(?:#\d+)?")
_OP = re.compile(rf'\s*(?:(?P<results>{_NAME}(?::\d+)?(?:, {_NAME}(?::\d+)?)*) = )?"?(?P<op>[a-z_]\w*(?:\.[\w.]+)+)"?')
_ARGUMENT = re.compile(rf"({_NAME}): (!?[\w.]+)")
_PAIR = re.compile(rf"({_NAME}) = ({_NAME}(?:#\d+)?)")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_LOCATION = re.compile(r"\s+loc\(.*$")


class _UnknownError(Exception):
    """The code is not understood."""


@dataclass
class _Region:
    """An operation with a body: its results, and its loop-carried values."""

    op: str
    results: list[str]
    carried: list[str] = field(default_factory=list)
    node: str = ""  # a single node for all values, if positions are not distinguished


@lru_cache(maxsize=32)  # configs that differ in warps and stages have the same text
def access(text: str) -> AccessByPosition | None:
    """Analyse the TTIR of one kernel.

    The data flow ignores order and conditions: a pointer may derive from every argument that reaches it on any path.
    Loads produce numbers, never pointers (pointers to pointers give None). So the result may include too many
    arguments, but never too few, as long as the kernel stays within its arguments' memory.

    Returns:
        None for code that is not understood: calls that are not inlined, inline assembly with effects or addresses,
        integers cast to pointers, unknown operations.
    """
    if "!tt.ptr<!tt.ptr" in text:
        return None
    try:
        return _Reader(text).access()
    except (_UnknownError, IndexError):
        return None


class _Reader:
    """Collects, line by line, how pointers flow and where they are used."""

    def __init__(self, text: str) -> None:
        self._edges: dict[str, set[str]] = {}
        self._reads: list[str] = []
        self._writes: list[str] = []
        self._foreign: list[str] = []
        self._regions: list[_Region] = []
        lines = self._body(text)
        memory = ("!tt.ptr", "!tt.tensordesc")
        self._arguments = [name for name, kind in _ARGUMENT.findall(next(lines, "")) if kind.startswith(memory)]
        for line in lines:
            self._line(line)

    @staticmethod
    def _body(text: str) -> Iterator[str]:
        """The header of the single public function, then its lines."""
        lines = iter(text.splitlines())
        header = next((line for line in lines if line.lstrip().startswith("tt.func public")), None)
        if header is None or text.count("tt.func public") != 1:
            raise _UnknownError
        yield header
        end = header[: len(header) - len(header.lstrip())] + "}"
        for line in lines:
            if line.startswith(end):
                return
            yield line

    def _line(self, line: str) -> None:
        stripped = line.strip()
        if stripped.startswith("^"):
            self._block(stripped)
        elif stripped.startswith("}"):
            if not stripped.endswith("{"):  # "} else {" and "} do {" continue the same operation
                self._regions.pop()
        elif stripped:
            self._operation(_LOCATION.sub("", line))

    def _block(self, line: str) -> None:
        source = self._regions[-1].node if self._regions and self._regions[-1].node else "branches"
        for name, _ in _ARGUMENT.findall(line):
            self._flow(source, name)

    def _operation(self, line: str) -> None:
        match = _OP.match(line)
        if match is None:
            raise _UnknownError(line)
        op, results = match["op"], _results(match["results"] or "")
        text = _STRING.sub('""', line[match.end() :])
        operands = _VALUE.findall(text)
        if line.rstrip().endswith("{"):
            self._open(op, results, text)
        if op.startswith("scf."):
            self._control(op, text)
        elif op.startswith("cf."):
            self._flow_all(operands, ["branches"])
        else:
            self._effect(op, results, operands, line)

    def _open(self, op: str, results: list[str], text: str) -> None:
        region = _Region(op, results)
        if op == "scf.for":
            pairs = _PAIR.findall(text)[1:]  # the first is the counter
            region.carried = [name for name, _ in pairs]
            for index, (name, start) in enumerate(pairs):
                self._flow(start, name)
                self._flow(start, results[index])
        elif op != "scf.if":
            region.node = f"region {len(self._edges)} {text}"
            starts = _PAIR.findall(text) if op == "scf.while" else [("", name) for name in _VALUE.findall(text)]
            for name, start in starts:
                self._flow(start, region.node)
                self._flow(region.node, name)
            self._flow_all([region.node], results)
        self._regions.append(region)

    def _control(self, op: str, text: str) -> None:
        if op in ("scf.for", "scf.while", "scf.if"):
            return
        if op not in ("scf.yield", "scf.condition") or not self._regions:
            raise _UnknownError(op)
        region, operands = self._regions[-1], _VALUE.findall(text)
        if region.node:
            self._flow_all(operands, [region.node])
            return
        for index, name in enumerate(operands):
            self._flow(name, region.results[index])
            if region.carried:
                self._flow(name, region.carried[index])

    def _effect(self, op: str, results: list[str], operands: list[str], line: str) -> None:
        known = op in _WRITE or op in _READ
        if op in _WRITE:
            self._writes.append(operands[0])
        if op in _READ:
            self._reads.append(operands[0])
        if op in _FIRST:
            self._flow_all(operands[:1], results)
        elif op in _PURE or op.startswith(("arith.", "math.")):
            self._flow_all(operands, results)
        elif op in _FOREIGN and "pure = true" in line:
            self._foreign += operands
        elif not known and op not in _SILENT:
            raise _UnknownError(op)

    def _flow(self, start: str, end: str) -> None:
        self._edges.setdefault(start, set()).add(end)

    def _flow_all(self, starts: list[str], ends: list[str]) -> None:
        for start in starts:
            self._edges.setdefault(start, set()).update(ends)

    def access(self) -> AccessByPosition:
        """Follow each argument to all values derived from it."""
        reached = [self._reached(name) for name in self._arguments]
        if any(name in values for name in self._foreign for values in reached):
            raise _UnknownError("addresses in foreign code")
        return AccessByPosition(self._roots(self._reads, reached), self._roots(self._writes, reached), len(reached))

    def _reached(self, start: str) -> set[str]:
        seen, open_ = {start}, [start]
        while open_:
            fresh = self._edges.get(open_.pop(), set()) - seen
            seen |= fresh
            open_ += fresh
        return seen

    @staticmethod
    def _roots(pointers: list[str], reached: list[set[str]]) -> frozenset[int]:
        found: set[int] = set()
        for pointer in pointers:
            roots = {index for index, values in enumerate(reached) if pointer in values}
            if not roots:
                raise _UnknownError(pointer)
            found |= roots
        return frozenset(found)


def _results(text: str) -> list[str]:
    """Names by which later lines use the results: `%p:2` is used as `%p#0` and `%p#1`."""
    names = []
    for part in filter(None, text.split(", ")):
        name, _, count = part.partition(":")
        names += [f"{name}#{index}" for index in range(int(count))] if count else [name]
    return names
