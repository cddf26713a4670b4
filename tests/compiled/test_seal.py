"""`seal()`: a search or a compilation is an error that says what was missing; what is known is served as ever."""

from __future__ import annotations

import logging
import os
import threading

import pytest
import torch
import triton
import triton.language as tl
from counted import opcodes
from fake_cuda import by_config
from triton import Config

import autotuned
from autotuned.errors import NotTunedError, SealedError
from autotuned.resolve import sealing
from autotuned.store import listing


def kernel_of(bench=None, name="app.sealed", **more):
    @autotuned.autotune(
        [Config({"BLOCK": block}) for block in (16, 32)], key=["n"], do_bench=bench or by_config({16: 2.0, 32: 1.0}),
        name=name, **more,
    )  # fmt: skip
    @triton.jit
    def add(x_ptr, n, s, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_ptr + i * s, 1.0, mask=i < n)

    return add


def add(x_ptr, n, s, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i * s, 1.0, mask=i < n)


@pytest.fixture(autouse=True)
def lifted(monkeypatch, tmp_path):
    """Triton's cache is empty at first, and no seal outlives its test."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    yield
    autotuned.unseal()
    sealing._lifted.clear()


def call(kernel, n=96, s=2, offset=0):
    return kernel[(4,)](torch.zeros(512)[offset:], n, s)


def test_what_is_known_is_served_and_the_rest_is_an_error(launches):
    kernel = kernel_of()
    call(kernel)
    count = len(launches)
    with autotuned.seal():
        call(kernel)
        with pytest.raises(SealedError) as caught:
            call(kernel, offset=1)
    assert len(launches) == count + 1
    assert caught.value.reason == "`x_ptr`: address not divisible by 16; compiled were: divisible"
    assert (caught.value.kernel, caught.value.what) == ("app.sealed", "compile")
    text = str(caught.value)
    assert text.startswith("`app.sealed`: expected no compile under autotuned.seal(), and the call (")
    assert "n=96" in text and "autotuned.prepare(calls=...)" in text
    call(kernel, offset=1)  # lifted: it compiles


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"s": 16}, "`s`: divisible by 16; compiled were: not divisible"),
        ({"s": 1}, "`s`: an integer that is 1; compiled were: i32"),
        ({"s": 1 << 40}, "`s`: i64; compiled were: i32"),
        ({"s": 2.0}, "`s`: fp32; compiled were: i32"),
    ],
    ids=str,
)
def test_the_specialization_that_differs_is_named(changed, reason):
    kernel = kernel_of()
    call(kernel)
    with autotuned.seal():
        call(kernel, s=3)
        with pytest.raises(SealedError) as caught:
            call(kernel, **changed)
    assert caught.value.reason == reason


def test_a_search_is_an_error_before_anything_is_compiled(launches):
    bench = by_config({16: 2.0, 32: 1.0})
    kernel = kernel_of(bench)
    with autotuned.seal(), pytest.raises(SealedError, match="expected no search under") as caught:
        call(kernel)
    assert (bench.calls, launches, caught.value.what) == ([], [], "search")
    assert caught.value.reason == "nothing is stored or shipped for it"
    explained = kernel.explain(torch.zeros(512), 96, 2, grid=(4,))
    assert explained.answer == "search"
    with autotuned.seal():
        explained = kernel.explain(torch.zeros(512), 96, 2, grid=(4,))
    assert explained.answer == "error" and explained.steps[-1].why == "mode auto and the seal"


def test_a_default_is_served_and_compiles_under_no_seal():
    kernel = kernel_of(default=Config({"BLOCK": 16}))
    with autotuned.seal(), pytest.raises(SealedError) as caught:
        call(kernel)
    assert caught.value.what == "compile" and caught.value.reason == "it was not compiled or loaded before"
    assert kernel.cache_info().searches == 0


@pytest.mark.parametrize("mode", ["serve", "strict", "search", "off"])
def test_modes_keep_their_meaning(mode):
    """What a mode says of an untuned call holds; a compilation is refused in each."""
    kernel = kernel_of()
    error = NotTunedError if mode == "strict" else SealedError
    with autotuned.seal(), autotuned.mode(mode), pytest.raises(error):
        call(kernel)
    call(kernel)
    with autotuned.seal(), autotuned.mode(mode):
        if mode == "off":  # the first config, which the search has compiled, and not the chosen one
            assert call(kernel).metadata.num_warps == 4
        else:
            assert call(kernel).name == "add"
        with pytest.raises((NotTunedError, SealedError)):
            call(kernel, offset=1, s=1)


def test_what_is_in_tritons_cache_compiles_nothing_and_is_allowed(launches):
    call(kernel_of())
    kernel = kernel_of()
    with autotuned.seal():
        call(kernel)
    assert len(launches) == 4 or launches[-1].arguments["BLOCK"] == 32


def test_a_config_that_was_not_measured_is_left_out_under_the_seal():
    """A record that lacks a config of the list is taken as it is: to measure the rest would be a search."""
    call(kernel_of(name="app.grown"))
    more = autotuned.autotune(
        [Config({"BLOCK": block}) for block in (16, 32, 64)], key=["n"], name="app.grown",
        do_bench=by_config({16: 2.0, 32: 1.0, 64: 0.5}),
    )(kernel_of(name="app.same").fn)  # fmt: skip
    with autotuned.seal():
        call(more)
    assert more.cache_info().searches == 0


def test_warn_says_once_and_goes_on(caplog):
    kernel = kernel_of()
    with caplog.at_level(logging.WARNING, "autotuned"), autotuned.seal("warn"):
        call(kernel)
        call(kernel, offset=1)
        kernel.cache_clear()
        call(kernel, offset=1)
    messages = [record.getMessage() for record in caplog.records]
    assert [("no search" in text, "no compile" in text) for text in messages] == [(True, False), (False, True)]
    assert "`x_ptr`: address not divisible by 16; compiled were: divisible" in messages[1]


def test_other_kernels_are_left_alone_unless_all_are_meant():
    @triton.jit
    def of_a_library(x_ptr, n):
        tl.store(x_ptr, n)

    with autotuned.seal():
        of_a_library[(1,)](torch.zeros(16), 2)
    with autotuned.seal(all=True), pytest.raises(SealedError, match=r"of_a_library.*an integer that is 1"):
        of_a_library[(1,)](torch.zeros(16), 1)


def test_kernels_of_gluon_are_sealed_too():
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl

    @gluon.jit
    def of_gluon(x_ptr, n: gl.constexpr):
        gl.store(x_ptr, n)

    with autotuned.seal(all=True), pytest.raises(SealedError, match="of_gluon"):
        of_gluon[(1,)](torch.zeros(16), 2)
    of_gluon[(1,)](torch.zeros(16), 2)


def test_threads_and_forks_are_sealed():
    kernel, found = kernel_of(), []
    call(kernel)

    def other():
        try:
            call(kernel, offset=1)
        except SealedError as error:
            found.append(error.what)

    with autotuned.seal():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        child = os.fork()
        if child == 0:
            try:
                call(kernel, offset=1)
            except SealedError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert found == ["compile"]


def test_preparing_and_warming_up_are_compilations_too():
    kernel = kernel_of(default=Config({"BLOCK": 16}))
    x = torch.zeros(512)
    with autotuned.seal():
        with pytest.raises(SealedError):
            kernel.prepare(x, 96, 2, grid=(4,))
        with pytest.raises(SealedError):
            kernel.warmup(x, 96, 2, grid=(4,))
    kernel.prepare(x, 96, 2, grid=(4,))
    with autotuned.seal():
        call(kernel)


def test_a_hook_that_compiles_another_kernel_is_told_from_the_call_it_is_in():
    other = kernel_of(name="app.within", default=Config({"BLOCK": 16}))
    hook = lambda arguments: call(other, n=64)
    kernel = autotuned.autotune([Config({"BLOCK": 16}, pre_hook=hook)], key=["n"], name="app.around")(kernel_of().fn)
    with autotuned.seal(), pytest.raises(SealedError) as caught:
        kernel[(4,)](torch.zeros(512), 96, 2)
    assert caught.value.kernel == "app.within" and "(n=64" in str(caught.value)


def test_seals_nest_and_unseal_lifts_all():
    kernel = kernel_of()
    outer = autotuned.seal()
    with autotuned.seal("warn"):
        call(kernel)
    with pytest.raises(SealedError):
        call(kernel, offset=1)
    autotuned.unseal()
    call(kernel, offset=1)
    with outer:
        pass


def test_seals_of_tasks_end_in_any_order():
    outer, inner = autotuned.seal("warn"), autotuned.seal("warn")
    latest = autotuned.seal()
    for ended in (inner, outer, inner):  # the last is lifted already
        with ended:
            pass
    assert sealing._seals == [latest] and sealing.forbids()


def test_a_seal_that_begins_during_a_search_is_no_fault_of_the_configs(monkeypatch):
    """All that were not compiled yet were stored as failed, and never tried again."""
    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", "1")
    kernel = autotuned.autotune([Config({"BLOCK": 16 << power}) for power in range(5)], key=["n"])(triton.jit(add))
    seal = lambda event: event.kind == "compile" and autotuned.seal()
    with autotuned.on_event(seal), pytest.raises(SealedError):
        call(kernel)
    assert [timing for _, record in listing.all_records() for timing in record.timings if not timing.usable] == []
    autotuned.unseal()
    call(kernel)
    [(_, record)] = listing.all_records()
    assert [timing.status for timing in record.timings] == ["ok"] * 5


@pytest.mark.parametrize("mode", ["serve", "off"])
def test_an_untuned_call_does_not_get_another_config_because_that_is_compiled(launches, mode):
    kernel = kernel_of()
    kernel.fn.warmup(torch.zeros(512), 96, 2, BLOCK=32, grid=(4,))
    with autotuned.mode(mode), autotuned.seal(), pytest.raises(SealedError) as caught:
        call(kernel)
    assert caught.value.reason == "`BLOCK`: 16; compiled were: 32" and launches == []


def test_the_environment_seals(monkeypatch):
    monkeypatch.setenv("AUTOTUNED_SEAL", "error")
    kernel = kernel_of()
    with pytest.raises(SealedError):
        call(kernel)
    autotuned.unseal()
    call(kernel)


def test_what_is_no_seal_is_refused():
    with pytest.raises(autotuned.errors.OptionError, match="expected 'error' or 'warn', got 'never'"):
        autotuned.seal("never")


def test_heuristics_and_single_configs_are_sealed_too():
    @autotuned.autotune([Config({"BLOCK": 16})], key=["n"], name="app.single")
    @triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
    @triton.jit
    def single(x_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
        tl.store(x_ptr + tl.arange(0, BLOCK), 1.0 if EVEN else 2.0)

    x = torch.zeros(64)
    single[(1,)](x, 96)
    with autotuned.seal():
        single[(1,)](x, 96)
        with pytest.raises(SealedError, match=r"`EVEN`: False; compiled were: True"):
            single[(1,)](x, 100)


@pytest.mark.parametrize("replace", [False, True])
def test_kernels_under_install_are_sealed(replace):
    autotuned.install(replace=replace)
    try:
        bench = by_config({16: 2.0, 32: 1.0})

        @triton.autotune([Config({"BLOCK": block}) for block in (16, 32)], key=["n"], do_bench=bench)
        @triton.jit
        def stock(x_ptr, n, BLOCK: tl.constexpr):
            tl.store(x_ptr + tl.arange(0, BLOCK), n)

        x, seen = torch.zeros(512), []
        with autotuned.seal(), pytest.raises(SealedError) as caught:
            stock[(1,)](x, 96)
        assert (caught.value.what, bench.calls) == ("search", [])
        with autotuned.on_event(seen.append):
            stock[(1,)](x, 96)
        assert {"search", "compile"} <= {event.kind for event in seen}
        with autotuned.seal():
            stock[(1,)](x, 96)
            with pytest.raises(SealedError) as caught:
                stock[(1,)](x[1:], 96)
        assert caught.value.reason == "`x_ptr`: address not divisible by 16; compiled were: divisible"
    finally:
        autotuned.uninstall()


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_kernels_that_need_no_choice_are_sealed_under_install(replace, known):
    """With one config, or with what was measured before: nothing is looked up for them."""

    @triton.autotune([Config({"BLOCK": block}) for block in (16, 32)[: 1 + known]], key=["n"],
                     do_bench=by_config({16: 2.0, 32: 1.0}))  # fmt: skip
    @triton.jit
    def stock(x_ptr, n, BLOCK: tl.constexpr):
        tl.store(x_ptr + tl.arange(0, BLOCK), n + 1)

    x, seen = torch.zeros(512), []
    stock[(1,)](x, 96)
    autotuned.install(replace=replace)
    try:
        with autotuned.seal():
            stock[(1,)](x, 96)
            with pytest.raises(SealedError, match=r"`x_ptr`: address not divisible by 16; compiled were: divisible"):
                stock[(1,)](x[1:], 96)
        with autotuned.on_event(seen.append):
            stock[(1,)](x[1:], 96)
        assert "compile" in {event.kind for event in seen}
    finally:
        autotuned.uninstall()


# -- events ----------------------------------------------------------------------------------------------------------


def test_a_search_and_its_compilations_are_told():
    seen = []
    kernel = kernel_of(name="app.told")
    with autotuned.on_event(seen.append):
        call(kernel)
        call(kernel)
    kinds = [event.kind for event in seen]
    assert kinds.count("compile") == 2 and kinds[-2:] == ["search", "miss"]
    assert {event.kernel for event in seen} == {"app.told"}
    search, miss = seen[-2:]
    assert search.key == miss.key != "" and miss.seconds > search.seconds > 0
    assert search.reason == "2 configs; chosen: BLOCK=32 num_warps=4 num_stages=3" and miss.reason == "SEARCH"
    call(kernel)
    assert len(seen) == 4


def test_a_callback_that_launches_a_tuned_kernel_does_not_hang():
    kernel, other, seen = kernel_of(name="app.outer"), kernel_of(name="app.inner"), []

    def launch(event):
        seen.append(event.kind)
        call(other)
        call(kernel, s=4)

    before = getattr(autotuned.counters().get(("app.inner", "search")), "events", 0)
    with autotuned.on_event(launch):
        call(kernel)
    assert seen.count("miss") == 1
    assert autotuned.counters()["app.inner", "search"].events == before + 1


def test_a_hit_costs_what_it_does_without():
    """Byte codes are counted; what runs in C knows of neither (no file of `launch/c/` does)."""
    kernel, x = kernel_of(name="app.hit"), torch.zeros(512)
    hit = lambda: kernel[(4,)](x, 96, 2)
    hit()
    hit()
    without = opcodes(hit)
    with autotuned.on_event(lambda event: None), autotuned.seal():
        hit()
        assert opcodes(hit) == without


def test_a_refusal_is_told():
    seen, kernel = [], kernel_of(name="app.refused")
    with autotuned.on_event(seen.append), autotuned.seal(), pytest.raises(SealedError):
        call(kernel)
    assert [event.kind for event in seen] == ["refuse", "miss"]
    assert seen[0].reason == "sealed: nothing is stored or shipped for it" and "SealedError" in seen[1].reason
