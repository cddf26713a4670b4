"""Each axis of a key alone: changed, a new process searches; beside it a control that must find what is stored."""

import enum
import itertools
import os
import sys
from pathlib import Path

import forked
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from fakes import FakeConfig as Config
from fakes import FakeDescriptor
from triton import Config as KernelConfig

from autotuned import autotune
from autotuned.api import decorator
from autotuned.gpu import device
from autotuned.key import key
from autotuned.search import timers
from autotuned.store import listing, record, records
from autotuned.triton_compat import fingerprint
from autotuned.tunable import function

CONFIGS = [Config({"step": step}) for step in (8, 16)]
X = np.zeros((8, 8))


def work(x, n=1, *, step):
    return step


TIMES = itertools.count(1)  # one answer for all configs would be warned of


def bench(call, quantiles):
    call()
    return [float(next(TIMES))] * 3


def other_bench(call, quantiles):
    call()
    return [2.0 * next(TIMES)] * 3


def search(function=work, args=(X,), *, configs=CONFIGS, **options):
    """How many searches a call takes in a process that has nothing but the store: all is decorated anew."""
    decorator._explicit_names.clear()
    kwargs = options.pop("kwargs", {})
    tuned = autotune(list(configs), **({"do_bench": bench, "name": "app.work"} | options))(function)
    tuned(*args, **kwargs)
    return tuned.cache_info().searches


def calls(first, control, changed, **options):
    """Three calls of one function, by their arguments."""
    return tuple(lambda args=args: search(args=args, **options) for args in (first, control, changed))


def functions(first, control, changed, **options):
    """One call of three functions."""
    return tuple(lambda function=function: search(function, **options) for function in (first, control, changed))


# -- what is in a key: three searches, of which the second must be a hit ------------------------------------------------


def axis_key_argument(patch, load):
    return calls((X, 1), (X.copy(), 1), (X, 2), key=["n"])


def axis_key_callable(patch, load):
    return calls((X, 4), (X, 6), (X, 5), key=[lambda arguments: arguments["n"] % 2])


def axis_shape(patch, load):
    return calls((X,), (np.ones((8, 8)),), (np.zeros((8, 9)),))


def axis_dtype(patch, load):
    return calls((X,), (X + 1,), (X.astype(np.float32),))


def axis_dtype_of_a_tensor_that_is_not_named(patch, load):
    return calls((X, 1), (np.zeros((9, 9)), 1), (X.astype(np.float32), 1), key=["n"])


def axis_dtype_in_a_tuple(patch, load):
    pairs = [(X, np.zeros(4)), (X + 1, np.ones(4)), (X, np.zeros(4, np.float32))]
    return calls(*[(pair,) for pair in pairs])


def axis_dtype_of_a_descriptor(patch, load):
    bases = [torch.zeros(8, 8), torch.ones(8, 8), torch.zeros(8, 8, dtype=torch.float16)]
    return calls(*[(FakeDescriptor(base),) for base in bases])


def axis_strides(patch, load):
    return calls((X,), (np.zeros((8, 32))[:, :8],), (np.asfortranarray(X),))


def axis_strides_of_an_expanded_tensor(patch, load):
    return calls((X,), (X.copy(),), (np.broadcast_to(X[:1], X.shape),))


def axis_dimension_of_size_1(patch, load):
    """Its stride says nothing; that it is there does."""
    one = np.zeros((1, 8))
    return calls((one,), (np.lib.stride_tricks.as_strided(one, (1, 8), (8, 8)),), (np.zeros((1, 1, 8)),))


def axis_dimension_of_size_0(patch, load):
    none = np.zeros((0, 8))
    return calls((none,), (np.lib.stride_tricks.as_strided(none, (0, 8), (8, 8)),), (np.zeros((1, 8)),))


def axis_none(patch, load):
    return calls((X, None), (X.copy(), None), (X, X))


def axis_type_of_a_scalar(patch, load):
    return calls((X, 1), (X.copy(), 1), (X, True))


def axis_closure_cell(patch, load):
    def sized(rows):
        return lambda x, n=1, *, step: rows

    return functions(sized(4), sized(4), sized(5))


def axis_default_of_a_parameter(patch, load):
    def of(text):
        return load("kern", kern=f"def work(x, n=1, scale={text}, *, step):\n    return scale\n").work

    return functions(of("2"), of("2"), of("3"))


def axis_device_name(patch, load):
    return on_devices(patch, "NVIDIA H100 PCIe", {"name": "NVIDIA H100 NVL"})


def axis_device_arch(patch, load):
    return on_devices(patch, "X", {"arch": "sm_80"})


def axis_device_sm_count(patch, load):
    return on_devices(patch, "X", {"sm_count": 114})


def axis_device_mig(patch, load):
    return on_devices(patch, "X", {"mig": "1g.10gb"})


def on_devices(patch, name, change):
    """The control is the same device, found anew."""
    patch.setattr(timers, "CudaTimer", timers.HostTimer)
    fields = {"kind": "cuda", "name": name, "arch": "sm_90", "sm_count": 132, "mig": None}

    def on(found):
        patch.setattr(function.TunableFunction, "device", lambda self, call: device.Device(**found))
        return search()

    return lambda: on(fields), lambda: on(dict(fields)), lambda: on({**fields, **change})


