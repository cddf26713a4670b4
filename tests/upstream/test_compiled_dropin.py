"""`install()` and `uninstall()`: what is put in place, beside whom, and that nothing of it stays."""

import contextlib
import logging

import fake_cuda
import pytest
import triton
import triton.language as tl
from triton import Config
from triton.runtime import autotuner
from triton.runtime.autotuner import Autotuner

import autotuned
from autotuned.dropin import install, seeded
from autotuned.dropin.replaced import Replaced
from autotuned.errors import NotTunedError
from autotuned.store import listing

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]
HOLDERS = (triton, triton.runtime, autotuner)
STOCK_RUN, STOCK_AUTOTUNE = Autotuner.run, triton.autotune


@triton.jit
def add(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


@triton.jit
def add_two(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(y_ptr + i, mask=i < n) + 1, mask=i < n)


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    install.uninstall()
    assert Autotuner.run is STOCK_RUN
    assert [holder.autotune for holder in HOLDERS] == [STOCK_AUTOTUNE] * 3


@pytest.fixture
def bench():
    return fake_cuda.by_config({16: 2.0, 32: 1.0, 64: 0.5})


@pytest.fixture
def make(bench):
    return lambda configs=CONFIGS, **options: triton.autotune(configs, **{"key": ["n"], "do_bench": bench} | options)(
        add
    )


def test_kernels_decorated_before_are_seeded_too(make, x, bench):
    before = make()
    autotuned.install()
    before[(4,)](x, 100)
    again = make()
    again[(4,)](x, 100)
    assert (sorted(bench.calls), again.best_config) == ([16, 32], CONFIGS[1])
    ((_, record),) = listing.all_records()
    assert record.median_us == 1000.0
    assert [timing.median_us for timing in record.timings] == [2000.0, 1000.0]
    assert record.provenance["timer"] == "triton"


def test_tuners_that_put_back_other_arguments_measure_under_both_and_not_in_turns(bench, x):
    autotuned.install()

    def searched(*names, **options):
        bench.calls.clear()
        tuner = triton.autotune(CONFIGS, key=["n"], do_bench=bench, restore_value=list(names), **options)(add_two)
        tuner[(4,)](x, x.clone(), 100)
        assert tuner.restore_value == list(names)
        return bool(bench.calls)

    assert [searched(*names) for names in ((), ("x_ptr",), ("y_ptr",))] == [True, True, True]
    assert not any(searched(*names) for names in ((), ("x_ptr",), ("y_ptr",), ("x_ptr", "y_ptr")))
    assert [searched(reset_to_zero=["y_ptr"]) for _ in range(2)] == [True, False]  # another kind of trial


def test_what_was_in_the_cache_stays_in_charge(make, x, bench):
    kernel = make()
    kernel.cache[(100, "torch.float32")] = CONFIGS[0]
    autotuned.install()
    kernel[(4,)](x, 100)
    assert (kernel.best_config, bench.calls) == (CONFIGS[0], [])
    assert isinstance(kernel.cache, dict)


def test_installing_twice_is_installing_once(make, x, bench):
    autotuned.install()
    run = Autotuner.run
    autotuned.install()
    assert Autotuner.run is run
    autotuned.install(replace=True)
    autotuned.install(replace=True)
    assert Autotuner.run is run
    assert [holder.autotune for holder in HOLDERS] == [triton.autotune] * 3
    assert type(make()) is Replaced
    autotuned.uninstall()
    autotuned.uninstall()
    assert Autotuner.run is STOCK_RUN


def test_both_ways_share_what_is_stored(make, x, bench):
    autotuned.install()
    make()[(4,)](x, 100)
    autotuned.install(replace=True)
    kernel = make()
    kernel[(4,)](x, 100)
    assert (type(kernel), kernel.best_config, sorted(bench.calls)) == (Replaced, CONFIGS[1], [16, 32])


def test_replaced_kernels_go_on_after_uninstall(make, x, bench, launches):
    autotuned.install(replace=True)
    kernel = make()
    kernel[(4,)](x, 100)
    autotuned.uninstall()
    for n in (100, 100, 64, 64):
        kernel[(4,)](x, n)
        assert launches[-1].arguments["BLOCK"] == 32
    assert len(list(listing.all_records())) == 1


def test_our_own_kernels_are_not_seeded(x, bench):
    kernel = autotuned.autotune(CONFIGS, key=["n"], do_bench=bench)(add)
    kernel[(4,)](x, 100)
    autotuned.install(replace=True)
    for _ in range(3):
        kernel[(4,)](x, 100)
    assert kernel.cache_info().hits >= 2  # nobody has replaced `run` but us
    assert type(kernel.cache) is not seeded.Memory
    autotuned.uninstall()
    kernel[(4,)](x, 100)
    assert kernel.cache_info().hits >= 3


def test_another_list_of_configs_is_another_key(make, x, bench):
    autotuned.install()
    make()[(4,)](x, 100)
    bench.calls.clear()
    more = [*CONFIGS, Config({"BLOCK": 64})]
    kernel = make(more)
    kernel[(4,)](x, 100)
    assert (sorted(bench.calls), kernel.best_config) == ([16, 32, 64], more[2])
    bench.calls.clear()
    for configs in (CONFIGS, more):
        make(configs)[(4,)](x, 100)
    assert bench.calls == []


def test_s9_a_default_left_out_or_given_is_one_record(bench, x):
    @triton.jit
    def shift(x_ptr, n, by=1, BLOCK: tl.constexpr = 16):
        tl.store(x_ptr, n + by)

    autotuned.install()
    triton.autotune(CONFIGS, key=["n", "by"], do_bench=bench)(shift)[(1,)](x, 5)
    bench.calls.clear()
    triton.autotune(CONFIGS, key=["n", "by"], do_bench=bench)(shift)[(1,)](x, 5, by=1)
    assert bench.calls == []


# -- modes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replace", [False, True], ids=["seeded", "replaced"])
def test_modes(make, x, bench, replace):
    autotuned.install(replace=replace)
    with autotuned.mode("strict"), pytest.raises(NotTunedError, match="nothing|found none"):
        make()[(4,)](x, 100)
    with autotuned.mode("serve"):
        kernel = make()
        kernel[(4,)](x, 100)
        assert (kernel.best_config, bench.calls) == (CONFIGS[0], [])
    with autotuned.mode("off"):
        make()[(4,)](x, 100)
    assert list(listing.all_records()) == []
    bench.calls.clear()
    make()[(4,)](x, 100)
    with autotuned.mode("strict"):
        make()[(4,)](x, 100)
    assert sorted(bench.calls) == [16, 32]
    with autotuned.mode("search"):
        make()[(4,)](x, 100)
    assert sorted(bench.calls) == [16, 16, 32, 32]


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("asked", range(6))
def test_a_mode_that_ends_during_a_call_leaves_no_untuned_config(make, x, bench, replace, asked):
    """Wherever it ends: the grid is asked before the choice too, and another thread may end it at any time."""
    autotuned.install(replace=replace)
    kernel, left = make(), [asked]
    with autotuned.mode("strict"):  # entered before: entering one drops untuned configs too
        with contextlib.ExitStack() as serve:
            serve.enter_context(autotuned.mode("serve"))

            def grid(meta):
                left[0] -= 1
                if left[0] < 0:
                    serve.close()
                return (4,)

            kernel[grid](x, 100)
        with pytest.raises(NotTunedError):
            kernel[(4,)](x, 100)
    assert (kernel.best_config, bench.calls) == (CONFIGS[0], [])


@pytest.mark.parametrize("replace", [False, True], ids=["seeded", "replaced"])
def test_an_untuned_config_of_mode_serve_lasts_until_the_mode_changes(make, x, bench, replace):
    """It answered in mode strict, and kept mode auto from measuring."""
    autotuned.install(replace=replace)
    kernel = make()
    with autotuned.mode("serve"):
        for _ in range(3):
            kernel[(4,)](x, 100)
        assert len(kernel.cache) == 1
        with autotuned.mode("strict"), pytest.raises(NotTunedError):
            kernel[(4,)](x, 100)
        kernel[(4,)](x, 100)
    assert (kernel.best_config, bench.calls) == (CONFIGS[0], [])
    kernel[(4,)](x, 100)
    assert (kernel.best_config, sorted(bench.calls)) == (CONFIGS[1], [16, 32])
    with autotuned.mode("strict"):
        kernel[(4,)](x, 100)


@pytest.mark.parametrize("replace", [False, True], ids=["seeded", "replaced"])
def test_mode_search_measures_once_what_this_process_has_only_read(make, x, bench, replace):
    autotuned.install(replace=replace)
    make()[(4,)](x, 100)
    kernel = make()
    kernel[(4,)](x, 100)
    with autotuned.mode("strict"):
        kernel[(4,)](x, 100)
    assert sorted(bench.calls) == [16, 32]
    for _ in range(2):
        with autotuned.mode("search"):
            for _ in range(3):
                kernel[(4,)](x, 100)
        kernel[(4,)](x, 100)
        assert sorted(bench.calls) == [16, 16, 32, 32]


class Ending(int):
    """An argument in the key, which ends a mode when it is looked up for the second time."""

    seen = 0

    def __hash__(self):
        self.seen += 1
        if self.seen == 2:
            self.kernel.cache.end_stop_gaps("auto")
        return hash(int(self))


def test_a_call_that_the_end_of_a_mode_overtakes_has_its_config(make, x, monkeypatch):
    """Between Triton's question whether the cache has a key and the reading of it: a `KeyError` on busy threads."""
    monkeypatch.setenv("AUTOTUNED_LAUNCHER", "python")  # C remembers what it found, but of one thread only
    autotuned.install()
    kernel, n = make(), Ending(100)
    n.kernel = kernel
    with autotuned.mode("serve"):
        kernel[(4,)](x, 100)
        [key] = kernel.cache
        kernel[(4,)](x, n)
        assert (kernel.best_config, len(kernel.cache)) == (CONFIGS[0], 0)
    with pytest.raises(KeyError):
        kernel.cache[key]


def test_a_choice_that_a_program_puts_in_place_of_an_untuned_one_stays(make, x, bench):
    autotuned.install()
    kernel = make()
    with autotuned.mode("serve"):
        kernel[(4,)](x, 100)
        [key] = kernel.cache
        kernel.cache[key] = CONFIGS[1]
    kernel[(4,)](x, 100)
    assert (kernel.best_config, bench.calls) == (CONFIGS[1], [])


def test_an_unwritable_store_changes_nothing(make, x, bench, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "file" / "below"))
    autotuned.install()
    kernel = make()
    kernel[(4,)](x, 100), kernel[(4,)](x, 100)
    assert (kernel.best_config, sorted(bench.calls)) == (CONFIGS[1], [16, 32])


