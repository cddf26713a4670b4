"""What runs around a launch, in which order, on every path that a launch can take."""

import itertools

import fake_cuda
import paths
import pytest
import torch
import triton
import triton.language as tl
from triton import Config

from autotuned import autotune
from autotuned.launch import bound

PATHS = [*paths.PATHS, "pinned", "through-triton"]


def add(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


@pytest.fixture
def events(monkeypatch):
    """What happened, in order: zeroing, hooks, grids and launches."""
    seen = []
    zero = bound.zero
    original = fake_cuda.Launcher.__call__

    def note_zero(tensors):
        tensors = list(tensors)
        seen.extend("zero" for _ in tensors)
        zero(tensors)

    def note_launch(self, *args):
        seen.append("launch")
        original(self, *args)

    monkeypatch.setattr(bound, "zero", note_zero)  # before a launch, and around a trial
    monkeypatch.setattr(fake_cuda.Launcher, "__call__", note_launch)
    return seen


def ready(path, make, configs, call, monkeypatch, tmp_path):
    """A tuned kernel whose next call goes this way; these two ways there are for kernels only."""
    if path == "through-triton":
        monkeypatch.setenv("AUTOTUNED_LAUNCHER", "triton")
        path = "table"
    tuned = paths.on_path("table" if path == "pinned" else path, make, configs, call, monkeypatch, tmp_path)
    if path == "pinned":
        tuned.cache[next(iter(tuned.cache))] = configs[1]
    return tuned


@pytest.mark.parametrize("path", PATHS)
def test_order_of_hook_grid_and_launch(path, events, monkeypatch, tmp_path):
    """Triton's order: the config's hook first, so that grid and specialization see what it set up."""

    def hook(arguments):
        events.append(("hook", arguments["BLOCK"], arguments["n"], arguments["num_warps"], arguments["out_ptr"]))

    def grid(meta):
        events.append("grid")
        return (1,)

    def call(kernel):
        return kernel[grid](x, out, n=100)

    x, out = torch.zeros(100), torch.full((100,), 7.0)
    configs = [Config({"BLOCK": 16}, pre_hook=hook), Config({"BLOCK": 32}, num_warps=2, pre_hook=hook)]
    options = {"restore_value": [], "reset_to_zero": ["out_ptr"], "do_bench": fake_cuda.by_config({16: 2.0, 32: 1.0})}

    def make(configs, **more):
        return autotune(configs, key=["n"], **options, **more)(triton.jit(add))

    tuned = ready(path, make, configs, call, monkeypatch, tmp_path)
    out.fill_(7.0)
    events.clear()
    call(tuned)
    chosen = configs[0] if path == "off" else configs[1]
    hook_event = ("hook", chosen.kwargs["BLOCK"], 100, chosen.num_warps, out)
    assert events[-4:] == ["zero", hook_event, "grid", "launch"]
    asked = len(list(itertools.takewhile(lambda event: event == "grid", events)))  # of each config, before it compiles
    assert len(events) - asked == (20 if path == "cold" else 4)  # cold: two launches of each of two configs before
    assert torch.equal(out, torch.zeros(100))
    assert tuned.best_config is chosen


def test_a_trial_is_prepared_like_a_launch(events):
    def hook(arguments):
        events.append("hook")

    tuned = autotune(
        [Config({"BLOCK": 16}, pre_hook=hook), Config({"BLOCK": 32}, pre_hook=hook)],
        key=["n"],
        reset_to_zero=["out_ptr"],
        restore_value=["x_ptr"],
        do_bench=fake_cuda.by_config({16: 2.0, 32: 1.0}),
    )(triton.jit(add))
    tuned[(1,)](torch.zeros(100), torch.zeros(100), 100)
    launch = ["zero", "hook", "launch"]
    assert events == launch * 5  # once to compile, once by the fake clock, for each of two; then the caller's


def test_the_config_hook_may_change_what_is_specialized_on(launches):
    """A hook that sets a descriptor's block shape, or makes memory aligned, acts before Triton looks."""
    memory = torch.zeros(200)

    class Lazy:
        """A pointer that is only there once the hook has run."""

        dtype = torch.float32
        address = 4

        def data_ptr(self):
            return self.address

    lazy = Lazy()

    def hook(arguments):
        arguments["x_ptr"].address = memory.data_ptr()

    tuned = autotune([Config({"BLOCK": 16}, pre_hook=hook)])(triton.jit(add))
    compiled = tuned[(1,)](lazy, memory, 100)
    assert compiled is tuned.fn[(1,)](memory, memory, 100, **tuned.configs[0].all_kwargs())


# -- the decorator's hooks: around trials only, as in Triton ----------------------------------------------------------


class Refused(Exception):
    pass


@pytest.mark.parametrize("failing", [None, "config", "bench"])
def test_b73_pre_and_post_hook_are_paired(launches, failing):
    calls = []

    def pre_hook(arguments, reset_only=False):
        calls.append(("pre", arguments["BLOCK"], reset_only))

    def post_hook(arguments, exception):
        calls.append(("post", arguments["BLOCK"], exception))

    def refuse(arguments):
        raise Refused("this one not")

    bench = fake_cuda.by_config({16: 2.0, 32: 1.0})
    if failing == "bench":
        bench = fake_cuda.by_config({16: 2.0})  # KeyError for 32
    configs = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]
    if failing == "config":
        configs[1] = Config({"BLOCK": 2**20 + 1})  # no power of two: does not compile
    tuned = autotune(configs, key=["n"], pre_hook=pre_hook, post_hook=post_hook, do_bench=bench)(triton.jit(add))
    tuned[(1,)](torch.zeros(100), torch.zeros(100), 100)
    *trials, last = calls
    winner = 32 if failing is None else 16
    assert last == ("pre", 16 if failing else last[1], True)
    for before, after in zip(trials[::2], trials[1::2], strict=True):
        assert before[0] == "pre"
        assert after[0] == "post"
        assert before[1] == after[1]
        assert before[2] is False
    failed = [after[2] for after in trials[1::2] if after[2] is not None]
    assert len(failed) == (1 if failing == "config" else 0)
    assert launches[-1].arguments["BLOCK"] == winner
    calls.clear()
    tuned[(1,)](torch.zeros(100), torch.zeros(100), 100)
    assert calls == []


def test_attributes_say_that_hooks_are_the_users():
    """torch refuses a tuner with user hooks by these; without any they must be false."""

    def hook(*args, **kwargs):
        pass

    plain = autotune([Config({"BLOCK": 16})], reset_to_zero=["out_ptr"], restore_value=["x_ptr"])(triton.jit(add))
    assert plain.user_defined_pre_hook is plain.user_defined_post_hook is False
    hooked = autotune([Config({"BLOCK": 16})], pre_hook=hook, post_hook=hook)(triton.jit(add))
    assert hooked.user_defined_pre_hook is hooked.user_defined_post_hook is True
    assert hooked.pre_hook is hooked.post_hook is hook
