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
from autotuned.launch import direct
from autotuned.store import listing, records
from autotuned.store.record import Timing, TuningRecord
from autotuned.tunable import configs

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32}, num_warps=2)]
TUNED = [16 * number - (number == 79) for number in range(1, 81)]  # one is odd
STORED = 1041


def copy(x_ptr, y_ptr, M, N, alpha, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < M * N) * alpha, mask=i < M * N)


def kernel(**options):
    """A tuned kernel that a rule serves, and that is never measured."""
    options = {"key": ["M", "N", "x_ptr"], "nearest": autotuned.within("5%"), "default": CONFIGS[0]} | options
    options["do_bench"] = fake_cuda.by_config({16: 1.0, 32: 2.0})
    return autotuned.autotune(CONFIGS, name="app.copy", **options)(triton.jit(copy))


def arguments(m, n=128):
    return torch.zeros(m, n), torch.zeros(m, n), m, n, 0.5


def wins(m):
    """Where M is a multiple of 64 one config wins, elsewhere the other."""
    return CONFIGS[m % 64 != 0]


_made: dict[str, str] = {}  # the config files with a rule, by name: made once for all tests


def tuned_files(folder: Path) -> Path:
    """Config files with a rule, written from records of the kernel's own keys; the store is empty."""
    if not _made:
        tuner = kernel().tuner
        forms = [(config, configs.to_json(config, "app.copy")) for config in CONFIGS]
        for m in [*TUNED, STORED]:
            timings = tuple(Timing(form, *[10.0 if config is wins(m) else 15.0] * 3, 5) for config, form in forms)
            key, best = tuner.chooser.key(tuner.call(arguments(m), {}, (1,))), configs.to_json(wins(m), "app.copy")
            records.keep(TuningRecord(key, best, 10.0, "ok", timings, {"default": best}))
        autotuned.export(folder / "tuned")
        result = autotuned.compress(folder / "tuned", within="5%", out=folder / "few")
        assert result.kernels[0].fits[0].why_not == ""
        _made.update({str(Path(path).relative_to(folder / "few")): Path(path).read_text() for path in result.files})
        listing.clear()
    for name, text in _made.items():
        (folder / "few" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "few" / name).write_text(text)
    return folder / "few"


@pytest.fixture
def served(tmp_path):
    """The kernel, whose two configs have each served one shape that nobody tuned."""
    autotuned.register_configs(tuned_files(tmp_path))
    found = kernel()
    for m in (17, 1280 - 16 * 5 + 8):  # odd sizes, and multiples of 8: two binaries of one config
        found[(4,)](*arguments(m))
    return found


def test_a_rule_serves_what_nobody_tuned(served, launches):
    assert served[(4,)](*arguments(639)) is not None
    assert launches[-1].arguments["BLOCK"] == 32 and launches[-1].arguments["M"] == 639
    assert served.best_config is CONFIGS[1]
    explained = served.explain(*arguments(641), grid=(4,))
    assert explained.answer == "config files, rule" and "M % 64 != 0: at most 5.0% of loss" in str(explained)


def test_a_first_call_that_a_rule_answers_opens_no_file_makes_no_key_and_compiles_nothing(
    served, launches, monkeypatch
):
    before, bound = served.cache_info(), len(served.fn.device_caches[0][0])
    for name in ("key", "choose", "part"):
        monkeypatch.setattr(type(served.tuner.chooser), name, lambda *args, **kwargs: pytest.fail(name))
    calls = [arguments(m) for m in range(19, 400, 2)]
    for call in calls:
        assert counted.opened(lambda call=call: served[(4,)](*call)) == []
        assert launches[-1].arguments["M"] == call[2] and launches[-1].arguments["BLOCK"] == 32
    after = served.cache_info()
    assert after.misses - before.misses == len(calls) and after.hits == before.hits
    assert (after.compile_s, after.lookup_s, after.bind_s) == (before.compile_s, before.lookup_s, before.bind_s)
    assert len(served.fn.device_caches[0][0]) == bound
    known, fresh = calls[0], arguments(1001)
    hit = counted.opcodes(lambda: served[(4,)](*known))
    first = counted.opcodes(lambda: served[(4,)](*fresh))
    assert first - hit < 1200  # it took 16 us: tests/bench/unseen.py
    assert counted.opcodes(lambda: served[(4,)](*fresh)) <= hit + 20  # in the launch table now