def test_a_damaged_record_is_measured_again(make, x, bench):
    autotuned.install()
    make()[(4,)](x, 100)
    ((path, _),) = listing.all_records()
    path.write_text("{")
    bench.calls.clear()
    make()[(4,)](x, 100)
    assert sorted(bench.calls) == [16, 32]
    assert len(list(listing.all_records())) == 1


# -- beside others ----------------------------------------------------------------------------------------------------


def test_a_patch_from_before_is_called(make, x, bench, monkeypatch, launches):
    """As of a tool that forces the first config."""

    def first(self, *args, **kwargs):
        return self.fn.run(*args, **kwargs, **self.configs[0].all_kwargs())

    with monkeypatch.context() as patch:
        patch.setattr(Autotuner, "run", first)
        autotuned.install()
        ours = autotuned.autotune(CONFIGS, key=["n"], do_bench=bench)(add)
        for kernel in (make(), ours):
            kernel[(4,)](x, 100)
            assert launches[-1].arguments["BLOCK"] == 16
        autotuned.uninstall()
        assert Autotuner.run is first


def test_a_patch_from_after_stays_and_ours_sleeps(make, x, bench, monkeypatch, caplog):
    calls = []
    autotuned.install()
    with monkeypatch.context() as patch:
        inner = Autotuner.run

        def outer(self, *args, **kwargs):
            calls.append(self)
            return inner(self, *args, **kwargs)

        patch.setattr(Autotuner, "run", outer)
        kernel = make()
        kernel[(4,)](x, 100)
        assert len(list(listing.all_records())) == 1
        autotuned.uninstall()
        assert Autotuner.run is outer
        assert "theirs is left in place" in caplog.text
        bench.calls.clear()
        make()[(4,)](x, 100)
        assert sorted(bench.calls) == [16, 32]  # ours is still called, and does nothing
        autotuned.install()
        assert Autotuner.run is outer  # not wrapped a second time
        bench.calls.clear()
        make()[(4,)](x, 100)
        assert bench.calls == []
    assert len(calls) == 3


