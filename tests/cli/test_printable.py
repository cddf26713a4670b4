"""What commands print of data: whatever names, hosts, errors and paths hold, a terminal shows it and obeys nothing."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from autotuned.cli import terminal
from autotuned.cli.main import app
from autotuned.cli.views import plots
from fakes import FakeConfig, form, make_key
from hypothesis import given
from hypothesis import strategies as st
from shipped import write as write_config_file
from typer.testing import CliRunner

from autotuned import disk
from autotuned.key.key import Key
from autotuned.recording.file import RecordedCall
from autotuned.store import layout, locks, records
from autotuned.store.record import Timing, TuningRecord

# Every control character of C0 and C1, what reorders text, line separators, a lone surrogate, and letters.
CONTROLS = "".join(map(chr, [*range(1, 32), *range(127, 160)]))
NASTY = f"k\x1b]0;title\x07\x1b[31mred{CONTROLS}\u202eevil\u2066\u2028\u200b\ufeff\ud800é漢"
CONFIG, OTHER = form(FakeConfig({f"B{NASTY}": NASTY})), form(FakeConfig({"BLOCK": 1}))


def shown(text: str) -> bool:
    """Whether a terminal shows each letter, and in the order of the text."""
    return all(letter in "\n\t" or unicodedata.category(letter)[0] != "C" for letter in text)


@given(st.text())
def test_what_is_printable_stays_and_the_rest_is_spelled(text: str) -> None:
    made = terminal.printable(text)
    assert shown(made) and terminal.printable(made) == made
    if shown(text) and not any(unicodedata.category(letter) in ("Zl", "Zp", "Zs") for letter in text):
        assert made == text


def nasty_key(n: int = 1) -> Key:
    call = {
        "tensors": {f"x{NASTY}": {"dtype": f"torch.{NASTY}", "strides": "1", "shape": [n]}},
        "values": {NASTY: NASTY, "n": n},
        "none": [NASTY],
    }
    device = {"kind": "cpu", "name": NASTY, "arch": NASTY, "sm_count": 1, "mig": None}
    return Key(f"app.{NASTY}", call, {**make_key().context, "device": device, "triton": NASTY, "source": NASTY})


@pytest.fixture
def nasty(tmp_path: Path) -> Path:
    """A store, config files and a recording that hold such names; the folder of files."""
    for n in (1, 2):
        timings = (Timing(CONFIG, 10.0, 10.0, 10.0, 40), Timing(OTHER, status="failed", error=f"E: {NASTY}"))
        provenance = {"host": NASTY, "date": NASTY, "default": OTHER}
        assert records.keep(TuningRecord(nasty_key(n), CONFIG, 10.0, "ok", timings, provenance))
    path = write_config_file(tmp_path / "files", (nasty_key(3), FakeConfig({"BLOCK": 1})), name=f"app.{NASTY}")
    path.write_text(path.read_text() + " ")
    (path.parent / "broken.json").write_text(json.dumps({"schema": 1, NASTY: NASTY}))
    call = RecordedCall(f"app.{NASTY}", f"gone_{NASTY}:k", nasty_key(4), {"memories": [], "values": {}}, None)
    line = {"id": call.identity, **call.to_json(), "count": 1}
    (tmp_path / "calls.jsonl").write_text(json.dumps(line) + "\n" + json.dumps({"id": NASTY, "schema": 7}))
    damaged = layout.record_path(nasty_key(9))
    damaged.write_text(json.dumps({**json.loads(layout.record_path(nasty_key(1)).read_text()), "quality": NASTY}))
    return tmp_path


COMMANDS: list[list[str]] = [
    ["list"], ["list", "--unused", "--missing", "--calls", "{calls}"], ["show", "{kernel}"], ["explain", "{kernel}"],
    ["report"], ["report", "--calls", "{calls}"], ["check", "{files}"], ["diff", "{files}", "{files}"],
    ["merge", "{files}", "{files}", "--out", "{out}"], ["export", "--out", "{out}"], ["import", "{files}"], ["gc"],
    ["clear", "{kernel}"], ["tune", "{calls}"], ["warmup", "{calls}"], ["doctor"], ["list", "{nobody}"],
    ["show", "{nobody}"], ["tune", "{nobody}"], ["check", "{nobody}"],
]  # fmt: skip


@pytest.mark.parametrize("columns", ["60", "200"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_prints_what_a_terminal_would_obey(
    nasty: Path, command: list[str], columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", str(nasty / "files"))
    monkeypatch.setenv("AUTOTUNED_DEVICE", "interpreter")
    places = {"calls": nasty / "calls.jsonl", "files": nasty / "files", "out": nasty / "out", "kernel": f"app.{NASTY}",
              "nobody": "nobody\x1b[31m\x9b\u202e"}  # fmt: skip
    words = [word.format(**places) for word in command]
    done = CliRunner().invoke(app, words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.output and shown(done.output), ascii(done.output)


def test_the_page_shows_names_and_obeys_none(nasty: Path) -> None:
    CliRunner().invoke(app, ["report", "--out", str(nasty / "page.html")], catch_exceptions=False)
    text = (nasty / "page.html").read_text()
    assert "é漢" in text and shown(text)
    assert str(plots.text("<\x1b>")) == "&lt;\\x1b&gt;"


def test_the_log_of_a_command_is_printable(caplog: Any) -> None:
    path = layout.root() / "k.lock"
    disk.write_text(layout.holder_path(path), json.dumps({"pid": 1, "host": NASTY, "start": NASTY}))
    with terminal.printable_log():
        locks._say(locks._holder_of(path), path)
    [line] = caplog.messages
    assert shown(line) and "title" in line


def test_a_shell_is_offered_no_name_that_it_would_obey(nasty: Path) -> None:
    from autotuned.cli.views import names

    assert names.complete("") == []
