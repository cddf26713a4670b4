"""The contract in docs/contract.md while it tunes and keys: M6 to M8, M11 and M13, with their numbers."""

import enum

import fake_cuda
import pytest
import subjects
import torch
import triton
import triton.language as tl
from contract import CONFIGS, add
from triton import Config
from triton.runtime.errors import OutOfResources

from autotuned.store import listing

# -- M6: while it tunes -----------------------------------------------------------------------------------------------


def test_m6_what_the_configs_set_is_a_conflict(make, x):
    with pytest.raises(
        ValueError, match="Conflicting meta-parameters: BLOCK. Make sure that you don't re-define auto-tuned symbols."
    ):
        make()[(4,)](x, x, 100, BLOCK=16)


def test_m6_hooks_in_their_order(make, x, monkeypatch):
    events = []
    monkeypatch.setattr(fake_cuda.Launcher, "__call__", lambda self, *args: events.append("launch"))
    configs = [Config({"BLOCK": block}, pre_hook=lambda arguments: events.append("config")) for block in (16, 32)]
    kernel = make(
        configs,
        pre_hook=lambda arguments, reset_only=False: events.append("reset" if reset_only else "before"),
        post_hook=lambda arguments, exception: events.append("after"),
        do_bench=lambda call, quantiles: (call(), 1.0)[1],
    )
    kernel[(4,)](x, x, 100)
    trial = ["config", "before", "launch", "after"]
    assert events[:4] == trial
    assert events[-2:] == ["config", "launch"]
    assert events.count("launch") == events.count("after") + 1 == events.count("before") + 1


@pytest.mark.parametrize("error", [OutOfResources(9, 1, "threads"), "compile-time"], ids=["resources", "assertion"])
def test_m6_a_config_that_cannot_run_loses(make, x, error):
    def picky(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr = False):
        tl.static_assert(BLOCK == 32)
        tl.store(y_ptr, n)

    raised = []

    def bench(call, quantiles):
        call()
        raised.append(error)
        if isinstance(error, Exception) and len(raised) == 1:
            raise error
        return [1.0] * 3

    kernel = make(jit=triton.jit(picky if error == "compile-time" else add), do_bench=bench)
    for _ in range(2):
        kernel[(4,)](x, x, 100)
        assert kernel.best_config is CONFIGS[1]


@pytest.mark.subjects(["seeded", "replaced"])
def test_m6_other_exceptions_end_the_search_as_with_triton(make, x, bench):
    def fail(call, quantiles):
        raise ZeroDivisionError

    kernel = make(do_bench=fail)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            kernel[(4,)](x, x, 100)
    assert len(kernel.cache) == 0


@pytest.mark.subjects(subjects.OURS)
def test_m6_when_all_fail_nothing_is_kept(make, x, launches):
    def broken(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr = False):
        tl.static_assert(BLOCK == 7)

    kernel = make(jit=triton.jit(broken), do_bench=lambda call, quantiles: (call(), 1.0)[1])
    for _ in range(2):
        with pytest.raises(Exception, match="static_assert|failed"):
            kernel[(4,)](x, x, 100)
    assert (len(kernel.cache), launches) == (0, [])
    assert [record for _, record in listing.all_records() if record.winner] == []


def test_m6_gradients_are_not_recorded(make):
    x = torch.zeros(128, requires_grad=True)
    kernel = make(restore_value=["x_ptr"], do_bench=lambda call, quantiles: (call(), 1.0)[1])
    with torch.no_grad():  # Triton's own copies would fail without it, and so would the user's launch
        kernel[(4,)](x, x, 100)
    assert x.grad_fn is None


# -- M7: pruning ------------------------------------------------------------------------------------------------------


def test_m7_a_pruner_may_make_new_configs_with_hooks(make, x, bench, subject):
    hooked = []

    def early(configs, named, **kwargs):
        return [
            Config({"BLOCK": block}, pre_hook=lambda arguments: hooked.append(arguments["BLOCK"])) for block in (16, 32)
        ]

    for _ in range(2):
        kernel = make(prune_configs_by={"early_config_prune": early})
        for _ in range(2):
            hooked.clear()
            kernel[(4,)](x, x, 100)
            assert hooked[-1] == 32
    assert sorted(bench.calls) == ([16, 16, 32, 32] if subject.name == "triton" else [16, 32])


def test_m7_a_pruners_configs_may_set_more_than_the_listed_ones(subject, bench, x, launches):
    def fill(x_ptr, n, BLOCK: tl.constexpr, STAGES: tl.constexpr):
        tl.store(x_ptr + tl.arange(0, BLOCK), n + STAGES)

    def early(configs, named, **kwargs):
        return [Config({**config.kwargs, "STAGES": 3}) for config in configs]

    pruning = {"early_config_prune": early}
    kernel = subject.autotune(CONFIGS, key=["n"], prune_configs_by=pruning, do_bench=bench)(triton.jit(fill))
    for _ in range(4):
        kernel[(1,)](x, 100)
        assert (launches[-1].arguments["BLOCK"], launches[-1].arguments["STAGES"]) == (32, 3)
    assert sorted(bench.calls) == [16, 32]


@pytest.mark.subjects(["triton", "seeded", "beside", "replaced"])
def test_m7_configs_set_later_are_checked_by_nothing_before_the_pruner(make, x, launches):
    def early(configs, named, **kwargs):
        return [config for config in configs if "OTHER" not in config.kwargs]

    kernel = make(prune_configs_by={"early_config_prune": early})
    kernel[(4,)](x, x, 100)
    kernel.configs = [Config({"BLOCK": 64}), Config({"BLOCK": 64}, num_warps=2), Config({"OTHER": 1})]
    kernel.cache.clear()
    for _ in range(3):
        kernel[(4,)](x, x, 100)
        assert launches[-1].arguments["BLOCK"] == 64


