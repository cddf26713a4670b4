import functools
import importlib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from autotuned.errors import EncodingError
from autotuned.key import naming
from autotuned.key.source import fingerprint, public_name, python_function
from autotuned.key.value import of_value

Load = Callable[..., ModuleType]


KERNEL = '''import functools
import helpers
from helpers import scale

LIMIT, FAST = 4, True
TABLE = {"add": [helpers.first, (helpers.second,)]}


def add(x):
    return minus(x) + LIMIT


def minus(x):
    return -x


def unrelated(x):
    return x


def decorate(*args, **kwargs):
    return lambda function: function


FN = add if FAST else minus
HALF = functools.partial(helpers.times, by=0.5)
CACHED = functools.lru_cache(helpers.third)


@decorate(configs=[lambda args: 64], table=helpers.SIZES)
def kernel(x, eps=1e-5, *, act=minus):
    """What it does."""
    y = add(x) * eps  # an epsilon
    names = [f"{LIMIT}" for _ in range(3)]

    def inner(z):
        return helpers.shift(z)

    return inner(y) + scale(y) + FN(y) + TABLE["add"][0](y) + HALF(y) + CACHED(y), names
'''
HELPERS = """import deep
SHIFT = 1
SIZES = [64]


def scale(x):
    return deep.scale(x)


def shift(x):
    return x + SHIFT


def first(x):
    return x + 1


def second(x):
    return x + 2


def third(x):
    return x + 3


def times(x, by):
    return x * by


def unused(x):
    return x
"""
DEEP = """def scale(x):
    return 2 * x
"""
KERNEL_FINGERPRINT = "f9061e589d32335c1516c0a44d5713786335666e619bdea0c4967ab60a02a5a5"
TEXTS = {"kern": KERNEL, "helpers": HELPERS, "deep": DEEP}


_edited: dict[tuple[str, ...], str] = {}


def edited(load: Load, *edit: str) -> str:
    """The kernel's fingerprint after one edit: a file, and the old and the new text in it."""
    if edit not in _edited:
        file, old, new = edit
        assert TEXTS[file].count(old) == 1, f"{old!r} is there {TEXTS[file].count(old)} times"
        _edited[edit] = fingerprint(load("kern", **{**TEXTS, file: TEXTS[file].replace(old, new)}).kernel)
    return _edited[edit]


SAME = {
    "a comment in the kernel": ("kern", "# an epsilon", "# the epsilon"),
    "a comment removed": ("kern", "  # an epsilon", ""),
    "a blank line in the kernel": ("kern", '"""What it does."""\n', '"""What it does."""\n\n\n'),
    "spaces in the kernel": ("kern", "y = add(x) * eps", "y  =  add( x )*eps"),
    "the width of an indent": ("kern", "        return helpers.shift(z)", "            return helpers.shift(z)"),
    "the kernel moved down": ("kern", "\n@decorate", "\n# moved\n\n\n@decorate"),
    "the decorator's list of configs": ("kern", "[lambda args: 64]", "[lambda args: 64, lambda args: 128]"),
    "what the decorator reads of a module": ("helpers", "SIZES = [64]", "SIZES = [64, 128]"),
    "no decorator": ("kern", "@decorate(configs=[lambda args: 64], table=helpers.SIZES)\n", ""),
    "a function that is not used": ("kern", "def unrelated(x):\n    return x", "def unrelated(x):\n    return x + 1"),
    "a new import": ("kern", "import functools\n", "import functools\nimport os\n"),
    "a comment in another file": ("helpers", "SHIFT = 1", "SHIFT = 1  # one"),
    "a function of another file that is not used": ("helpers", "def unused(x):\n    return x", "def used_less(x): ..."),
    "order in another file": ("helpers", "SHIFT = 1\n", "\n\n\nSHIFT = 1\n"),
}  # fmt: skip
OTHER = {
    "the kernel": ("kern", "y = add(x) * eps", "y = add(x) / eps"),
    "the docstring": ("kern", "What it does.", "What it did."),
    "spaces in a text": ("kern", 'f"{LIMIT}"', 'f"{LIMIT} "'),
    "a default": ("kern", "eps=1e-5", "eps=1e-6"),
    "a keyword's default": ("kern", "act=minus", "act=add"),
    "the value of a global": ("kern", "LIMIT, FAST = 4", "LIMIT, FAST = 5"),
    "the type of a global": ("kern", "LIMIT, FAST = 4", "LIMIT, FAST = 4.0"),
    "a helper": ("kern", "minus(x) + LIMIT", "LIMIT + minus(x)"),
    "a helper's helper": ("kern", "return -x", "return 0 - x"),
    "which helper was chosen": ("kern", "FAST = 4, True", "FAST = 4, False"),
    "an argument of a partial": ("kern", "by=0.5", "by=0.25"),
    "a helper in another file": ("helpers", "return x + SHIFT", "return SHIFT + x"),
    "a global in another file": ("helpers", "SHIFT = 1", "SHIFT = 2"),
    "a helper in a table": ("helpers", "return x + 1", "return x + 10"),
    "a helper in a nested table": ("helpers", "return x + 2", "return x + 20"),
    "a helper behind a cache": ("helpers", "return x + 3", "return x + 30"),
    "a helper in a partial": ("helpers", "return x * by", "return by * x"),
    "a helper of a helper's module": ("deep", "2 * x", "x * 2"),
}


