"""How tables and lines fit a narrow terminal."""

import pytest
from autotuned.cli import output, progress


def test_a_line_is_broken_at_spaces_and_goes_on_deeper():
    line = output.wrapped("  step=64 unroll=4 num_warps=4", 20, "    ")
    assert line == "  step=64 unroll=4\n    num_warps=4"
    assert output.wrapped("short", 20, "    ") == "short"
    assert output.wrapped("a-name-without-any-space", 10, "    ") == "a-name-without-any-space"


def test_what_is_stacked_is_told_from_what_is_broken(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    row = ("n=1000", "step=64 unroll=4 num_warps=4 num_stages=3", "measured", "644 us", "1.23x")
    output.print_table(("call", "config", "source", "time>", "vs first>"), [row], stack=(1, 1, 1))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "call, config, source              time  vs first",
        "n=1000                          644 us     1.23x",
        "  step=64 unroll=4 num_warps=4",
        "    num_stages=3",
        "  measured",
    ]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_line_that_stays_is_broken_on_a_terminal_only(is_terminal, monkeypatch, capsys):
    """Elsewhere a line is a record of a log, and stays one."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if is_terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    progress.Display().keep("app.work  n=1000: step=64 unroll=4 num_warps=4, 644 us, measured")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (2 if is_terminal else 1)
    assert lines[-1].startswith("  num_warps=4" if is_terminal else "app.work")
