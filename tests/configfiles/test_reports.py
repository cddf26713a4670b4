"""Reports about shipped config files as tests, by their numbers, and what calls get from files of another context."""

import logging
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import FakeConfig as Config
from paths import ship
from shipped import publish
from stored import lines

import autotuned
from autotuned import autotune
from autotuned.configfiles import lookup, policy
from autotuned.errors import DecorationError, NotTunedError
from autotuned.gpu import device
from autotuned.store import listing
from autotuned.store.choice import Origin

CONFIGS = [Config({"step": step}) for step in (8, 16, 32, 64)]
X = np.zeros(4)


class Last:
    """Which config ran last; the function sets it, so that it is in no key."""

    step = 0


def count(x: Any, n: int, k: int = 0, *, step: int) -> None:
    Last.step = step


def fastest(step: int) -> Any:
    """A benchmark in which one step is the fastest; the same one in a key, whichever step that is."""
    fast = [step]

    def bench(call: Any, quantiles: Any) -> list[float]:
        call()
        return [1.0 if Last.step == fast[0] else 2.0] * 3

    return bench


def make(function: Any = count, best: int = 8, **options: Any) -> Any:
    autotuned.api.decorator._explicit_names.clear()
    return autotune(CONFIGS, **({"do_bench": fastest(best), "key": ["n", "k"], "name": "app.count"} | options))(
        function
    )


def shipped(patch: pytest.MonkeyPatch, folder: Path, *sizes: int, best: int = 32, **options: Any) -> None:
    """Config files with a choice for each size, from a process before this one; the store is empty."""
    patch.setenv("AUTOTUNED_CACHE_DIR", str(folder / "tuner"))
    tuned = make(best=best, **options)
    for n in sizes:
        tuned(X, n)
    ship(folder / "files", patch)
    lookup.forget_files()
    Last.step = 0


def use(patch: pytest.MonkeyPatch, version: str) -> None:
    """The version of the one distribution that the callables here name."""
    patch.setattr("autotuned.tunable.function._installed", lambda distribution, name: version)


# -- B89: another toolchain ------------------------------------------------------------------------------------------

TOOL = {"toolchain": ["tool"]}


@pytest.mark.parametrize(
    ("running", "best", "answer"),
    [
        ("3.3.0", 32, "config files"),
        ("3.3.7", 32, "config files, other context"),
        ("3.3.0+git123", 32, "config files, other context"),
        ("3.4.0", 32, "config files, other context"),
        ("3.4.0a1", 32, "config files, other context"),
        ("3.10.0", 32, "config files, other context"),
        ("3.2.0", 16, "config files, other context"),
        ("3.0.0", None, "search"),
    ],
)
def test_the_nearest_older_toolchain_serves_and_is_named_b89(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: Any, running: str, best: int | None, answer: str
) -> None:
    for version, step in (("3.1.0", 16), ("3.3.0", 32)):
        use(monkeypatch, version)
        monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / version))
        make(best=step, **TOOL)(X, 5)
    for version in ("3.1.0", "3.3.0"):
        monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / version))
        ship(tmp_path / "files", monkeypatch)
    use(monkeypatch, running)
    function = make(**TOOL)
    found = function.explain(X, 5)
    assert (found.answer, found.hit) == (answer, best is not None)
    Last.step = 0
    function(X, 5)
    if best is None:
        assert function.cache_info().searches == 1
        return
    assert (Last.step, function.cache_info().searches) == (best, 0)
    if answer != "config files":
        assert [(change.path, change.ours) for change in found.changes] == [("context.distributions.tool", running)]
        assert f"here {running}" in found.steps[-1].why
    older = running in ("3.4.0", "3.4.0a1", "3.10.0", "3.2.0")
    assert len(lines(caplog)) == older
    monkeypatch.setenv("AUTOTUNED_MODE", "strict")
    if older:
        with pytest.raises(NotTunedError, match=f"differs in context.distributions.tool: '{running}' here"):
            make(**TOOL)(X, 5)
    else:
        make(**TOOL)(X, 5)


def test_one_line_a_kernel_however_many_calls_b89(monkeypatch: Any, tmp_path: Path, caplog: Any) -> None:
    use(monkeypatch, "3.3.0")
    shipped(monkeypatch, tmp_path, *range(1, 11), **TOOL)
    use(monkeypatch, "3.4.0")
    function = make(**TOOL)
    for n in [*range(1, 11)] * 5:
        function(X, n)
    assert function.cache_info().searches == 0
    assert len(lines(caplog)) == 1


# -- B90: sister products --------------------------------------------------------------------------------------------


def on(patch: pytest.MonkeyPatch, name: str) -> None:
    patch.setattr(device, "cpu", lambda: device.Device("cpu", name, "x86_64", 4))