def test_what_launches_is_made_once_for_all_shapes(served, launches, monkeypatch):
    made, make = [], direct.direct_launch
    monkeypatch.setattr(direct, "direct_launch", lambda *given: made.append(given) or make(*given))
    for m in range(19, 119, 2):
        served[(4,)](*arguments(m))
        assert launches[-1].arguments["M"] == m
    assert len(made) <= len(CONFIGS)


def empty_the_table(table) -> None:
    """As if its entries had made room; what rules have bound stays."""
    for one in getattr(table, "_tables", lambda: [table])():
        for part in [plan.table for plan in one._plans.values()] if hasattr(one, "_plans") else [one]:
            part.clear()


def test_thousands_of_shapes_keep_memory_flat(served, launches):
    x, launch, table = torch.zeros(1280, 128), served[(4,)], served.tuner.launcher

    def first_calls():
        empty_the_table(table)
        misses = served.cache_info().misses
        for m in range(19, 439, 2):
            launch(x[:m], x[:m], m, 128, 0.5)
        launches.clear()
        gc.collect()
        assert served.cache_info().misses - misses == 210
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        sizes = [first_calls() for _ in range(5)]
    finally:
        tracemalloc.stop()
    assert len(served.tuner.chooser.state.choices) < 8 and len(served.cache) < 8
    assert len(table) == 210 and max(sizes[2:]) - sizes[1] < 12_000


@pytest.mark.parametrize("m", [1, 1281, 5000])
def test_outside_of_the_tuned_range_the_default_serves(served, launches, m):
    served[(4,)](*arguments(m))
    assert launches[-1].arguments["BLOCK"] == 16


def test_what_files_have_comes_before_the_rule(served, launches):
    assert served.explain(*arguments(STORED), grid=(4,)).answer == "config files"
    served[(4,)](*arguments(STORED))
    assert [choice.origin.name for choice in served.tuner.chooser.state.choices.values()].count("FILE") == 1


def test_what_was_searched_for_meanwhile_comes_before_the_rule(served, launches):
    served[(4,)](*arguments(501))
    served.tuner.tune(served.tuner.call(arguments(503), {}, (4,)), force=True)
    served[(4,)](*arguments(503))
    assert launches[-1].arguments["BLOCK"] == 16  # as the benchmark says
    served[(4,)](*arguments(505))
    served[(4,)](*arguments(507))
    assert launches[-1].arguments["BLOCK"] == 32


def test_another_mode_asks_anew(served, launches):
    with autotuned.mode("off"):
        served[(4,)](*arguments(999))
    assert launches[-1].arguments["BLOCK"] == 16
    served[(4,)](*arguments(997))
    assert launches[-1].arguments["BLOCK"] == 32
    with autotuned.mode("strict"), pytest.raises(autotuned.errors.NotTunedError):
        served[(4,)](*arguments(995))


def test_a_pin_comes_before_the_rule(served, launches):
    for m in (993, 991):
        served[(4,)](*arguments(m))
    served.cache[served._triton_key(served.tuner.call(arguments(987), {}, (4,)))] = CONFIGS[0]
    for m in (989, 987):
        served[(4,)](*arguments(m))
    assert launches[-1].arguments["BLOCK"] == 16


def test_another_alignment_is_another_binary(served, launches):
    x = torch.zeros(1001 * 128 + 1)[1:].view(1001, 128)
    served[(4,)](x, *arguments(1001)[1:])
    assert launches[-1].arguments["BLOCK"] == 32
    served.fn[(4,)](x, *arguments(1001)[1:], **CONFIGS[1].all_kwargs())
    assert launches[-2].function == launches[-1].function != launches[0].function


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
