"""What of another context serves: the ladder of versions, and an action for each axis."""

from typing import Any

import pytest
from fakes import CONTEXT, DEVICE

from autotuned.configfiles import policy
from autotuned.configfiles.policy import ACTIONS, DEFAULTS, judge, version_order
from autotuned.errors import ConfigFileError


def context(**parts: Any) -> dict[str, Any]:
    return {**CONTEXT, **parts}


def action(ours: Any, theirs: Any, given: Any = None) -> str | None:
    verdict = judge(ours, theirs, policy.policy(given))
    return verdict and verdict.action


def test_versions_are_in_order() -> None:
    texts = ["3.4.0a1", "3.4.0rc1", "3.4.0", "3.4.0+git123", "3.4.1", "3.9.0", "3.10.0", "4.0", "main"]
    backwards = texts[::-1]
    assert sorted(backwards, key=version_order) == texts


SISTER = {**DEVICE, "name": "NVIDIA H200"}
DIFFERENCES = {
    "nothing": ({}, "accept"),
    "another patch": ({"triton": "3.9.1"}, "accept"),
    "a pre-release": ({"triton": "3.9.0a1"}, "accept"),
    "another build": ({"triton": "3.9.0+git123"}, "accept"),
    "the same version, other files": ({"triton_key": "zz"}, "accept"),
    "older": ({"triton": "3.8.0"}, "warn"),
    "much older": ({"triton": "2.3.1"}, "warn"),
    "newer": ({"triton": "3.10.0"}, "retune"),
    "no version": ({"triton": "main"}, "retune"),
    "ptxas": ({"ptxas": "12.0.1 ff"}, "warn"),
    "older, with its ptxas": ({"triton": "3.8.0", "ptxas": "12.0.1 ff"}, "warn"),
    "another patch, with its ptxas": ({"triton": "3.9.1", "ptxas": "12.0.1 ff"}, "accept"),
    "source": ({"source": "cc"}, "retune"),
    "environment": ({"environment": {"DISABLE_LLVM_OPT": "1"}}, "retune"),
    "what holds unset": ({"environment": {"TRITON_DEFAULT_FP_FUSION": "true"}}, "accept"),
    "the contrary": ({"environment": {"TRITON_DEFAULT_FP_FUSION": "false"}}, "retune"),
    "what held unset before": ({"triton": "3.10.0", "environment": {"TRITON_DEFAULT_FP_FUSION": "true"}}, "retune"),
    "sister": ({"device": SISTER}, "retune"),
    "a MIG slice": ({"device": {**DEVICE, "sm_count": 16, "mig": "1g.10gb"}}, "retune"),
    "older, of another source": ({"triton": "3.8.0", "source": "cc"}, "retune"),
    "another architecture": ({"device": {**DEVICE, "arch": "sm_100"}}, None),
    "another kind of device": ({"device": {**DEVICE, "kind": "cpu"}}, None),
    "another version=": ({"version": 2}, None),
    "something unknown": ({"driver": "570"}, None),
    "a plain callable": ({"triton": None, "triton_key": None}, None),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_what_is_done_by_default(name: str) -> None:
    parts, expected = DIFFERENCES[name]
    assert action(context(), context(**parts)) == expected


@pytest.mark.parametrize("name", [name for name, (_, expected) in DIFFERENCES.items() if expected])
@pytest.mark.parametrize("given", ACTIONS)
def test_one_action_for_all_axes(name: str, given: str) -> None:
    assert action(context(), context(**DIFFERENCES[name][0]), given) == (
        given if name not in ("nothing", "what holds unset") else "accept"
    )


def test_of_several_axes_the_strictest_action_holds() -> None:
    theirs = context(source="cc", device=SISTER)
    assert action(context(), theirs, {"source": "accept", "device": "warn"}) == "warn"
    assert action(context(), theirs, {"source": "refuse", "device": "warn"}) == "refuse"


def test_triton_stands_for_its_three_axes_and_a_nearer_name_rules() -> None:
    given = {"triton": "refuse", "triton_older": "accept"}
    assert policy.policy(given) == {
        **DEFAULTS, "triton_patch": "refuse", "triton_older": "accept", "triton_newer": "refuse",
    }  # fmt: skip
    assert policy.policy(None) == DEFAULTS


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"tritn": "warn"}, "expected axes among triton, source, triton_patch"),
        ({"source": "ignore"}, "source: expected one of accept, warn, retune, refuse, got 'ignore'"),
        ("never", "expected one of accept, warn, retune, refuse, got 'never'"),
        ({"source": None}, "got None"),
    ],
)
def test_what_is_no_policy_is_refused(given: Any, problem: str) -> None:
    with pytest.raises(ConfigFileError, match=problem):
        policy.policy(given)


