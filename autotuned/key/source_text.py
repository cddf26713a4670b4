"""A function's source: its lines, its tokens without comments and layout, its syntax tree."""

from __future__ import annotations

import ast
import inspect
import io
import itertools
import linecache
import os
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, AnyStr, TypeVar

from autotuned._startup import Frozen

_SKIPPED_TOKENS = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)
# Python 3.11 before 3.11.8 counts the depth of a syntax tree for all threads together: a thread that parses while the
# garbage collector has interrupted another one there makes that one fail, whatever its source.
DISTURBED, TRIES = "AST constructor recursion depth mismatch", 20

_Parsed = TypeVar("_Parsed")


class Body(Frozen):
    """A function and, for a Triton function, the text that Triton compiles.

    Triton functions may share the Python function and differ in text (`_unsafe_update_src`).
    """

    function: Any  # a FunctionType; mypy would treat that as a method
    written: str | None = None


def text(body: Body) -> str:
    """The source from `def` (or `lambda`) on, as tokens without comments and blank lines.

    Not an AST dump, whose form changes between Python versions: shipped configs must stay valid. Without source (a
    REPL, an `exec`), byte code is used.
    """
    function = body.function
    if function.__code__.co_name == "<lambda>" and body.written is None:
        segment = _lambda_source(function)
        if segment is None:
            return _bytecode_text(function.__code__)
        return " ".join(list(_tokens(f"({segment})"))[1:-2])  # parenthesized, as it may span lines
    try:
        source, _ = _own(body)
    except (OSError, TypeError):
        return _bytecode_text(function.__code__)
    tokens = list(_tokens(source))
    start = next((i for i, token in enumerate(tokens) if token == "def"), 0)  # decorators come before
    return " ".join(tokens[start:])


