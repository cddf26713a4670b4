"""`.prepare` of a kernel: compiled, loaded and bound; the call, also one that is captured, only launches."""

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config

import autotuned
from autotuned import autotune
from autotuned.errors import CallError, NotTunedError

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32}, num_warps=2)]


def scale(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)


def kernel(configs=CONFIGS, **options):
    options = {"key": ["n"], "do_bench": fake_cuda.by_config({16: 2.0, 32: 1.0})} | options
    return autotune(configs, **options)(triton.jit(scale))


@pytest.fixture
def x():
    return torch.zeros(100)


@pytest.fixture
def stored(x):
    kernel()[(4,)](x, 100)
    fake_cuda.Launcher.launches.clear()


def test_the_first_call_is_a_hit_on_the_kernel_that_was_prepared(stored, launches, x):
    tuned = kernel()
    assert tuned.prepare(x, 100, grid=(4,)).kwargs == {"BLOCK": 32}
    assert launches == []
    compiled = tuned[(4,)](x, 100)
    assert tuned.cache_info()[:3] == (1, 0, 1)
    assert len(launches) == 1 and launches[0].arguments["BLOCK"] == 32
    assert compiled is tuned.fn.warmup(x, 100, grid=(4,), **CONFIGS[1].all_kwargs())


def test_no_grid_is_needed_unless_it_comes_to_a_search(stored, launches, x):
    kernel().prepare(x, 100)
    assert launches == []
    with pytest.raises(CallError, match="prepare\\(search=True\\)"):
        kernel().prepare(x, 100, search=True)


def test_a_search_launches_its_trials_and_nothing_else(launches, x):
    tuned = kernel()
    with pytest.raises(NotTunedError):
        tuned.prepare(x, 100, grid=(4,))
    assert launches == []
    tuned.prepare(x, 100, grid=(4,), search=True)
    trials = len(launches)
    assert trials and tuned.cache_info().searches == 1
    tuned[(4,)](x, 100)
    assert len(launches) == trials + 1


def test_a_prepared_call_can_be_captured_in_strict_mode(stored, launches, monkeypatch, x):
    tuned = kernel()
    with autotuned.mode("strict"):
        tuned.prepare(x, 100)
        monkeypatch.setattr(autotuned.triton_compat.kernel, "capturing", lambda: True)
        tuned[(4,)](x, 100)
        assert tuned.cache_info().hits == 1
        with pytest.raises(NotTunedError):
            tuned[(4,)](x, 101)


def test_zeroing_and_launches_wait_for_the_call(stored, x):
    tuned = kernel(reset_to_zero=["x_ptr"])
    x += 1
    with autotuned.mode("serve"):
        tuned.prepare(x, 100)
        assert x.sum() == 100
        tuned[(4,)](x, 100)
    assert x.sum() == 0


def test_the_hook_of_the_config_is_called_before_it_is_compiled(x):
    seen = []
    hooked = [Config({"BLOCK": 16}, pre_hook=lambda arguments: seen.append(dict(arguments)))]
    kernel(hooked).prepare(x, 100)
    assert [arguments["BLOCK"] for arguments in seen] == [16]


def test_a_stored_config_that_does_not_compile_is_passed_over(stored, launches, monkeypatch, caplog, x):
    tuned = kernel(default=CONFIGS[0])
    compile_ = tuned.tuner.tunable.compile

    def refuse(call, config):
        if config.kwargs["BLOCK"] == 32:
            raise ValueError("too large here")
        return compile_(call, config)

    monkeypatch.setattr(tuned.tuner.tunable, "compile", refuse)
    assert tuned.prepare(x, 100).kwargs == {"BLOCK": 16}
    assert "does not compile or launch here" in caplog.text and launches == []
