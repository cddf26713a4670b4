"""Values that code can reach: two that differ never make equal fingerprints in silence, equal ones always do."""

import functools
import hashlib
import linecache
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import forked
import pytest

from autotuned.key.source import Fingerprint

Load = Callable[..., ModuleType]

# Two values each, as Python text; of each pair the fingerprints differ, or the code is not known in other processes.
VALUES = {
    "array": ("np.array([1, 2])", "np.array([1, 3])"),
    "dtype of an array": ("np.array([1, 2])", "np.array([1, 2], np.int8)"),
    "shape of an array": ("np.zeros((2, 3))", "np.zeros((3, 2))"),
    "array of objects": ("np.array([1, 'a'], object)", "np.array([1, 'b'], object)"),
    "masked array": ("np.ma.array([1, 2], mask=[0, 1])", "np.ma.array([1, 2], mask=[1, 0])"),
    "record array": ("np.array([(1, 2)], 'i4,i4')", "np.array([(1, 2)], 'i4,i8')"),
    "tensor": ("torch.tensor([1.0])", "torch.tensor([2.0])"),
    "scalar tensor": ("torch.tensor(1.0)", "torch.tensor(2.0)"),
    "tensor of bfloat16": ("torch.ones(3, dtype=torch.bfloat16)", "torch.zeros(3, dtype=torch.bfloat16)"),
    "parameter": ("torch.nn.Parameter(torch.ones(2))", "torch.nn.Parameter(torch.zeros(2))"),
    "layer": ("LAYER(1.0)", "LAYER(2.0)"),
    "deque": ("collections.deque([1])", "collections.deque([2])"),
    "length of a deque": ("collections.deque([1], 4)", "collections.deque([1], 5)"),
    "mapping proxy": ("types.MappingProxyType({'a': 1})", "types.MappingProxyType({'a': 2})"),
    "chain map": ("collections.ChainMap({'a': 1})", "collections.ChainMap({'a': 2})"),
    "default dict": ("collections.defaultdict(int, a=1)", "collections.defaultdict(list, a=1)"),
    "counter": ("collections.Counter('aab')", "collections.Counter('abb')"),
    "ordered dict": ("collections.OrderedDict(a=1, b=2)", "collections.OrderedDict(b=2, a=1)"),
    "user dict": ("collections.UserDict(a=1)", "collections.UserDict(a=2)"),
    "namespace": ("types.SimpleNamespace(a=1)", "types.SimpleNamespace(a=2)"),
    "path": ("Path('a')", "Path('b')"),
    "decimal": ("decimal.Decimal('1.0')", "decimal.Decimal('1.00')"),
    "fraction": ("fractions.Fraction(1, 3)", "fractions.Fraction(1, 4)"),
    "complex": ("1 + 2j", "1 + 3j"),
    "range": ("range(3)", "range(4)"),
    "slice": ("slice(1, 2)", "slice(1, 3)"),
    "bytes": ("b'a'", "b'b'"),
    "bytearray": ("bytearray(b'a')", "bytearray(b'b')"),
    "memoryview": ("memoryview(b'a')", "memoryview(b'b')"),
    "array of Python": ("array.array('i', [1])", "array.array('i', [2])"),
    "pattern": ("re.compile('a')", "re.compile('a', re.I)"),
    "date": ("datetime.date(2020, 1, 1)", "datetime.date(2020, 1, 2)"),
    "zone": ("datetime.datetime(2020, 1, 1)", "datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)"),
    "duration": ("datetime.timedelta(1)", "datetime.timedelta(2)"),
    "identifier": ("uuid.UUID(int=1)", "uuid.UUID(int=2)"),
    "set": ("{1, 2}", "{1, 3}"),
    "set of functions": ("{len, max}", "{len, min}"),
    "frozen set": ("frozenset({1})", "{1}"),
    "None in a dict": ("{'a': None}", "{'b': None}"),
    "function of torch": ("torch.relu", "torch.sigmoid"),
    "ufunc": ("np.add", "np.multiply"),
    "built-in": ("len", "max"),
    "built-in method": ("{'a': 1}.get", "{'a': 2}.get"),
    "method of a type": ("str.upper", "str.lower"),
    "type of NumPy": ("np.float32", "np.float64"),
    "getter": ("operator.itemgetter(0)", "operator.itemgetter(1)"),
    "partial": ("functools.partial(pow, 2)", "functools.partial(pow, 3)"),
    "vectorized": ("np.vectorize(lambda x: x)", "np.vectorize(lambda x: x + 1)"),
    "enum with a method": ("Color.RED", "Colour.RED"),
    "callable": ("Callable(1)", "Callable(2)"),
    "class": ("Callable", "Colored"),
    "slots": ("Slots(1)", "Slots(2)"),
    "subclass of list": ("Items([1])", "Items([2])"),
    "named tuple": ("Pair(1, 2)", "Pair(1, 3)"),
    "frozen dataclass": ("Tile(1)", "Tile(2)"),
    "wrapper with a factor": ("Scaled(len, 1)", "Scaled(len, 2)"),
    "date of NumPy": ("np.datetime64('2020-01-01')", "np.datetime64('2020-01-02')"),
    "long double": ("np.longdouble(1)", "np.longdouble(2)"),
    "attribute of a derived number": ("Real(1, 2)", "Real(1, 3)"),
    "class of a derived number": ("Real(1, 2)", "Other(1, 2)"),
    "attribute of a derived text": ("Word('a', 2)", "Word('a', 3)"),
    "attribute of a derived path": ("add(Place('a'), 2)", "add(Place('a'), 3)"),
    "attribute of an array": ("add(np.zeros(1).view(Grid), 2)", "add(np.zeros(1).view(Grid), 3)"),
    "attribute of a tensor": ("add(torch.ones(1), 2)", "add(torch.ones(1), 3)"),
    "attribute of a partial": ("add(functools.partial(pow), 2)", "add(functools.partial(pow), 3)"),
    "attribute of a member": ("add(Plain.A, 2)", "add(Colored2.A, 3)"),
    "partial that does more": ("Partial(pow)", "Partial2(pow)"),
    "class of a class": ("Made", "Made2"),
    "module made by a program": ("module(2)", "module(3)"),
    "limits of a type": ("torch.finfo(torch.float16)", "torch.finfo(torch.float32)"),
    "limits of an integer": ("torch.iinfo(torch.int8)", "torch.iinfo(torch.int16)"),
    "struct": ("struct.Struct('i')", "struct.Struct('q')"),
    "lock": ("threading.Lock()", "threading.RLock()"),
    "sentinel": ("object()", "object()"),
    "generator": ("(x for x in [1])", "(x for x in [2])"),
    "local of a thread": ("threading.local()", "threading.local()"),
}  # fmt: skip
SAME = ("lock",)  # which lock it is says nothing of a result
DEFINITIONS = """
import array, collections, datetime, decimal, enum, fractions, functools, operator, re, struct, threading, types, uuid
from dataclasses import dataclass
from pathlib import Path
import numpy as np
import torch

def LAYER(weight):
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(layer.weight, weight)
    return layer

class Color(enum.Enum):
    RED = 1
    def apply(self, x): return x

class Colour(enum.Enum):
    RED = 1
    def apply(self, x): return -x

class Callable:
    def __init__(self, factor): self.factor = factor
    def __call__(self, x): return x * self.factor

class Colored:
    def __init__(self, factor): self.factor = factor

class Slots:
    __slots__ = ("a",)
    def __init__(self, a): self.a = a

class Items(list): pass

Pair = collections.namedtuple("Pair", "a b")

@dataclass(frozen=True)
class Tile:
    rows: int

class Scaled:
    def __init__(self, fn, factor): self.fn, self.factor = fn, factor

class Real(float):
    def __new__(cls, value, a): return add(float.__new__(cls, value), a)

class Other(Real):
    def __mul__(self, other): return 0

class Word(str):
    def __new__(cls, value, a): return add(str.__new__(cls, value), a)

class Place(type(Path())): pass
class Grid(np.ndarray): pass
Plain, Colored2 = enum.Enum("Plain", "A"), enum.Enum("Plain", "A")

class Partial(functools.partial):
    def __call__(self, x): return x

class Partial2(functools.partial):
    def __call__(self, x): return -x
Partial2.__qualname__ = "Partial"

class Meta(type):
    def __call__(cls): return 1

class Meta2(type):
    def __call__(cls): return 2
Meta2.__qualname__ = "Meta"

class Made(metaclass=Meta): pass
class Made2(metaclass=Meta2): pass
Made2.__qualname__ = "Made"

def add(value, a):
    value.a = a
    return value

def module(a):
    return add(types.ModuleType("made"), a)

"""
WAYS = {
    "global": "VALUE = {value}\ndef kernel(x): return x, VALUE\n",
    "closure": "def make(value):\n    def kernel(x): return x, value\n    return kernel\nkernel = make({value})\n",
    "default": "def kernel(x, value={value}): return x, value\n",
    "class by getattr": "class C:\n    a = {value}\ndef kernel(x): return x, getattr(C, 'a')\n",
    "class by a name": "class C:\n    a = {value}\nNAME = 'a'\ndef kernel(x): return x, getattr(C, NAME)\n",
    "attribute": "CFG = types.SimpleNamespace(a={value})\ndef kernel(x): return x, CFG.a\n",
    "passed on": "CFG = types.SimpleNamespace(a={value})\ndef kernel(x): return g(CFG)\ndef g(c): return c.a\n",
    "helper": "VALUE = {value}\ndef helper(): return VALUE\ndef kernel(x): return helper()\n",
    "list": "VALUE = [0, ({value},)]\ndef kernel(x): return x, VALUE\n",
    "method": (
        "class C:\n    def __init__(self): self.a = {value}\n    def run(self): return self.a\n"
        "OBJ = C()\ndef kernel(x): return OBJ.run()\n"
    ),
    "property": (
        "class C:\n    def __init__(self): self.a = {value}\n    @property\n    def run(self): return self.a\n"
        "OBJ = C()\ndef kernel(x): return OBJ.run\n"
    ),
    "decorator": (
        "def deco(f):\n    value = {value}\n    @functools.wraps(f)\n    def g(x): return f(x), value\n    return g\n"
        "@deco\ndef helper(x): return x\ndef kernel(x): return helper(x)\n"
    ),
    "base class": "class B:\n    a = {value}\nclass C(B): pass\ndef kernel(x): return C().a\n",
    "class with a setter": (
        "class C:\n    a = {value}\n    def set(self, a): self.a = a\n"
        "def helper(c): return c.a\ndef kernel(x): return helper(C)\n"
    ),
    "super": (
        "class B:\n    a = {value}\n    def run(self): return self.a\n"
        "class C(B):\n    def run(self): return super().run()\nOBJ = C()\ndef kernel(x): return OBJ.run()\n"
    ),
    "attribute of a function": "def f(): pass\nf.a = {value}\ndef kernel(x): return f.a\n",
    "partial": "def f(a, x): return a\nP = functools.partial(f, {value})\ndef kernel(x): return P(x)\n",
}


