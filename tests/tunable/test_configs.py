import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import FakeConfig, form

from autotuned.errors import ConfigError, EncodingError, PruningError
from autotuned.key import opaque
from autotuned.tunable.configs import Pruner, check, identity, is_config, label, listed, prune, suggestion, to_json

KERNEL = "app.k"
SMALL, LARGE, WIDE = FakeConfig({"BLOCK": 64}), FakeConfig({"BLOCK": 128}), FakeConfig({"BLOCK": 64}, num_warps=8)


def hook(arguments: Any) -> None: ...


def other_hook(arguments: Any) -> None: ...


def test_the_canonical_form_holds_every_field_and_marks_a_hook() -> None:
    assert to_json(FakeConfig({"B": 1.0, "A": (1,)}, 8, 2, 2, 128, hook, "x.ttir"), KERNEL) == {
        "kwargs": {"B": {"float": "0x1.0000000000000p+0"}, "A": {"tuple": [1]}},
        "num_warps": 8,
        "num_stages": 2,
        "num_ctas": 2,
        "maxnreg": 128,
        "ir_override": "unreadable:x.ttir",
        "pre_hook": opaque.hook(hook),
    }


@pytest.mark.parametrize("missing", ["num_stages", "num_ctas", "maxnreg", "ir_override"])
def test_a_field_that_this_triton_has_not_counts_as_its_default(missing: str) -> None:
    config = FakeConfig({"BLOCK": 64})
    delattr(config, missing)
    assert identity(config, KERNEL) == identity(SMALL, KERNEL)


def test_identity_ignores_the_order_of_kwargs() -> None:
    assert identity(FakeConfig({"A": 1, "B": 2}), KERNEL) == identity(FakeConfig({"B": 2, "A": 1}), KERNEL)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(FakeConfig({"BLOCK": 65}), id="value"),
        pytest.param(FakeConfig({"BLOCK": 64.0}), id="type of a value"),
        pytest.param(FakeConfig({"BLOCK": "64"}), id="text for a number"),
        pytest.param(FakeConfig({"BLOC": 64}), id="name"),
        pytest.param(FakeConfig({"BLOCK": 64, "FAST": None}), id="one more kwarg"),
        pytest.param(FakeConfig({}), id="one less kwarg"),
        pytest.param(FakeConfig({"BLOCK": 64}, num_warps=8), id="num_warps"),
        pytest.param(FakeConfig({"BLOCK": 64}, num_stages=4), id="num_stages"),
        pytest.param(FakeConfig({"BLOCK": 64}, num_ctas=2), id="num_ctas"),
        pytest.param(FakeConfig({"BLOCK": 64}, maxnreg=64), id="maxnreg"),
        pytest.param(FakeConfig({"BLOCK": 64}, ir_override="x.ttir"), id="ir_override"),
        pytest.param(FakeConfig({"BLOCK": 64}, pre_hook=hook), id="pre_hook"),
    ],
)
def test_each_field_alone_makes_another_identity(other: FakeConfig) -> None:
    assert identity(other, KERNEL) != identity(SMALL, KERNEL)


def test_a_file_of_ir_counts_by_its_content_and_stage_and_not_by_its_name(tmp_path: Path) -> None:
    for name, text in {"a.ttir": "one", "b.ttir": "one", "c.ttir": "two", "d.ttgir": "one"}.items():
        (tmp_path / name).write_text(text)

    def of(name: str) -> str:
        return identity(FakeConfig({"BLOCK": 64}, ir_override=str(tmp_path / name)), KERNEL)

    first = of("a.ttir")
    assert first == of("b.ttir")
    assert len({first, of("c.ttir"), of("d.ttgir"), of("none.ttir"), identity(SMALL, KERNEL)}) == 5
    (tmp_path / "a.ttir").write_text("edited")
    assert of("a.ttir") != first


def test_a_field_of_a_later_triton_is_an_error_unless_unset() -> None:
    config = FakeConfig({"BLOCK": 64})
    config.cluster_dims = None
    assert identity(config, KERNEL) == identity(SMALL, KERNEL)
    config.cluster_dims = (2, 1, 1)
    with pytest.raises(ConfigError, match=r"`app\.k`: expected configs with the fields .* got also cluster_dims"):
        to_json(config, KERNEL)


