"""Keys of plain callables: values, closures, helpers, versions, the toolchain; and buckets, which bound the searches."""

import logging

import numpy as np
import pytest
from paths import quick, ship
from stepped import CONFIGS, make, scale, total
from stored import records

import autotuned
from autotuned import autotune
from autotuned.api import decorator
from autotuned.errors import DecorationError
from autotuned.key import key

# -- the key ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "searches"), [(None, 4), (["n"], 3), (["x"], 3), ([], 2)], ids=["all", "n", "x", "nothing"]
)
def test_key(keys, searches):
    function = make(scale, key=keys)(CONFIGS)
    for x, n in [
        (np.ones(50), 50),
        (np.ones(60), 50),
        (np.ones(50), 40),
        (np.ones(50, np.float32), 50),
        (np.ones(50), 50),
    ]:
        function(x, n)
        assert (x[:n] == 0.5).all()
    assert function.cache_info().searches == searches
    assert len(records()) == searches


def test_key_callables():
    function = make(scale, key=[lambda arguments: arguments["n"] // 100, parity])(CONFIGS)
    for n in (50, 52, 51, 150, 50):
        function(np.ones(n), n)
    assert function.cache_info().searches == 3
    assert {str(sorted(record.key.call["values"].items())) for record in records()} == {
        "[('function0()', 0), ('parity()', 0)]",
        "[('function0()', 0), ('parity()', 1)]",
        "[('function0()', 1), ('parity()', 0)]",
    }


def parity(arguments):
    return arguments["n"] % 2


@pytest.mark.parametrize(
    "values", [(1, True, 1.0, "1"), (0.0, 0, False, None), (2**63, 2**63 + 1), (0.1, 0.1000000000000001)], ids=str
)
def test_scalars_in_the_key_are_told_apart(values):
    function = make(lambda x, n, step: None, key=["n"])(CONFIGS)
    for _ in range(2):
        for value in values:
            function(np.ones(4), value)
    assert function.cache_info().searches == len(values)


def test_both_values_of_numpys_bool_have_a_choice_of_their_own_without_a_list():
    function = make(lambda flag, step: step)(CONFIGS)
    for value in (np.bool_(True), np.bool_(False), np.bool_(True), True):
        function(value)
    assert function.cache_info().searches == 3


def fake(torch, call):
    with pytest.importorskip("torch._subclasses.fake_tensor").FakeTensorMode():
        call(torch.ones(5))


@pytest.mark.parametrize(
    "trace",
    [
        lambda torch, call: call(torch.ones(5, device="meta")),
        lambda torch, call: torch.vmap(lambda x: [x, call(x)][0])(torch.ones(2, 5)),
        fake,
    ],
    ids=["meta", "vmap", "fake"],
)
def test_tensors_without_memory_are_neither_measured_nor_answered_for_real_ones(trace):
    torch = pytest.importorskip("torch")
    function = make(lambda x, step: step)(CONFIGS)
    trace(torch, function)
    assert function.cache_info().searches == 0 and not records()
    function(torch.ones(5))
    assert function.cache_info().searches == 1
    trace(torch, function)  # the same choice
    assert function.cache_info().searches == 1


@pytest.mark.parametrize(
    "make_one",
    [
        lambda torch: torch.eye(2).to_sparse(),
        lambda torch: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        lambda torch: torch.nn.Parameter(torch.ones(2)),
        lambda torch: torch.ones(2).as_subclass(type("Sub", (torch.Tensor,), {})),
    ],
    ids=["sparse", "jagged", "parameter", "subclass"],
)
def test_tensors_whose_memory_is_elsewhere_are_measured(make_one):
    torch = pytest.importorskip("torch")
    function = make(lambda x, step: step)(CONFIGS)
    function(make_one(torch))
    assert function.cache_info().searches == 1


def test_negative_zero_is_one_key():
    function = make(lambda x, n, step: None, key=["n"])(CONFIGS)
    for value in (0.0, -0.0, float("nan"), -float("nan")):
        function(np.ones(4), value)
    assert function.cache_info().searches == 2


def closure(m, n):
    """As many write their kernels: the sizes are Python variables outside."""

    @autotune(CONFIGS, do_bench=quick)
    def multiply(x, *, step):
        return x * m * n

    return multiply


def test_a_closure_is_part_of_the_key():
    assert closure(256, 256)(np.ones(4))[0] == 256 * 256
    other = closure(512, 1024)
    other(np.ones(4))
    assert other.cache_info().searches == 1
    assert len(records()) == 2
    again = closure(256, 256)
    again(np.ones(4))
    assert again.cache_info().searches == 0


def test_a_changed_helper_is_another_key(load):
    text = "from fakes import FakeConfig as Config\nfrom autotuned import autotune\nfrom helper import add\n\n\n"
    text += "@autotune([Config({'step': 1}), Config({'step': 2})])\ndef run(x, step):\n    return add(x)\n"
    searches = []
    for number in ("1", "2", "1"):
        module = load("app", app=text, helper=f"def add(x):\n    return x + {number}\n")
        assert module.run(1) == 1 + int(number)
        searches.append(module.run.cache_info().searches)
    assert searches == [1, 1, 0]


def test_version_is_a_salt():
    x = np.ones(4)
    for version, searches in [(None, 1), ("a", 1), ("a", 0), (1, 1), (True, 1), (None, 0)]:
        function = make(total, version=version)(CONFIGS)
        function(x)
        assert function.cache_info().searches == searches, version
    assert len(records()) == 4


def test_toolchain_versions_are_in_the_key(monkeypatch):
    from importlib import metadata

    versions = {"numpy": "1.0"}
    monkeypatch.setattr(metadata, "version", versions.__getitem__)
    searches = []
    for version in ("1.0", "2.0", "1.0"):
        versions["numpy"] = version
        function = make(total, toolchain=["numpy"])(CONFIGS)
        function(np.ones(4))
        searches.append(function.cache_info().searches)
    assert searches == [1, 1, 0]
    assert {record.key.context["distributions"]["numpy"] for record in records()} == {"1.0", "2.0"}


def test_toolchain_that_is_not_installed():
    with pytest.raises(DecorationError) as caught:
        make(total, toolchain=["no-such-distribution-anywhere"])(CONFIGS)
    assert "expected names of installed distributions, got 'no-such-distribution-anywhere'" in str(caught.value)
    assert "Use the name that pip shows" in str(caught.value)


def test_a_key_value_without_spelling_is_kept_in_memory_with_one_warning(caplog):
    caplog.set_level(logging.WARNING, "autotuned")
    function = make(lambda x, n, step: None, key=["n"])(CONFIGS)
    one, other = object(), object()
    for value in (one, other, one, other):
        function(np.ones(4), value)
    assert function.cache_info().searches == 2
    (line,) = [record.getMessage() for record in caplog.records]
    assert "is kept in memory only: 'n', of type builtins.object, has no JSON form. Leave it out of key" in line
    assert records() == []


# -- buckets ---------------------------------------------------------------------------------------------------------


def test_a_bucket_bounds_the_searches():
    runs = []

    def fill(x, T, *, step):
        runs.append(T)
        x[:T] = 1.0

    function = make(fill, key=["T"], bucket={"T": autotuned.pow2})(CONFIGS)
    memory = np.zeros(4096)
    for T in range(1, 4097):
        function(memory, T)
    assert function.cache_info().searches <= 13
    assert function.cache_info().searches == len({key.pow2(T) for T in range(1, 4097)}) == 13
    assert set(runs) == set(range(1, 4097))  # the launch gets the true value


@pytest.mark.parametrize(
    ("lengths", "searches"),
    [((1024, 513, 1000), 1), ((1024, 1025), 2), ((1025, 2048), 1), ((1, 2), 2)],
    ids=["one-bucket", "edge", "next-bucket", "small"],
)
def test_bucket_edges(lengths, searches):
    function = make(scale, key=["n"], bucket={"n": autotuned.pow2})(CONFIGS)
    for n in lengths:
        x = np.ones(n + 5)
        function(x, n)
        assert (x[:n] == 0.5).all()
        assert (x[n:] == 1.0).all()
    assert function.cache_info().searches == searches


def test_a_bucket_of_ones_own():
    function = make(scale, key=["n"], bucket={"n": lambda n: n // 1000})(CONFIGS)
    for n in (10, 999, 1000, 1999, 10):
        function(np.ones(n), n)
    assert function.cache_info().searches == 2
    assert {record.key.call["values"]["n"] for record in records()} == {0, 1}


class Seen:
    """What a launch got; of a class nothing is in a key."""

    size = 0


def note_size(x, n, *, step):
    Seen.size = n


def test_a_bucket_is_one_in_memory_on_disk_and_in_files_and_launches_get_the_true_value(monkeypatch, tmp_path):
    def make():
        decorator._explicit_names.clear()
        options = {"key": ["n"], "bucket": {"n": key.pow2}, "do_bench": quick, "name": "app.sized"}
        return autotune(CONFIGS, **options)(note_size)

    function, searched = make(), []
    for n in (1000, 513, 1024, 512, 1025):  # the last two are the neighbours
        function(np.ones(4), n)
        assert Seen.size == n
        searched.append(function.cache_info().searches)
    assert searched == [1, 1, 1, 2, 3]
    for where in ("disk", "files"):
        if where == "files":
            ship(tmp_path / "shipped", monkeypatch)
        function = make()
        for n in (600, 1024, 300, 1025, 2048):
            function(np.ones(4), n)
            assert Seen.size == n
        assert function.cache_info().searches == 0, where
    function(np.ones(4), 256)
    assert function.cache_info().searches == 1


def test_an_edited_cell_of_a_notebook_takes_the_place_of_what_it_defined_before():
    text = "@autotune(CONFIGS, name='app.kernel')\ndef {}(x, *, step):\n    return {}"
    scope = {"autotune": autotune, "CONFIGS": CONFIGS, "__name__": "__main__"}
    for answer in (1, 2, 1):
        exec(text.format("function", answer), scope)
        assert scope["function"](np.zeros(4)) == answer
    with pytest.raises(DecorationError, match="name='app.kernel' is taken by a kernel with different source"):
        exec(text.format("another", 3), scope)