def axis_versions_of_a_callables_toolchain(patch, load):
    def under(version):
        patch.setattr("autotuned.tunable.function._installed", lambda distribution, name: version)
        return search(toolchain=["numpy"])

    return lambda: under("1.0"), lambda: under("1.0"), lambda: under("1.1")


def axis_source_of_a_callable(patch, load):
    return edits(load, "return helper(x)", "return helper(x) + 0", "return helper(x)  # as before")


def axis_callee_in_this_file(patch, load):
    return edits(load, "return used.scale(x)", "return 2 * used.scale(x)", "return used.scale(x)  # as before")


def axis_callee_in_another_file(patch, load):
    return edits(load, "return LIMIT * x", "return x * LIMIT", "return LIMIT * x  # as before")


def axis_global_that_is_used(patch, load):
    return edits(load, "LIMIT = 3", "LIMIT = 4", "LIMIT = 3  # as before")


FILES = {
    "kern": "import used\n\ndef helper(x):\n    return used.scale(x)\n\ndef work(x, n=1, *, step):\n"
    "    return helper(x)\n\ndef unused():\n    return 1\n",
    "used": "LIMIT = 3\nOTHER = 5\n\ndef scale(x):\n    return LIMIT * x\n\ndef unused():\n    return OTHER\n",
}


def edits(load, old, new, same):
    def after(text):
        return search(load("kern", **{name: content.replace(old, text) for name, content in FILES.items()}).work)

    assert sum(content.count(old) for content in FILES.values()) == 1
    return lambda: after(old), lambda: after(same), lambda: after(new)


def axis_way_of_measuring(patch, load):
    return search, search, lambda: search(do_bench=other_bench)


def axis_version(patch, load):
    return tuple(lambda salt=salt: search(version=salt) for salt in (1, 1, True))


# -- the same of Triton kernels -----------------------------------------------------------------------------------------

FACTOR = tl.constexpr(2)


@triton.jit
def twice(x):
    return x * FACTOR


@triton.jit
def thrice(x):
    return x * 3


@triton.jit
def kernel(x_ptr, n, KIND: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, twice(tl.load(x_ptr + i, mask=i < n)), mask=i < n)


def launch(fn=kernel, kind=1, **options):
    """How many searches a launch takes in a process that has nothing but the store."""
    decorator._explicit_names.clear()
    configs = [KernelConfig({"BLOCK": block}) for block in (16, 32)]
    tuned = autotune(configs, **({"do_bench": bench, "name": "app.kernel"} | options))(fn)
    tuned[(1,)](torch.zeros(16), 16, kind)
    return tuned.cache_info().searches


def axis_constexpr_that_the_caller_passes(patch, load):
    return tuple(lambda kind=kind: launch(kind=kind, key=[]) for kind in (1, 1, True))


def axis_function_passed_as_constexpr(patch, load):
    return tuple(lambda kind=kind: launch(kind=kind) for kind in (twice, twice, thrice))


def axis_triton(patch, load):
    return with_fingerprint(patch, "triton", "3.5.0")


def axis_hash_of_triton(patch, load):
    return with_fingerprint(patch, "triton_key", "00")


def axis_ptxas(patch, load):
    return with_fingerprint(patch, "ptxas", "12.8.93")


def with_fingerprint(patch, name, value):
    real = fingerprint.of

    def under(**change):
        patch.setattr(fingerprint, "of", lambda *arguments: {**real(*arguments), **change})
        return launch()

    return under, lambda: under(), lambda: under(**{name: value})


def axis_environment(patch, load):
    """Changed inside the process; a variable that changes no code is the control."""

    def under(name, value):
        with patch.context() as changed:
            changed.setenv(name, value)
            return launch()

    return launch, lambda: under("SOME_VARIABLE", "1"), lambda: under("DISABLE_LLVM_OPT", "1")


def axis_source_of_a_kernel(patch, load):
    head = "import triton\nimport triton.language as tl\n"
    text = (
        "@triton.jit\ndef helper(x):\n    return x + 1\n\n@triton.jit\n"
        "def kernel(x_ptr, n, KIND: tl.constexpr, BLOCK: tl.constexpr):\n"
        "    i = tl.arange(0, BLOCK)\n    tl.store(x_ptr + i, helper(i), mask=i < n)\n"
    )
    texts = (text, "# moved\n\n" + text, text.replace("x + 1", "1 + x"))
    return tuple(lambda text=text: launch(load("kern", kern=head + text).kernel) for text in texts)


AXES = {name.removeprefix("axis_"): axis for name, axis in list(globals().items()) if name.startswith("axis_")}


@pytest.mark.parametrize("axis", AXES)
def test_a_change_of_one_axis_is_a_miss_and_its_control_a_hit(axis, monkeypatch, load):
    first, control, changed = AXES[axis](monkeypatch, load)
    assert [first(), control(), changed(), first(), changed()] == [1, 0, 1, 0, 0]
    assert len(list(listing.all_records())) == 2


