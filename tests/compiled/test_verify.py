"""What the C launcher passes is compared with what the Python twin does: when a kernel is bound, and if asked always."""

from __future__ import annotations

import logging

import pytest
import torch
import triton
import triton.language as tl
import tritons_packer
from triton import Config
from tritons_packer import seen

from autotuned import autotune
from autotuned.launch import driver_call

_launch = pytest.importorskip("autotuned._launch")
pytestmark = pytest.mark.skipif(
    not tritons_packer.IS_GENERIC, reason="needs a C compiler, and Triton's generic launcher"
)


@triton.jit
def scales(x, alpha: tl.float32, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) * alpha, mask=i < n)


@pytest.fixture
def kernel(shared_device, request, monkeypatch):
    """Makes tuned kernels for one setting of the launcher."""

    def make(launcher="c", **options):
        monkeypatch.setenv("AUTOTUNED_LAUNCHER", launcher)
        option = {"launch_pdl": True} if options.pop("launch_pdl", False) else {}
        configs = [Config({"BLOCK": 64, **option}, num_warps=2, **options)]
        return autotune(configs, key=[], restore_value=[], name=f"verify.{request.node.name}.{launcher}")(scales)

    return make


@pytest.fixture
def errors(caplog):
    caplog.set_level(logging.ERROR, logger="autotuned")
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]), 2)


def called(meta):
    return [meta["n"] // 32, len("ab")]


CALLS = [(2, 100), (2.5, 100), (True, 16), (2**63, 5)]
SPOILED = {
    "parameters": lambda passed: (*passed[:6], (b"\7" * 8, *passed[6][1:])),
    "a float": lambda passed: (*passed[:6], (passed[6][0], b"\0" * 8, *passed[6][2:])),
    "one less": lambda passed: (*passed[:6], passed[6][:-1]),
    "grid": lambda passed: (passed[0], (9, 9, 9), *passed[2:]),
    "threads": lambda passed: (*passed[:2], 1, *passed[3:]),
    "shared memory": lambda passed: (*passed[:3], 99, *passed[4:]),
    "stream": lambda passed: (*passed[:4], 0x11, *passed[5:]),
    "attributes": lambda passed: (*passed[:5], ((6, 1, 0, 0),), passed[6]),
    "function": lambda passed: (0, *passed[1:]),
}


@pytest.mark.parametrize("launcher", ["c", "verify"])
@pytest.mark.parametrize(
    "grid", [(3,), grid, called, [1, 2, 3], {0: 2, 1: 3}], ids=["tuple", "computed", "called", "list", "dict"]
)
@pytest.mark.parametrize("options", [{}, {"num_ctas": 2}, {"launch_pdl": True}], ids=str)
def test_nothing_is_said_of_launches_that_are_right(launcher, grid, options, kernel, shared_device, errors):
    tuned, x = kernel(launcher, **options), torch.zeros(64)
    for _ in range(3):
        for alpha, n in CALLS:
            ours = seen(shared_device, lambda: tuned[grid](x, alpha, n))
            assert ours == seen(shared_device, lambda: scales[grid](x, alpha, n, **tuned.best_config.all_kwargs()))
    assert errors() == []
    assert tuned.cache_info().hits > 12


@pytest.mark.parametrize("what", SPOILED)
def test_a_difference_when_bound_is_said_and_triton_launches(what, kernel, shared_device, errors, monkeypatch):
    original = driver_call.Twin.differences
    monkeypatch.setattr(
        driver_call.Twin,
        "differences",
        lambda self, values, grid, passed: original(self, values, grid, SPOILED[what](passed)),
    )
    tuned, x = kernel(), torch.zeros(64)
    for _ in range(3):
        tuned[(3,)](x, 2.0, 100)
    (line,) = errors()
    assert "is launched through Triton from now on" in line
    assert {"parameters": "argument 'x'", "a float": "argument 'alpha' of type fp32: expected 00 00 00 40 for 2.0, got "
            "00 00 00 00", "one less": "parameters: expected 3, got 2"}.get(what, what) in line  # fmt: skip
    ours = seen(shared_device, lambda: tuned[(3,)](x, 4, 100))
    assert ours == seen(shared_device, lambda: scales[(3,)](x, 4, 100, **tuned.best_config.all_kwargs()))


@pytest.mark.parametrize("grid", [(3,), grid, called], ids=["tuple", "computed", "called"])
def test_a_difference_at_a_launch_is_said_once_and_launched_by_triton(grid, kernel, shared_device, errors, monkeypatch):
    tuned, x, asked = kernel("verify"), torch.zeros(64), []
    for _ in range(2):
        tuned[grid](x, 2.0, 100)
    monkeypatch.setattr(
        driver_call.Twin, "differences", lambda *given: asked.append(given) or ["grid: expected this, got that"]
    )
    for alpha in (3.0, 4.0, 5.0):
        ours = seen(shared_device, lambda: tuned[grid](x, alpha, 100))
        assert ours == seen(shared_device, lambda: scales[grid](x, alpha, 100, **tuned.best_config.all_kwargs()))
    (line,) = errors()
    assert "grid: expected this, got that" in line
    assert len(asked) == 1


def test_another_binary_than_tritons_is_seen(kernel, shared_device, errors):
    tuned, x = kernel("verify"), torch.zeros(65)
    for tensor in (x, x[1:]):
        for _ in range(2):
            tuned[(3,)](tensor, 2.0, 100)
    table = tuned.tuner.launcher.in_c
    aligned = table.find((x, 2.0, 100))
    assert table.bind((x[1:], 2.0, 100), aligned)  # as if their signatures were alike
    ours = seen(shared_device, lambda: tuned[(3,)](x[1:], 2.0, 100))
    assert ours == seen(shared_device, lambda: scales[(3,)](x[1:], 2.0, 100, **tuned.best_config.all_kwargs()))
    (line,) = errors()
    assert "binary: expected the one that Triton's own look-up finds" in line


def test_hooks_and_grids_run_once_a_launch(kernel, shared_device):
    ran = []
    tuned, x = kernel("verify", pre_hook=lambda arguments: ran.append("hook")), torch.zeros(64)
    for _ in range(2):
        tuned[lambda meta: ran.append("grid") or (2,)](x, 2.0, 100)
    ran.clear()
    tuned[lambda meta: ran.append("grid") or (2,)](x, 2.0, 100)
    assert ran == ["hook", "grid"]
