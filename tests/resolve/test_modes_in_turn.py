"""A mode's own places answer a call, although another mode found a choice for it before, in the same process."""

import pytest
from paths import ship
from stepped import CONFIGS, make

import autotuned
from autotuned.api import decorator
from autotuned.api.function import TunedFunction
from autotuned.errors import NotTunedError


@pytest.fixture
def neighbour(tmp_path, monkeypatch) -> TunedFunction:
    """A function whose call with n=100 is shipped, and that has used its config for n=150."""
    function = make(lambda n, step: step, key=["n"], nearest={"n": 2.0})(CONFIGS)
    function(100)
    ship(tmp_path / "shipped", monkeypatch)
    function.cache_clear()
    with autotuned.mode("serve"):
        function(150)
    assert function.explain(150).answer == "this process"
    return function


def test_mode_strict_does_not_serve_a_neighbour_found_in_another_mode(neighbour):
    with autotuned.mode("strict"):
        with pytest.raises(NotTunedError):
            neighbour(150)
        assert neighbour.explain(150).answer == "error"
        neighbour(100)
    with autotuned.mode("serve"):
        neighbour(150)
    assert neighbour.cache_info().searches == 1


def test_tune_measures_a_call_that_a_neighbour_has_served(neighbour):
    neighbour.tuner.tune(neighbour.tuner.call((150,), {}, None))
    assert neighbour.cache_info().searches == 2
    with autotuned.mode("strict"):
        neighbour(150)


def test_mode_strict_asks_a_policy_again(tmp_path, monkeypatch):
    """Mode serve uses an entry of an older toolchain with a warning, mode strict does not."""
    before = make(named("1"), key=["n"], name="turn.f")(CONFIGS)
    before(100)
    ship(tmp_path / "shipped", monkeypatch)
    monkeypatch.delenv("AUTOTUNED_CONFIG_PATH")
    autotuned.register_configs(tmp_path / "shipped", policy={"source": "warn"})
    monkeypatch.delitem(decorator._explicit_names, "turn.f")
    function = make(named("2"), key=["n"], name="turn.f")(CONFIGS)
    with autotuned.mode("serve"):
        function(100)
    assert function.explain(100).answer == "this process"
    with autotuned.mode("strict"), pytest.raises(NotTunedError):
        function(100)


def named(text):
    return {"1": lambda n, step: step, "2": lambda n, step: step + 0}[text]
