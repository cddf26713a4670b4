"""What decorated objects have in common: how they are shown."""

import pytest
import torch
import triton
import triton.language as tl
from paths import quick
from triton import Config

import autotuned
from autotuned import Space, autotune

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]


def plain(x_ptr, n_cols, BLOCK: tl.constexpr, FACTOR: tl.constexpr = 2):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n_cols) * FACTOR, mask=i < n_cols)


def host(x, *, step):
    return x


def test_a_tuned_kernel_shows_its_name_configs_choices_and_mode():
    kernel = autotune(CONFIGS, key=["n_cols"], do_bench=quick, name="app.plain")(triton.jit(plain))
    assert repr(kernel) == "Tuned(app.plain; configs: 2, choices: 0, mode: auto)"
    kernel[(1,)](torch.ones(16, device=DEVICE), 16)
    with autotuned.mode("strict"):
        assert repr(kernel) == "Tuned(app.plain; configs: 2, choices: 1, mode: strict)"
    outside = autotuned.heuristics({"FACTOR": lambda arguments: 3})(kernel)
    assert repr(outside) == "Heuristics(FACTOR; Tuned(app.plain; configs: 2, choices: 1, mode: auto))"
    [choice] = kernel.tuner.chooser.state.choices.values()
    assert repr(choice).startswith("Choice(BLOCK: ") and repr(choice).endswith("; SEARCH)")


@pytest.mark.parametrize(
    ("configs", "shown"),
    [
        ([Config({"step": 1})], "1"),
        (Space({"step": [1, 2]}, where=lambda step: step > 1), "Space(step: 2; constraints: 1)"),
        (lambda **arguments: [Config({"step": 1})], "by a callable"),
    ],
    ids=["list", "space", "callable"],
)
def test_a_tuned_function_shows_where_its_configs_come_from(configs, shown):
    function = autotune(configs, name="app.host")(host)
    assert repr(function) == f"TunedFunction(app.host; configs: {shown}, choices: 0, mode: auto)"


def test_what_is_shown_never_raises(monkeypatch):
    monkeypatch.setenv("AUTOTUNED_MODE", "fast")
    assert repr(autotune([], name="app.host")(host)).endswith("mode: unknown)")