def test_a_value_that_json_cannot_write_is_refused_or_left_to_the_fallback() -> None:
    config = FakeConfig({"ACT": hook})
    with pytest.raises(EncodingError, match=r"config of 'app\.k', ACT: expected"):
        to_json(config, KERNEL)
    assert to_json(config, KERNEL, lambda value, where: "a function")["kwargs"] == {"ACT": "a function"}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (FakeConfig({"BLOCK": 64}), "BLOCK=64 num_warps=4 num_stages=3"),
        (
            FakeConfig({}, 1, 2, 2, 96, hook, "x"),
            "num_warps=1 num_stages=2 num_ctas=2 maxnreg=96 ir_override=unreadable:x pre_hook",
        ),
        (FakeConfig({"T": (1, 2.0)}), 'T={"tuple":[1,{"float":"0x1.0000000000000p+1"}]} num_warps=4 num_stages=3'),
    ],
    ids=["defaults left out", "every field", "nested value"],
)
def test_a_label_names_what_is_set(config: FakeConfig, words: str) -> None:
    assert label(form(config)) == words


def test_options_of_a_launch_are_not_said_of_a_plain_callable() -> None:
    assert label(form(FakeConfig({"step": 1}, num_warps=8)), options=False) == "step=1"
    assert label(form(FakeConfig({}, num_warps=8)), options=False) == "no parameters"


@pytest.mark.parametrize(
    ("name", "tail"),
    [
        ("BLOK", " Did you mean 'BLOCK'? Arguments are: x_ptr, BLOCK."),
        ("zzz", " Arguments are: x_ptr, BLOCK."),
    ],
)
def test_a_suggestion_gives_the_nearest_name_and_all_names(name: str, tail: str) -> None:
    assert suggestion(name, ["x_ptr", "BLOCK"]) == tail


def test_a_suggestion_for_a_kernel_without_arguments_says_so() -> None:
    assert suggestion("x", []) == " Arguments are: none."


def test_anything_with_the_fields_of_a_config_is_one() -> None:
    class Fork(FakeConfig):
        pass

    assert is_config(Fork({}))
    assert not is_config({"BLOCK": 64})


@pytest.mark.parametrize("wrap", [list, tuple, iter, lambda configs: (c for c in configs)],
                         ids=["list", "tuple", "iterator", "generator"])  # fmt: skip
def test_configs_may_be_any_iterable_and_become_a_list(wrap: Callable[[list[Any]], Any]) -> None:
    assert listed(wrap([SMALL, LARGE]), KERNEL) == [SMALL, LARGE]


def test_no_configs_are_an_empty_list() -> None:
    assert listed([], KERNEL) == []


@pytest.mark.parametrize(
    ("configs", "got"),
    [
        pytest.param(5, "a callable returning one, got int", id="a number"),
        pytest.param(SMALL, "a callable returning one, got FakeConfig", id="one config without a list"),
        pytest.param(None, "a callable returning one, got NoneType", id="none"),
        pytest.param([SMALL, {"BLOCK": 64}], "triton.Config objects, got dict: {'BLOCK': 64}", id="a dict in the list"),
        pytest.param("BLOCK", "triton.Config objects, got str: 'B'", id="text"),
    ],
)
def test_what_is_no_list_of_configs_is_named_in_the_error(configs: Any, got: str) -> None:
    with pytest.raises(ConfigError) as caught:
        listed(configs, KERNEL)
    assert str(caught.value).startswith("`app.k`: configs: expected")
    assert got in str(caught.value)
    assert caught.value.kernel == KERNEL


def test_a_duplicate_is_kept_once_in_its_first_place_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    twin = FakeConfig({"BLOCK": 64})
    with caplog.at_level(logging.INFO, "autotuned"):
        assert listed([SMALL, LARGE, twin], KERNEL) == [SMALL, LARGE]
    assert [r.getMessage().startswith("`app.k`: config listed twice, kept once: ") for r in caplog.records] == [True]


def test_equal_configs_with_one_hook_are_duplicates_and_with_two_hooks_an_error() -> None:
    one, same = FakeConfig({"B": 1}, pre_hook=hook), FakeConfig({"B": 1}, pre_hook=hook)
    assert listed([one, same], KERNEL) == [one]
    with pytest.raises(ConfigError, match="two configs have the same values .* and different pre_hooks"):
        listed([one, FakeConfig({"B": 1}, pre_hook=other_hook)], KERNEL)