@pytest.mark.parametrize("edit", SAME)
def test_the_fingerprint_does_not_see(load: Load, edit: str) -> None:
    assert edited(load, *SAME[edit]) == KERNEL_FINGERPRINT


@pytest.mark.parametrize("edit", OTHER)
def test_the_fingerprint_sees(load: Load, edit: str) -> None:
    assert edited(load, *OTHER[edit]) != KERNEL_FINGERPRINT


def test_all_edits_make_different_fingerprints(load: Load) -> None:
    assert len({edited(load, *edit) for edit in OTHER.values()}) == len(OTHER)


def test_a_file_that_was_only_touched_keeps_its_fingerprint(load: Load) -> None:
    kernel = load("kern", **TEXTS).kernel
    Path(kernel.__code__.co_filename).touch()
    assert fingerprint(kernel) == KERNEL_FINGERPRINT


def test_the_fingerprint_of_a_kernel_is_pinned(load: Load) -> None:
    # Records and shipped config files are found by it: whoever changes this number drops all of them.
    assert fingerprint(load("kern", **TEXTS).kernel) == KERNEL_FINGERPRINT


# -- where the code runs from ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "files"),
    [
        pytest.param("kern", TEXTS, id="files side by side"),
        pytest.param(
            "app.kern",
            {
                "app__kern": KERNEL.replace("import helpers", "from app import helpers").replace(
                    "from helpers", "from app.helpers"
                ),
                "app__helpers": HELPERS.replace("import deep", "from app import deep"),
                "app__deep": DEEP,
            },
            id="package",
        ),
    ],
)
def test_a_script_has_the_name_and_fingerprint_that_its_import_has(
    load: Load, monkeypatch: pytest.MonkeyPatch, module: str, files: dict[str, str]
) -> None:
    kernel = load(module, **files).kernel
    path = Path(kernel.__code__.co_filename)
    monkeypatch.syspath_prepend(str(path.parents[module.count(".")]))
    for name in [name for name in sys.modules if name.split(".")[0] == "app"]:  # of another test
        monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    script = runpy.run_path(str(path), run_name="__main__")["kernel"]
    by_path = runpy.run_path(str(path), run_name=f"{naming.BY_PATH_PREFIX}1")["kernel"]
    for name in set(sys.modules) - before:
        del sys.modules[name]
    assert (script.__module__, by_path.__module__) == ("__main__", "autotuned_target_1")
    assert fingerprint(kernel) == fingerprint(script) == fingerprint(by_path)
    assert public_name(kernel) == public_name(script) == public_name(by_path) == f"{module}.kernel"


def test_helpers_of_other_packages_count_by_name_only(load: Load) -> None:
    def kernel_of(body: str) -> FunctionType:
        files = {
            "app__kern": "from lib.code import help\ndef kernel(x): return help(x)\n",
            "lib__code": f"def help(x): {body}\n",
        }
        return load("app.kern", **files).kernel

    assert fingerprint(kernel_of("return 1")) == fingerprint(kernel_of("return 2"))


@pytest.mark.parametrize(
    ("path", "packages", "name"),
    [
        ("kern.py", [], "kern"),
        ("app/kern.py", [], "kern"),
        ("app/kern.py", ["app"], "app.kern"),
        ("app/sub/kern.py", ["app", "app/sub"], "app.sub.kern"),
        ("app/sub/kern.py", ["app/sub"], "sub.kern"),
        ("app/__init__.py", ["app"], "app"),
    ],
)
def test_the_module_of_a_file_is_named_by_the_packages_around_it(
    tmp_path: Path, path: str, packages: list[str], name: str
) -> None:
    for package in packages:
        (tmp_path / package).mkdir(parents=True, exist_ok=True)
        (tmp_path / package / "__init__.py").touch()
    assert naming.module_name(tmp_path / path) == name


# -- what a function uses --------------------------------------------------------------------------------------------


def make(size: Any, helper: Callable[..., Any] = len) -> FunctionType:
    def kernel(x: Any) -> Any:
        return helper(x), size

    return kernel


def test_values_in_a_closure_count() -> None:
    sizes = [256, 512, 256.0, "256", (256,), [256], None, {"size": 256}, [], (), {256}, {256, 1}]
    assert len({fingerprint(make(size)) for size in sizes}) == len(sizes)
    assert fingerprint(make(256)) == fingerprint(make(256))


