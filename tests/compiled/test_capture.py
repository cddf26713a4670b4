"""While a CUDA graph is captured nothing is searched and nothing synchronises."""

import pytest
import torch
import triton
import triton.language as tl
from triton import Config

import autotuned
from autotuned import autotune
from autotuned.configfiles import file, writer
from autotuned.errors import NotTunedError
from autotuned.store import listing

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]


def add(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


@pytest.fixture
def make(bench):
    return lambda **options: autotune(CONFIGS, **({"key": ["n"], "do_bench": bench} | options))(triton.jit(add))


@pytest.fixture
def x():
    return torch.zeros(100)


@pytest.fixture
def capture(monkeypatch):
    """Begins a capture, in which a synchronisation is an error as on a real stream."""

    def begin():
        def refuse(*args):
            raise AssertionError("a captured stream was synchronised")

        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", refuse)

    return begin


def test_b67_an_untuned_kernel_is_an_error_before_anything_is_launched(make, x, capture, launches, bench):
    tuned = make()
    capture()
    for _ in range(2):
        with pytest.raises(NotTunedError) as caught:
            tuned[(4,)](x, 100)
    text = str(caught.value)
    assert "`tests.compiled.test_capture.add`" in text or "test_capture.add`" in text
    assert "a CUDA graph is being captured, which a search would break" in text
    assert "give @autotune a default=" in text
    assert caught.value.kernel.endswith("test_capture.add")
    assert launches == []
    assert bench.calls == []
    assert tuned.cache_info().searches == 0


def test_b67_a_bound_choice_is_served(make, x, capture, launches):
    tuned = make()
    tuned[(4,)](x, 100)
    capture()
    tuned[(4,)](x, 100)
    assert tuned.cache_info().hits == 1
    assert launches[-1].arguments["BLOCK"] == 32


@pytest.mark.parametrize("mode", ["auto", "serve", "strict", "search"])
def test_b67_a_stored_choice_is_served_without_a_search_or_a_synchronisation(make, x, capture, launches, bench, mode):
    make()[(4,)](x, 100)
    fresh = make()
    bench.calls.clear()
    capture()
    with autotuned.mode(mode):
        fresh[(4,)](x, 100)
    assert launches[-1].arguments["BLOCK"] == 32
    assert bench.calls == []
    assert fresh.cache_info().searches == 0


def test_a_choice_of_a_shorter_list_is_served(make, x, capture, launches, bench):
    """One config is new and not measured: no reason to fail where nothing can be measured."""
    make()[(4,)](x, 100)
    fresh = make()
    fresh.configs = [*CONFIGS, Config({"BLOCK": 64})]
    bench.calls.clear()
    capture()
    fresh[(4,)](x, 100)
    assert launches[-1].arguments["BLOCK"] == 32
    assert bench.calls == []


def test_b67_a_shipped_choice_is_served(make, x, capture, launches, monkeypatch, tmp_path):
    make()[(4,)](x, 100)
    ((_, record),) = listing.all_records()
    writer.ship(record.key, file.entry_of(record), tmp_path)
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", str(tmp_path))
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "empty"))
    capture()
    make()[(4,)](x, 100)
    assert launches[-1].arguments["BLOCK"] == 32


@pytest.mark.parametrize("mode", ["auto", "serve", "search", "off"])
def test_b67_a_default_is_served(make, x, capture, launches, bench, mode):
    tuned = make(default=CONFIGS[1])
    capture()
    with autotuned.mode(mode):
        for _ in range(2):
            tuned[(4,)](x, 100)
            assert launches[-1].arguments["BLOCK"] == 32
    assert bench.calls == []


def test_one_config_needs_no_choice(x, capture, launches):
    tuned = autotune(CONFIGS[:1])(triton.jit(add))
    capture()
    tuned[(4,)](x, 100)
    assert launches[-1].arguments["BLOCK"] == 16


def test_what_capture_served_is_searched_for_later(make, x, launches, bench, monkeypatch):
    """In mode search a default served under capture must not stand in for the search afterwards."""
    tuned = make(default=CONFIGS[0])
    with autotuned.mode("search"):
        with monkeypatch.context() as capturing:
            capturing.setattr(torch.cuda, "is_initialized", lambda: True)
            capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            tuned[(4,)](x, 100)
        assert launches[-1].arguments["BLOCK"] == 16
        assert bench.calls == []
    with autotuned.mode("search"):
        tuned[(4,)](x, 100)
    assert sorted(bench.calls) == [16, 32]
    assert launches[-1].arguments["BLOCK"] == 32


def test_capture_is_not_asked_where_cuda_is_not_initialised(make, x, monkeypatch):
    """Asking about a stream would initialise CUDA, which a later fork does not survive."""

    def refuse():
        raise AssertionError("asked")

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", refuse)
    make()[(4,)](x, 100)