def test_a_config_with_a_hook_and_one_without_are_two() -> None:
    assert len(listed([SMALL, FakeConfig({"BLOCK": 64}, pre_hook=hook)], KERNEL)) == 2


def test_values_that_json_cannot_write_count_by_object() -> None:
    same, one_more = FakeConfig({"ACT": hook}), FakeConfig({"ACT": hook})
    assert len(listed([same, one_more, FakeConfig({"ACT": other_hook})], KERNEL)) == 2


def test_a_kwarg_that_the_kernel_has_not_is_an_error_with_the_nearest_name() -> None:
    parameters = [SimpleNamespace(name="x_ptr"), SimpleNamespace(name="BLOCK")]
    target: Any = SimpleNamespace(name=KERNEL, parameters=parameters, has_options=True, allows={"BLOCK"}.__contains__)
    check([SMALL], target)
    with pytest.raises(ConfigError) as caught:
        check([SMALL, FakeConfig({"BLOK": 64})], target)
    assert str(caught.value) == (
        "`app.k`: a config sets 'BLOK', which is not a parameter of the kernel. Did you mean 'BLOCK'? "
        "Arguments are: x_ptr, BLOCK."
    )


# -- pruning ---------------------------------------------------------------------------------------------------------


def pruned(early: Callable[..., Any], configs: list[FakeConfig] | None = None) -> list[Any]:
    return prune(configs or [SMALL, LARGE, WIDE], Pruner(early), {"x": "x"}, {"n": 5}, KERNEL)


NEW = FakeConfig({"BLOCK": 256})


@pytest.mark.parametrize(
    ("early", "left"),
    [
        pytest.param(lambda configs, named, **kw: configs[1:], [LARGE, WIDE], id="list"),
        pytest.param(lambda configs, named, **kw: tuple(configs), [SMALL, LARGE, WIDE], id="tuple"),
        pytest.param(lambda configs, named, **kw: (c for c in configs if c is WIDE), [WIDE], id="generator"),
        pytest.param(lambda configs, named, **kw: [NEW], [NEW], id="new config"),
        pytest.param(lambda configs, named, **kw: [LARGE, LARGE, FakeConfig({"BLOCK": 128})], [LARGE], id="duplicates"),
        pytest.param(
            lambda configs, named, **kw: configs.reverse() or configs, [WIDE, LARGE, SMALL], id="edited in place"
        ),
    ],
)
def test_what_a_pruner_returns_is_what_is_left(early: Callable[..., Any], left: list[Any]) -> None:
    assert pruned(early) == left


def test_without_pruners_every_config_is_left() -> None:
    assert prune([SMALL, LARGE], Pruner(), {}, {}, KERNEL) == [SMALL, LARGE]


def test_a_pruner_gets_positional_arguments_by_name_and_keywords_apart() -> None:
    got = []

    def early(configs: Any, named: Any, **keywords: Any) -> Any:
        got.append((dict(named), keywords))
        named.clear()
        return configs

    named = {"x": "x"}
    prune([SMALL], Pruner(early), named, {"n": 5}, KERNEL)
    assert got == [({"x": "x"}, {"n": 5})]
    assert named == {"x": "x"}


def test_a_pruner_that_edits_its_list_changes_nothing_for_the_next_call() -> None:
    configs = [SMALL, LARGE, WIDE]
    assert pruned(lambda given, named, **kw: [given.pop()], configs) == [WIDE]
    assert configs == [SMALL, LARGE, WIDE]


def returns_none(configs: Any, named: Any, **kw: Any) -> Any:
    return None


def returns_nothing(configs: Any, named: Any, **kw: Any) -> Any:
    return []


def yields_nothing(configs: Any, named: Any, **kw: Any) -> Any:
    yield from ()


def returns_a_stranger(configs: Any, named: Any, **kw: Any) -> Any:
    return [SMALL, "BLOCK=64"]


def returns_a_number(configs: Any, named: Any, **kw: Any) -> Any:
    return 3


def splits_hooks(configs: Any, named: Any, **kw: Any) -> Any:
    return [FakeConfig({}, pre_hook=hook), FakeConfig({}, pre_hook=other_hook)]


