"""What a user changes on the object or at the call: configs, pins, modes, warm-up, heuristics, options."""

import logging
import operator

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config, knobs

import autotuned
from autotuned import autotune
from autotuned.errors import NotTunedError
from autotuned.resolve import active
from autotuned.store import listing
from autotuned.triton_compat import kernel as toolchain

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32}), Config({"BLOCK": 64})]


def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr = False):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


@pytest.fixture
def bench():
    return fake_cuda.by_config({16: 2.0, 32: 1.0, 64: 3.0, 128: 4.0})


@pytest.fixture
def xy():
    return torch.zeros(100), torch.zeros(100)


@pytest.fixture
def tuned(bench):
    return autotune(list(CONFIGS), key=["n"], do_bench=bench)(triton.jit(copy))


@pytest.fixture
def block(tuned, xy, launches):
    """Launches and returns the BLOCK that was launched."""

    def launch(n=100, **kwargs):
        before = len(launches)
        tuned[(4,)](*xy, n, **kwargs)
        assert len(launches) > before
        return launches[-1].arguments["BLOCK"]

    return launch


# -- .configs ----------------------------------------------------------------------------------------------------


def test_configs_reassigned(tuned, block, bench):
    assert block() == 32
    tuned.configs = [Config({"BLOCK": 128})]
    assert block() == 128
    assert tuned.cache_info().searches == 1
    tuned.configs = tuned.configs + [Config({"BLOCK": 64})]
    bench.calls.clear()
    assert block() == 64
    assert bench.calls == [128, 64]  # the new one, and the one to beat
    assert tuned.best_config is tuned.configs[1]


def test_configs_popped(tuned, block, bench):
    assert block() == 32
    assert block() == 32
    bench.calls.clear()
    tuned.configs.pop(1)
    assert block() == 16
    assert bench.calls == []  # the others were measured with it
    assert block() == 16
    assert tuned.best_config is CONFIGS[0]


def test_configs_sliced_to_one_needs_no_choice(tuned, block, bench):
    tuned.configs = tuned.configs[2:]
    assert block() == 64
    assert bench.calls == []


def test_configs_that_tune_other_parameters(tuned, xy, launches):
    tuned[(4,)](*xy, 100)
    tuned.configs = [Config({"EVEN": True, "BLOCK": 16})]
    tuned[(4,)](*xy, 100)
    assert launches[-1].arguments["EVEN"] is True
    tuned.configs = [Config({"EVEN": True})]
    tuned[(4,)](*xy, 100, BLOCK=64)  # the caller's to give now
    assert (launches[-1].arguments["EVEN"], launches[-1].arguments["BLOCK"]) == (True, 64)


# -- .cache ------------------------------------------------------------------------------------------------------


def test_cache_mirrors_choices_in_tritons_layout(tuned, block):
    block()
    block(64)
    assert dict(tuned.cache) == {
        (100, "torch.float32", "torch.float32"): CONFIGS[1],
        (64, "torch.float32", "torch.float32"): CONFIGS[1],
    }


def test_cache_written_is_a_pin(tuned, block, bench):
    assert block() == 32
    (key,) = tuned.cache
    tuned.cache[key] = CONFIGS[2]
    bench.calls.clear()
    assert [block(), block()] == [64, 64]
    assert tuned.best_config is CONFIGS[2]
    assert block(64) == 32  # another key is searched as ever
    assert sorted(bench.calls) == [16, 32, 64]


@pytest.mark.parametrize(
    "write", [lambda c, pins: c.update(pins), operator.ior, lambda c, pins: c.setdefault(*next(iter(pins.items())))],
    ids=["update", "|=", "setdefault"],
)  # fmt: skip
def test_every_way_of_writing_the_cache_pins(tuned, block, write):
    assert block() == 32
    (key,) = tuned.cache
    tuned.cache.clear()
    write(tuned.cache, {key: CONFIGS[2]})
    assert [block(), block()] == [64, 64]


def test_cache_written_before_the_first_call(tuned, block, bench):
    tuned.cache[(100, "torch.float32", "torch.float32")] = CONFIGS[2]
    assert [block(), block()] == [64, 64]
    assert bench.calls == []
    assert list(listing.all_records()) == []  # a pin is this process's own


@pytest.mark.parametrize(
    "remove",
    [
        lambda c: c.__delitem__(next(iter(c))),
        lambda c: c.pop(next(iter(c))),
        lambda c: c.popitem(),
        lambda c: c.clear(),
    ],
    ids=["del", "pop", "popitem", "clear"],
)
def test_cache_deleted_unpins(tuned, block, bench, remove):
    block()
    tuned.cache[next(iter(tuned.cache))] = CONFIGS[2]
    assert block() == 64
    remove(tuned.cache)
    assert len(tuned.cache) == 0
    assert tuned.cache_info().size == 0
    assert block() == 32
    assert sorted(bench.calls) == [16, 32, 64]  # from the store


