"""How tables and lines fit a narrow terminal."""

from collections import Counter

import pytest
from autotuned.cli import progress, terminal
from commands import in_process


def test_a_line_is_broken_at_spaces_and_goes_on_deeper():
    line = terminal.wrapped("  step=64 unroll=4 num_warps=4", 20, "    ")
    assert line == "  step=64 unroll=4\n    num_warps=4"
    assert terminal.wrapped("short", 20, "    ") == "short"
    assert terminal.wrapped("a-name-without-any-space", 10, "    ") == "a-name-without-any-space"


HEADERS = ("call", "config", "source", "time>", "vs first>", "vs default>", "failed>", "quality")


def shown(monkeypatch, capsys, width, headers, row) -> list[str]:
    """The lines of a table with one row, on a console of some width."""
    monkeypatch.setenv("COLUMNS", str(width))
    terminal.print_table(headers, [row], stack=(1, 1, 1))
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_what_is_stacked_is_told_from_what_is_broken(monkeypatch, capsys):
    row = ("n=1000", "step=64 unroll=4 num_warps=4 num_stages=3", "measured", "644 us", "1.23x")
    assert shown(monkeypatch, capsys, 60, HEADERS[:5], row) == [
        "call, config, source                          time  vs first",
        "n=1000                                      644 us     1.23x",
        "  step=64 unroll=4 num_warps=4",
        "  num_stages=3",
        "    measured",
    ]


def test_on_a_very_narrow_terminal_no_cell_is_lost_or_cut(monkeypatch, capsys):
    """The first column, which says what a row is about, had no room at all, and the others were cut."""
    row = ("n=1000 x fp32[1000]", "step=64 unroll=4", "store", "644 us", "1.23x", "n/a", "0 of 12", "noisy")
    assert shown(monkeypatch, capsys, 40, HEADERS, row) == [
        "n=1000 x fp32[1000]",
        "  step=64 unroll=4",
        "    store",
        "  time 644 us     vs first 1.23x",
        "  vs default n/a  failed 0 of 12",
        "  quality noisy",
    ]


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 109, 110, 120, 200])
def test_no_letter_is_lost_and_no_line_is_too_long_at_any_width(monkeypatch, capsys, width):
    row = ("[bold]a,out fp32[1000,200] weights fp16[300,200]", "BLOCK_M=128 " * 6, "configs/" + "long-name" * 4,
           "644 us", "1.23x", "n/a", "0 of 12", "noisy")  # fmt: skip
    lines = shown(monkeypatch, capsys, width, HEADERS, row)
    assert Counter("".join(row).replace(" ", "")) <= Counter("".join(lines))
    assert max(map(len, lines)) <= width


def test_a_row_that_is_stacked_whole_needs_no_other_columns(monkeypatch, capsys):
    row = ("app.work", "n=1000", "step=64")
    assert shown(monkeypatch, capsys, 40, ("kernel", "call", "config"), row) == [
        "kernel, call, config",
        "app.work",
        "  n=1000",
        "    step=64",
    ]


@pytest.mark.parametrize(("ratio", "words"), [(1.0, "1.00x"), (12.345, "12.3x"), (1630.0, "1630x"), (None, "n/a")])
def test_a_speed_up_has_three_digits(ratio, words):
    assert terminal.ratio_words(ratio) == words


def test_letters_that_stdout_does_not_know_are_spelled(tmp_path):
    """A kernel named in other letters ended `list` with a trace, on a terminal without UTF-8."""
    kernel = tmp_path / "kernels.py"
    kernel.write_text(
        "from autotuned import Config, autotune\n\n"
        "@autotune(configs=[Config({'step': step}) for step in (1, 2)], name='caf\u00e9')\n"
        "def work(n, *, step): ...\n\n"
        "@work.case\ndef cases(device):\n    yield {'args': (1,)}\n",
        encoding="utf-8",
    )
    surroundings = {"PYTHONIOENCODING": "ascii", "AUTOTUNED_CACHE_DIR": str(tmp_path / "cache")}
    for arguments in (("tune", str(kernel)), ("list",)):
        out, _ = in_process(*arguments, **surroundings)
        assert "caf\\xe9" in out


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_line_that_stays_is_broken_on_a_terminal_only(is_terminal, monkeypatch, capsys):
    """Elsewhere a line is a record of a log, and stays one."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if is_terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    progress.Display().note("app.work  n=1000: step=64 unroll=4 num_warps=4, 644 us, measured")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (2 if is_terminal else 1)
    assert lines[-1].startswith("  num_warps=4" if is_terminal else "app.work")
