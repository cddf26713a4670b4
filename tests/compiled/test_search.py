"""What compiling ahead gives a search: copies of what is written alone, one launch a binary, failures met once."""

import gc
import json
import logging

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config

from autotuned import autotune
from autotuned.search import search
from autotuned.search.compiling import compile as compiling
from autotuned.search.safety import protection as snapshots
from autotuned.store import listing
from autotuned.tunable import kernel as target

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]


def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


def add_seven(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """For tests of equal binaries: no other test has its IR, whose binary would name other lines of source."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) + 7, mask=i < n)


@triton.jit(noinline=True)
def put(p, value):
    tl.store(p, value)


def calling(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    put(y_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, BLOCK))))


def picky(x_ptr, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK != 32, "no BLOCK of 32")
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, 1.0, mask=i < n)


@pytest.fixture
def copied(monkeypatch):
    """The names of what is copied aside."""
    names, make = [], snapshots.Snapshot.__init__

    def noted(self, shared, *args):
        names.extend(shared)
        make(self, shared, *args)

    monkeypatch.setattr(snapshots.Snapshot, "__init__", noted)
    return names


@pytest.fixture
def restored(monkeypatch):
    """The names of what is put back, each time that it is."""
    names, restore = [], snapshots.Snapshot.restore

    def noted(self):
        names.append("".join(self.names))
        restore(self)

    monkeypatch.setattr(snapshots.Snapshot, "restore", noted)
    return names


@pytest.fixture
def compiles(monkeypatch):
    """The BLOCK of each config that a search or a first launch compiles."""
    blocks, compile_ = [], target.TunableKernel.compile

    def noted(self, call, config):
        blocks.append(config.kwargs["BLOCK"])
        return compile_(self, call, config)

    monkeypatch.setattr(target.TunableKernel, "compile", noted)
    return blocks


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def statuses():
    (record,) = [record for _, record in listing.all_records()]
    return [timing.status for timing in record.timings]


def test_only_what_the_code_writes_is_copied(copied):
    tuned = autotune(CONFIGS, key=["n"])(triton.jit(add))
    tuned[grid](torch.zeros(100), torch.zeros(100), 100)
    assert copied == ["y_ptr"]
    assert tuned.restore_value == ["y_ptr"]


@pytest.mark.parametrize("why", ["a function that is not inlined", "a hook"])
def test_everything_is_watched_where_the_code_does_not_tell(copied, why):
    hooked = [Config({"BLOCK": block}, pre_hook=lambda arguments: arguments["x_ptr"].add_(1)) for block in (16, 32)]
    tuned = autotune(hooked if why == "a hook" else CONFIGS, key=["n"])(triton.jit(add if why == "a hook" else calling))
    x = torch.zeros(100)
    tuned[grid](x, torch.zeros(100), 100)
    assert copied == ["x_ptr", "y_ptr"]
    # Nothing runs on the pretended device: what is seen to change is what the hook changed, and that once.
    assert tuned.restore_value == (["x_ptr"] if why == "a hook" else [])
    assert (x == (why == "a hook")).all()


ONCE_A_CONFIG_AND_AT_THE_END = len(CONFIGS) + 1


@pytest.mark.parametrize("zeroed", [[], ["y_ptr"]], ids=["written", "zeroed"])
def test_what_nothing_reads_is_not_put_back_between_samples(restored, launches, zeroed):
    tuned = autotune(CONFIGS, key=["n"], reset_to_zero=zeroed)(triton.jit(add))
    y = torch.full((100,), 3.0)
    tuned[grid](torch.zeros(100), y, 100)
    assert restored == ["y_ptr"] * (1 if zeroed else ONCE_A_CONFIG_AND_AT_THE_END)
    assert len(launches) > 2 * ONCE_A_CONFIG_AND_AT_THE_END
    assert (y == (0.0 if zeroed else 3.0)).all()


@pytest.mark.parametrize("why", ["an alias is read", "the user's list", "a hook may look"])
def test_what_may_be_read_is_put_back_before_every_launch(restored, launches, why):
    hook = (lambda arguments, exception=None: None) if why == "a hook may look" else None
    listed = ["y_ptr"] if why == "the user's list" else None
    tuned = autotune(CONFIGS, key=["n"], restore_value=listed, post_hook=hook)(triton.jit(add))
    memory = torch.zeros(150)
    x, y = (memory[:100], memory[50:]) if why == "an alias is read" else (torch.zeros(100), torch.zeros(100))
    tuned[grid](x, y, 100)
    trials = len(launches) - 1  # the last one is the call's own
    assert restored == ["y_ptr"] * (trials + 1)


def test_what_is_reinterpreted_is_put_back_as_what_it_is(restored, launches):
    tuned = autotune(CONFIGS, key=["n"])(triton.jit(add))
    x, y = torch.zeros(100, dtype=torch.int16), torch.ones(100, dtype=torch.int16)
    tuned[grid](triton.reinterpret(x, tl.bfloat16), triton.reinterpret(y, tl.bfloat16), 100)
    assert restored == ["y_ptr"] * ONCE_A_CONFIG_AND_AT_THE_END
    restored.clear()
    tuned[grid](triton.reinterpret(x, tl.bfloat16), triton.reinterpret(x, tl.bfloat16), 64)
    assert len(restored) > ONCE_A_CONFIG_AND_AT_THE_END  # an alias of it is read: before every launch


def test_one_binary_is_measured_once_and_reported():
    bench = fake_cuda.by_config({16: 2.0, 32: 1.0})
    configs = [Config({"BLOCK": block}, num_stages=stages) for block in (16, 32) for stages in (1, 2, 3)]
    tuned = autotune(configs, key=["n"], do_bench=bench)(triton.jit(add_seven))
    tuned[grid](torch.zeros(100), torch.zeros(100), 100)
    assert sorted(bench.calls) == [16, 32]
    assert statuses() == ["ok", "same", "same"] * 2
    assert tuned.best_config is configs[3]
    (record,) = [record for _, record in listing.all_records()]
    assert record.timings[4].error == "the same binary as BLOCK=32 num_warps=4 num_stages=1"
    assert record.timings[4].median_us == record.timings[3].median_us == 1000
    bench.calls.clear()
    again = autotune(configs[:3] + configs[4:], key=["n"], do_bench=bench)(triton.jit(add_seven))  # its twin is gone
    again[grid](torch.zeros(100), torch.zeros(100), 100)
    assert bench.calls == []
    assert again.best_config is configs[4]


def test_one_binary_with_two_grids_is_two_configs():
    def whole(x_ptr, n, BLOCK: tl.constexpr, SPLIT: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_ptr + i, 1.0, mask=i < n)

    configs = [Config({"BLOCK": 16, "SPLIT": split}) for split in (1, 2)]
    bench = fake_cuda.by_config({1: 2.0, 2: 1.0}, ("SPLIT",))
    tuned = autotune(configs, key=["n"], do_bench=bench)(triton.jit(whole))
    tuned[lambda meta: (meta["SPLIT"],)](torch.zeros(100), 100)
    assert len(bench.calls) == 2


def test_b36_what_cannot_compile_is_tried_once_for_all_shapes(compiles):
    tuned = autotune([*CONFIGS, Config({"BLOCK": 64})], key=["n"])(triton.jit(picky))
    for n in range(16, 16 * 9, 16):
        tuned[grid](torch.zeros(n), n)
    assert compiles.count(32) == 1
    records = [record for _, record in listing.all_records()]
    assert len(records) == 8
    assert all("no BLOCK of 32" in record.timings[1].error for record in records)
    tuned[grid](torch.zeros(160, dtype=torch.float16), 160)
    assert compiles.count(32) == 2  # another binary
    autotune([*CONFIGS, Config({"BLOCK": 64})], key=["n"], version=2)(triton.jit(picky))[grid](torch.zeros(16), 16)
    assert compiles.count(32) == 3  # another context


@pytest.mark.parametrize(
    ("error", "each_time"), [(MemoryError("no room"), 2), (TimeoutError("too long"), 1)], ids=["memory", "time"]
)
def test_b36_a_passing_failure_is_not_remembered(monkeypatch, error, each_time):
    tries, compile_ = [], target.TunableKernel.compile

    def failing(self, call, config):
        tries.append(config.kwargs["BLOCK"])
        if config.kwargs["BLOCK"] == 32:
            raise error
        return compile_(self, call, config)

    monkeypatch.setattr(target.TunableKernel, "compile", failing)
    tuned = autotune(CONFIGS, key=["n"])(triton.jit(add))
    for n in (16, 32):
        tuned[grid](torch.zeros(n), torch.zeros(n), n)
    assert tries.count(32) == 2 * each_time
    assert all(len(record.timings) == 1 for _, record in listing.all_records())


def test_an_option_of_another_vendor_fails_here_with_its_name():
    """One list may serve two vendors: the option is known to a back end, and the config is skipped where it is not."""
    configs = [Config({"BLOCK": 16, "waves_per_eu": 2}), Config({"BLOCK": 32})]
    tuned = autotune(configs, key=["n"])(triton.jit(add))
    tuned[grid](torch.zeros(100), torch.zeros(100), 100)
    assert tuned.best_config is configs[1]
    assert statuses() == ["failed", "ok"]
    (record,) = [record for _, record in listing.all_records()]
    assert "waves_per_eu" in record.timings[0].error
    with pytest.raises(KeyError, match="waves_per_eu"):
        autotune([configs[0], Config({"BLOCK": 64, "waves_per_eu": 2})], key=["n"])(triton.jit(add))[grid](
            torch.zeros(8), torch.zeros(8), 8
        )


def refuse_block(monkeypatch, block, error):
    compile_ = target.TunableKernel.compile

    def failing(self, call, config):
        if config.kwargs["BLOCK"] == block:
            raise error
        return compile_(self, call, config)

    monkeypatch.setattr(target.TunableKernel, "compile", failing)


@pytest.mark.parametrize("source", ["record", "file"])
def test_a_stored_config_that_does_not_compile_here_is_dropped_once(monkeypatch, tmp_path, launches, caplog, source):
    from paths import ship

    kernel, times = triton.jit(add), fake_cuda.by_config({16: 2.0, 32: 1.0, 64: 3.0})
    configs = [*CONFIGS, Config({"BLOCK": 64})]
    args = torch.zeros(100), torch.zeros(100), 100
    autotune(configs, key=["n"], do_bench=times)(kernel)[grid](*args)
    if source == "file":
        ship(tmp_path / "shipped", monkeypatch)
    refuse_block(monkeypatch, 32, RuntimeError("ptxas died"))
    tuned = autotune(configs, key=["n"], do_bench=times)(kernel)
    for _ in range(3):
        tuned[grid](*args)
        assert launches[-1].arguments["BLOCK"] == 16
    tuned.cache_info()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "BLOCK: 32" in line
    assert "does not compile or launch here (RuntimeError: ptxas died); it is not used for calls like this" in line
    assert tuned.cache_info().searches == (source == "file")  # the record has timings of the others


def test_a_launch_that_is_refused_asks_the_next_source(monkeypatch, launches):
    kernel, times = triton.jit(add), fake_cuda.by_config({16: 2.0, 32: 1.0})
    args = torch.zeros(100), torch.zeros(100), 100
    autotune(CONFIGS, key=["n"], do_bench=times)(kernel)[grid](*args)
    launch = target.TunableKernel.launch

    def failing(self, call, config):
        if config.kwargs["BLOCK"] == 32:
            raise RuntimeError(text)
        return launch(self, call, config)

    monkeypatch.setattr(target.TunableKernel, "launch", failing)
    text = "Triton Error [CUDA]: invalid argument"
    tuned = autotune(CONFIGS, key=["n"], do_bench=times)(kernel)
    tuned[grid](*args)
    assert launches[-1].arguments["BLOCK"] == 16


@pytest.mark.parametrize("source", ["record", "file"])
def test_a_fault_after_a_stored_config_ran_is_raised(monkeypatch, tmp_path, launches, caplog, source):
    """That is no choice to be made again: another config would run over what this one wrote."""
    from paths import ship

    kernel, times = triton.jit(add), fake_cuda.by_config({16: 2.0, 32: 1.0})
    args = torch.zeros(100), torch.zeros(100), 100
    autotune(CONFIGS, key=["n"], do_bench=times)(kernel)[grid](*args)
    if source == "file":
        ship(tmp_path / "shipped", monkeypatch)
    launch = target.TunableKernel.launch

    def failing(self, call, config):
        launch(self, call, config)
        raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")

    launches.clear()
    tuned = autotune(CONFIGS, key=["n"], do_bench=times)(kernel)
    with monkeypatch.context() as patch:
        patch.setattr(target.TunableKernel, "launch", failing)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="illegal memory access"):
                tuned[grid](*args)
    assert [launched.arguments["BLOCK"] for launched in launches] == [32, 32]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    tuned[grid](*args)
    assert launches[-1].arguments["BLOCK"] == 32
    assert tuned.cache_info().searches == 0


def test_a_written_argument_that_no_list_names_is_said_at_level_debug(caplog):
    tuned = autotune(CONFIGS, key=["n"], restore_value=["x_ptr"])(triton.jit(add))
    for level, lines in ((logging.INFO, 0), (logging.DEBUG, 1), (logging.DEBUG, 1)):
        caplog.set_level(level, "autotuned")
        n = 100 + level + lines
        tuned[grid](torch.zeros(n), torch.zeros(n), n)
        said = [record for record in caplog.records if "no list names it" in record.getMessage()]
        assert len(said) == lines
    assert "'y_ptr' is written" in said[0].getMessage()


def test_large_copies_are_said_once_with_the_cheaper_list(monkeypatch, caplog):
    from autotuned.search import job

    monkeypatch.setattr(job, "MUCH_BYTES", 4000)
    x = torch.zeros(2000)
    hooked = [Config({"BLOCK": block}, pre_hook=lambda arguments: arguments["y_ptr"].add_(1)) for block in (16, 32)]
    tuned = autotune(hooked, key=["n"])(triton.jit(add))
    for n in (100, 101):
        tuned[grid](x, torch.zeros(100), n)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "restore_value=['y_ptr'] needs 0 MiB" in line


def test_records_stay_json(tmp_path):
    configs = [Config({"BLOCK": 16}, num_stages=stages) for stages in (1, 2)]
    autotune(configs, key=["n"])(triton.jit(add_seven))[grid](torch.zeros(8), torch.zeros(8), 8)
    ((path, record),) = listing.all_records()
    assert json.loads(path.read_text())["timings"][1]["status"] == "same"
    assert record.winner == record.timings[0].config


@pytest.mark.parametrize("options", [{}, {"budget_s": 60.0}, {"check": "first"}], ids=["plain", "budget", "check"])
def test_a_search_goes_without_the_garbage_collector(options, monkeypatch):
    """With it go its timer's flush buffer and the caller's tensors."""
    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", "2")
    kernel = autotune(CONFIGS, key=["n"], do_bench=fake_cuda.by_config({16: 1.0, 32: 2.0}), **options)(triton.jit(add))
    x, y = torch.zeros(100), torch.zeros(100)
    kernel[(7,)](x, y, 99)
    gc.collect()
    gc.disable()
    try:
        kernel[(7,)](x, y, 100)
        assert kernel.cache_info().searches == 2
        assert [one for one in gc.get_objects() if type(one) in (search._Search, compiling.CompileStream)] == []
    finally:
        gc.enable()