@functools.lru_cache(None)
def code_of(text: str, has_source: bool) -> CodeType:
    file = f"<values {hashlib.sha256(text.encode()).hexdigest()}>" if has_source else "<string>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    return compile(text, file, "exec")


@functools.lru_cache(None)
def definitions(has_source: bool) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "app_of_values"}
    exec(code_of(DEFINITIONS, has_source), space)
    return space


def fingerprint_of(text: str, has_source: bool = True) -> tuple[str, bool]:
    """Of the kernel that a text defines below the definitions, and whether it means something in another process."""
    space = definitions(has_source)
    names = list(space)
    exec(code_of(text, has_source), space)
    found = Fingerprint(space["kernel"])
    said = found.value(), not found.opaque
    for name in [name for name in space if name not in names]:
        del space[name]
    return said


@pytest.mark.parametrize("has_source", [True, False], ids=["", "without source"])
@pytest.mark.parametrize("way", WAYS)
def test_two_values_never_have_equal_fingerprints_in_silence(way: str, has_source: bool) -> None:
    """The way, and whether there is source, decide how a value is reached, not what is read of it: a part tells."""
    silent = []
    step = 1 if way == "global" else 3 if has_source else 5
    for name, values in [*VALUES.items()][[*WAYS].index(way) % step :: step]:
        (one, known), (other, _) = (fingerprint_of(WAYS[way].format(value=value), has_source) for value in values)
        silent += [name] * (known and one == other and name not in SAME)
    assert silent == []