@pytest.mark.parametrize(
    ("early", "problem"),
    [
        (returns_none, "expected a list of configs, got None. Return the configs to keep."),
        (returns_nothing, "left none of 3 configs for this call."),
        (yields_nothing, "left none of 3 configs for this call."),
        (returns_a_stranger, "expected triton.Config objects, got str: 'BLOCK=64'"),
        (returns_a_number, "got int"),
        (splits_hooks, "different pre_hooks"),
    ],
)
def test_a_pruner_that_leaves_nothing_usable_is_named(early: Callable[..., Any], problem: str) -> None:
    with pytest.raises(PruningError) as caught:
        pruned(early)
    assert f"`app.k`: pruner {early.__name__}" in str(caught.value)
    assert problem in str(caught.value)


def test_what_a_pruner_raises_is_not_caught() -> None:
    with pytest.raises(ZeroDivisionError):
        pruned(lambda configs, named, **kw: 1 // 0)


def slowness(BLOCK: int, num_warps: int, **rest: Any) -> float:
    return BLOCK / num_warps


TEN = [FakeConfig({"BLOCK": block}) for block in (16, 10, 12, 11, 19, 13, 18, 14, 17, 15)]
FASTEST = [TEN[i] for i in (1, 3, 2, 5, 7, 9, 0, 8, 6, 4)]


@pytest.mark.parametrize(
    ("top_k", "left"),
    [
        pytest.param(1, FASTEST[:1], id="one"),
        pytest.param(3, FASTEST[:3], id="three, fastest first"),
        pytest.param(10, TEN, id="as many as there are, unsorted"),
        pytest.param(99, TEN, id="more than there are"),
        pytest.param(1.0, TEN, id="all as a share"),
        pytest.param(0.3, FASTEST[:3], id="share"),
        pytest.param(0.39, FASTEST[:3], id="share is rounded down"),
        pytest.param(0.01, FASTEST[:1], id="share of less than one keeps one"),
    ],
)
def test_the_model_keeps_the_fastest_top_k(top_k: float, left: list[Any]) -> None:
    assert prune(TEN, Pruner(None, slowness, top_k), {}, {}, KERNEL) == left


@pytest.mark.parametrize("top_k", [0, -1, 0.0, -0.5, 1.5, float("nan"), True, "3", None], ids=repr)
def test_a_top_k_that_keeps_nothing_definite_is_refused(top_k: Any) -> None:
    with pytest.raises(PruningError, match=r"`app\.k`: top_k: expected an int of 1 or more, or a float"):
        prune(TEN, Pruner(None, slowness, top_k), {}, {}, KERNEL)


def test_the_model_sees_arguments_keywords_and_the_config_and_only_what_the_early_pruner_left() -> None:
    seen = []

    def model(**everything: Any) -> float:
        seen.append(everything)
        return everything["BLOCK"]

    pruner = Pruner(lambda configs, named, **kw: configs[:2], model, 1)
    assert prune([WIDE, LARGE, SMALL], pruner, {"x": "x"}, {"n": 5}, KERNEL) == [WIDE]
    assert seen[0] == {"x": "x", "n": 5, "BLOCK": 64, "num_warps": 8, "num_stages": 3, "num_ctas": 1}
    assert [call["BLOCK"] for call in seen] == [64, 128]


def test_equal_times_of_the_model_keep_the_order_of_the_list() -> None:
    assert prune(TEN, Pruner(None, lambda **kw: 1.0, 2), {}, {}, KERNEL) == TEN[:2]


def test_a_model_without_an_answer_for_some_configs_keeps_the_fastest_of_the_others() -> None:
    times = iter([5.0, float("nan"), 3.0, float("nan"), 1.0, 4.0, float("nan"), 2.0, 6.0, 7.0])
    assert prune(TEN, Pruner(None, lambda **arguments: next(times), 3), {}, {}, KERNEL) == [TEN[4], TEN[7], TEN[2]]


def test_a_model_that_gives_no_number_is_named() -> None:
    with pytest.raises(PruningError, match=r"`app\.k`: perf_model: expected a number for each config, got None"):
        prune(TEN, Pruner(None, lambda **arguments: None, 1), {}, {}, KERNEL)