def test_functions_in_a_closure_count() -> None:
    def one(x: Any) -> Any:
        return 1

    def two(x: Any) -> Any:
        return 2

    assert fingerprint(make(0, one)) != fingerprint(make(0, two))


def test_a_recursive_inner_function_of_another_package_counts_by_name_and_what_else_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "recursive_elsewhere"
    package.mkdir()
    (package / "__init__.py").write_text(
        "def down_by(step):\n    def down(n):\n        return n and down(n - step)\n\n    return down\n\n\n"
        "def pair(step):\n    def one(n):\n        return n and other(n - step)\n\n"
        "    def other(n):\n        return n and one(n - step)\n\n    return one\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    elsewhere = importlib.import_module("recursive_elsewhere")
    for function in (elsewhere.down_by, elsewhere.pair):
        assert fingerprint(make(0, function(1))) == fingerprint(make(0, function(1)))
        assert fingerprint(make(0, function(1))) != fingerprint(make(0, function(2)))


def even(n: int) -> bool:
    return n == 0 or odd(n - 1)


def odd(n: int) -> bool:
    return n != 0 and even(n - 1)


def test_functions_that_call_each_other_have_fingerprints() -> None:
    assert fingerprint(even) != fingerprint(odd)


def test_a_recursive_inner_function_has_a_fingerprint() -> None:
    def count(n: int) -> int:
        return 0 if n == 0 else count(n - 1)

    assert fingerprint(count) == fingerprint(count)


size = 3  # a global whose name is also that of a local below


def with_a_comprehension(values: Any) -> Any:
    size = len(values)
    return [size + value for value in values]


def test_a_local_variable_is_not_taken_for_a_global(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(with_a_comprehension)
    monkeypatch.setitem(globals(), "size", 4)
    assert fingerprint(with_a_comprehension) == before


def test_a_function_without_source_counts_by_its_code() -> None:
    def written(body: str) -> FunctionType:
        space: dict[str, Any] = {}
        exec(f"def kernel(x): return {body}", space)
        return space["kernel"]

    assert fingerprint(written("x + 1")) == fingerprint(written("x + 1"))
    assert fingerprint(written("x + 1")) != fingerprint(written("x + 2"))
    assert fingerprint(written("x + 1")) != fingerprint(written("x - 1"))


# -- functions as values ---------------------------------------------------------------------------------------------


class Wrapper:
    """A kernel object around a function, as Triton's are."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def method(self) -> None: ...


class Endless:
    @property
    def fn(self) -> "Endless":
        return self


@pytest.mark.parametrize(
    ("value", "function"),
    [
        pytest.param(even, even, id="function"),
        pytest.param(functools.partial(functools.partial(even, 1)), even, id="partial of a partial"),
        pytest.param(functools.lru_cache(even), even, id="cache"),
        pytest.param(Wrapper(Wrapper(even)), even, id="kernel in a kernel"),
        pytest.param(Wrapper(even).method, Wrapper.method, id="method"),
        pytest.param(Wrapper(None), None, id="nothing inside"),
        pytest.param(Endless(), None, id="no end"),
        pytest.param(len, None, id="built-in"),
        pytest.param(5, None, id="number"),
        pytest.param(None, None, id="none"),
    ],
)
def test_the_function_inside_a_value(value: Any, function: Any) -> None:
    assert python_function(value) is function


def test_a_function_as_a_key_value_is_spelled_by_what_it_computes() -> None:
    assert of_value(even, "here") == of_value(functools.lru_cache(even), "here")
    assert of_value(odd, "here") != of_value(even, "here") != of_value(Wrapper(even), "here")
    assert of_value(renamed(1), "here") == of_value(renamed(1, other=True), "here") != of_value(renamed(2), "here")


def renamed(by: int, other: bool = False) -> Callable[[int], int]:
    if other:

        def times_by(x: int) -> int:
            return x * by

        return times_by

    def scaled(x: int) -> int:
        return x * by

    return scaled


def test_a_partial_as_a_key_value_is_spelled_with_its_arguments() -> None:
    values = [
        even,
        *(functools.partial(even, *args) for args in ((), (1,), (True,), (odd,))),
        functools.partial(even, n=1),
    ]
    assert len({str(of_value(value, "here")) for value in values}) == len(values)
    assert of_value(functools.partial(even, n=1), "here") == of_value(functools.partial(even, n=1), "here")


def test_what_is_no_function_is_refused_with_its_place() -> None:
    with pytest.raises(
        EncodingError,
        match=r"^argument 'f': expected None, .* function, or an object that holds only these, got builtins\.object\.",
    ) as caught:
        of_value(object(), "argument 'f'")
    assert caught.value.where == "argument 'f'"