# -- M8: a stored choice is the live config ---------------------------------------------------------------------------


@pytest.mark.subjects(subjects.OURS)
def test_m8_a_stored_choice_has_its_hook_again(make, x, bench):
    hooked = []
    configs = [
        Config({"BLOCK": block}, pre_hook=lambda arguments: hooked.append(arguments["BLOCK"])) for block in (16, 32)
    ]
    make(configs)[(4,)](x, x, 100)
    bench.calls.clear(), hooked.clear()
    kernel = make(configs)
    kernel[(4,)](x, x, 100)
    assert (kernel.best_config is configs[1], bench.calls, hooked) == (True, [], [32])


@pytest.mark.subjects(subjects.OURS)
def test_m8_a_stored_choice_that_is_pruned_now_is_not_taken(make, x, bench):
    make()[(4,)](x, x, 100)
    bench.calls.clear()
    kernel = make(prune_configs_by={"early_config_prune": lambda configs, named, **kwargs: configs[:1]})
    kernel[(4,)](x, x, 100)
    assert (kernel.best_config, bench.calls) == (CONFIGS[0], [])


# -- M10 is in test_compiled_launch.py, M12 in test_compiled_listener.py ----------------------------------------------
# -- M11: under capture -----------------------------------------------------------------------------------------------


@pytest.fixture
def capture(monkeypatch):
    def refuse(*args):
        raise AssertionError("a captured stream was synchronised")

    def begin(is_on):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_on)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: is_on)
        monkeypatch.setattr(torch.cuda, "synchronize", refuse if is_on else lambda: None)

    return begin


@pytest.mark.subjects(subjects.INSTALLED)
def test_m11_nothing_is_measured_under_capture(make, x, bench, capture, caplog, launches):
    kernel = make()
    capture(True)
    for _ in range(3):
        kernel[(4,)](x, x, 100)
        assert (kernel.best_config, launches[-1].arguments["BLOCK"]) == (CONFIGS[0], 16)
    assert (bench.calls, len(kernel.cache), list(listing.all_records())) == ([], 0, [])
    assert caplog.text.count("nothing may be measured now") == 1
    capture(False)
    kernel[(4,)](x, x, 100)
    assert (kernel.best_config, sorted(bench.calls)) == (CONFIGS[1], [16, 32])


@pytest.mark.subjects(subjects.INSTALLED)
def test_m11_the_first_config_that_compiles(make, x, capture, launches):
    def picky(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr = False):
        tl.static_assert(BLOCK == 32)
        tl.store(y_ptr, n)

    kernel = make(jit=triton.jit(picky))
    capture(True)
    kernel[(4,)](x, x, 100)
    assert kernel.best_config is CONFIGS[1]


@pytest.mark.subjects(subjects.OURS)
def test_m11_a_stored_choice_serves_under_capture(make, x, bench, capture):
    make()[(4,)](x, x, 100)
    bench.calls.clear()
    kernel = make()
    capture(True)
    kernel[(4,)](x, x, 100), kernel[(4,)](x, x, 100)
    assert (kernel.best_config, bench.calls) == (CONFIGS[1], [])


# -- M13: keys of any value -------------------------------------------------------------------------------------------


class Kind(enum.Enum):
    A = 1
    B = 2


VALUES = {
    "tl-dtypes": [tl.float32, tl.float16],
    "torch-dtypes": [torch.float32, torch.float16],
    "none": [None, 3],
    "bools": [True, False],
    "enums": [Kind.A, Kind.B],
    "floats": [0.5, 1e-30],
    "texts": ["a", "b"],
}


def valued(x_ptr, kind: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(x_ptr, BLOCK)


@pytest.mark.subjects(subjects.OURS)
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_m13_values_that_are_stored(subject, bench, x, values):
    def make():
        return subject.autotune(CONFIGS, key=["kind"], do_bench=bench)(triton.jit(valued))

    for value in values:
        make()[(1,)](x, value)
    assert len(bench.calls) == 4
    bench.calls.clear()
    for value in values:
        kernel = make()
        kernel[(1,)](x, value)
        assert (kernel.best_config, bench.calls) == (CONFIGS[1], [])


@pytest.mark.subjects(subjects.OURS)
def test_m13_an_object_is_kept_in_memory_only(subject, bench, x):
    class Opaque:
        def __eq__(self, other):
            return self is other

        __hash__ = object.__hash__

    kernel = subject.autotune(CONFIGS, key=["kind"], do_bench=bench)(triton.jit(valued))
    kernel.fn.run = lambda *args, **kwargs: None  # Triton itself takes no such constant
    kernel.cache[(Opaque(), "torch.float32")] = CONFIGS[0]
    assert list(listing.all_records()) == []
    assert len(kernel.cache) == 1


@pytest.mark.subjects(subjects.INSTALLED)
def test_m13_dtypes_of_descriptors_are_told_apart_in_the_store(subject, bench, x):
    """Triton's key has none for them: within a process they share a choice, as ever."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    def read(desc, y_ptr, BLOCK: tl.constexpr):
        tl.store(y_ptr, tl.sum(desc.load([0, 0])) + BLOCK)

    for dtype in (torch.float16, torch.float32):
        kernel = subject.autotune(CONFIGS, key=[], do_bench=bench)(triton.jit(read))
        kernel[(1,)](TensorDescriptor.from_tensor(torch.zeros(64, 32, dtype=dtype), [8, 32]), x)
    assert len(list(listing.all_records())) == 2