def test_a_decorator_of_somebody_else_stays(monkeypatch, caplog):
    def theirs(*args, **kwargs):
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(triton, "autotune", theirs)
        autotuned.install(replace=True)
        assert triton.autotune is theirs
        assert "triton.autotune was replaced before" in caplog.text
        assert autotuner.autotune is not STOCK_AUTOTUNE
        autotuned.uninstall()
        assert (triton.autotune, autotuner.autotune) == (theirs, STOCK_AUTOTUNE)


def test_a_decorator_set_after_ours_stays(monkeypatch, caplog):
    autotuned.install(replace=True)
    with monkeypatch.context() as patch:
        theirs = lambda *args, **kwargs: None
        patch.setattr(triton, "autotune", theirs)
        autotuned.uninstall()
        assert triton.autotune is theirs
        assert "triton.autotune was replaced after" in caplog.text
    triton.autotune = STOCK_AUTOTUNE  # what monkeypatch put back was ours


def test_a_subclass_that_fills_the_cache_itself(x, bench):
    """As a library with a store of its own does."""

    class Cached(Autotuner):
        def run(self, *args, **kwargs):
            self.cache[(100, "torch.float32")] = self.configs[0]
            return super().run(*args, **kwargs)

    autotuned.install()
    kernel = Cached(add, add.arg_names, CONFIGS, ["n"], None, None, do_bench=bench)
    kernel[(4,)](x, 100)
    assert (kernel.best_config, bench.calls) == (CONFIGS[0], [])
    kernel[(4,)](x, 64)
    assert sorted(bench.calls) == [16, 32]


