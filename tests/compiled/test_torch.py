"""torch accepts a tuned kernel exactly where it accepts Triton's own tuner."""

import fake_cuda
import pytest
import torch
import torch.utils._triton
import triton
import triton.language as tl
from torch._higher_order_ops import triton_kernel_wrap
from torch.library import wrap_triton
from triton import Config

from autotuned import autotune, heuristics

# torch's own imports and tracing warn; nothing of ours runs under these names.
pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:UserWarning")
CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]


@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)


@triton.jit
def double_even(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)


def hook(*args, **kwargs):
    pass


def keep_all(configs, named, **kwargs):
    return configs


def stacks(autotune, heuristics):
    """The ways to build a tuner that torch treats differently, with Triton's decorators or ours."""
    hooked = [Config({"BLOCK": block}, pre_hook=hook) for block in (16, 32)]
    values = {"EVEN": lambda arguments: arguments["n"] % 2 == 0}
    even = triton.heuristics(values)
    return {
        "plain": autotune(CONFIGS, key=["n"])(double),
        "one-config": autotune(CONFIGS[:1], key=["n"])(double),
        "restore": autotune(CONFIGS, key=["n"], restore_value=["y_ptr"])(double),
        "pruned": autotune(CONFIGS, key=["n"], prune_configs_by={"early_config_prune": keep_all})(double),
        "heuristics-inside": autotune(CONFIGS, key=["n"])(even(double_even)),
        "heuristics-outside": even(autotune(CONFIGS, key=["n"])(double_even)),
        "own-inside": autotune(CONFIGS, key=["n"])(heuristics(values)(double_even)),
        "own-outside": heuristics(values)(autotune(CONFIGS, key=["n"])(double_even)),
        "config-hook": autotune(hooked, key=["n"])(double),
        "pre-hook": autotune(CONFIGS, key=["n"], pre_hook=hook)(double),
        "post-hook": autotune(CONFIGS, key=["n"], post_hook=hook)(double),
    }


OURS, STOCK = stacks(autotune, heuristics), stacks(triton.autotune, triton.heuristics)


REFUSED = {"config-hook", "pre-hook", "post-hook"}


@pytest.fixture(autouse=True)
def triton_is_there(monkeypatch):
    with fake_cuda.traced_by_torch(monkeypatch):
        yield


@pytest.fixture
def benched(monkeypatch):
    """Our own tuners' benchmark, so that a search costs nothing; Triton's asks the driver."""
    from autotuned.search import duel as duels
    from autotuned.search import race

    monkeypatch.setattr(race, "race", lambda trials, track, *_, **__: track.sample(trials) or True)
    monkeypatch.setattr(duels, "fight", lambda best, untuned, *given, **how: duels.Duel(best, untuned))
    monkeypatch.setattr(duels.Duel, "is_won", True)
    monkeypatch.setattr(duels.Duel, "is_close", False)


def verdict(action):
    """What torch says to it: the launches made, or the kind of refusal."""
    before = len(fake_cuda.Launcher.launches)
    try:
        action()
    except Exception as error:
        return type(error).__name__
    return len(fake_cuda.Launcher.launches) > before


@pytest.mark.parametrize("stack", OURS)
def test_wrap_triton(stack, benched):
    def action(kernel):
        x = torch.zeros(64)
        return lambda: wrap_triton(kernel)[(4,)](x, torch.empty_like(x), 64)

    ours = verdict(action(OURS[stack]))
    assert ours == verdict(action(STOCK[stack]))
    assert ours == ("RuntimeError" if stack in REFUSED | {"heuristics-outside", "own-outside"} else True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("stack", OURS)
def test_b72_torch_compile_fullgraph(stack, backend, benched):
    def verdict_of(kernel):
        def double_(x):
            y = torch.empty_like(x)
            kernel[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, y, x.numel())
            return y + 1

        torch._dynamo.reset()
        return verdict(lambda: torch.compile(double_, fullgraph=True, backend=backend)(torch.zeros(64)))

    ours, stock = verdict_of(OURS[stack]), verdict_of(STOCK[stack])
    assert ours == stock
    assert (ours is True) == (stack not in REFUSED)


def test_what_a_kernel_writes_is_found_in_ours():
    """torch asks which tensors a kernel mutates: it walks `.fn` to the Triton function."""
    x, y = torch.zeros(64), torch.zeros(64)
    table = triton_kernel_wrap.kernel_side_table
    kernel = table.add_kernel(OURS["plain"])
    constants = table.add_constant_args({"n": 64, "BLOCK": 16})
    assert triton_kernel_wrap.get_mutated_tensors(kernel, constants, {"x_ptr": x, "y_ptr": y}, {}) == ["y_ptr"]
