"""Translates a grid callable's bytecode into a small program, if it is only integer arithmetic over META.

Most grids are, such as `lambda meta: (triton.cdiv(meta["M"], meta["BLOCK"]),)`. The C launcher runs such a program in a
tenth of a call's time. Each launch checks that globals, module attributes and called functions are the same, and calls
the callable if one differs, a value is not a plain integer, or something overflows. Callables with any other
instruction, and all in a Python newer than `NEWEST`, are always called.
"""

from __future__ import annotations

import dis
import operator
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

from autotuned._startup import Frozen
from autotuned.triton_compat import kernel

# Steps of a program, in the order of the enum in `launch/c/grids.h`; each a tuple (step, number, name, of, is).
INT, META, CELL, GLOBAL, ADD, SUB, MUL, FLOORDIV, MOD, MIN, MAX, NEG, IS_GLOBAL, NO_GLOBAL, IS_ITEM, IS_CODE = range(16)
_OPERATORS = {"+": ADD, "-": SUB, "*": MUL, "//": FLOORDIV, "%": MOD}
_OPERATORS_OF_310 = {"ADD": ADD, "SUBTRACT": SUB, "MULTIPLY": MUL, "FLOOR_DIVIDE": FLOORDIV, "MODULO": MOD}
_BUILTINS: dict[Any, int] = {min: MIN, max: MAX}
_NO_EFFECT = {"RESUME", "NOP", "CACHE", "PRECALL", "COPY_FREE_VARS", "EXTENDED_ARG"}
_SAME = {"LOAD_FAST_BORROW": "LOAD_FAST", "LOAD_FAST_CHECK": "LOAD_FAST", "LOAD_SMALL_INT": "LOAD_CONST",
         "LOAD_FAST_BORROW_LOAD_FAST_BORROW": "LOAD_FAST_LOAD_FAST"}  # fmt: skip
_MAX_STEPS = 64
NEWEST = (3, 14)  # the newest Python whose instructions were checked
_builtins_of = operator.attrgetter("__builtins__")  # type checkers do not know this attribute of functions
_NOT_SIMPLE = 0x04 | 0x08 | 0x20 | 0x80 | 0x100 | 0x200  # *args, **kwargs, generators and coroutines

Step = tuple[int, int, Any, Any, Any]
Steps = tuple[Step, ...]


class _RefusedError(Exception):
    """This code does more than integer arithmetic."""


class _Found(Frozen):
    """An object that a name refers to, and the steps that check this at each launch."""

    object: Any
    guards: Steps


_META, _NULL = object(), object()  # the dictionary of all arguments, and what Python pushes next to a callee


def program(grid: Any) -> tuple[int, Steps] | None:
    """The number of sizes a grid callable returns, and the steps that compute them; None if it cannot be translated.

    The steps are for a stack machine and leave all sizes on its stack.
    """
    try:
        if type(grid) is not FunctionType or sys.version_info[:2] > NEWEST:
            return None
        sizes = _Reader(grid, [_META], inlined=False).returned()
        if type(sizes) is not list or not 1 <= len(sizes) <= 3:
            return None
        steps = tuple(step for size in sizes for step in _value(size))
    except (_RefusedError, IndexError):  # IndexError: an instruction pops more than was pushed
        return None
    return (len(sizes), steps) if len(steps) <= _MAX_STEPS else None


def _step(kind: int, number: int = 0, name: str | None = None, of: Any = None, is_: Any = None) -> Steps:
    return ((kind, number, sys.intern(name) if name is not None else None, of, is_),)


def _value(entry: Any) -> Steps:
    if type(entry) is int and -(2**62) < entry < 2**62:
        return _step(INT, entry)
    if type(entry) is not tuple or len(entry) > _MAX_STEPS:
        raise _RefusedError
    return entry


def _apply(kind: int, *operands: Any) -> Steps:
    return (*(step for operand in operands for step in _value(operand)), *_step(kind))


def _is_simple(code: CodeType, arguments: int) -> bool:
    return code.co_argcount == arguments and not code.co_kwonlyargcount and not code.co_flags & _NOT_SIMPLE


