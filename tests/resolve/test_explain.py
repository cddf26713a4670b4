"""Why a call gets its config: one fixture a reason, and that explaining changes nothing."""

import json
import os
import sys
from types import SimpleNamespace

import forked
import numpy as np
import pytest
from fakes import FakeConfig as Config
from paths import quick, ship

import autotuned
from autotuned import autotune, disk, env
from autotuned.errors import CallError
from autotuned.gpu import device
from autotuned.resolve import explain
from autotuned.store import layout, listing

CONFIGS = [Config({"step": 8}), Config({"step": 16})]
ran = []


class State:
    """Counts launches; an object of a class, so that nothing of it is in a key."""

    runs = 0


def count(x, n, *, step):
    State.runs = State.runs + 1


def make(configs=CONFIGS, function=count, **options):
    return autotune(list(configs), **({"do_bench": quick, "key": ["n"]} | options))(function)


X = np.zeros(4)


def tuned(**options):
    """A function that was tuned in a process before this one."""
    make(**options)(X, 5)
    return make(**options)


def files():
    """Every file below the cache folder, with its content and its time."""
    return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in layout.root().rglob("*")}


def rename_device(name):
    return lambda patch: patch.setattr(device, "cpu", lambda: device.Device("cpu", name, "x86_64", 4))


# -- one fixture a reason ---------------------------------------------------------------------------------------------


def case_hit(patch, folder):
    return tuned(), "store"


def case_hit_in_memory(patch, folder):
    function = make()
    function(X, 5)
    return function, "this process"


def case_hit_in_a_file(patch, folder):
    tuned()
    ship(folder / "shipped", patch)
    return make(), "config files"


def case_hit_of_the_only_config(patch, folder):
    return make(CONFIGS[:1]), "only config"


def case_absent(patch, folder):
    return make(), "search"


def case_absent_for_this_call(patch, folder):
    make()(X, 6)
    return make(), "search"


def case_other_toolchain(patch, folder):
    versions = {"tool": "1"}
    patch.setattr("autotuned.tunable.function._installed", lambda distribution, name: versions[distribution])
    make(toolchain=["tool"])(X, 5)
    versions["tool"] = "2"
    return make(toolchain=["tool"]), "search"


def case_other_source(patch, folder):
    make(function=make_scaled(2), name="scaled")(X, 5)
    autotuned.api.decorator._explicit_names.clear()
    return make(function=make_scaled(3), name="scaled"), "search"


def make_scaled(factor):
    def scaled(x, n, *, step):
        return x * factor

    return scaled


def case_other_device(patch, folder):
    rename_device("one")(patch)
    make()(X, 5)
    rename_device("two")(patch)
    return make(), "search"


def case_other_environment(patch, folder):
    variables = {"DISABLE_LLVM_OPT": "1"}
    patch.setattr("autotuned.tunable.function.TunableFunction.environment", lambda self: dict(variables))
    make()(X, 5)
    variables.clear()
    return make(), "search"


def case_other_version(patch, folder):
    make(version=1)(X, 5)
    return make(version=True), "search"


def case_other_trial(patch, folder):
    make()(X, 5)
    return make(reset_to_zero=["x"]), "search"


def case_weaker_conditions(patch, folder):
    make()(X, 5)
    return make(check="first"), "search"


def case_damaged(patch, folder):
    function = tuned()
    for path, _ in list(listing.all_records()):
        path.write_text(path.read_text()[:100])
    return function, "search"


def case_newer_schema(patch, folder):
    function = tuned()
    for path, _ in list(listing.all_records()):
        path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 3}))
    return function, "search"


def case_config_gone(patch, folder):
    tuned()
    return make([Config({"step": 32}), Config({"step": 64})]), "search"


def case_config_gone_from_a_file(patch, folder):
    tuned()
    ship(folder / "shipped", patch)
    return make([Config({"step": 32}), Config({"step": 64})]), "search"


def case_new_configs(patch, folder):
    tuned()
    return make([*CONFIGS, Config({"step": 32})]), "search"


def case_disabled(patch, folder):
    tuned()
    return make(cache_results=False), "search"


def case_disabled_for_a_value_without_json(patch, folder):
    thing = object()
    return make(key=["n", lambda arguments: thing]), "search"