def test_values_that_hold_in_other_processes_are_known_there() -> None:
    opaque = {name for name, (value, _) in VALUES.items() if not fingerprint_of(WAYS["global"].format(value=value))[1]}
    assert opaque == {"sentinel", "generator", "local of a thread"}


def all_fingerprints() -> list[tuple[str, str, bool]]:
    texts = {(way, name): WAYS[way].format(value=VALUES[name][0]) for way in ("global", "method") for name in VALUES}
    return [(*at, *fingerprint_of(text)) for at, text in texts.items()]  # type: ignore[misc]


def test_equal_values_have_equal_fingerprints_under_every_hash_seed() -> None:
    program = (
        "import warnings; warnings.simplefilter('ignore'); "
        "import test_reach, json; print(json.dumps(test_reach.all_fingerprints()))"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(os.path.dirname(file) for file in (__file__, forked.__file__)),
    }
    seeds: tuple[dict[str, str], ...] = ({}, {"PYTHONHASHSEED": "1"})  # one at random, and one
    said = {forked.run([sys.executable, "-c", program], environment | seed, check=True).stdout for seed in seeds}
    assert len(said) == 1


IMPORTS = [
    "from app_imports import conf\n    return conf.A",
    "from app_imports.conf import A\n    return A",
    "from .conf import run as r\n    return r()",
    "import app_imports.conf\n    return app_imports.conf.A",
    "import app_imports.conf as c\n    return c.run()",
    "def inner():\n        from . import conf\n        return conf.run()\n    return inner()",
    "import app_imports.missing\n    import app_imports.conf as c\n    return c.A",
]


@pytest.mark.parametrize("body", IMPORTS)
def test_what_a_function_imports_from_its_own_package_when_it_runs_counts(body: str, tmp_path: Path) -> None:
    """Asked in processes of their own; what it does not read of the module counts nothing."""
    package = tmp_path / "app_imports"
    package.mkdir()
    package.joinpath("__init__.py").touch()
    package.joinpath("kernel.py").write_text(f"def kernel(x):\n    {body}\n")
    program = "from autotuned.key.source import fingerprint; from app_imports.kernel import kernel; print(fingerprint(kernel))"
    said = []
    for value, unread in ((2, 1), (3, 1), (2, 5)):
        text = f"A = {value}\nUNREAD = {unread}\ndef run(): return {value}\n"
        package.joinpath("conf.py").write_text(text)
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        said.append(forked.run([sys.executable, "-c", program], environment, check=True).stdout)
    assert said[0] == said[2] != said[1]