def test_a_sister_has_its_own_file_and_never_takes_anothers_b90(monkeypatch: Any, tmp_path: Path) -> None:
    for name, step in (("Part", 16), ("Part NVL", 32)):
        on(monkeypatch, name)
        monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / name))
        make(best=step)(X, 5)
        ship(tmp_path / "files", monkeypatch)
    for name, step in (("Part", 16), ("Part NVL", 32)):
        on(monkeypatch, name)
        make()(X, 5)
        assert Last.step == step
    on(monkeypatch, "Part PCIe")
    assert make().explain(X, 5).reason == "other device"
    for mode in ("strict", "serve"):
        with autotuned.mode(mode):
            assert not make().explain(X, 5).hit


def test_a_sister_is_measured_first_where_time_is_short_b90(monkeypatch: Any, tmp_path: Path) -> None:
    on(monkeypatch, "Part")
    shipped(monkeypatch, tmp_path, 5, best=64)
    on(monkeypatch, "Part NVL")
    function = make(best=64, budget_s=1e-9)
    function(X, 5)
    [(_, record)] = [found for found in listing.all_records() if found[1].key.context["device"]["name"] == "Part NVL"]
    assert [timing.config["kwargs"] for timing in record.timings] == [{"step": 64}]  # the last of the list
    assert function.best_config.kwargs == {"step": 64}


# -- which folder ---------------------------------------------------------------------------------------------------