def test_cache_deleted_is_forgotten(tuned, block, bench):
    """What a user deletes is not answered from this process's memory."""
    tuned.tuner.chooser.options.__dict__["stored"] = False  # as with cache_results=False
    block()
    bench.calls.clear()
    tuned.cache.pop(next(iter(tuned.cache)))
    block()
    assert sorted(bench.calls) == [16, 32, 64]


def test_cache_clear(tuned, block, bench):
    for _ in range(2):
        block()
    tuned.cache[(64, "torch.float32", "torch.float32")] = CONFIGS[2]
    tuned.cache_clear()
    assert len(tuned.cache) == tuned.cache_info().size == 0
    bench.calls.clear()
    assert block(100) == 32
    assert bench.calls == []  # records on disk stay
    assert block(64) == 32  # the pin is gone


def test_cache_info(tuned, block):
    assert tuned.cache_info() == (0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0)
    block()
    block()
    block()
    block(64)
    info = tuned.cache_info()
    assert (info.hits, info.misses, info.size, info.evictions, info.searches) == (2, 2, 2, 0, 2)
    assert info.search_s > 0
    assert info.lookup_s > 0
    assert info.compile_s > 0
    assert info.bind_s > 0


# -- modes -------------------------------------------------------------------------------------------------------


def test_a_mode_begins_and_ends_while_bound(tuned, block, bench):
    assert block() == 32
    with autotuned.mode("off"):
        assert block() == 16
        assert block() == 16
    assert block() == 32
    with autotuned.mode("search"):
        assert block() == 32
    assert sorted(bench.calls) == [16, 32, 64]  # searched once in this process already
    assert block() == 32
    with autotuned.mode("strict"):
        assert block() == 32
        with pytest.raises(autotuned.errors.NotTunedError):
            block(64)


# -- warm-up -----------------------------------------------------------------------------------------------------


@pytest.fixture
def compiles(monkeypatch):
    compiled = []

    def note(**info):
        compiled.append(info["compile"]["constants"][(3,)])

    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", note)
    return compiled


@pytest.mark.parametrize("mode", ["serve", "off"])
def test_a_mode_that_ends_while_a_call_is_launched_leaves_nothing_bound(tuned, xy, launches, bench, mode):
    """Another thread or task may end it: from then on its untuned config must not answer."""
    open_ = [autotuned.mode(mode)]
    open_[0].__enter__()

    def grid(meta):
        while open_:
            open_.pop().__exit__(None, None, None)
        return (4,)

    tuned[grid](*xy, 100)
    assert launches[-1].arguments["BLOCK"] == 16 and bench.calls == []
    with autotuned.mode("strict"), pytest.raises(NotTunedError):
        tuned[(4,)](*xy, 100)
    tuned[(4,)](*xy, 100)
    assert launches[-1].arguments["BLOCK"] == 32


def test_a_mode_that_ends_while_a_call_is_bound_leaves_nothing_bound(tuned, block, monkeypatch):
    with autotuned.mode("serve"):
        put = tuned.tuner._put
        monkeypatch.setattr(tuned.tuner, "_put", lambda *given: (put(*given), active.tell_change())[0])
        assert block() == 16 and tuned.cache_info().size == 0


def test_a_pin_that_is_written_while_a_call_is_launched_is_used_from_then_on(tuned, xy, launches):
    tuned[(4,)](*xy, 100)
    x, y = torch.zeros(101)[1:], torch.zeros(101)[1:]  # of another alignment, so it misses the table

    def grid(meta):
        for key in tuned.cache:
            tuned.cache[key] = CONFIGS[2]
        return (4,)

    tuned[grid](x, y, 100)
    assert launches[-1].arguments["BLOCK"] == 32
    tuned[(4,)](x, y, 100)
    assert launches[-1].arguments["BLOCK"] == 64


def test_warmup_compiles_without_launch_search_or_benchmark(tuned, xy, launches, bench, compiles):
    compiled = tuned.run(*xy, 100, grid=(4,), warmup=True)
    assert compiles == [16]  # nothing is stored: the first
    assert compiled.metadata.name == "copy"
    assert launches == []
    assert bench.calls == []
    assert tuned.cache_info().searches == 0


def test_warmup_compiles_the_stored_choice(tuned, block, xy, launches, bench, compiles):
    block()
    fresh = autotune(CONFIGS, key=["n"], do_bench=bench)(triton.jit(copy))
    compiles.clear(), bench.calls.clear(), launches.clear()
    fresh.run(*xy, 100, grid=(4,), warmup=True)
    assert compiles == [32]
    assert launches == []
    assert bench.calls == []
    with autotuned.mode("off"):
        fresh.run(*xy, 100, grid=(4,), warmup=True)
    assert compiles == [32, 16]


def test_warmup_method_compiles_every_config(tuned, launches, bench, compiles):
    compiled = tuned.warmup(torch.float32, torch.float32, 100, grid=(4,))
    assert compiles == [16, 32, 64]
    assert [kernel.metadata.name for kernel in compiled] == ["copy"] * 3
    assert launches == []
    assert bench.calls == []


# -- heuristics --------------------------------------------------------------------------------------------------


def even(arguments):
    return arguments["n"] % 2 == 0


