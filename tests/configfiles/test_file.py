import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from fakes import CONTEXT, DEVICE, FakeConfig, drop, form, make_key, put

from autotuned.configfiles import file as configfile
from autotuned.configfiles.file import ConfigFile, Entry, entry_of, file_name, parse, rounded, split_context
from autotuned.errors import ConfigFileError
from autotuned.gpu.device import from_json
from autotuned.store.record import Timing, TuningRecord

SMALL, LARGE = form(FakeConfig({"BLOCK": 64})), form(FakeConfig({"BLOCK": 128}, num_warps=8))
PATH = "configs/nvidia-h100/app.k.json"


def entry(n: int, config: Any = SMALL, median_us: float | None = 10.5, vs_default: float | None = 1.25) -> Entry:
    return Entry(make_key(n).call, config, median_us, vs_default)


def context(**parts: Any) -> dict[str, Any]:
    return split_context({**CONTEXT, **parts})[0]


def file_of(*entries: tuple[dict[str, Any], Entry]) -> ConfigFile:
    file = ConfigFile("app.k", from_json(DEVICE))
    for where, each in entries:
        file.add(where, each)
    return file


FILE = file_of(
    (context(), entry(1)), (context(), entry(2, LARGE)), (context(triton="3.6.0"), entry(1, LARGE, None, None))
)


def test_the_file_is_one_entry_a_line_in_this_form() -> None:
    text = file_of((context(), entry(1)), (context(), entry(2))).dump()
    call = '{"none": [], "tensors": {}, "values": {"n": %d}}'
    config = (
        '{"ir_override": null, "kwargs": {"BLOCK": 64}, "maxnreg": null, "num_ctas": 1, "num_stages": 3, '
        '"num_warps": 4, "pre_hook": false}'
    )
    conditions = '{"checks": [], "restore": null}'
    line = (
        f'   {{"call": {call}, "conditions": {conditions}, "config": {config}, "median_us": 10.5, "vs_default": 1.25}}'
    )
    assert text.splitlines() == [
        "{",
        ' "schema": 2,',
        ' "kernel": "app.k",',
        ' "device": {"kind": "cuda", "name": "NVIDIA H100 80GB HBM3", "arch": "sm_90", "sm_count": 132, "mig": null},',
        ' "groups": [',
        '  {"context": {"environment": {}, "ptxas": "13.0.88", "source": "bb", "triton": "3.9.0", "triton_key": "aa", '
        '"version": null}, "entries": [',
        line % 1 + ",",
        line % 2 + "]}",
        " ]",
        "}",
    ]
    assert text.endswith("}\n")


@pytest.mark.parametrize("file", [FILE, file_of()], ids=["two groups", "empty"])
def test_a_parsed_file_is_written_byte_for_byte_as_it_was(file: ConfigFile) -> None:
    text = file.dump()
    assert json.loads(text)["kernel"] == "app.k"
    assert parse(text, PATH).dump() == text
    assert parse(text.encode(), PATH).dump() == text


def test_entries_of_two_people_make_one_file_whoever_comes_first() -> None:
    mine = [(context(), entry(n)) for n in (3, 1)] + [(context(triton="3.6.0"), entry(2))]
    yours = [(context(), entry(n, LARGE)) for n in (2, 10)] + [(context(source="cc"), entry(1))]
    merged = file_of(*mine, *yours)
    assert merged.dump() == file_of(*reversed(yours), *reversed(mine)).dump()
    assert len(list(merged.entries())) == 6


def test_each_entry_is_a_line_so_that_one_more_changes_two() -> None:
    before = file_of(*((context(), entry(n)) for n in (1, 2, 3))).dump().splitlines()
    after = file_of(*((context(), entry(n)) for n in (1, 2, 3, 4))).dump().splitlines()
    assert len(set(after) - set(before)) == 2  # the new line, and the comma after the last one


def test_the_order_of_fields_in_an_entry_does_not_reach_the_file() -> None:
    backwards = Entry(dict(reversed(make_key(1).call.items())), dict(reversed(SMALL.items())), 10.5, 1.25)
    assert file_of((context(), backwards)).dump() == file_of((context(), entry(1))).dump()


def test_a_second_entry_for_the_same_call_and_context_replaces_the_first() -> None:
    file = file_of((context(), entry(1, SMALL)), (context(), entry(1, LARGE)))
    assert [found.config for _, found in file.entries()] == [LARGE]