def best_of(running: str, *stored: str) -> str:
    """The version whose entry is nearest to what runs, whether it serves or not."""
    ours = context(triton=running)
    ranks = {text: judge(ours, context(triton=text), policy.policy("accept")) for text in stored}
    return min(stored, key=lambda text: ranks[text].rank)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("running", "stored", "best"),
    [
        ("3.4.0", ("3.1.0", "3.3.0"), "3.3.0"),
        ("3.10.0", ("3.9.0", "3.2.0"), "3.9.0"),
        ("3.4.0", ("3.3.9", "3.4.7"), "3.4.7"),
        ("3.4.5", ("3.4.7", "3.4.1"), "3.4.1"),
        ("3.4.5", ("3.4.0", "3.4.3"), "3.4.3"),
        ("3.4.0", ("3.5.0", "3.1.0"), "3.1.0"),
        ("3.4.0", ("3.7.0", "3.5.0"), "3.5.0"),
    ],
    ids=str,
)
def test_the_same_minor_version_comes_before_the_nearest_older_and_that_before_newer(
    running: str, stored: tuple[str, ...], best: str
) -> None:
    assert best_of(running, *stored) == best
    assert best_of(running, *reversed(stored)) == best


def test_another_build_of_the_same_version_comes_before_another_patch() -> None:
    verdicts = [
        judge(context(triton="3.4.5"), context(triton=triton, triton_key=key), policy.policy("accept"))
        for triton, key in (("3.4.5", "zz"), ("3.4.4", "zz"), ("3.4.6", "zz"))
    ]
    ranks = [verdict.rank for verdict in verdicts if verdict is not None]
    assert len(ranks) == 3
    assert ranks == sorted(ranks)


def test_a_variable_that_says_what_holds_without_it_is_no_difference_in_meaning() -> None:
    said = context(environment={"TRITON_DEFAULT_FP_FUSION": "true"})
    verdict = judge(CONTEXT, said, DEFAULTS)
    assert verdict is not None and verdict.action == "accept"
    assert verdict.words == 'environment {"TRITON_DEFAULT_FP_FUSION":"true"}, here {}, which means the same'
    changed = judge(context(source="cc"), said, DEFAULTS)
    assert changed is not None and changed.action == "retune"


def test_what_differs_is_said_theirs_before_ours() -> None:
    verdict = judge(context(), context(triton="3.8.0", device=SISTER, source="cc"), DEFAULTS)
    assert verdict is not None
    assert verdict.notes == (
        "NVIDIA H200, here NVIDIA H100 80GB HBM3", "older Triton 3.8.0, here 3.9.0", "another source of the kernel",
    )  # fmt: skip


HOST = {
    "device": DEVICE,
    "distributions": {"a": "1.2.3", "b": "5.0"},
    "environment": {},
    "source": "s",
    "version": None,
}


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({"a": "1.2.9", "b": "5.0"}, "accept"),
        ({"a": "1.1.0", "b": "5.0.1"}, "warn"),
        ({"a": "1.1.0", "b": "6.0"}, "retune"),
        ({"a": "1.2.3"}, None),
        ({"a": None, "b": "5.0"}, None),
    ],
    ids=str,
)
def test_versions_of_a_plain_callables_toolchain_are_on_the_same_ladder(versions: Any, expected: str | None) -> None:
    assert action(HOST, {**HOST, "distributions": versions}) == expected
