"""What a launch costs the host under `install()`: function calls and bytecodes are counted, never timed."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from dropin_kernels import Library, add, even, tuner

import autotuned
from autotuned.dropin import install, replaced

spec = importlib.util.spec_from_file_location("bench_dropin", Path(__file__).parents[1] / "bench" / "dropin.py")
dropin = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = dropin
spec.loader.exec_module(dropin)
OPTIONS = "Library: options at the call"


@pytest.fixture
def counted(driver):
    """Counts of every shape of tuner, by way."""

    def counted(way):
        if way != "stock":
            autotuned.install(replace=way == "replaced")
        try:
            return {name: dropin.count(launch) for name, launch in dropin.shapes()}
        finally:
            install.uninstall()

    return counted


def test_a_launch_from_the_table_is_never_more_than_tritons(counted):
    stock, ours = counted("stock"), counted("replaced")
    assert len(stock) == 10
    for name in stock.keys() - {OPTIONS}:
        assert ours[name].python <= stock[name].python, name
        assert ours[name].c < stock[name].c, name
        assert ours[name].bytecodes < 0.8 * stock[name].bytecodes, name
    assert ours[OPTIONS] == stock[OPTIONS]  # left to Triton


def test_a_seeded_launch_runs_what_tritons_runs_and_no_more(counted):
    pytest.importorskip("autotuned._launch")
    assert counted("seeded") == counted("stock")


def test_a_kernel_whose_calls_the_table_cannot_answer_is_left_to_triton(driver, caplog):
    x = torch.zeros(128)
    autotuned.install(replace=True)
    try:
        kernel = even(tuner(Library, add))
        for _ in range(40):
            kernel[(4,)](x, 100, 7, debug=True)
        assert kernel.fn.cache.proxy is False
        bound = even(tuner(Library, add))
        for _ in range(80):
            bound[(4,)](x, 100, 7)
        for _ in range(17):
            bound[(4,)](x, 100, 7, debug=True)
        assert bound.fn.cache.proxy  # hits have made up for these
    finally:
        install.uninstall()


def test_one_of_our_class_is_left_too_and_explain_says_so(driver, launches):
    import triton
    from dropin_kernels import CONFIGS

    x = torch.zeros(128)
    autotuned.install(replace=True)
    try:
        bench = lambda call, quantiles: (call(), [1.0] * 3)[1]
        kernel = triton.autotune(CONFIGS, key=["n"], do_bench=bench)(add)
        call = lambda **options: kernel[(4,)](x, 100, 7, True, **options)
        call(debug=True)
        assert replaced.LEFT not in str(kernel.explain(x, 100, 7, True))
        for _ in range(40):
            call(debug=True)
        assert kernel.is_left
        assert replaced.LEFT in str(kernel.explain(x, 100, 7, True))
        before = len(launches)
        call()
        assert (len(launches), launches[-1].arguments["BLOCK"]) == (before + 1, kernel.best_config.kwargs["BLOCK"])
        compiled = kernel.run(x, 100, 7, True, grid=(4,), warmup=True)
        assert compiled is not None and len(launches) == before + 1
    finally:
        install.uninstall()
    call()  # goes on after `uninstall`