class _Reader:
    """Interprets instructions symbolically: entries are steps (a tuple), integers, text, objects and META."""

    def __init__(self, function: FunctionType, arguments: Sequence[Any], inlined: bool) -> None:
        code = function.__code__
        if not _is_simple(code, len(arguments)) or (inlined and code.co_freevars):
            raise _RefusedError
        self._function, self._code, self._inlined = function, code, inlined
        self._locals: dict[str, Any] = dict(zip(code.co_varnames, arguments))
        self._unused = {name for name, value in self._locals.items() if value is not _META}
        self._stack: list[Any] = []

    def returned(self) -> Any:
        """The entry that the function returns: steps, or a list of entries for a tuple or list."""
        for instruction in dis.get_instructions(self._code):
            name = _SAME.get(instruction.opname, instruction.opname)
            if name == "RETURN_VALUE":
                return self._result()
            if name in _NO_EFFECT:
                continue
            read: Callable[[Any], None] | None = getattr(self, f"_{name.lower()}", None)
            if read is None:
                raise _RefusedError
            read(instruction)
        raise _RefusedError

    def _result(self) -> Any:
        if self._unused:  # an unused computation may raise
            raise _RefusedError
        return self._stack.pop()

    def _pop(self, count: int) -> list[Any]:
        return [self._stack.pop() for _ in range(count)][::-1]

    def _push_null(self, instruction: dis.Instruction) -> None:
        self._stack.append(_NULL)

    def _load(self, name: str) -> None:
        if name not in self._locals:
            raise _RefusedError
        self._unused.discard(name)
        self._stack.append(self._locals[name])

    def _store(self, name: str) -> None:
        if name in self._unused:
            raise _RefusedError
        self._unused.add(name)
        self._locals[name] = self._stack.pop()

    def _load_fast(self, instruction: dis.Instruction) -> None:
        self._load(instruction.argval)

    def _load_fast_load_fast(self, instruction: dis.Instruction) -> None:  # like the next, from Python 3.13 on
        for name in instruction.argval:
            self._load(name)

    def _store_fast_load_fast(self, instruction: dis.Instruction) -> None:
        self._store(instruction.argval[0])
        self._load(instruction.argval[1])

    def _store_fast(self, instruction: dis.Instruction) -> None:
        self._store(instruction.argval)

    def _load_const(self, instruction: dis.Instruction) -> None:
        if type(instruction.argval) not in (int, str):
            raise _RefusedError
        self._stack.append(instruction.argval)

    def _load_deref(self, instruction: dis.Instruction) -> None:
        if instruction.argval not in self._code.co_freevars:
            raise _RefusedError
        self._stack.append(_step(CELL, self._code.co_freevars.index(instruction.argval)))

    def _load_global(self, instruction: dis.Instruction) -> None:
        if self._inlined:
            raise _RefusedError
        if sys.version_info >= (3, 11) and instruction.arg is not None and instruction.arg & 1:
            self._stack.append(_NULL)
        self._stack.append(self._global(instruction.argval))

    def _global(self, name: str) -> Any:
        if name in self._function.__globals__:
            value = self._function.__globals__[name]
            if type(value) is int:
                return _step(GLOBAL, name=name)
            return _Found(value, _step(IS_GLOBAL, name=name, is_=value))
        builtins: dict[str, Any] = _builtins_of(self._function)
        if name not in builtins:
            raise _RefusedError
        value = builtins[name]
        return _Found(value, _step(NO_GLOBAL, name=name) + _step(IS_ITEM, name=name, of=builtins, is_=value))

    def _attribute(self, name: str) -> _Found:
        module = self._stack.pop()
        if type(module) is not _Found or type(module.object) is not ModuleType or name not in vars(module.object):
            raise _RefusedError
        value = vars(module.object)[name]
        return _Found(value, module.guards + _step(IS_ITEM, name=name, of=vars(module.object), is_=value))

    def _load_attr(self, instruction: dis.Instruction) -> None:
        self._stack.append(self._attribute(instruction.argval))
        if sys.version_info >= (3, 12) and instruction.arg is not None and instruction.arg & 1:
            self._stack.append(_NULL)

    def _load_method(self, instruction: dis.Instruction) -> None:
        self._stack += [_NULL, self._attribute(instruction.argval)]

    def _call_function(self, instruction: dis.Instruction) -> None:
        arguments = self._pop(instruction.arg or 0)
        self._stack.append(_called(self._stack.pop(), arguments))

    def _call(self, instruction: dis.Instruction) -> None:
        arguments = self._pop(instruction.arg or 0)
        callee = [entry for entry in self._pop(2) if entry is not _NULL]
        if len(callee) != 1:
            raise _RefusedError
        self._stack.append(_called(callee[0], arguments))

    _call_method = _call

    def _binary_subscr(self, instruction: dis.Instruction) -> None:
        mapping, name = self._pop(2)
        if mapping is not _META or type(name) is not str:
            raise _RefusedError
        self._stack.append(_step(META, name=name))

    def _binary_op(self, instruction: dis.Instruction) -> None:
        if instruction.argrepr == "[]":
            return self._binary_subscr(instruction)
        if instruction.argrepr not in _OPERATORS:
            raise _RefusedError
        return self._stack.append(_apply(_OPERATORS[instruction.argrepr], *self._pop(2)))

    def _of_310(self, instruction: dis.Instruction) -> None:
        kind = _OPERATORS_OF_310[instruction.opname.removeprefix("BINARY_")]
        self._stack.append(_apply(kind, *self._pop(2)))

    _binary_add = _binary_subtract = _binary_multiply = _binary_floor_divide = _binary_modulo = _of_310

    def _unary_negative(self, instruction: dis.Instruction) -> None:
        self._stack.append(_apply(NEG, self._stack.pop()))

    def _build_tuple(self, instruction: dis.Instruction) -> None:
        self._stack.append(self._pop(instruction.arg or 0))

    _build_list = _build_tuple


def _called(callee: Any, arguments: Sequence[Any]) -> Steps:
    """The steps of a call: `min` or `max` of two, or a function doing arithmetic on its parameters."""
    if type(callee) is not _Found:
        raise _RefusedError
    if type(callee.object) is type(min) and callee.object in _BUILTINS and len(arguments) == 2:
        return callee.guards + _apply(_BUILTINS[callee.object], *arguments)
    function, guards = callee.object, callee.guards
    inner = kernel.of_constexpr_function(function)
    if inner is not None:  # such as `triton.cdiv`
        guards += _step(IS_ITEM, name="fn", of=vars(function), is_=inner)
        function = inner
    if type(function) is not FunctionType:
        raise _RefusedError
    guards += _step(IS_CODE, of=function, is_=function.__code__)
    return guards + _value(_Reader(function, [_value(one) for one in arguments], inlined=True).returned())