def code_of(body: Body) -> CodeType:
    """The code whose names the function looks up, compiled from the replaced text if there is one."""
    function: FunctionType = body.function
    written = body.written
    if written is None or not written.strip() or _is_as_defined(function, written):
        return function.__code__
    try:
        compiled = compile(written, function.__code__.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return function.__code__  # Triton reports the error
    return next((code for code in compiled.co_consts if isinstance(code, CodeType)), compiled)


def _is_as_defined(function: FunctionType, written: str) -> bool:
    same = _tree_of_own(function, written) is not None  # comparing tokens takes longer
    return same or " ".join(_tokens(written)) == text(Body(function))


def _tree_of_own(function: FunctionType, written: str) -> ast.Module | None:
    """The syntax tree of the function's own source, if `written` equals that source without its decorators."""
    try:
        source, found = _own(Body(function))
    except (OSError, TypeError):
        return None
    if found is None:
        return None
    decorators = found.body[0].lineno - 1  # lines
    return found if source.split("\n", decorators)[-1].rstrip() == written.rstrip() else None


def _own(body: Body) -> tuple[str, ast.Module | None]:
    """The function's own source lines, and their syntax tree if known; OSError or TypeError without source."""
    global _latest
    function, latest = body.function, _latest
    asked = function.__code__, body.written
    if latest[0] != asked or latest[0][0] is not asked[0]:  # the latest is cached: text and tree are read in turn
        latest = asked, *_found(body)
        _latest = latest
    return latest[1:]


_latest: tuple[Any, str, ast.Module | None] = ((None, None), "", None)


def _found(body: Body) -> tuple[str, ast.Module | None]:
    if body.written is not None:
        return body.written, None
    code = body.function.__code__
    lines = _lines_of(body.function)[code.co_firstlineno - 1 :]
    found = _block(lines)
    if found is not None and getattr(found[1].body[0], "name", "") != code.co_name:
        raise OSError  # the file has changed, or is another one
    return found or (textwrap.dedent("".join(inspect.getblock(lines))), None)


def _lines_of(function: FunctionType) -> list[str]:
    """All lines of the file of the function's own code, even for a wrapper; OSError without source.

    If the file does not exist, `linecache` may have the text of the module in whose namespace the code runs: its lines
    are used only if they compile to the code.
    """
    code, file = function.__code__, function.__code__.co_filename
    if file == "<string>":  # Python 3.13 reads the name as the text of `python -c`
        raise OSError("code from a string has no file to read")
    linecache.checkcache(file)
    lines = linecache.getlines(file, function.__globals__)
    if not lines or not (os.path.isfile(file) or _gives(lines, code)):
        raise OSError("there is no source to read")
    return lines


def _gives(lines: list[str], code: CodeType) -> bool:
    """Whether a code object comes from these lines."""
    try:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # allowed in notebooks
        compiled = compile("".join(lines), code.co_filename, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    wanted = code.co_firstlineno, _bytecode_text(code)
    return any((one.co_firstlineno, _bytecode_text(one)) == wanted for one in codes(compiled))


def _block(lines: list[str]) -> tuple[str, ast.Module] | None:
    """The definition at the start of these lines, without trailing comments; None if uncertain.

    It ends before a line with the same or less indentation, if the part before parses: such a line may also be inside
    brackets or a string. `inspect.getsource` tokenizes the lines, which takes ten times as long.
    """
    width = len(lines[0]) - len(lines[0].lstrip())
    head = next((n for n, line in enumerate(lines) if line.lstrip().startswith(("def ", "async "))), 0)  # no decorator
    ends = (n for n, line in enumerate(lines) if n > head and _is_code(line) and not line[: width + 1].isspace())
    for end in itertools.chain(itertools.islice(ends, 16), [len(lines)]):
        while end > 1 and not _is_code(lines[end - 1]):
            end -= 1
        block = textwrap.dedent("".join(lines[:end]))
        try:
            tree = _parse(block)
        except SyntaxError:
            continue
        return (block, tree) if len(tree.body) == 1 and isinstance(tree.body[0], ast.FunctionDef) else None
    return None


def _parse(source: str) -> ast.Module:
    return parsed_again(lambda: ast.parse(source))


def parsed_again(parse: Callable[[], _Parsed]) -> _Parsed:
    """Call a function that parses Python, such as a compilation; again if another thread disturbed the parser."""
    for _ in range(TRIES - 1):
        try:
            return parse()
        except Exception as error:
            if not _is_disturbed(error):
                raise
            _unhash(error)
    return parse()


def _is_disturbed(error: BaseException | None) -> bool:
    """Whether an error or its cause is a disturbed parser's: Triton wraps errors of functions that a kernel calls."""
    while error is not None and not isinstance(error, SystemError):
        error = error.__cause__
    return DISTURBED in str(error)


def _unhash(error: BaseException) -> None:
    """Let Triton again hash the functions whose hashing ended with this error: their hash is still a placeholder."""
    trace: Any = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "cache_key":
            function = trace.tb_frame.f_locals.get("self")
            if str(getattr(function, "hash", "")).startswith("recursion:"):
                function.hash = None
        trace = trace.tb_next


def _is_code(line: str) -> bool:
    """Whether a line is neither blank nor a comment; a wrong answer inside a string is harmless."""
    return line.lstrip()[:1] not in ("", "#")


def _lambda_source(function: FunctionType) -> str | None:
    """The text of a lambda, anywhere in a statement; None if not found.

    Several lambdas in one line are distinguished by their byte code.
    """
    line = function.__code__.co_firstlineno
    try:
        module = "".join(_lines_of(function))
        segments = _lambdas(module).get(line, [])
        if len(segments) > 1:
            segments = [segments[index] for index in _of_same_code(_parse(module), line, function.__code__)]
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    return segments[0] if segments else None


@lru_cache(16)
def _lambdas(module: str) -> dict[int, list[str]]:
    """The texts of a file's lambdas by their first line; cached, since parsing the file takes most of the time."""
    found: dict[int, list[str]] = {}
    lines = module.encode().splitlines(keepends=True)
    for node in _lambda_nodes(_parse(module)):
        end = node.end_lineno or node.lineno, node.end_col_offset or 0
        found.setdefault(node.lineno, []).append(_slice(lines, (node.lineno, node.col_offset), end).decode())
    return found


def _lambda_nodes(tree: ast.Module) -> list[ast.Lambda]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]


def _of_same_code(tree: ast.Module, line: int, code: CodeType) -> list[int]:
    nodes = [node for node in _lambda_nodes(tree) if node.lineno == line]
    for index, node in enumerate(nodes[:14]):
        ast.increment_lineno(node, 100_000 << index)  # a unique line for each, even if nested
    compiled = compile(tree, code.co_filename, "exec", dont_inherit=True)
    inners = {inner.co_firstlineno: inner for inner in codes(compiled) if inner.co_name == "<lambda>"}
    wanted = _bytecode_text(code), code.co_freevars
    found = {line: (_bytecode_text(inner), inner.co_freevars) for line, inner in inners.items()}
    return [index for index, node in enumerate(nodes) if found.get(node.lineno) == wanted]


def _tokens(source: str) -> Iterator[str]:
    lines = source.splitlines(keepends=True)
    formatted: list[tuple[int, int]] = []  # starts of open f-strings, which Python 3.12 tokenizes and 3.11 does not
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            kind = tokenize.tok_name[token.type]
            if kind == "FSTRING_START":
                formatted.append(token.start)
            elif kind == "FSTRING_END":
                start = formatted.pop()
                if not formatted:
                    yield _slice(lines, start, token.end)
            elif not formatted and token.type not in _SKIPPED_TOKENS:
                yield _spelling(token)
    except (tokenize.TokenError, SyntaxError):
        return  # invalid Python: the tokens before the error are enough


def _spelling(token: tokenize.TokenInfo) -> str:
    # An indent's width is layout, its presence is meaning.
    if token.type == tokenize.INDENT:
        return "<indent>"
    if token.type == tokenize.DEDENT:
        return "<dedent>"
    return "<newline>" if token.type == tokenize.NEWLINE else token.string


def _slice(lines: list[AnyStr], start: tuple[int, int], end: tuple[int, int]) -> AnyStr:
    block = lines[start[0] - 1 : end[0]]
    block[-1] = block[-1][: end[1]]
    block[0] = block[0][start[1] :]
    return block[0][:0].join(block)


def _bytecode_text(code: CodeType) -> str:
    constants = list(map(_constant_text, code.co_consts))
    return f"{code.co_code.hex()} {constants} {code.co_names} {code.co_varnames}"


def _constant_text(constant: Any) -> str:
    if isinstance(constant, CodeType):
        return _bytecode_text(constant)
    if isinstance(constant, frozenset):  # `x in {"a", "b"}`: the order depends on the hash seed
        return f"frozenset({sorted(map(_constant_text, constant))})"
    if isinstance(constant, tuple):
        return f"({', '.join(map(_constant_text, constant))})"
    return repr(constant)


def codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and the code of functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def tree(body: Body) -> ast.AST:
    """The function's syntax tree without decorators; empty if there is no source."""
    try:
        if body.function.__code__.co_name == "<lambda>" and body.written is None:
            return _parse(f"({_lambda_source(body.function) or 0})")
        own = _tree_of_own(body.function, body.written) if body.written else None
        lines, found = _own(body)
        parsed = own or found or _parse(lines)
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])
    for node in parsed.body:
        getattr(node, "decorator_list", []).clear()
    return parsed