@pytest.mark.parametrize("place", ["outside", "inside"])
@pytest.mark.parametrize("layers", [1, 2], ids=["one", "two"])
def test_heuristics(bench, xy, launches, place, layers):
    seen = []

    def block_seen(arguments):
        seen.append(arguments.get("BLOCK"))
        return even(arguments)

    def stack(kernel):
        kernel = triton.heuristics({"EVEN": block_seen})(kernel)
        return triton.heuristics({"EVEN": lambda arguments: None})(kernel) if layers == 2 else kernel

    decorate = autotune(CONFIGS, key=["n"], do_bench=bench)
    kernel = stack(decorate(triton.jit(copy))) if place == "outside" else decorate(stack(triton.jit(copy)))
    for n in (100, 99, 100, 99):
        kernel[(4,)](*xy, n)
        assert (launches[-1].arguments["EVEN"], launches[-1].arguments["BLOCK"]) == (n % 2 == 0, 32)
        kernel[(4,)](x_ptr=xy[0], y_ptr=xy[1], n=n)
        assert (launches[-1].arguments["EVEN"], launches[-1].arguments["BLOCK"]) == (n % 2 == 0, 32)
    tuned = kernel if place == "inside" else next(toolchain_tuner(kernel))
    info = tuned.cache_info()
    assert (info.searches, info.hits, info.misses) == (2, 6, 2)
    if place == "inside":
        assert set(seen) == {16, 32, 64}  # the config's values are among its arguments
        assert tuned.cache_info().size == 2


def toolchain_tuner(kernel):
    return (layer for layer in toolchain.layers(kernel) if toolchain.is_tuner(layer))


def even_required(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


@pytest.mark.parametrize("place", ["outside", "inside"])
def test_a_heuristic_gives_a_parameter_without_default(bench, xy, launches, place):
    decorate, jit = autotune(CONFIGS, key=["n"], do_bench=bench), triton.jit(even_required)
    heuristics = triton.heuristics({"EVEN": even})
    kernel = heuristics(decorate(jit)) if place == "outside" else decorate(heuristics(jit))
    for n in (100, 99, 100, 99):
        kernel[lambda meta: (meta["n"], meta["EVEN"] + 1)](*xy, n)
        assert launches[-1].arguments == {"x_ptr": xy[0], "y_ptr": xy[1], "n": n, "BLOCK": 32, "EVEN": n % 2 == 0}
        assert launches[-1].grid == (n, 1 + (n % 2 == 0), 1)


def test_outer_heuristics_are_part_of_the_key_when_they_are_constexprs(xy, bench, launches):
    decorate = autotune(CONFIGS, key=[], do_bench=bench)
    kernel = triton.heuristics({"EVEN": even})(decorate(triton.jit(copy)))
    for n in (100, 98, 99, 97):
        kernel[(4,)](*xy, n)
    assert kernel.fn.cache_info().searches == 2


# -- options at the call -----------------------------------------------------------------------------------------


def test_options_at_the_call_reach_the_compiler(xy, launches, bench):
    tuned = autotune(list(CONFIGS), key=["n"], do_bench=bench)(triton.jit(copy))
    for _ in range(2):
        compiled = tuned[(4,)](*xy, 100, maxnreg=64)
        assert compiled.metadata.maxnreg == 64
    usual = tuned[(4,)](*xy, 100)
    assert usual.metadata.maxnreg is None
    assert tuned[(4,)](*xy, 100, maxnreg=64) is compiled
    assert tuned.cache_info().searches == 2  # another problem: another binary may want another config


@pytest.mark.parametrize("computed", [False, True], ids=["listed", "computed"])
@pytest.mark.parametrize("options", [{"num_warps": 8}, {"BLOCK": 16}], ids=["option", "tuned"])
def test_what_every_config_sets_is_a_conflict_at_the_call(bench, xy, launches, computed, options):
    configs = (lambda **arguments: CONFIGS) if computed else CONFIGS
    tuned = autotune(configs, key=["n"], do_bench=bench)(triton.jit(copy))
    for _ in range(2):
        with pytest.raises(ValueError) as caught:
            tuned[(4,)](*xy, 100, **options)
        (name,) = options
        assert str(caught.value).startswith(
            f"Conflicting meta-parameters: {name}. Make sure that you don't re-define auto-tuned symbols."
        )
    assert launches == []


def test_a_tuned_name_by_place_is_a_conflict(tuned, xy, launches):
    tuned[(4,)](*xy, 100)
    before = len(launches)
    for arguments in [(*xy, 100, 16), (*xy, 100, True)]:
        with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
            tuned[(4,)](*arguments)
    assert len(launches) == before


# -- Triton's own switches ---------------------------------------------------------------------------------------


def test_log_names_the_choice(tuned, block, caplog):
    with caplog.at_level(logging.INFO, "autotuned"):
        block()
    (line,) = [record.getMessage() for record in caplog.records if "measured" in record.getMessage()]
    assert "measured 3 configs (0 failed)" in line
    assert "BLOCK=32 num_warps=4" in line
