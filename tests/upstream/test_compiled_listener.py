"""Triton's listener of choices, its printed line, and its own file cache, on every tuner; real JIT, a pretended GPU."""

import pytest
import subjects
import torch
import triton
import triton.language as tl
from triton import Config, knobs

from autotuned.store import listing

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]
needs_listener = pytest.mark.skipif(subjects.VERSION < (3, 8), reason="Triton has no listener before 3.8")


def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """Triton's own file cache of choices, of this test alone."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


@pytest.fixture
def told(monkeypatch):
    events = []
    monkeypatch.setattr(knobs.autotuning, "listener", lambda **event: events.append(event))
    return events


def made(subject, bench, configs=CONFIGS, **options):
    return subject.autotune(configs, key=["n"], do_bench=bench, cache_results=True, **options)(triton.jit(copy))


@needs_listener
def test_m12_a_search_is_told_once(subject, told, bench):
    kernel = made(subject, bench)
    x = torch.zeros(100)
    for _ in range(3):
        kernel[(4,)](x, x, 100)
    (event,) = told
    assert event["fn"] is kernel.fn
    assert event["key"] == (100, "torch.float32", "torch.float32")
    assert event["best_config"] is CONFIGS[1]
    assert event["configs_timings"] == {CONFIGS[0]: [2.0] * 3, CONFIGS[1]: [1.0] * 3}
    assert event["cache_hit"] is False
    assert event["duration"] > 0
    assert kernel.configs_timings == event["configs_timings"]
    assert kernel.bench_time == event["duration"]


@needs_listener
@pytest.mark.subjects(["triton", "autotuned"])
def test_m12_a_choice_from_disk_is_told_as_a_hit(subject, told, bench):
    """With a memory installed it is in Triton's own cache before Triton asks: there is nothing to tell."""
    kernel = made(subject, bench)
    x = torch.zeros(100)
    kernel[(4,)](x, x, 100)
    kernel.cache.clear()
    kernel[(4,)](x, x, 100)
    _, event = told
    assert (event["cache_hit"], event["duration"]) == (True, None)
    assert event["best_config"] == CONFIGS[1]
    assert event["configs_timings"] == {CONFIGS[0]: [2.0] * 3, CONFIGS[1]: [1.0] * 3}
    assert sorted(bench.calls) == [16, 32]


@needs_listener
def test_m12_one_config_is_not_told(subject, told, bench):
    kernel = made(subject, bench, CONFIGS[:1])
    x = torch.zeros(100)
    kernel[(4,)](x, x, 100)
    assert told == []


def test_m12_print_after_a_search_only(subject, bench, monkeypatch, capsys):
    monkeypatch.setattr(knobs.autotuning, "print", True)
    x = torch.zeros(100)
    kernel = made(subject, bench)
    for _ in range(2):
        kernel[(4,)](x, x, 100)
    printed = capsys.readouterr().out
    assert (
        printed.count("Triton autotuning for function copy,\nwith key as (100, 'torch.float32', 'torch.float32'),\n")
        == 1
    )
    assert printed.count(f"best config selected: {CONFIGS[1]};\n") == 1
    again = made(subject, bench)
    again[(4,)](x, x, 100)
    assert again.best_config == CONFIGS[1]
    assert capsys.readouterr().out == ""


@pytest.mark.subjects(subjects.OURS)
def test_m13_a_dtype_in_the_key_is_stored(subject, bench):
    """Triton measures, and then fails to write its own file for such a key; what is seeded has Triton's file."""

    def fill(y_ptr, n, dtype: tl.constexpr, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + i, tl.full([BLOCK], 3, dtype), mask=i < n)

    def launch(kernel):
        kernel[(4,)](torch.zeros(100), 100, tl.float32)
        return kernel

    options = {"key": ["n", "dtype"], "do_bench": bench, "cache_results": subject.name in ("autotuned", "replaced")}
    jit = triton.jit(fill)
    launch(subject.autotune(CONFIGS, **options)(jit))
    assert len(list(listing.all_records())) == 1
    bench.calls.clear()
    kernel = launch(subject.autotune(CONFIGS, **options)(jit))
    assert (bench.calls, kernel.best_config) == ([], CONFIGS[1])


@pytest.mark.subjects(["triton"])
def test_a_dtype_in_the_key_is_more_than_triton_can_write(subject, bench):
    def fill(y_ptr, n, dtype: tl.constexpr, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + i, tl.full([BLOCK], 3, dtype), mask=i < n)

    kernel = subject.autotune(CONFIGS, key=["n", "dtype"], do_bench=bench, cache_results=True)(triton.jit(fill))
    with pytest.raises(TypeError, match="not JSON serializable"):
        kernel[(4,)](torch.zeros(100), 100, tl.float32)
