"""What may change between two launches of one kernel, noticed by every tuner: guards (M9), and what is kept (M2, M13)."""

import json
import linecache
import sys
import types
from types import SimpleNamespace

import pytest
import subjects
import torch
import triton
import triton.language as tl
from triton import Config, knobs

import autotuned
from autotuned.store import listing

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32}, num_warps=2)]


def scale(x_ptr, n, by, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) * by, mask=i < n)


@pytest.fixture
def make(subject, bench):
    def make(function=scale, **options):
        return subject.autotune(CONFIGS, **{"key": ["n"], "do_bench": bench} | options)(triton.jit(function))

    return make


@pytest.fixture
def kernel(make, x):
    """Launched three times: where there is a table, the last launch came from it."""
    kernel = make()
    for _ in range(3):
        kernel[(4,)](x, 100, 2.0)
    return kernel


# -- M9: what a launch must not miss ----------------------------------------------------------------------------------


def test_m9_another_current_device_gets_a_binary_of_its_own(kernel, x, launches, driver):
    first = kernel[(4,)](x, 100, 2.0)
    driver.device = 1
    second = kernel[(4,)](x, 100, 2.0)
    assert second is not first
    assert list(kernel.fn.device_caches[1][0].values()) == [second]
    assert launches[-1].function == second.function
    driver.device = 0
    assert kernel[(4,)](x, 100, 2.0) is first


def test_m9_the_stream_is_that_of_the_launch(kernel, x, launches, driver):
    for stream in (3, 0, 7):
        driver.stream = stream
        kernel[(4,)](x, 100, 2.0)
        assert launches[-1].stream == stream


def test_m9_debug_turned_on_and_off(kernel, x, monkeypatch):
    usual = kernel[(4,)](x, 100, 2.0)
    monkeypatch.setattr(knobs.runtime, "debug", True)
    assert kernel[(4,)](x, 100, 2.0) is not usual
    monkeypatch.setattr(knobs.runtime, "debug", False)
    assert kernel[(4,)](x, 100, 2.0) is usual


@pytest.mark.skipif(subjects.VERSION == (3, 6), reason="Triton 3.6 asks it when it compiles only")
def test_m9_a_hook_on_stages_is_asked(kernel, x, monkeypatch):
    asked = []
    monkeypatch.setattr(
        knobs.runtime, "add_stages_inspection_hook", lambda *args: asked.append(args) or ("key", "hash")
    )
    kernel[(4,)](x, 100, 2.0)
    assert asked


def test_m9_a_kernel_that_left_tritons_cache_is_compiled_again(kernel, x, launches):
    old = kernel[(4,)](x, 100, 2.0)
    kernel.fn.device_caches[0][0].clear()
    again = kernel[(4,)](x, 100, 2.0)
    assert again is not old
    assert launches[-1].function == again.function
    assert kernel[(4,)](x, 100, 2.0) is again


def test_m9_a_scalar_of_another_class_is_another_specialization(kernel, x, launches):
    for value, kind in ((2.0, float), (2, int), (True, bool), (2.5, float)):
        compiled = kernel[(4,)](x, 100, value)
        assert compiled is kernel.fn[(4,)](x, 100, value, **kernel.best_config.all_kwargs())
        assert type(launches[-2].arguments["by"]) is kind


