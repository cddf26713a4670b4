"""A first call of a shape that a rule answers: bound already, so that nothing is read, hashed, keyed or compiled."""

import gc
import tracemalloc
from pathlib import Path

import counted
import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config

import autotuned
from autotuned.store import listing, records
from autotuned.store.record import Timing, TuningRecord
from autotuned.tunable import configs

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32}, num_warps=2)]
TUNED = [16 * number for number in range(1, 81)]


def copy(x_ptr, y_ptr, M, N, alpha, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < M * N) * alpha, mask=i < M * N)


def kernel(**options):
    """A tuned kernel that a rule serves, and that is never measured."""
    options = {"key": ["M", "N", "x_ptr"], "nearest": autotuned.within("5%"), "default": CONFIGS[0]} | options
    return autotuned.autotune(CONFIGS, name="app.copy", **options)(triton.jit(copy))


def arguments(m, n=128):
    return torch.zeros(m, n), torch.zeros(m, n), m, n, 0.5


def wins(m):
    """Where M is a multiple of 64 one config wins, elsewhere the other."""
    return CONFIGS[m % 64 != 0]


def tuned_files(folder: Path, *more: int) -> Path:
    """Config files with a rule, written from records of the kernel's own keys; then the store is empty."""
    chooser = kernel().tuner.chooser
    for m in [*TUNED, *more]:
        forms = [(config, configs.to_json(config, "app.copy")) for config in CONFIGS]
        timings = tuple(Timing(form, *[10.0 if config is wins(m) else 15.0] * 3, 5) for config, form in forms)
        key = chooser.key(kernel().tuner.call(arguments(m), {}, (1,)))
        best = configs.to_json(wins(m), "app.copy")
        records.keep(TuningRecord(key, best, 10.0, "ok", timings, {"default": best}))
    autotuned.export(folder / "tuned")
    result = autotuned.compress(folder / "tuned", within="5%", out=folder / "few")
    assert result.kernels[0].fits[0].why_not == ""
    listing.clear()
    return folder / "few"


@pytest.fixture
def served(tmp_path):
    """The kernel, whose two configs have each served one shape that nobody tuned."""
    autotuned.register_configs(tuned_files(tmp_path))
    found = kernel()
    for m in (17, 65, 33, 81):  # classes of M: odd, and a multiple of 16
        found[(4,)](*arguments(m))
    found[(4,)](*arguments(16 * 7 + 16 * 64))
    return found


def test_a_rule_serves_what_nobody_tuned(served, launches):
    assert served[(4,)](*arguments(639)) is not None
    assert launches[-1].arguments["BLOCK"] == 32 and launches[-1].arguments["M"] == 639
    assert served.best_config is CONFIGS[1]
    explained = served.explain(*arguments(641), grid=(4,))
    assert explained.answer == "config files, rule" and "M % 64 != 0: at most 0.0% of loss" in str(explained)


def test_a_first_call_that_a_rule_answers_opens_no_file_makes_no_key_and_compiles_nothing(
    served, launches, monkeypatch
):
    before = served.cache_info()
    for name in ("key", "choose"):
        monkeypatch.setattr(type(served.tuner.chooser), name, lambda *args, **kwargs: pytest.fail(name))
    compiled = fake_cuda.compilations() if hasattr(fake_cuda, "compilations") else None
    calls = [arguments(m) for m in range(1, 1000, 2) if m > 17]
    hit = counted.opcodes(lambda: served[(4,)](*arguments(17)))
    for number, call in enumerate(calls):
        run = lambda call=call: served[(4,)](*call)
        assert counted.opened(run) == []
        assert launches[-1].arguments["M"] == call[2] and launches[-1].arguments["BLOCK"] == 32
    after = served.cache_info()
    assert after.misses - before.misses == len([call for call in calls if call[2] not in (33, 65, 81)])
    assert (after.compile_s, after.lookup_s) == (before.compile_s, before.lookup_s)
    fresh = arguments(1001)
    assert counted.opcodes(lambda: served[(4,)](*fresh)) - hit < 700
    assert compiled is None or fake_cuda.compilations() == compiled
    assert counted.opcodes(lambda: served[(4,)](*fresh)) <= hit + 20  # it is in the launch table now


def test_5_000_shapes_keep_memory_flat(served):
    def pass_over(start):
        x, y = torch.zeros(1, 128), torch.zeros(1, 128)
        for m in range(start, start + 500):
            shape = x.expand(2 * m + 1, 128), y.expand(2 * m + 1, 128)
            served[(4,)](*shape, 2 * m + 1, 128, 0.5)

    assert len(served.tuner.chooser.state.choices) < 20
    sizes = []
    table = served.tuner.launcher
    tracemalloc.start()
    try:
        for _ in range(3):
            for m in range(19, 1279, 2):
                served[(4,)](*arguments(m))
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert len(table) <= 4096 and len(served.tuner.chooser.state.choices) < 20
    assert sizes[2] - sizes[1] < 20_000


@pytest.mark.parametrize("m", [1, 1281, 5000])
def test_outside_of_the_tuned_range_the_default_serves(served, launches, m):
    served[(4,)](*arguments(m))
    assert launches[-1].arguments["BLOCK"] == 16


def test_what_is_stored_comes_before_the_rule(tmp_path, launches):
    folder = tuned_files(tmp_path, 1041)
    autotuned.register_configs(folder)
    found = kernel()
    for m in (17, 33):
        found[(4,)](*arguments(m))
    text = found.explain(*arguments(1041), grid=(4,))
    assert text.answer == "config files"
    found[(4,)](*arguments(1041))
    assert [origin.origin.name for origin in found.tuner.chooser.state.choices.values()].count("FILE") == 1


def test_a_search_in_this_process_a_pin_and_another_mode_come_before_the_rule(served, launches):
    with autotuned.mode("off"):
        served[(4,)](*arguments(999))
        assert launches[-1].arguments["BLOCK"] == 16
    served[(4,)](*arguments(997))
    assert launches[-1].arguments["BLOCK"] == 32
    with autotuned.mode("strict"), pytest.raises(autotuned.errors.NotTunedError):
        served[(4,)](*arguments(995))
    for m in (993, 991):
        served[(4,)](*arguments(m))
    served.cache[(torch.Size([989, 128]), 989, 128)] = CONFIGS[0]
    triton_key = served._triton_key(served.tuner.call(arguments(987), {}, (4,)))
    served.cache[triton_key] = CONFIGS[0]
    served[(4,)](*arguments(987))
    assert launches[-1].arguments["BLOCK"] == 16


def test_another_alignment_is_another_binary(served, launches):
    x = torch.zeros(1001 * 128 + 1)[1:].view(1001, 128)
    served[(4,)](x, *arguments(1001)[1:])
    assert launches[-1].arguments["BLOCK"] == 32
    plain = served.fn[(4,)](x, *arguments(1001)[1:], **CONFIGS[1].all_kwargs())
    assert fake_cuda.same(launches[-2], launches[-1]) and plain is not None


def test_a_transposed_tensor_is_another_call(served, launches):
    m = 1001
    served[(4,)](torch.zeros(128, m).t(), *arguments(m)[1:])
    assert launches[-1].arguments["BLOCK"] == 16  # no rule for its strides


def test_files_that_are_read_anew_are_asked(served, tmp_path, launches):
    served[(4,)](*arguments(1001))
    autotuned.register_configs(tmp_path, policy="refuse")
    asked = served.tuner.chooser.state.lookup_s
    served[(4,)](*arguments(1003))
    assert served.tuner.chooser.state.lookup_s > asked