def test_find_answers_for_exactly_this_call_in_exactly_this_context() -> None:
    assert FILE.find(make_key(1)) == entry(1)
    assert FILE.find(make_key(2)) == entry(2, LARGE)
    assert FILE.find(make_key(1, triton="3.6.0")) == entry(1, LARGE, None, None)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(make_key(3), id="another value"),
        pytest.param(make_key(True), id="another type"),
        pytest.param(make_key(2, triton="3.6.0"), id="the call of another group"),
        pytest.param(make_key(1, source="cc"), id="source"),
        pytest.param(make_key(1, environment={"X": "1"}), id="environment"),
        pytest.param(make_key(1, version=1), id="version"),
        pytest.param(make_key(1, device={**DEVICE, "sm_count": 114}), id="another device"),
    ],
)
def test_find_answers_nothing_else(key: Any) -> None:
    assert FILE.find(key) is None


def test_entries_come_with_the_keys_they_answer() -> None:
    found = {key.digest: each for key, each in FILE.entries()}
    assert set(found) == {make_key(1).digest, make_key(2).digest, make_key(1, triton="3.6.0").digest}
    assert found[make_key(2).digest] == entry(2, LARGE)


# -- from records ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kept"),
    [(None, None), (12.3456, 12.3), (0.00123456, 0.00123), (123456.0, 123000.0), (9.999, 10.0), (1.0, 1.0)],
    ids=str,
)
def test_three_significant_digits_are_kept(value: float | None, kept: float | None) -> None:
    assert rounded(value) == kept


@pytest.mark.parametrize(
    ("default", "ratio"),
    [
        pytest.param(LARGE, 1.52, id="measured default"),
        pytest.param(SMALL, 1.0, id="the winner is the default"),
        pytest.param(form(FakeConfig({"BLOCK": 1})), None, id="default never measured"),
        pytest.param(form(FakeConfig({"BLOCK": 2})), None, id="default failed"),
        pytest.param(None, 1.52, id="no default: the first of the list"),
    ],
)
def test_an_entry_says_how_much_faster_than_the_default_the_choice_is(default: Any, ratio: float | None) -> None:
    failed = Timing(form(FakeConfig({"BLOCK": 2})), status="failed", error="x")
    timings = (Timing(LARGE, 15.6789), Timing(SMALL, 10.3456), failed)
    record = TuningRecord(make_key(7), SMALL, 10.3456, "tied", timings, {"default": default})
    assert entry_of(record) == Entry(make_key(7).call, SMALL, 10.3, ratio, quality="tied")


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        pytest.param("app.k", "app.k.json", id="plain"),
        pytest.param("app.mod-1.k_2", "app.mod-1.k_2.json", id="every safe character"),
        pytest.param("App.K", "app.k-e3c869c4.json", id="capitals"),
        pytest.param("../../etc/passwd", "etc-passwd-8c8931e4.json", id="a path"),
    ],
)
def test_file_names(kernel: str, name: str) -> None:
    assert file_name(kernel) == name


@pytest.mark.parametrize(
    "kernel", ["a" * 300, "f.<locals>.k", "..", ".", "a/b", "a\\b", "C:k", "k\x00", "ядро", "nul?*", " k ", "-k", "k."]
)
def test_any_kernel_name_gives_one_safe_file_name_of_its_own(kernel: str) -> None:
    name = file_name(kernel)
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")
    assert name.endswith(".json")
    assert not name.startswith(".")
    assert len(name) < 140
    assert name != file_name(kernel + "x")
    assert name != file_name(kernel.upper() + "y")


# -- parse -----------------------------------------------------------------------------------------------------------


