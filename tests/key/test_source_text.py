"""Tests of `sourcetext`: the text of functions and lambdas, the same in every Python."""

import argparse
import ast
import contextlib
import functools
import hashlib
import inspect
import linecache
import os
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable
from types import FunctionType, ModuleType

import pytest

from autotuned.key import source_text
from autotuned.key.source import fingerprint
from autotuned.key.source_text import Body

Load = Callable[..., ModuleType]

# Every way in which Python 3.10 to 3.13 cut text into tokens differently.
ODD_TEXT = '''
@decorate(lambda x: x)
def   odd ( x , *a : int,
    y = "def" ,  # a comment
):
    r"""Doc  with  spaces.
  and a short line"""

    n = f"{x!r:>{y}}  {{}}" "plain" f'{x + 1}'
    m = (f"""{
        x}  # no comment
""", rf"\\d{x}", b"\\x00", 0x_FF, 1_000.5e-3j)
    if n :
          return lambda z : f"{f'{z}'}"
    # the end
    return (n ,
            m)
'''
ODD_TOKENS = (
    'def odd ( x , * a : int , y = "def" , ) : <newline> <indent> r"""Doc  with  spaces.\n  and a short line""" '
    '<newline> n = f"{x!r:>{y}}  {{}}" "plain" f\'{x + 1}\' <newline> m = ( f"""{\n        x}  # no comment\n""" , '
    'rf"\\d{x}" , b"\\x00" , 0x_FF , 1_000.5e-3j ) <newline> if n : <newline> <indent> return lambda z : '
    "f\"{f'{z}'}\" <newline> <dedent> return ( n , m ) <newline> <dedent>"
)


def odd_function(load: Load) -> FunctionType:
    found = load("odd", odd=f"def decorate(f): return lambda function: function\n{ODD_TEXT}")
    return found.odd


def test_the_text_of_a_function_is_the_same_in_every_python(load: Load) -> None:
    assert source_text.text(Body(odd_function(load))) == ODD_TOKENS


def test_the_fingerprint_of_a_function_is_pinned(load: Load) -> None:
    # Records and shipped config files are found by it: whoever changes this number drops all of them.
    lines = f'function 0: {ODD_TOKENS}\n0.default y = "def"'
    assert fingerprint(odd_function(load)) == hashlib.sha256(lines.encode()).hexdigest()


def test_a_lambda_counts_from_its_own_start(load: Load) -> None:
    one, moved, other = (
        load("kern", kern=f"TABLE = {{\n    {entry},\n}}\n").TABLE["f"]
        for entry in ('"f": lambda x: x + 1', '"g": 0, "f": lambda x: x + 1', '"f": lambda x: x + 2')
    )
    assert fingerprint(one) == fingerprint(moved) != fingerprint(other)


TWO = """
FIRST, SECOND = (lambda x: x + 1), (lambda x: x - 1)
SPACED, = [lambda x: (x
                      + 1)]
CLOSED = (lambda k: ((lambda x: x + k), (lambda x: x * k)))(2)
NESTED = lambda x: (lambda y: y + 1)(x)
CALLED = dict(a=1,
              key=lambda x: x[0], default=max([1], key=lambda x: -x),
              )["key"]
"""


def test_two_lambdas_in_one_line_are_two(load: Load) -> None:
    module = load("two", two=TWO)
    texts = [
        source_text.text(Body(f)) for f in (module.FIRST, module.SECOND, module.SPACED, *module.CLOSED, module.NESTED)
    ]
    assert texts == [
        "lambda x : x + 1", "lambda x : x - 1", "lambda x : ( x + 1 )", "lambda x : x + k", "lambda x : x * k",
        "lambda x : ( lambda y : y + 1 ) ( x )",
    ]  # fmt: skip
    assert source_text.text(Body(module.CALLED)) == "lambda x : x [ 0 ]"


WAYS_TO_END = '''
import functools

def plain(a):
    text = """
def inside_a_string():
"""
# a comment in the first column
    return (
a, text
)

def decorated_next(a): return a
@functools.lru_cache(
maxsize=None
)
def decorated(a):
    def inner():
        return a

    # the end of it
    return inner
# not of it
class Holder:
    def method(self):
        return 1 + \\
2

    @staticmethod
    async def waits():
        pass
    if True:
        def under_a_condition(self):
            return 3
    else:
        pass
def last():
    return 4
'''