def test_explain_names_the_file_that_answers_and_without_it_that_of_the_next_place(
    monkeypatch: Any, tmp_path: Path
) -> None:
    shipped(monkeypatch, tmp_path, 4)
    names = ["environment_1", "environment_2", "registered_last", "registered_first", "entry_point", "own"]
    folders = [tmp_path / name for name in names]
    for folder in folders:
        shutil.copytree(tmp_path / "files", folder)
    (tmp_path / "entry_point" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    publish(monkeypatch, "entry_point")
    monkeypatch.delitem(lookup._packages, "entry points", raising=False)
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", os.pathsep.join(map(str, folders[:2])))
    monkeypatch.setitem(lookup._packages, "own", [lookup.Folder(folders[5], policy.DEFAULTS)])
    for folder in (folders[3], folders[2]):
        lookup.register_configs(folder)
    answered = []
    while (found := make().explain(X, 4)).hit:
        assert found.answer == "config files"
        path = Path(found.steps[-1].why)
        answered.append(path.parent.parent.name)
        path.unlink()
        lookup.forget_files()
    assert answered == names
    assert found.answer == "search"


# -- B95: the nearest shape ------------------------------------------------------------------------------------------

NEAR = {"nearest": {"n": 2.0}}


@pytest.mark.parametrize(("n", "neighbour"), [(3, 2), (5, 4), (16, 8), (17, None), (2048, None), (0, None)])
def test_a_shape_beyond_the_factor_is_served_by_no_neighbour_b95(
    monkeypatch: Any, tmp_path: Path, n: int, neighbour: int | None
) -> None:
    shipped(monkeypatch, tmp_path, 1, 2, 4, 8)
    function = make(default=CONFIGS[1], **NEAR)
    found = function.explain(X, n)
    assert found.answer == ("config files, nearest shape" if neighbour else "default"), str(found)
    if neighbour:
        octaves = abs(math.log2(n / neighbour))
        assert f"nearest shape n={neighbour} for n={n}, {octaves:.2f} octaves away" in found.steps[-1].why
        assert found.nearest.call["values"]["n"] == neighbour
    function(X, n)
    assert Last.step == (32 if neighbour else 16)
    assert function.cache_info().searches == 0


@pytest.mark.parametrize("mode", ["auto", "serve", "strict", "search", "off"])
def test_where_a_neighbour_serves_by_mode(monkeypatch: Any, tmp_path: Path, mode: str) -> None:
    shipped(monkeypatch, tmp_path, 4)
    function = make(**NEAR)
    with autotuned.mode(mode):
        if mode == "strict":
            with pytest.raises(NotTunedError, match=r"call.values.n: 5 here, 4 there"):
                function(X, 5)
            return
        function(X, 5)
    assert (function.best_config.kwargs == {"step": 32}) is (mode in ("auto", "serve"))
    assert function.cache_info().searches == (mode == "search")


def test_other_arguments_must_be_equal(monkeypatch: Any, tmp_path: Path) -> None:
    shipped(monkeypatch, tmp_path, 4)
    assert make(**NEAR).explain(X, 5, 1).answer == "search"
    assert make(**NEAR).explain(np.zeros(4, np.float32), 5).answer == "search"


def test_a_neighbour_is_bound_for_later_calls(monkeypatch: Any, tmp_path: Path) -> None:
    shipped(monkeypatch, tmp_path, 4)
    function = make(**NEAR)
    function(X, 5)
    function(X, 5)
    assert function.cache_info()[:2] == (1, 1)


@pytest.mark.parametrize(
    ("given", "problem"),
    [({"m": 2.0}, "nearest: 'm' must be in the key"), ({"n": 0.5}, "n: expected a factor of 1 or more")],
)
def test_what_is_no_axis_is_refused_at_decoration(given: Any, problem: str) -> None:
    with pytest.raises(DecorationError, match=problem):
        make(nearest=given)


# -- B96, B97: misses ------------------------------------------------------------------------------------------------


def test_a_miss_names_the_nearest_entry_and_what_differs_b96(monkeypatch: Any, tmp_path: Path) -> None:
    shipped(monkeypatch, tmp_path, 96, 768, 6144)
    with autotuned.mode("strict"), pytest.raises(NotTunedError) as caught:
        make()(X, 1536)
    assert "differs in call.values.n: 1536 here, 768 there" in str(caught.value)


def test_a_served_miss_is_one_line_a_key_in_each_process_b96(monkeypatch: Any, tmp_path: Path, caplog: Any) -> None:
    shipped(monkeypatch, tmp_path, 768)
    function = make()
    with autotuned.mode("serve"):
        for _ in range(1000):
            function(X, 1536)
    assert len(lines(caplog)) == 1


def test_misses_of_a_kernel_with_a_default_are_no_warnings_b97(monkeypatch: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO, "autotuned")
    function = make(default=CONFIGS[0])
    for n in range(50):
        function(X, n)
    assert lines(caplog) == []
    autotuned.resolve.tuner._summary()
    assert function.cache_info()[:5] == (0, 50, 50, 0, 0)
    assert any(" hits, " in line for line in lines(caplog, logging.INFO))  # of others it may say more


# -- policies, and commands ------------------------------------------------------------------------------------------


def other(x: Any, n: int, k: int = 0, *, step: int) -> None:
    Last.step = step + 0


@pytest.mark.parametrize(
    ("policy", "searches"), [(None, 1), ({"source": "warn"}, 0), ({"source": "accept"}, 0), ("refuse", 1)], ids=str
)
def test_a_changed_source_serves_only_as_the_policy_says(
    monkeypatch: Any, tmp_path: Path, caplog: Any, policy: Any, searches: int
) -> None:
    shipped(monkeypatch, tmp_path, 5)
    monkeypatch.delenv("AUTOTUNED_CONFIG_PATH")
    autotuned.register_configs(tmp_path / "files", policy=policy)
    function = make(other)
    answer = function.explain(X, 5)
    function(X, 5)
    assert function.cache_info().searches == searches
    assert answer.hit is not bool(searches)
    if searches:
        assert answer.reason == "other source"
        assert any("another source of the kernel; policy" in step.why for step in answer.steps)
    assert len(lines(caplog)) == (policy == {"source": "warn"})


def test_a_bad_line_is_an_error_in_strict_and_a_warning_elsewhere_b94(
    monkeypatch: Any, tmp_path: Path, caplog: Any
) -> None:
    shipped(monkeypatch, tmp_path, 1, 2)
    [path] = (tmp_path / "files").glob("*/*.json")
    path.write_text(path.read_text().replace('"num_warps": 4', '"num_warps": 3', 1))
    with autotuned.mode("strict"), pytest.raises(autotuned.errors.ConfigFileError, match="line 7"):
        make()(X, 2)
    with autotuned.mode("serve"):
        make()(X, 2)
    assert Last.step == 32
    assert sum("line 7" in line for line in lines(caplog)) == 1


def test_a_stored_choice_is_explained_by_the_ladder_without_its_program(monkeypatch: Any, tmp_path: Path) -> None:
    use(monkeypatch, "3.3.0")
    shipped(monkeypatch, tmp_path, 5, **TOOL)
    [(_, key, _)] = list(lookup.shipped("app.count"))
    found = autotuned.resolve.explain.of_stored(key, {"distributions": {"tool": "3.3.9"}})
    assert (found.reason, found.answer) == ("hit", "config files, other context")
    assert "tool 3.3.0, here 3.3.9" in str(found)
    assert autotuned.resolve.explain.of_stored(key, {"distributions": {"tool": "2.0"}}).reason == "other toolchain"


def test_tune_measures_what_only_the_ladder_or_a_neighbour_has(monkeypatch: Any, tmp_path: Path) -> None:
    shipped(monkeypatch, tmp_path, 4)
    function = make(**NEAR)
    tuner = function.tuner
    _, choice = tuner.tune(tuner.call((X, 5), {}, None))
    assert choice.origin is Origin.SEARCH