def case_mode_off(patch, folder):
    function = tuned()
    patch.setenv("AUTOTUNED_MODE", "off")
    return function, "default"


def case_mode_search(patch, folder):
    function = tuned()
    patch.setenv("AUTOTUNED_MODE", "search")
    return function, "search"


def case_absent_in_strict(patch, folder):
    patch.setenv("AUTOTUNED_MODE", "strict")
    return make(), "error"


def case_absent_in_serve(patch, folder):
    patch.setenv("AUTOTUNED_MODE", "serve")
    return make(), "default"


def case_absent_with_a_default(patch, folder):
    return make(default=CONFIGS[0]), "default"


CASES = {name.removeprefix("case_"): case for name, case in list(globals().items()) if name.startswith("case_")}


def reason_in(name):
    return max((reason for reason in explain.REASONS if name.startswith(reason.replace(" ", "_"))), key=len)


@pytest.mark.parametrize("name", CASES)
def test_b49_reason(name, monkeypatch, tmp_path):
    function, answer = CASES[name](monkeypatch, tmp_path)
    found = function.explain(X, n=5)
    assert (found.reason, found.answer) == (reason_in(name), answer)
    assert found.hit is (found.reason == "hit")
    assert [step.answered for step in found.steps] == [False] * (len(found.steps) - 1) + [True]
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["reason"] == found.reason
    first = str(found).splitlines()[0]
    assert first.startswith(f"`{function.tuner.tunable.name}`")
    reason = "" if found.hit else f"{found.reason}; "  # docs/getting-started.md calls something else a hit
    assert first.endswith(f", mode {found.mode}: {reason}answered by {answer}")


def test_every_reason_has_a_fixture():
    assert {reason_in(name) for name in CASES} == set(explain.REASONS) - {"unreadable"}


@pytest.mark.parametrize("name", CASES)
def test_explaining_searches_launches_moves_and_says_nothing(name, monkeypatch, tmp_path, caplog):
    function, answer = CASES[name](monkeypatch, tmp_path)
    before, runs, info = files(), State.runs, function.cache_info()
    caplog.clear()
    function.explain(X, 5)
    assert files() == before
    assert State.runs == runs
    assert function.cache_info()[:5] == info[:5]
    said = [record.getMessage() for record in caplog.records]
    assert all("not among the kernel's configs" in line or "no JSON form" in line for line in said)


@pytest.mark.parametrize("name", CASES)
def test_the_call_is_answered_as_explained(name, monkeypatch, tmp_path):
    function, answer = CASES[name](monkeypatch, tmp_path)
    searches = function.cache_info().searches
    answer = function.explain(X, 5).answer
    if answer == "error":
        with pytest.raises(autotuned.errors.NotTunedError):
            function(X, 5)
    else:
        function(X, 5)
    assert function.cache_info().searches - searches == (answer == "search")


WARNED = {
    "damaged": "is damaged",
    "newer_schema": "has the newer schema 3",
    "config_gone_from_a_file": "no longer among the kernel's configs",
    "disabled_for_a_value_without_json": "kept in memory only",
    "absent_in_serve": "runs it untuned",
}


@pytest.mark.parametrize("name", CASES)
def test_b49_a_call_warns_once_of_what_a_user_can_mend_and_of_no_other_miss(name, monkeypatch, tmp_path, caplog):
    function, answer = CASES[name](monkeypatch, tmp_path)
    caplog.clear()
    for _ in range(2):
        if answer != "error":
            function(X, 5)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == (name in WARNED), lines
    assert all(WARNED[name] in line for line in lines)


def test_b49_a_record_that_cannot_be_read_is_a_reason(monkeypatch):
    function = tuned()

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(disk, "read_json", refuse)
    assert function.explain(X, 5).reason == "unreadable"


# -- the nearest stored key -------------------------------------------------------------------------------------------


def test_a_miss_names_the_nearest_stored_key_and_what_differs_old_against_new(monkeypatch, tmp_path):
    function, _ = case_other_toolchain(monkeypatch, tmp_path)
    found = function.explain(X, 5)
    assert [(c.path, c.theirs, c.ours) for c in found.changes] == [("context.distributions.tool", "1", "2")]
    assert 'context.distributions.tool: "1" -> "2"' in str(found)
    assert found.to_json()["changes"] == [{"path": "context.distributions.tool", "stored": "1", "now": "2"}]
    assert found.nearest == next(record.key for _, record in listing.all_records())