FIRST = ("groups", 0, "entries", 0)
MALFORMED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a list": (lambda data: [], "file: expected dict, got list []"),
    "null": (lambda data: None, "file: expected dict, got NoneType None"),
    "newer schema": (put("schema", value=3), "expected schema 2, got 3; upgrade autotuned to read it."),
    "newer schema with new fields": (lambda data: {"schema": 3, "stuff": 1}, "expected schema 2, got 3; upgrade"),
    "older schema": (put("schema", value=1), "expected schema 2, got 1; move it away and tune again."),
    "schema true": (put("schema", value=True), "schema: expected int, got bool True."),
    "schema text": (put("schema", value="1"), "schema: expected int, got str '1'."),
    "no schema": (drop("schema"), "file: field 'schema' is missing."),
    "no groups": (drop("groups"), "file: field 'groups' is missing."),
    "an unknown field": (put("author", value="x"), "file: field 'author' is unknown."),
    "kernel a number": (put("kernel", value=5), "kernel: expected str, got int 5."),
    "device null": (put("device", value=None), ""),
    "device without arch": (drop("device", "arch"), "'arch'"),
    "device with more": (put("device", "memory", value=80), "'memory'"),
    "device name a number": (put("device", "name", value=100), "device: expected text and, as sm_count, a number"),
    "device sm_count text": (
        put("device", "sm_count", value="132"),
        "device: expected text and, as sm_count, a number",
    ),
    "device sm_count bool": (put("device", "sm_count", value=True), "device: expected text and, as sm_count, a number"),
    "groups null": (put("groups", value=None), "groups: expected list, got NoneType None."),
    "groups an object": (put("groups", value={}), "groups: expected list, got dict {}."),
    "group text": (put("groups", 0, value="x"), "groups[0]: expected dict, got str 'x'."),
    "group without context": (drop("groups", 0, "context"), "groups[0]: field 'context' is missing."),
    "group with more": (put("groups", 1, "note", value=""), "groups[1]: field 'note' is unknown."),
    "context a list": (put("groups", 0, "context", value=[]), "groups[0].context: expected dict, got list []."),
    "entries an object": (put("groups", 0, "entries", value={}), "groups[0].entries: expected list, got dict {}."),
    "entry null": (put(*FIRST, value=None), "groups[0].entries[0]: expected dict, got NoneType None."),
    "entry without call": (drop(*FIRST, "call"), "groups[0].entries[0]: field 'call' is missing."),
    "entry with more": (put(*FIRST, "why", value=""), "groups[0].entries[0]: field 'why' is unknown."),
    "call a list": (put(*FIRST, "call", value=[]), "groups[0].entries[0].call: expected dict, got list []."),
    "config null": (
        put(*FIRST, "config", value=None),
        "groups[0].entries[0].config: expected dict, got NoneType None.",
    ),
    "config without num_warps": (drop(*FIRST, "config", "num_warps"), "groups[0].entries[0].config.num_warps:"),
    "config num_warps text": (
        put(*FIRST, "config", "num_warps", value="4"),
        "config.num_warps: expected int, got str '4'.",
    ),
    "config with more": (put(*FIRST, "config", "x", value=1), "config.x: expected no such field, got int 1."),
    "median 0": (put(*FIRST, "median_us", value=0), "median_us: expected a number above 0 or null, got 0."),
    "median negative": (
        put(*FIRST, "median_us", value=-1.5),
        "median_us: expected a number above 0 or null, got -1.5.",
    ),
    "median true": (put(*FIRST, "median_us", value=True), "median_us: expected a number above 0 or null, got True."),
    "median text": (put(*FIRST, "median_us", value="9"), "median_us: expected a number above 0 or null, got '9'."),
    "median too large for a float": (put(*FIRST, "median_us", value=10**400), "median_us: expected a number above 0"),
    "vs_default 0": (put(*FIRST, "vs_default", value=0.0), "vs_default: expected a number above 0 or null, got 0.0."),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_is_refused_with_its_path_and_the_place(name: str) -> None:
    damage, problem = MALFORMED[name]
    with pytest.raises(ConfigFileError) as caught:
        parse(json.dumps(damage(copy.deepcopy(json.loads(FILE.dump())))), PATH)
    assert str(caught.value).startswith(f"config file {PATH}: ")
    assert problem in str(caught.value)
    assert caught.value.path == PATH


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("{", id="cut off"),
        pytest.param(FILE.dump() * 2, id="two files joined"),
        pytest.param(b"\x00" * 100, id="binary zeros"),
        pytest.param(b"\xff\xfe{}", id="another encoding"),
        pytest.param("[" * 100_000, id="nested without end"),
        pytest.param(FILE.dump().replace("10.5", "NaN"), id="NaN"),
        pytest.param(FILE.dump().replace("10.5", "-Infinity"), id="Infinity"),
        pytest.param(FILE.dump().replace("10.5", "1e999"), id="1e999, which Python reads as infinity"),
        pytest.param(FILE.dump().replace('"n": 2', '"n": 1e999'), id="1e999 in a call"),
    ],
)
def test_what_is_no_json_is_refused_with_the_path(text: str | bytes) -> None:
    with pytest.raises(ConfigFileError, match=f"^config file {PATH}: .*[^.]\\.$"):
        parse(text, PATH)


def test_a_file_never_holds_what_json_has_not() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        file_of((context(), entry(1, SMALL, math.nan))).dump()


def test_this_schema_is_2() -> None:
    assert configfile.SCHEMA == 2


def test_of_each_entry_the_call_is_written_out_once_and_of_each_context_the_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file of 300,000 entries took 10.7 s: each call was written out twice, and each context twice for each entry."""
    file = ConfigFile("app.k", from_json(DEVICE))
    for n in range(100):
        key = make_key(n, triton="3.9.0" if n % 2 else "3.8.0")
        file.add(split_context(key.context)[0], Entry(key.call, form(FakeConfig({"BLOCK": 64})), 1.0, None))
    text, written, real = file.dump(), [], configfile.canonical
    monkeypatch.setattr(configfile, "canonical", lambda data: written.append(data) or real(data))
    found, faults = configfile.read(text, "k.json")
    assert found is not None and found.dump() == text and faults == []
    assert len(written) <= 100 + 2 + 2 + 4  # and those of `dump`
