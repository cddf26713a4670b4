"""Entries that are checked when they are asked for: what is found is what reading the whole file finds."""

import json
import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import waits
from fakes import form, make_key
from shipped import LARGE, SMALL, find, write
from stored import config_of, lines

from autotuned import disk
from autotuned.configfiles import file, lazy, lookup
from autotuned.configfiles.file import ConfigFile, Entry, split_context
from autotuned.errors import ConfigFileError
from autotuned.gpu.device import from_json

CALLS = range(1, 5)


OURS = Path(__file__).parents[2] / "configs/nvidia-h200-sm_90-132/autotuned.kernels.matmul.matmul_kernel.json"


def made(rules: bool = False) -> ConfigFile:
    """Two contexts with the same four calls; the second one's entries have binaries."""
    found = ConfigFile("app.k", from_json(make_key(1).context["device"]))
    for context, rule in file.parse(OURS.read_text(), "ours").rules if rules else ():
        found.add_rule(context, rule)
    for source, config in (("s" * 64, LARGE), ("t" * 64, SMALL)):
        for n in CALLS:
            context = {**split_context(make_key(n).context)[0], "source": source}
            binaries = (f"{n:032}", f"{n + 1:032}") if config is SMALL else ()
            found.add(context, Entry(make_key(n).call, form(config), 1.5, None, binaries=binaries))
    return found


def said_by(found: ConfigFile) -> dict[str, Any]:
    """What a file answers about its calls and binaries."""
    calls = [make_key(n).call for n in (*CALLS, 9)]
    by_call = [[[context, one.to_json()] for context, one in found.in_all_contexts(call)] for call in calls]
    keys = [make_key(n, source=letter * 64) for n in (*CALLS, 9) for letter in "stu"]
    exact = {key.text: (one := found.find(key)) and one.to_json() for key in keys}
    return {"calls": by_call, "keys": exact, "binaries": [found.names_binary(f"{n:032}") for n in range(7)],
            "any": found.names_binary("")}  # fmt: skip


def whole(found: ConfigFile) -> list[Any]:
    groups = [[group.context, [entry.to_json() for entry in found.in_order(group)]] for group in found.groups()]
    return [groups, [[context, rule.to_json()] for context, rule in found.rules]]


def mutated(text: str, rng: random.Random) -> str:
    rows = text.split("\n")
    at, other, kind = rng.randrange(len(rows)), rng.randrange(len(rows)), rng.randrange(8)
    if kind == 0:
        rows[at], rows[other] = rows[other], rows[at]
    elif kind == 1:
        rows.insert(at, rows[other])
    elif kind == 2:
        del rows[at]
    elif kind == 3:
        rows[at : at + 2] = ["".join(rows[at : at + 2])]
    elif kind == 4:
        rows[at] = rows[at].replace('"values": {', '"values": {"n": 3, ')
    elif kind == 5:
        rows[at] = rows[at].replace(": ", ":", rng.randint(1, 5))
    elif kind == 6:
        rows[at] = rows[at].replace('{"call"', '{"median_us": 1.5, "call"')
    else:
        place = rng.randrange(max(len(rows[at]), 1))
        rows[at] = rows[at][:place] + rng.choice('0123456789"[]{},:abcx') + rows[at][place + rng.randint(0, 2) :]
    return "\n".join(rows)


@pytest.mark.parametrize("rules", [False, True], ids=["entries", "rules and entries"])
def test_mutations_are_answered_as_by_the_whole_file(rules: bool) -> None:
    text, rng, left = made(rules).dump(), random.Random(21), 0
    for _ in range(300 if rules else 1000):
        changed = mutated(text, rng) if rng.random() < 0.7 else mutated(mutated(text, rng), rng)
        found, faults = lazy.read_lazily(changed, "k.json")
        expected, expected_faults = file.read(changed, "k.json")
        if found is None or expected is None:
            assert found is expected and faults == expected_faults
            continue
        left += isinstance(found, lazy.LazyFile)
        assert said_by(found) == said_by(expected), changed
        assert whole(found) == whole(expected), changed
        assert list(map(str, faults)) == list(map(str, expected_faults)), changed
    assert left > (100 if rules else 200)


@pytest.mark.parametrize("text", [
    json.dumps(json.loads(made().dump()), indent=1),
    made().dump().replace('"source": "' + "t" * 64, '"source": "' + "s" * 64),
    made().dump().replace('  {"context": ', '  {"context": {}, "context": '),
    made().dump().replace('"kernel"', '"kernel": "app.k", "kernel"'),
    made().dump().replace("\n", "\r\n"),
    made().dump().replace('"schema": 2', '"schema": 3'),
    made().dump().replace("]},\n", '], "note": []},\n'),
    made().dump().replace("]}\n ]", '], "note": 1}\n ]'),
    made().dump().replace("]\n}\n", '],\n "kernel": "app.k"}\n'),
    made(rules=True).dump().replace("\n ],", '], "kernel": "app.k", "rules": [\n ],'),
    made(rules=True).dump().replace("\n ],", "\n},"),
    made(rules=True).dump().replace(' "rules": [', ' "rules": [],\n "rules": ['),
], ids=["other layout", "a context twice", "a name twice", "a name twice in the head", "other ends", "newer",
        "more in a group", "more in the last group", "a name twice at the end", "a name twice after the rules",
        "rules that do not end", "rules twice"])  # fmt: skip