def test_the_lines_of_a_function_are_those_that_inspect_finds(load: Load) -> None:
    module = load("ways_to_end", ways_to_end=WAYS_TO_END)
    functions = [module.plain, module.decorated_next, module.decorated.__wrapped__, module.last]
    functions += [vars(module.Holder)[name] for name in ("method", "under_a_condition")]
    functions += [module.Holder.waits, textwrap.dedent, inspect.getsource, argparse.ArgumentParser.parse_known_args]
    for function in functions:
        theirs = textwrap.dedent(inspect.getsource(function))
        assert list(source_text._tokens(source_text._own(Body(function))[0])) == list(source_text._tokens(theirs)), (
            function
        )


def test_a_wrapper_is_known_by_its_own_text_and_not_by_that_of_what_it_wraps() -> None:
    @functools.wraps(len)
    def of_c(items):
        return len(items)

    @functools.wraps(textwrap.dedent)
    def of_python(items):
        return len(items)

    texts = {source_text.text(Body(function)).partition("(")[2] for function in (of_c, of_python)}
    assert texts == {" items ) : <newline> <indent> return len ( items ) <newline> <dedent>"}


def test_code_without_source_is_the_same_under_every_hash_seed() -> None:
    program = (
        "from autotuned.key.source_text import Body, text\n"
        "space = {}\n"
        'exec(\'def f(x): return x in {"a", "b", "c", (1, 2)}\', space)\n'
        "print(text(Body(space['f'])))"
    )
    run = functools.partial(subprocess.run, capture_output=True, text=True, check=True)
    found = {run([sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}).stdout for seed in "0123"}
    assert len(found) == 1


GENERATED = """def before():
    pass

def kernel(n):
    return n + {0}

count = lambda n: n * {0}
"""


def printed(function: FunctionType) -> None:
    """As a log does that shows a traceback through a function."""
    try:
        function(None)
    except TypeError as error:
        traceback.format_exception(error)


@pytest.mark.parametrize("read_by", [printed, inspect.getsource, None], ids=["a traceback", "inspect", "nobody"])
@pytest.mark.parametrize("file", ["/tmp/ipykernel_{}/12.py", "kernel_{}.py", "<generated {}>", "<string>", "__file__"])
@pytest.mark.parametrize("module", ["__main__", "made"])
def test_generated_code_is_never_known_by_the_text_of_the_module_it_runs_in(
    load: Load,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    file: str,
    read_by: Callable[[FunctionType], object] | None,
) -> None:
    # `linecache` gives the text of a module for any file name that is not there: by its loader, in which everyone asks.
    like_it = GENERATED.format(0) if file != "__file__" else "\n" * 40 + "def other(): pass"
    made = load("base", base=like_it)
    made.__name__ = made.__loader__.name = module  # as of a program run as a script
    monkeypatch.setitem(sys.modules, module, made)
    known = set()
    for step in (1, 2):
        name = file.format(step) if file != "__file__" else str(made.__file__)
        exec(compile(GENERATED.format(step), name, "exec"), vars(made))
        if read_by is not None:
            with contextlib.suppress(OSError):
                read_by(made.kernel)
        known |= {fingerprint(made.kernel), fingerprint(made.count)}
    assert len(known) == 4


def test_a_cell_that_was_put_into_linecache_is_known_by_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for comment in ("", "  # said"):
        written, scope = (
            f"await nothing\n{GENERATED.format(1)}".replace("+ 1", f"+ 1{comment}"),
            {"__name__": "__main__"},
        )
        lines = written.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, "/tmp/ipykernel_7/9.py", (len(written), None, lines, "9.py"))
        tree = compile(written, "/tmp/ipykernel_7/9.py", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        del tree.body[0]  # it needs no loop here
        exec(compile(tree, "/tmp/ipykernel_7/9.py", "exec"), scope)
        texts.append([source_text.text(Body(scope[name])) for name in ("kernel", "count")])
    assert texts == [["def kernel ( n ) : <newline> <indent> return n + 1 <newline> <dedent>", "lambda n : n * 1"]] * 2
