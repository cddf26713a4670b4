"""What of objects counts in a fingerprint: methods, attributes, and what is bound anew while the process runs."""

import copy
import inspect
import linecache
import os
import pickle
import random
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from autotuned.errors import EncodingError
from autotuned.key import source
from autotuned.key.source import fingerprint
from autotuned.key.value import of_value

Load = Callable[..., ModuleType]

METHOD = """
class Scale:
    def __init__(self, factor):
        self.factor, self.buffer = factor, object()

    def apply(self, x):
        return x * self.factor

def make(factor):
    apply = Scale(factor).apply
    def kernel(x):
        return apply(x)
    return kernel

def method(factor):
    return Scale(factor).apply
"""


def test_a_bound_method_counts_with_the_plain_data_of_its_object(load: Load) -> None:
    module = load("method", method=METHOD)
    assert fingerprint(module.make(2)) == fingerprint(module.make(2))
    assert fingerprint(module.make(2)) != fingerprint(module.make(3))
    assert of_value(module.method(2), "x") == of_value(module.method(2), "x")
    assert of_value(module.method(2), "x") != of_value(module.method(3), "x")


SETTINGS = """
import enum

class Settings:
    kind = "fast"
    def __init__(self):
        self.block, self.other, self.launches = 64, 1, 0
    @property
    def twice(self):
        return self.block * 2
    @staticmethod
    def clamp(x):
        return min(x, 8)

class Act(enum.Enum):
    RELU = 1

CFG = Settings()
COUNT = 0

def kernel(x):
    global COUNT
    COUNT = COUNT + 1
    CFG.launches = CFG.launches + 1
    return CFG.clamp(x) + CFG.block + CFG.twice + len(CFG.kind) + Act.RELU.value
"""
SETTINGS_EDITS = {
    "an attribute of an object": ("CFG.block = 32", True),
    "an attribute of its class": ('Settings.kind = "slow"', True),
    "an attribute that is not used": ("CFG.other = 2", False),
    "a counter that the function sets": ("CFG.launches = 7", False),
    "a global that the function sets": ("COUNT = 7", False),
}


@pytest.mark.parametrize("edit", SETTINGS_EDITS)
def test_attributes_of_objects_count_where_the_function_reads_and_does_not_set_them(load: Load, edit: str) -> None:
    statement, differs = SETTINGS_EDITS[edit]
    before = fingerprint(load("settings", settings=SETTINGS).kernel)
    assert (fingerprint(load("settings", settings=SETTINGS + statement + "\n").kernel) != before) is differs


@pytest.mark.parametrize(
    ("old", "new"), [("self.block * 2", "self.block * 3"), ("min(x, 8)", "min(x, 9)"), ("RELU = 1", "RELU = 2")]
)
def test_code_behind_an_attribute_counts(load: Load, old: str, new: str) -> None:
    before = fingerprint(load("settings", settings=SETTINGS).kernel)
    assert fingerprint(load("settings", settings=SETTINGS.replace(old, new)).kernel) != before


# -- in one process ----------------------------------------------------------------------------------------------------


def test_what_is_bound_anew_in_the_process_is_noticed(load: Load) -> None:
    module = load("settings", settings=SETTINGS)
    kept = source.Fingerprint(module.kernel)
    first = kept.value()
    assert kept.value() == first
    module.CFG.block = 32
    second = kept.value()
    module.CFG.launches += 1
    module.COUNT += 1
    assert kept.value() == second != first
    module.CFG = module.Settings()
    assert kept.value() == first
    module.kernel.__code__ = (lambda x: x).__code__
    assert kept.value() != first


def test_what_was_imported_meanwhile_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(x: int) -> int:
        return x if "torch" in sys.modules else -x

    before = fingerprint(kernel)
    monkeypatch.setitem(sys.modules, "imported_meanwhile", sys)
    assert fingerprint(kernel) == before


NOTED = {
    "copied": lambda kind: copy.copy(kind()),
    "pickled": lambda kind: pytest.raises(Exception, pickle.dumps, kind()),  # its module is not there any more
    "annotations read": lambda kind: kind.__annotations__,
    "documented": lambda kind: inspect.signature(kind),
}


@pytest.mark.parametrize("note", NOTED)
@pytest.mark.parametrize("has_source", [True, False], ids=["", "without source"])
def test_what_python_notes_on_a_class_counts_nothing(note: str, has_source: bool) -> None:
    space: dict[str, Any] = {"__name__": "app_noted"}
    text = "class Made:\n    step = 1\n    def run(self): return 1\ndef kernel(x): return x, Made\n"
    file = "<noted>" if has_source else "<string>"
    linecache.cache["<noted>"] = len(text), None, text.splitlines(keepends=True), "<noted>"
    exec(compile(text, file, "exec"), space)
    before = fingerprint(space["kernel"])
    NOTED[note](space["Made"])
    assert fingerprint(space["kernel"]) == before
    space["Made"].step = 2
    assert fingerprint(space["kernel"]) != before


def test_a_cell_that_changes_is_noticed() -> None:
    factor = 2

    def kernel(x: int) -> int:
        return x * factor

    kept = source.Fingerprint(kernel)
    first = kept.value()
    factor = 3
    assert kept.value() != first
    factor = 2
    assert kept.value() == first


def test_what_is_known_of_a_function_is_of_no_other_that_has_its_attributes() -> None:
    def one(x: int) -> int:
        return x

    def other(x: int) -> int:
        return x + 1

    spelled = of_value(one, "x")
    vars(other).update(vars(one))  # as `functools.wraps` does
    assert of_value(other, "x") != spelled == of_value(one, "x")
    assert not pickle.loads(pickle.dumps(vars(one)))["__autotuned_fingerprint__"]


def test_an_object_whose_getattr_raises_what_it_likes_is_a_value() -> None:
    class Odd:
        def __init__(self, by: int) -> None:
            self.by = by

        def __getattr__(self, name: str) -> object:
            raise RuntimeError("ask for something else")

    if sys.version_info < (3, 11):  # there pickle asks it for `__getstate__`: it is known as this very object
        with pytest.raises(EncodingError, match="expected None, bool"):
            of_value(Odd(1), "x", lambda array: "array")
        return
    one, same, other = (of_value(Odd(by), "x", lambda array: "array") for by in (1, 1, 2))
    assert one == same != other


def test_what_is_of_the_process_or_changes_with_each_use_counts_for_nothing(monkeypatch):
    rng = np.random.default_rng(0)

    def uses():
        print(os.environ.get("A"), sys.argv, file=sys.stderr)
        return random.random() + np.random.rand() + rng.random()

    before = fingerprint(uses)
    monkeypatch.setenv("A_VARIABLE", "changed")
    monkeypatch.setattr(sys, "argv", ["another", "program"])
    uses()
    assert fingerprint(uses) == before