def test_a_cache_of_another_class_is_left_alone(x, bench):
    class Theirs(dict):
        pass

    autotuned.install()
    kernel = triton.autotune(CONFIGS, key=["n"], do_bench=bench)(add)
    kernel.cache = Theirs()
    kernel[(4,)](x, 100)
    assert (type(kernel.cache), len(kernel.cache), list(listing.all_records())) == (Theirs, 1, [])


def test_m12_tritons_own_file_cache_does_not_hide_ours(make, x, bench, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    autotuned.install()
    make(cache_results=True)[(4,)](x, 100)
    bench.calls.clear()
    kernel = make(cache_results=True)
    kernel[(4,)](x, 100)
    assert (kernel.best_config is CONFIGS[1], bench.calls) == (True, [])
    autotuned.uninstall()
    kernel = make(cache_results=True)
    kernel[(4,)](x, 100)
    assert (kernel.best_config, bench.calls) == (CONFIGS[1], [])  # Triton's own file is there too


def test_what_triton_finds_in_its_file_is_stored(make, x, bench, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    make(cache_results=True)[(4,)](x, 100)
    autotuned.install()
    make(cache_results=True)[(4,)](x, 100)
    assert sorted(bench.calls) == [16, 32]
    ((_, record),) = listing.all_records()
    assert record.winner["kwargs"] == {"BLOCK": 32}


def test_m9_a_kernel_that_cannot_be_bound_gets_tritons_tuner(bench, x, caplog):
    @triton.jit
    def fixed(x_ptr, n, BLOCK: tl.constexpr):
        tl.store(x_ptr, n)

    class Odd(type(fixed)):
        pass

    autotuned.install(replace=True)
    odd = type("Plain", (), {"arg_names": ["x_ptr", "n"], "fn": staticmethod(lambda x_ptr, n, *rest: None)})()
    with caplog.at_level(logging.INFO, "autotuned"):
        kernel = triton.autotune(CONFIGS, key=["n"], do_bench=bench)(odd)
    assert type(kernel) is Autotuner
    assert "decorated by Triton's own autotune" in caplog.text


def test_explain_of_a_replaced_kernel(make, x, bench):
    autotuned.install(replace=True)
    kernel = make()
    assert kernel.explain(x, 100, grid=(4,)).answer == "search"
    assert bench.calls == []
    kernel[(4,)](x, 100)
    assert kernel.explain(x, 100).answer == "this process"
    seen = make().explain(x, n=100)
    assert (seen.answer, "BLOCK=32" in seen.config) == ("store", True)
    with autotuned.mode("strict"):
        assert make().explain(x, 64).answer == "error"


def test_a_pruner_whose_configs_set_more_than_the_listed_ones_is_bound_too(bench, x, launches):
    @triton.jit
    def fill(x_ptr, n, BLOCK: tl.constexpr, STAGES: tl.constexpr):
        tl.store(x_ptr + tl.arange(0, BLOCK), n + STAGES)

    def early(configs, named, **kwargs):
        for config in configs:
            yield Config({**config.kwargs, "STAGES": 3})

    autotuned.install(replace=True)
    kernel = triton.autotune(CONFIGS, key=["n"], prune_configs_by={"early_config_prune": early}, do_bench=bench)(fill)
    for _ in range(4):
        kernel[(1,)](x, 100)
        assert (launches[-1].arguments["BLOCK"], launches[-1].arguments["STAGES"]) == (32, 3)
    assert kernel.cache_info().hits == 3
