"""What a person at a terminal sees: progress, Ctrl-C, colours, 80 columns."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from commands import run as _run
from commands import run_json as _json
from commands import start as _start
from given import BEST, WORK, Write
from given import work as _work

pytestmark = pytest.mark.usefixtures("wide_output")

SLOW = """
import time
from autotuned import Config, autotune

@autotune(configs=[Config({"i": i}) for i in range(40)], key=["n"])
def work(n, i):
    if n:
        print("tuning", flush=True)
    time.sleep(0.05 * n)

@work.case
def cases(device):
    yield {"args": (0,)}
    yield {"args": (1,)}
"""


def test_ctrl_c_keeps_what_was_measured(write: Write) -> None:
    write("mod_slow.py", SLOW)
    process = _start("tune", "mod_slow", "--out", "tuned")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(50)] == ["tuning\n"] * 50  # all were launched, racing has begun
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err
    assert err.splitlines()[-1] == "interrupted; results so far are kept. Run the same command again to continue."
    assert "mod_slow.work" in out and "n=0" in out and "wrote tuned/" in out
    assert [line.split()[:3] for line in out.splitlines() if "n=1 " in line] == [["n=1", "skipped:", "interrupted"]]
    assert len(json.loads(next(Path("tuned").glob("*/*.json")).read_text())["groups"][0]["entries"]) == 1
    unfinished = [choice for choice in _json("list")["choices"] if choice["config"] is None]
    [key] = _json("show", "work", unfinished[0]["digest"])["keys"]
    assert len(key["timings"]) >= 3 and all(timing["median_us"] > 50_000 for timing in key["timings"])


INTERRUPTED = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == %r:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.%s)
sys.meta_path.insert(0, Finder())
sys.argv = ["autotuned", "list"]
from autotuned.cli import command
command()
"""


@pytest.mark.parametrize("module", ["typer", "autotuned.cli.commands.tune"])
def test_ctrl_c_while_a_command_is_imported_leaves_no_traceback(module: str) -> None:
    for handler, expected in (("default_int_handler", (130, "")), ("SIG_IGN", (0, ""))):  # `&` in a script ignores it
        code = INTERRUPTED % (module, handler)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == expected


def test_a_program_may_run_a_command_in_a_thread(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """Only the main thread may set what Ctrl-C does."""
    from autotuned.cli import command

    def run() -> None:
        try:
            command()
        except SystemExit as error:
            ended.append(error.code)

    ended: list[Any] = []
    monkeypatch.setattr(sys, "argv", ["autotuned", "--version"])
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ended == [0] and capsys.readouterr().out.startswith("autotuned ")


def test_a_long_search_says_every_few_seconds_how_far_it_is(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    from autotuned.cli import progress

    monkeypatch.setattr(progress, "HEARTBEAT_S", 0.0)
    lines = _run("tune", _work(write, "1"), "--json").stderr.splitlines()
    assert "case 1 of 1: mod_work.work  n=1: 0 of 3 configs tried; none ran yet" in lines
    assert any(f"3 of 3 configs tried; best so far 1 ms, {BEST}" in line for line in lines)


def _on_a_terminal(*args: str, **environment: str) -> str:
    """What a command writes to a terminal of 80 columns."""
    code = f"import sys; sys.argv = ['autotuned', *{list(args)!r}]\nfrom autotuned.cli.main import app\napp()"
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", **environment},
    )
    os.close(theirs)
    text, end = b"", time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                text += os.read(ours, 65536)
            except OSError:  # Linux says so that the other end is closed
                break
    os.close(ours)
    assert process.wait(timeout=60) == 0, text
    return text.decode()


def test_a_terminal_shows_lines_that_move(write: Write) -> None:
    sleepy = WORK.replace("    ran.append(ms)", "    time.sleep(0.12)\n    ran.append(ms)")
    text = _on_a_terminal("tune", _work(write, "1", text=sleepy))
    assert (
        "of 3 configs tried; none ran yet; testing ms=" in text
        and "case 1 of 1: mod_work.work  n=1" in text
        and "\x1b[" in text
    )
    assert text.count("1 ms  ") == 1  # the result is in the table, and nowhere else


@pytest.mark.parametrize("where", ["--in-process", "--isolate"])
def test_what_is_printed_meanwhile_stands_above_the_lines_that_move(write: Write, where: str) -> None:
    """It was glued to the end of them, and each time a line that nobody moves any more stayed behind."""
    loud = WORK.replace(
        "    ran.append(ms)", "    time.sleep(0.12)\n    print('a word of ours', flush=True)\n    ran.append(ms)"
    )
    text = _on_a_terminal("-v", "tune", _work(write, "1 2", text=loud), where)
    assert text.count("a word of ours") >= 6 and text.count("of 3 configs tried") >= 2 and "autotuned: `mod" in text
    glued = re.findall(r"(?:ran yet|best so far|preparing|case \d)[^\n\r\x1b]*(?:a word of ours|autotuned: )", text)
    assert glued == []


def test_no_color_is_respected(write: Write) -> None:
    _run("tune", _work(write))
    assert "\x1b[1m" in _on_a_terminal("list")  # bold
    colours = [f"\x1b[{number}m" for number in (*range(30, 38), *range(90, 98))]
    plain = _on_a_terminal("list", NO_COLOR="1")
    assert not any(colour in plain for colour in colours)


@pytest.mark.parametrize("args", [["tune", "mod_wide"], ["list"], ["show", "kernel"], ["doctor"]], ids=lambda a: a[0])
def test_80_columns_are_enough(write: Write, monkeypatch: pytest.MonkeyPatch, args: list[str]) -> None:
    write(
        "mod_wide.py",
        """
import numpy as np
from autotuned import Config, autotune

@autotune(configs=[Config({"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8}), Config({"BLOCK_M": 1})])
def kernel(activations, weights, out, BLOCK_M=1, BLOCK_N=1, BLOCK_K=1, GROUP_M=1): ...

@kernel.case
def cases(device):
    a, b = np.zeros((100, 200), np.float32), np.zeros((200, 300), np.float16)
    yield {"args": (a, b.T, a)}
""",
    )
    monkeypatch.setenv("COLUMNS", "80")
    _run("tune", "mod_wide")
    lines = _run(*args).stdout.splitlines()
    assert lines and all(len(line) <= 80 for line in lines if "mod_wide.py" not in line)
    text = "\n".join(lines)
    if args[0] in ("tune", "list"):
        assert "activations,out fp32[100,200] weights" in text and "BLOCK_M=1" in text and " us" in text
