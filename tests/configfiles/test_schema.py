"""The JSON schemas that ship in the package: they accept and refuse what the parsers do, field by field."""

import copy
import importlib.resources
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fakes import CONTEXT, DEVICE, FakeConfig, form, make_key

from autotuned import disk
from autotuned.configfiles import file as configfile
from autotuned.errors import AutotunedError
from autotuned.store import record
from autotuned.store.record import Timing, TuningRecord

CONFIGS = importlib.resources.files("autotuned.configs")
HOST_CONTEXT = {
    "device": DEVICE,
    "distributions": {},
    "environment": {},
    "source": "cc",
    "version": {"float": "0x1p+0"},
}


def _hook(arguments: dict[str, Any]) -> None: ...


FAST = form(FakeConfig({"BLOCK": 1024, "ACC": True}, num_warps=8))
SLOW = form(FakeConfig({"BLOCK": 64}, maxnreg=128, pre_hook=_hook, ir_override="k.ttgir"))


def schema(name: str) -> jsonschema.Draft202012Validator:
    document = json.loads((CONFIGS / "schema" / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(document)
    return jsonschema.Draft202012Validator(document)


def a_record() -> Any:
    timings = (
        Timing(FAST, 10.5, 10.25, 11.0, 40),
        Timing(SLOW, status="failed", error="OutOfResources: shared memory"),
    )
    written = {"date": "2025-01-01T00:00:00+00:00", "seconds": 0.5, "timer": "race-1", "written": ["x_ptr"]}
    return record.dump(TuningRecord(make_key(), FAST, 10.5, "tied", timings, written))


def an_unfinished_record() -> Any:
    return record.dump(TuningRecord(make_key(**HOST_CONTEXT), None, None, "unresolved", (Timing(SLOW, 7, 7, 7, 3),)))


def a_config_file() -> Any:
    _, device = configfile.split_context(CONTEXT)
    file = configfile.ConfigFile("app.k", configfile.from_json(device))
    for number, config in enumerate((FAST, SLOW)):
        key = make_key(number)
        timings = (Timing(FAST, 10.5, 10.5, 10.5, 3), Timing(SLOW, 21, 21, 21, 3))
        quality = ("ok", None)[number]
        found = TuningRecord(key, config, 10.5, quality, timings if number else (), {"default": SLOW})
        file.add(configfile.split_context(key.context)[0], configfile.entry_of(found))
    return json.loads(file.dump())


DOCUMENTS = {"record": a_record, "unfinished record": an_unfinished_record, "config file": a_config_file}


def parses(kind: str, document: Any) -> bool:
    """Whether the parser takes the document as the text of a file."""
    try:
        text = json.dumps(document)
        if kind == "config file":
            configfile.parse(text, "k.json")
        else:
            record.load(disk.parse_json(text))
    except (AutotunedError, ValueError):
        return False
    return True


def validator(kind: str) -> jsonschema.Draft202012Validator:
    return schema("config-file" if kind == "config file" else "record")


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_what_is_written_is_valid(kind):
    document = DOCUMENTS[kind]()
    validator(kind).validate(json.loads(json.dumps(document)))
    assert parses(kind, document)


def test_a_config_file_without_entries_is_valid():
    document = {"schema": 2, "kernel": "app.k", "device": DEVICE, "groups": []}
    schema("config-file").validate(document)
    assert parses("config file", document)


Change = Callable[[Any], None]


def changes(document: Any, free: bool = False) -> Iterator[tuple[str, Change]]:
    """One change at every place: a field gone, one too many, another type, another number."""
    if isinstance(document, list) and document:
        yield from ((f"[0]{name}", _inside(0, change)) for name, change in changes(document[0], free))
    if not isinstance(document, dict):
        return
    yield " one too many", lambda parent: parent.update(surplus=1)
    for name, value in document.items():
        yield f".{name} gone", lambda parent, name=name: parent.pop(name)
        for other in REPLACEMENTS:
            yield f".{name} {other!r:.20}", lambda parent, name=name, other=other: parent.update({name: other})
        # What lies in these is typed JSON of any shape: one level tells that nothing in them is refused.
        inside_is_free = name in ("call", "context", "kwargs", "provenance")
        if not free:
            for path, change in changes(value, inside_is_free):
                yield f".{name}{path}", _inside(name, change)


REPLACEMENTS = (None, True, 0, 1, 2, -1, 0.5, -0.5, 10**400, "", "ok", "noisy", "failed", "?", [], [1], {}, {"a": 1})


def _inside(place: Any, change: Change) -> Change:
    return lambda parent: change(parent[place])


def broken(kind: str) -> Iterator[tuple[str, Any]]:
    for name, change in changes(DOCUMENTS[kind]()):
        document = copy.deepcopy(DOCUMENTS[kind]())
        change(document)
        yield name, document


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_schema_and_parser_agree_on_every_change(kind):
    check = validator(kind)
    refused = 0
    for name, document in broken(kind):
        valid = check.is_valid(document)
        refused += not valid
        assert valid == parses(kind, document), f"{kind}{name}: the schema says {valid}"
    assert refused > 100


@pytest.mark.parametrize("document", [None, True, 1, "x", [], {}], ids=repr)
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_another_kind_of_document_is_refused(kind, document):
    assert not validator(kind).is_valid(document)
    assert not parses(kind, document)


def packaged() -> list[Path]:
    root = Path(str(CONFIGS))
    return sorted(path for path in root.glob("*/*.json") if path.parent.name != "schema")


def test_packaged_config_files_are_valid():
    check = schema("config-file")
    assert packaged()
    for path in packaged():
        document = json.loads(path.read_text())
        check.validate(document)
        file = configfile.parse(path.read_text(), str(path))
        assert path.parent.name == file.device.slug
        assert path.name == configfile.file_name(file.kernel)
        assert path.read_text() == file.dump(), f"{path}: not as `autotuned tune --out` writes it"


def test_schemas_describe_the_schema_numbers_of_the_code():
    for name, number in (("record", record.SCHEMA), ("config-file", configfile.SCHEMA)):
        assert schema(name).schema["properties"]["schema"]["const"] == number