# -- what is not in a key ------------------------------------------------------------------------------------------------


class Kind(enum.Enum):
    FAST = 1


def same_variable(patch, load, folder):
    patch.setenv("SOME_VARIABLE", "1")
    return search


def same_working_folder(patch, load, folder):
    patch.chdir(folder)
    return search


def same_line_numbers(patch, load, folder):
    moved = {name: "# moved\n\n\n" + content for name, content in FILES.items()}
    assert search(load("kern", **FILES).work) == 1
    return lambda: search(load("kern", **moved).work)


def same_code_that_is_not_used(patch, load, folder):
    more = {name: content.replace("return 1", "return 2") + "\nMORE = 1\n" for name, content in FILES.items()}
    assert search(load("kern", **FILES).work) == 1
    return lambda: search(load("kern", **more).work)


def same_exact_strides(patch, load, folder):
    return lambda: search(args=(np.zeros((8, 100))[:, :8],))


def same_address_and_alignment(patch, load, folder):
    odd = np.zeros(8 * 8 * 8 + 1, np.uint8)[1:].view(np.float64).reshape(8, 8)
    assert odd.ctypes.data % 8
    return lambda: search(args=(odd,))


def same_order_of_keywords(patch, load, folder):
    assert search(args=(), kwargs={"x": X, "n": 7}) == 1
    return lambda: search(args=(), kwargs={"n": 7, "x": X}) + search(args=(X, 7))


def same_default_given(patch, load, folder):
    return lambda: search(args=(X, 1))


def same_objects(patch, load, folder):
    """Equal values in other objects."""
    assert search(args=(X, (Kind.FAST, "a" * 3, 10**30))) == 1
    return lambda: search(args=(X.copy(), (Kind(1), "".join("aaa"), int("1" + "0" * 30))))


def same_list_of_configs(patch, load, folder):
    return lambda: search(configs=CONFIGS[::-1]) + search(configs=[*CONFIGS[:1], Config({"step": 16}, num_warps=4)])


def same_index_of_the_device(patch, load, folder):
    """Two of one product: what the one found serves the other."""
    patch.setattr(timers, "CudaTimer", timers.HostTimer)
    products = [device.Device("cuda", "X", "sm_90", 132), device.Device("cuda", "X", "sm_90", 132)]
    patch.setattr(function.TunableFunction, "device", lambda self, call: products[0])
    assert search() == 1
    patch.setattr(function.TunableFunction, "device", lambda self, call: products[1])
    return search


def same_bucket(patch, load, folder):
    def bucketed(n):
        return search(args=(X, n), key=["n"], bucket={"n": key.pow2})

    assert bucketed(1024) == 1
    assert bucketed(1025) == 1
    return lambda: bucketed(513) + bucketed(2048)


SAME = {name.removeprefix("same_"): same for name, same in list(globals().items()) if name.startswith("same_")}


@pytest.mark.parametrize("what", SAME)
def test_what_is_not_in_a_key_changes_nothing(what, monkeypatch, load, tmp_path):
    assert search() == 1
    again = SAME[what](monkeypatch, load, tmp_path)
    known = len(list(listing.all_records()))
    assert again() == 0
    assert len(list(listing.all_records())) == known


def test_hash_seed_and_working_folder_of_a_process_are_in_no_key(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[1] / 'support')!r})\n"
        "from fakes import FakeConfig as Config\nfrom autotuned import autotune\n\n"
        "@autotune([Config({'step': 8}), Config({'step': 16})], name='app.seeded')\n"
        "def work(kind, *, step):\n    return {'a': 1, 'b': 2}\n\n"
        "work(('a', {'b': 1, 'c': 2}))\nprint(work.cache_info().searches)\n"
    )
    found = []
    for seed, folder in (({"PYTHONHASHSEED": "1"}, tmp_path), ({}, tmp_path.parent), ({}, Path("/"))):
        done = forked.run([sys.executable, script], {**os.environ, **seed}, folder)
        assert done.returncode == 0, done.stderr
        found.append(int(done.stdout))
    assert found == [1, 0, 0]


@pytest.mark.parametrize("quality", record.QUALITIES)
def test_a_choice_of_any_quality_is_served_and_not_searched_again(quality):
    """Configs that cannot be told apart, noise, times below the clock's steps: all are answers."""
    assert search() == 1
    ((_, found),) = listing.all_records()
    records.keep(found.replace(quality=quality))
    assert [search(), search()] == [0, 0]
    ((_, again),) = listing.all_records()
    assert again.quality == quality


def test_what_cannot_be_encoded_is_tuned_in_memory_and_said_once(caplog):
    odd = object()
    options = {"key": [lambda arguments: odd]}
    assert [search(**options), search(**options)] == [1, 1]  # nothing of it is stored
    assert list(listing.all_records()) == []
    tuned = autotune(CONFIGS, do_bench=bench, name="app.odd", **options)(work)
    caplog.clear()
    for _ in range(3):
        tuned(X)
    assert tuned.cache_info().searches == 1
    assert ["has no JSON form" in record.getMessage() for record in caplog.records] == [True]