# -- M3, M5: how a launch may be written ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "grid",
    [(4,), [4], (4, 2), (4, 2, 1), (4, 2, 1, 9), lambda meta: [meta["n"] // 25]],
    ids=["tuple", "list", "two", "three", "four", "callable"],
)
def test_m5_grids_that_triton_takes(kernel, x, launches, grid):
    wanted = [4] if callable(grid) else list(grid)[:3]
    for _ in range(2):
        kernel[grid](x, 100, 2.0)
        assert launches[-1].grid == tuple(wanted + [1] * (3 - len(wanted)))


@pytest.mark.parametrize("grid", [4, None, lambda meta: 4], ids=["number", "none", "callable"])
def test_m5_grids_that_triton_refuses(kernel, x, launches, grid):
    before = len(launches)
    with pytest.raises((TypeError, ValueError, AssertionError)):
        kernel[grid](x, 100, 2.0)
    assert len(launches) == before


def test_m3_what_the_function_returns_is_returned(kernel, x):
    compiled = kernel[(4,)](x, 100, 2.0)
    assert compiled is kernel.run(x, 100, by=2.0, grid=(4,), warmup=False)
    assert compiled is kernel.fn[(4,)](x, 100, 2.0, **kernel.best_config.all_kwargs())


# -- M2: what others read and call ------------------------------------------------------------------------------------


def test_m2_what_was_measured_can_be_read(kernel):
    assert kernel.configs_timings == {CONFIGS[0]: [2.0] * 3, CONFIGS[1]: [1.0] * 3}
    assert kernel.bench_time > 0


def test_m2_pruning_and_the_next_layer_can_be_used_from_outside(make, x, launches):
    """As warm-ups and exporters do: they prune, and launch the function below with each config."""
    kernel = make(prune_configs_by={"early_config_prune": lambda configs, named, **kwargs: configs[named["n"] > 50 :]})
    kernel.nargs = {"x_ptr": x, "n": 100, "by": 2.0}
    left = kernel.prune_configs({})
    kernel.nargs = None
    assert left == CONFIGS[1:]
    kernel.fn[(4,)](x, 100, 2.0, **left[0].all_kwargs())
    assert (launches[-1].arguments["BLOCK"], launches[-1].warps) == (32, 2)


def test_m2_one_config_can_be_measured_from_outside(make, x, bench, launches):
    kernel = make()
    kernel.nargs = {"x_ptr": x, "n": 100, "by": 2.0}
    assert kernel._bench(x, 100, 2.0, config=CONFIGS[0], grid=(4,), warmup=False) == [2.0] * 3
    assert (bench.calls, launches[-1].arguments["BLOCK"]) == ([16], 16)


# -- M13: what a stored choice holds for ------------------------------------------------------------------------------

SOURCE = """

def helped(x_ptr, n, by, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) * {factor}, mask=i < n)
"""


def written(tmp_path, text):
    """The function of a file written just now."""
    path = tmp_path / str(len(list(tmp_path.iterdir()))) / "written.py"
    path.parent.mkdir()
    path.write_text("import triton.language as tl\n" + text)
    module = types.ModuleType("written")
    module.__file__ = str(path)
    linecache.checkcache(str(path))
    sys.modules["written"] = module
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)  # noqa: S102  # a file of its own, as users have
    return module.helped


@pytest.fixture
def forget_module():
    yield
    sys.modules.pop("written", None)


@pytest.mark.subjects(subjects.OURS)
def test_m13_an_edited_kernel_is_measured_again_and_a_moved_one_is_not(make, x, bench, tmp_path, forget_module):
    for text, measured in (
        (SOURCE.format(factor=2), [16, 32]),
        ("\n\n# further down\n" + SOURCE.format(factor=2), []),
        (SOURCE.format(factor=3), [16, 32]),
    ):
        bench.calls.clear()
        make(written(tmp_path, text))[(4,)](x, 100, 2.0)
        assert sorted(bench.calls) == measured


def test_m13_another_name_of_an_argument_is_another_key(make, x, bench):
    def other(x_ptr, m, by, BLOCK: tl.constexpr):
        tl.store(x_ptr, m * by)

    make()[(4,)](x, 100, 2.0)
    bench.calls.clear()
    make(other, key=["m"])[(4,)](x, 100, 2.0)
    assert sorted(bench.calls) == [16, 32]