def test_the_key_of_the_same_call_is_nearer_than_any_other(monkeypatch, tmp_path):
    function, _ = case_other_toolchain(monkeypatch, tmp_path)
    function(X, 6)  # differs from the call below in one part too, and is of this toolchain
    found = make(toolchain=["tool"]).explain(X, 5)
    assert found.reason == "other toolchain"


def test_of_several_differences_all_are_listed_and_the_gravest_is_the_reason(monkeypatch):
    rename_device("one")(monkeypatch)
    make(version=1)(X, 5)
    rename_device("two")(monkeypatch)
    found = make(version=2).explain(X, 5)
    assert found.reason == "other device"
    assert {change.path for change in found.changes} == {"context.device.name", "context.version"}


def test_types_of_values_are_told_apart_in_the_difference():
    make()(X, 1)
    found = make().explain(X, True)
    assert found.reason == "absent"
    assert "call.values.n: 1 -> true" in str(found)


def test_a_notebook_shows_the_text():
    shown = []
    make().explain(X, 5)._repr_pretty_(SimpleNamespace(text=shown.append), False)
    assert shown == [str(make().explain(X, 5))]


# -- what else it says ------------------------------------------------------------------------------------------------


def test_the_key_is_shown_part_by_part():
    text = str(make().explain(X, 5))
    assert '  call.tensors.x.dtype: "float64"' in text
    assert "  call.values.n: 5" in text
    assert "  context.device.sm_count: " in text
    assert "not in the key, because key= does not name it: the shape of x" in text


def test_arrays_inside_a_list_are_pointed_out_unless_the_list_is_in_the_key():
    words = "sizes and dtypes of the arrays inside xs"
    for key, said in ((None, True), (["n"], True), (["xs"], False)):
        function = autotuned.autotune(CONFIGS, key=key)(lambda xs, n, step: None)
        assert (words in str(function.explain([X], 5))) is said
        assert words not in str(function.explain([1], 5)) and words not in str(function.explain((X,), 5))


def test_a_bucket_is_pointed_out():
    found = make(bucket={"n": autotuned.pow2}).explain(X, 5)
    assert "in the key by its bucket, launched with its true value: n" in found.remarks
    assert found.key is not None
    assert found.key.call["values"] == {"n": 8}


def test_a_call_that_does_not_fit_is_refused():
    with pytest.raises(CallError):
        make().explain(X)


def test_a_stored_call_without_its_program():
    make()(X, 5)
    [record] = [record for _, record in listing.all_records()]
    assert explain.of_stored(record.key, {}).reason == "hit"
    other = explain.of_stored(record.key, {"device": {**record.key.context["device"], "sm_count": 1}})
    assert (other.reason, other.answer) == ("other device", "search")
    assert other.remarks == (
        "not compared: distributions, environment, source, version, trial, check=, restore_value=",
    )


def test_modes_are_the_documented_ones():
    assert {"auto", "search", "off"} <= set(env.MODES)


# -- a Triton kernel --------------------------------------------------------------------------------------------------

KERNEL = """
import torch, triton, triton.language as tl
from triton import Config
from autotuned import autotune

def bench(call, quantiles):
    call()
    return [1.0] * 3

@autotune([Config({"BLOCK": 16}), Config({"BLOCK": 32})], key=["n"], do_bench=bench)
@triton.jit
def double(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)

x = torch.ones(8)
found = double.explain(x, 8, grid=(1,))
assert found.reason == "absent", found
assert x.sum() == 8
double[(1,)](x, 8)
assert double.explain(x, 8).answer == "this process"
double.cache[(8, "torch.float32")] = double.configs[1]
pinned = double.explain(x, 8)
assert "pinned in .cache" in str(pinned) and pinned.config.startswith("BLOCK=32"), pinned
print(found.key.context["triton"])
"""


def test_a_kernel(tmp_path):
    triton = pytest.importorskip("triton")
    (tmp_path / "double.py").write_text(KERNEL)
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = forked.run([sys.executable, tmp_path / "double.py"], env=environment)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == triton.__version__
