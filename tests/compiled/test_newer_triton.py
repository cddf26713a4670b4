"""Beside a Triton that was never tested: kernels are tuned and stored, launches are Triton's own, and one line says so."""

import logging

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton import Config, knobs

import autotuned
from autotuned import autotune
from autotuned.launch import direct, driver_call, launcher
from autotuned.store import listing
from autotuned.triton_compat import compiled, fingerprint, frontend, versions

CONFIGS = [Config({"BLOCK": block}, num_warps=warps) for block in (16, 32) for warps in (1, 2)]
GRIDS = [(4,), [4, 1], lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)]


def add(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


@pytest.fixture(autouse=True)
def newer(monkeypatch):
    """Triton says that it is of a later version, and nothing may reach into it."""
    versions.strange.cache_clear()
    monkeypatch.setattr(triton, "__version__", "3.10.0")
    monkeypatch.setattr(fingerprint, "_known", {})  # it holds for as long as Triton is the one that was imported
    for module, name in (
        (direct, "direct"), (compiled, "handle"), (direct, "direct_launch"), (driver_call, "fields"),
        (frontend, "_source_class"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, None)
    yield
    versions.strange.cache_clear()


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.WARNING, "autotuned")
    return lambda: [record.getMessage() for record in caplog.records]


def tuned(function=add):
    bench = fake_cuda.by_config({16: 2.0, 32: 1.0})
    return autotune(CONFIGS, key=["n"], do_bench=bench, name="newer.add")(triton.jit(function))


def test_it_is_tuned_once_stored_and_launched_as_triton_does(launches, lines):
    kernel, x = tuned(), torch.zeros(100)
    for grid in GRIDS:
        for n in (100, 64):
            compiled = kernel[grid](x, n)
            assert compiled is kernel.fn[grid](x, n, **kernel.best_config.all_kwargs())
            assert fake_cuda.same(launches[-2], launches[-1])
            assert launches[-1].arguments["BLOCK"] == 32
    assert kernel.cache_info().searches == 2
    assert [record.key.context["triton"] for _, record in listing.all_records()] == ["3.10.0"] * 2
    again = tuned()  # as in another process
    again[(4,)](x, 100)
    assert again.cache_info().searches == 0
    (line,) = lines()
    assert line == (
        "autotuned: Triton 3.10.0 was never tested, only 3.6.0 to 3.9.0. Kernels are still tuned and stored, "
        "and launched through Triton."
    )


def test_each_launch_is_seen_by_tritons_hooks_and_knobs(launches, monkeypatch):
    kernel, x, seen = tuned(), torch.zeros(100), []
    kernel[(4,)](x, 100)
    kernel.fn.add_pre_run_hook(lambda *args, **kwargs: seen.append("run"))
    knobs.runtime.launch_enter_hook.add(enter := lambda metadata: seen.append("enter"))
    try:
        kernel[(4,)](x, 100)
    finally:
        knobs.runtime.launch_enter_hook.remove(enter)
    assert seen == ["run", "enter"]
    run, original = [], type(kernel.fn).run
    monkeypatch.setattr(
        type(kernel.fn), "run", lambda self, *args, **more: run.append(1) or original(self, *args, **more)
    )
    for _ in range(3):
        kernel[(4,)](x, 100)
    assert len(run) == 3


def test_so_it_is_with_heuristics_zeroed_arguments_and_hooks(launches):
    hooked = []
    configs = [Config({"BLOCK": 32}, pre_hook=lambda arguments: hooked.append(arguments["n"]))]
    inner = triton.jit(add)
    kernel = autotuned.heuristics({"BLOCK": lambda arguments: 64})(
        autotune([Config({}, num_warps=1), Config({}, num_warps=2)], key=["n"], reset_to_zero=["x_ptr"],
                 do_bench=lambda call, quantiles: call() or [1.0] * 3)(inner)
    )  # fmt: skip
    x = torch.ones(100)
    for _ in range(3):
        x.fill_(1.0)
        kernel[(4,)](x, 100)
        assert launches[-1].arguments["BLOCK"] == 64
        assert not x.any()
    kernel = autotune(configs, key=["n"], name="newer.hooked")(inner)
    for _ in range(3):
        kernel[(4,)](x, 100)
    assert hooked == [100] * 3


@pytest.mark.parametrize("name", ["", "c", "python", "triton"])
def test_whatever_launcher_is_asked_for_it_is_tritons(name, monkeypatch, launches):
    monkeypatch.setenv("AUTOTUNED_LAUNCHER", name)
    kernel, x = tuned(), torch.zeros(100)
    for _ in range(3):
        kernel[(4,)](x, 100)
    assert kernel.cache_info().hits == 2  # the choice is a look-up all the same
    assert launcher.in_use() == ("triton", "Triton 3.10.0 was never tested, only 3.6.0 to 3.9.0")


def test_install_works_beside_it(launches):
    autotuned.install(replace=True)
    try:
        kernel = triton.autotune(CONFIGS, key=["n"], do_bench=fake_cuda.by_config({16: 2.0, 32: 1.0}))(triton.jit(add))
        for n in (100, 100, 64):
            kernel[(4,)](torch.zeros(100), n)
            assert launches[-1].arguments["BLOCK"] == 32
    finally:
        autotuned.uninstall()


@given(st.sampled_from(["3.10.0", "3.10.0.dev20270101", "3.11.0+git1", "4.0.0", "10.0", "", "nightly", "3", "3.5.9"]))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_version_but_those_of_a_tried_minor_is_reached_into(version):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton, "__version__", version)
        assert versions.strange_triton().startswith(f"Triton {version or 'without a version'} was never tested")
        assert not launcher.binds_directly() and not launcher.uses_c()