@pytest.mark.subjects(subjects.OURS)
def test_m13_dtypes_inside_a_tuple_are_told_apart_in_the_store(make, x):
    def sum_of(pair, n, by, BLOCK: tl.constexpr):
        tl.store(pair[0], tl.load(pair[1]) + n + by)

    for dtype in (torch.float16, torch.float32):
        make(sum_of, restore_value=[])[(1,)]((x, torch.zeros(64, dtype=dtype)), 100, 2.0)
    assert len(list(listing.all_records())) == 2


# -- SHOULD -----------------------------------------------------------------------------------------------------------


@pytest.mark.subjects(["replaced", "autotuned"])
def test_s1_keywords_under_heuristics_reach_the_table(make, x, launches):
    kernel = make()
    stack = triton.heuristics({"by": lambda arguments: float(arguments["n"])})(kernel)
    for _ in range(4):
        stack[(4,)](n=100, x_ptr=x)
        assert launches[-1].arguments["by"] == 100.0
    assert kernel.cache_info().hits == 3


@pytest.mark.subjects(subjects.OURS)
def test_s7_another_kind_of_device_is_another_key(make, x, bench, monkeypatch):
    make()[(4,)](x, 100, 2.0)
    bench.calls.clear()
    other = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, L2_cache_size=50 << 20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index=None: other)
    from autotuned.gpu import device

    monkeypatch.setattr(device, "_known", {}, raising=False)
    make()[(4,)](x, 100, 2.0)
    assert sorted(bench.calls) == [16, 32]


def test_s8_a_choice_written_into_the_cache_is_launched(make, x, launches, bench):
    kernel = make()
    kernel.cache[(100, "torch.float32")] = CONFIGS[0]
    for _ in range(3):
        kernel[(4,)](x, 100, 2.0)
        assert launches[-1].arguments["BLOCK"] == 16
    assert bench.calls == []


@pytest.mark.subjects(["autotuned"])
def test_s5_what_is_restored_is_copied_once_a_search_and_into_host_memory_if_need_be(make, x, monkeypatch, bench):
    clone, copied = torch.Tensor.clone, []
    monkeypatch.setattr(torch.Tensor, "clone", lambda tensor: copied.append(tensor.numel()) or clone(tensor))
    make(restore_value=["x_ptr"])[(4,)](x, 100, 2.0)
    assert (copied, sorted(bench.calls)) == ([128], [16, 32])  # Triton's own copies it for each launch of a trial

    def full(tensor):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(torch.Tensor, "clone", full)
    kernel = make(restore_value=["x_ptr"])
    kernel[(4,)](x, 96, 2.0)
    assert kernel.best_config is CONFIGS[1]


@pytest.mark.subjects(["autotuned"])
def test_s6_choices_in_another_projects_file_are_the_default(subject, bench, x, tmp_path, launches):
    """The migration page's lines: they hold for every context, and a search or a record of ours comes before them."""
    path = tmp_path / "E=8,N=64,device_name=NVIDIA_H100.json"
    path.write_text(
        '{"1": {"BLOCK": 16, "num_warps": 4}, "64": {"BLOCK": 32, "num_warps": 2}, "triton_version": "3.5.0"}'
    )
    entries = {int(m): values for m, values in json.loads(path.read_text()).items() if m.isdigit()}

    def nearest(n, **others):
        values = dict(entries[min(entries, key=lambda m: abs(m - n))])
        return Config(values, **{name: values.pop(name) for name in ("num_warps", "num_stages") if name in values})

    kernel = subject.autotune(CONFIGS, key=["n"], do_bench=bench, default=nearest)(triton.jit(scale))
    for n, block, warps in ((1, 16, 4), (100, 32, 2), (3, 16, 4)):
        for _ in range(2):
            kernel[(4,)](x, n, 2.0)
            assert (launches[-1].arguments["BLOCK"], launches[-1].warps) == (block, warps)
    assert bench.calls == []
    with autotuned.mode("search"):
        kernel[(4,)](x, 100, 2.0)
    assert sorted(bench.calls) == [16, 32]
