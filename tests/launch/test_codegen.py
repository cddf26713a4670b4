from typing import Any

import pytest

from autotuned.launch import codegen
from autotuned.launch.codegen import MISSING


@pytest.mark.parametrize(
    ("args", "kwargs", "values"),
    [
        pytest.param((1, 2), {}, (1, 2, "d", None), id="by place"),
        pytest.param((1,), {"n": 2}, (1, 2, "d", None), id="mixed"),
        pytest.param((), {"n": 2, "x": 1}, (1, 2, "d", None), id="by name, in another order"),
        pytest.param((1, 2, 3, 4), {}, (1, 2, 3, 4), id="defaults given by place"),
        pytest.param((1, 2), {"out": 4}, (1, 2, "d", 4), id="one default by name"),
    ],
)
def test_the_binder_gives_values_in_order_with_defaults(args: Any, kwargs: Any, values: Any) -> None:
    bind = codegen.binder(["x", "n", "alpha", "out"], {"alpha": "d", "out": None})
    assert bind(*args, **kwargs) == values


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        pytest.param((), {}, id="nothing"),
        pytest.param((1,), {}, id="one missing"),
        pytest.param((1, 2, 3, 4, 5), {}, id="one too many"),
        pytest.param((1, 2), {"x": 1}, id="given twice"),
        pytest.param((1, 2), {"nn": 1}, id="unknown name"),
    ],
)
def test_the_binder_refuses_what_python_would_refuse(args: Any, kwargs: Any) -> None:
    with pytest.raises(TypeError):
        codegen.binder(["x", "n", "alpha", "out"], {"alpha": "d", "out": None})(*args, **kwargs)


def test_a_parameter_after_one_with_a_default_is_marked_when_it_is_missing() -> None:
    bind = codegen.binder(["alpha", "n"], {"alpha": 1.0})
    assert bind(n=3) == (1.0, 3)
    assert bind(2.0) == (2.0, MISSING)


def test_defaults_are_the_objects_given() -> None:
    default = object()
    assert codegen.binder(["x"], {"x": default})()[0] is default
    assert codegen.binder([], {})() == ()


@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_submitter_passes_what_changes_constants_and_values(one_by_one: bool) -> None:
    calls: list[tuple[object, ...]] = []
    leading = ["stream", ("y",), "z", "y", "x", (None,)]
    submit = codegen.submitter(
        ["x", "y"], ["y", "BLOCK", "x"], {"BLOCK": 64}, lambda *given: calls.append(given), leading, one_by_one
    )
    submit(1, 2, 3, 4, ("of x", "of y"))
    values = ("of y", 64, "of x")
    assert calls == [(4, "y", 3, 2, 1, None, *(values if one_by_one else [values]))]


def test_full_values_are_in_the_order_of_the_parameters() -> None:
    full = codegen.full_values(["x", "n"], ["x", "BLOCK", "n", "FLAG"], {"BLOCK": 64, "FLAG": True})
    assert full("x", 5) == ("x", 64, 5, True)
    assert codegen.full_values([], ["BLOCK"], {"BLOCK": 64})() == (64,)


def test_a_mapping_holds_the_arguments_and_the_config() -> None:
    constants = {"BLOCK": 64}
    built = codegen.mapping(["x", "n"], constants)("x", 5)
    assert built == {"x": "x", "n": 5, "BLOCK": 64}
    built.clear()
    assert constants == {"BLOCK": 64}


def test_a_function_is_called_by_name_and_where_it_must_be_by_place() -> None:
    def f(a: Any, /, b: Any, **rest: Any) -> Any:
        return a, b, rest

    call = codegen.by_name(f, ["a", "b"], ["a"], {"BLOCK": 64})
    assert call((1, 2), (3,)) == (1, 2, {"BLOCK": 64})
    assert codegen.by_name(lambda **kw: kw, [], (), {"BLOCK": 64})((), None) == {"BLOCK": 64}


# Names that the written code could use for itself.
ODD = ["values", "extra", "constants", "function", "defaults", "written", "c0", "c1", "_", "__", "self", "grid"]


@pytest.mark.parametrize("name", ODD)
def test_a_parameter_may_have_any_name(name: str) -> None:
    assert codegen.binder([name, "z"], {"z": 2})(1) == (1, 2)
    assert codegen.full_values([name], [name, "BLOCK"], {"BLOCK": 64})(5) == (5, 64)
    assert codegen.full_values([name], ["BLOCK", name], {"BLOCK": 64})(5) == (64, 5)
    assert codegen.mapping([name], {"BLOCK": 64})(5) == {name: 5, "BLOCK": 64}
    assert codegen.by_name(lambda **kw: kw, [name], (), {"BLOCK": 64})((5,), None) == {name: 5, "BLOCK": 64}
    assert codegen.by_name(lambda **kw: kw, ["x"], (), {name: 64})((5,), None) == {"x": 5, name: 64}


@pytest.mark.parametrize("names", [[], ["x"], ["_" * 9, "x"]], ids=["none", "one", "underscores"])
def test_names_of_our_own_are_longer_than_every_parameter(names: list[str]) -> None:
    assert all(len(codegen.private_prefix(names)) > len(name) for name in names)
    assert codegen.private_prefix(names).isidentifier()
