"""Extracts the steps of a page of the documentation, and follows them.

`python tests/support/pages.py docs/getting-started.md` follows a page in an empty folder, as a newcomer would.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The mark of a block that is not run precedes the block: the site allows only the language after the fence.
FENCED = re.compile(r"^(<!-- not run -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def read(path: str) -> str:
    return (ROOT / path).read_text()


@dataclass(frozen=True)
class Step:
    """One action of a reader: create a file, run a program, type a command."""

    kind: str
    text: str
    line: int


def steps(path: str) -> list[Step]:
    """The steps of a page, in order. A program is all blocks of Python between two commands."""
    text, found = read(path), []
    for match in FENCED.finditer(text):
        mark, language, body = match.groups()
        line = text[: match.start()].count("\n") + 1
        if language == "python" and not mark:
            name = re.match(r"# (\w+\.py)\n", body)
            found.append(Step(name[1] if name else "program", body, line))
        elif language == "sh" and not mark:
            commands = [command for command in body.splitlines() if command.startswith("autotuned ")]
            found += [Step("command", command, line) for command in commands]
    if path == "README.md":  # only its two commands are in blocks
        command = re.search(r"^`(autotuned tune [^`]+)`", text, re.MULTILINE)
        found.append(Step("command", command[1], text[: command.start()].count("\n")))
    return sorted(found, key=lambda step: step.line)


@functools.cache
def script() -> list[str]:
    beside = Path(sys.executable).with_name("autotuned")
    found = str(beside) if beside.is_file() else shutil.which("autotuned")
    return [found] if found else [sys.executable, "-c", "from autotuned.cli.main import app; app()"]


def programs(path: str, folder: Path) -> Iterator[list[str]]:
    """Write a page's files and programs into a folder; yields the commands that run them, in order."""
    program: list[Step] = []
    for step in [*steps(path), Step("end", "", 0)]:
        if step.kind not in ("program", "command", "end"):
            (folder / step.kind).write_text(step.text)
            continue
        if step.kind == "program":
            program.append(step)
            continue
        if program:
            yield [sys.executable, "-W", "error", _written(path, folder, program)]
            program = []
        if step.kind == "command":
            words = step.text.replace("$PWD", str(folder)).split()[1:]
            yield [*script(), *(sys.executable if word == "python" else word for word in words)]


def _written(path: str, folder: Path, program: list[Step]) -> str:
    """Write the blocks into one file, each at its line in the page, so that tracebacks point into the page."""
    lines: list[str] = []
    for step in program:
        lines += [""] * (step.line - len(lines)) + step.text.splitlines()
    file = folder / f"{Path(path).stem.lower().replace('-', '_')}_from_line_{program[0].line}.py"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def follow(path: str, folder: Path) -> str:
    """Follow a page in its own folder; returns the failure, or ""."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AUTOTUNED_")}
    environment |= {"TRITON_INTERPRET": "1", "AUTOTUNED_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(folder)}
    for command in programs(path, folder):
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            return f"{path}: {' '.join(command)}\n{done.stdout}{done.stderr}"
    return ""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for path in sys.argv[1:]:
            wrong = follow(path, Path(folder))
            if wrong:
                sys.exit(wrong)
            print(f"{path}: {len(steps(path))} steps done")


if __name__ == "__main__":
    main()