def test_a_file_of_another_layout_is_read_whole(text: str) -> None:
    found, faults = lazy.read_lazily(text, "k.json")
    expected, expected_faults = file.read(text, "k.json")
    assert not isinstance(found, lazy.LazyFile)
    assert faults == expected_faults and (found and found.dump()) == (expected and expected.dump())


def with_a_fault(folder: Path) -> Path:
    path = write(folder, *((make_key(n), LARGE) for n in range(10, 20)))
    rows = path.read_text().splitlines(keepends=True)
    [at] = [at for at, row in enumerate(rows) if '"n": 14}' in row]
    rows[at] = rows[at].replace('"num_warps": ', '"num_warps": 3')
    path.write_text("".join(rows))
    return path


def test_a_fault_is_named_before_a_call_that_finds_nothing_is_decided_otherwise(tmp_path: Path, caplog: Any) -> None:
    path = with_a_fault(tmp_path)
    lookup.register_configs(tmp_path)
    assert [config_of(find(make_key(n))) for n in (10, 13, 15)] == [LARGE] * 3
    assert lines(caplog) == []
    assert find(make_key(14)) is None
    [line] = lines(caplog)
    assert line.startswith(f"config file {path}: line ") and "num_warps" in line
    assert [config_of(find(make_key(n))) for n in (10, 13, 15)] == [LARGE] * 3
    assert len(lines(caplog)) == 1


def test_strict_checks_all_entries_at_once(tmp_path: Path) -> None:
    with_a_fault(tmp_path)
    lookup.register_configs(tmp_path)
    with pytest.raises(ConfigFileError, match="num_warps"):
        find(make_key(10), strict=True)


def test_rules_are_checked_when_they_are_asked_for() -> None:
    text = made(rules=True).dump().replace('"digest": "', '"digest": "0')
    found, faults = lazy.read_lazily(text, "k.json")
    assert found is not None and found.in_all_contexts(make_key(1).call) and not faults
    assert not found.rules and "The rule is left out" in str(faults[0])


def test_a_line_that_is_no_json_is_named_once_its_call_finds_nothing(tmp_path: Path, caplog: Any) -> None:
    path = write(tmp_path, *((make_key(n), LARGE) for n in range(10, 20)))
    path.write_text(path.read_text().replace('"n": 14}}, "conditions": ', '"n": 14}}, "conditions" '))
    lookup.register_configs(tmp_path)
    assert [config_of(find(make_key(n))) for n in (10, 13, 15)] == [LARGE] * 3
    assert lines(caplog) == []
    assert find(make_key(14)) is None
    assert [line for line in lines(caplog) if "The line is left out" in line]
    assert [config_of(find(make_key(n))) for n in (10, 13, 15)] == [LARGE] * 3


def test_a_line_with_two_calls_is_named_and_serves_none(tmp_path: Path, caplog: Any) -> None:
    path = write(tmp_path, *((make_key(n), LARGE) for n in range(10, 13)))
    [line] = [line for line in path.read_text().splitlines() if '"n": 11}}' in line]
    call = line[line.index('"call": ') : line.index(', "conditions"')]
    path.write_text(path.read_text().replace(call, f"{call}, {call}"))
    lookup.register_configs(tmp_path)
    assert config_of(find(make_key(10))) == LARGE and lines(caplog) == []
    assert find(make_key(11)) is None and [
        line for line in lines(caplog) if "'call' twice. The line is left out" in line
    ]


def test_a_call_parses_its_own_line_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, *((make_key(n), LARGE) for n in range(100, 200)))
    lookup.register_configs(tmp_path)
    parsed, parse = list[str](), disk.parse_trusting
    monkeypatch.setattr(disk, "parse_trusting", lambda text: parsed.append(text) or parse(text))
    assert config_of(find(make_key(150))) == LARGE
    assert 0 < sum(map(len, parsed)) < path.stat().st_size / 20  # head, context, the last entry and this one


def test_a_call_checks_its_own_entry_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, *((make_key(n), LARGE) for n in range(10, 20)))
    lookup.register_configs(tmp_path)
    checked, load = [], lazy.load_entry
    monkeypatch.setattr(lazy, "load_entry", lambda *args: checked.append(args) or load(*args))
    assert [config_of(find(make_key(n))) for n in (10, 11, 10)] == [LARGE] * 3
    assert len(checked) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_reads_what_a_thread_of_its_parent_was_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    found, faults = lazy.read_lazily(made().dump().replace('"num_warps": 4', '"num_warps": "x"', 1), "k.json")
    assert found is not None
    read, begun, go = lazy.read, threading.Semaphore(0), threading.Event()

    def slow(*args: Any) -> Any:
        begun.release()
        go.wait()
        return read(*args)

    monkeypatch.setattr(lazy, "read", slow)
    threads = [threading.Thread(target=lambda: list(found.entries())) for _ in range(2)]
    for thread in threads:
        thread.start()
    begun.acquire()
    monkeypatch.setattr(lazy, "read", read)
    child = os.fork()
    if child == 0:
        os._exit(len(list(found.entries())))
    status: list[int] = []
    try:
        waits.until(lambda: any(reaped := os.waitpid(child, os.WNOHANG)) and not status.append(reaped[1]), 20.0)
    finally:
        if not status:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        go.set()
        for thread in threads:
            thread.join()
    assert os.waitstatus_to_exitcode(status[0]) == len(list(found.entries())) == 7 and len(faults) == 1
