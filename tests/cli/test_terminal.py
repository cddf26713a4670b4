"""How tables and lines fit a narrow terminal."""

import pytest
from autotuned.cli import progress, terminal
from commands import in_process


def test_a_line_is_broken_at_spaces_and_goes_on_deeper():
    line = terminal.wrapped("  step=64 unroll=4 num_warps=4", 20, "    ")
    assert line == "  step=64 unroll=4\n    num_warps=4"
    assert terminal.wrapped("short", 20, "    ") == "short"
    assert terminal.wrapped("a-name-without-any-space", 10, "    ") == "a-name-without-any-space"


HEADERS = ("call~", "config~", "device=", "source=?", "time>", "spread>?", "vs default>", "quality=")
ROWS = [
    (f"M={m} N=4096 K=4096 fp16", f"BLOCK_M={min(m, 128)} BLOCK_N=128 BLOCK_K=64 GROUP_M=8 num_warps={w} num_stages=3",
     "nvidia-h200-sm_90-132", "store", "644 us", "1.23x", "1.30x", "ok")
    for m, w in ((16, 4), (256, 8), (4096, 8))
]  # fmt: skip


def shown(monkeypatch, capsys, width, headers=HEADERS, rows=ROWS, heading="") -> list[str]:
    """The lines of a table on a console of some width; None for no terminal."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    terminal.print_table(headers, rows, heading)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_each_row_is_one_line_that_fits(width, monkeypatch, capsys):
    heading, shared, *lines = shown(monkeypatch, capsys, width, heading="app.matmul")
    assert heading == "app.matmul  nvidia-h200-sm_90-132, store, ok"
    assert shared == "config of all: BLOCK_N=128 BLOCK_K=64 GROUP_M=8 num_stages=3"
    if width == 60:
        assert lines.pop(0) == "config as BLOCK_M num_warps"
    header, *lines = lines
    assert len(lines) == len(ROWS) and max(map(len, [header, *lines])) <= width
    assert [line.split()[0] for line in lines] == ["M=16", "M=256", "M=4096"]
    assert all(
        block in line and "644 us" in line and "1.30x" in line for block, line in zip(("16", "128", "128"), lines)
    )
    assert ("spread" in header) is (width != 60)


def test_names_stand_above_where_values_alone_have_room(monkeypatch, capsys):
    rows = [
        (f"M={m} N=4096 K=4096", f"BLOCK_M={a} BLOCK_N={a * 2} GROUP_M={g} num_warps={w} num_stages=3", "1 us")
        for m, a, g, w in ((1, 16, 8, 4), (2, 32, 4, 8), (3, 64, 1, 8))
    ]
    lines = shown(
        monkeypatch, capsys, 60, ("call~", "config~", "time>"), [*rows, ("M=4", "failed: for some reason", "n/a")]
    )
    assert lines[:2] == ["config of all: num_stages=3", "config as BLOCK_M BLOCK_N GROUP_M num_warps"]
    assert [line.split()[3:-2] for line in lines[3:6]] == [
        ["16", "32", "8", "4"],
        ["32", "64", "4", "8"],
        ["64", "128", "1", "8"],
    ]
    assert "failed: for some reason" in lines[6]


def test_what_reads_is_no_terminal_and_nothing_is_cut(monkeypatch, capsys):
    lines = shown(monkeypatch, capsys, None, rows=[(*ROWS[0][:2], "a" * 300, *ROWS[0][3:])])
    assert len(lines) == 2 and all(cell in lines[1] for cell in (*ROWS[0][:2], "a" * 300))


def test_what_is_piped_has_no_spaces_at_the_end_of_a_line(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    terminal.print_table(("call~", "config~"), [("a", "short"), ("b", "much longer")], "heading")
    terminal.print_facts([("name", "short"), ("other", "much longer")])
    lines = capsys.readouterr().out.split("\n")
    assert lines[-2:] == ["other  much longer", ""] and [line for line in lines if line.endswith(" ")] == []


def test_a_cell_that_has_no_room_ends_in_an_ellipsis(monkeypatch, capsys):
    rows = [("x fp16[4096,4096] w fp16[4096,4096] bias fp32[4096]", "failed: " + "long " * 40, "1 us")]
    _, line = shown(monkeypatch, capsys, 60, ("call~", "config~", "time>"), rows)
    assert len(line) <= 60 and line.count("\u2026") == 2 and line.startswith("x fp16[4096") and line.endswith("1 us")


def test_a_config_alone_stands_above_its_row_where_it_has_no_room_in_it(monkeypatch, capsys):
    above, header, line = shown(monkeypatch, capsys, 60, ("call~", "config~", "time>"), [(*ROWS[0][:2], "1 us")])
    assert above == f"config: {ROWS[0][1]}"
    assert header.split() == ["call", "time"] and line.split() == ["M=16", "N=4096", "K=4096", "fp16", "1", "us"]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_brackets_and_line_breaks_are_text_at_any_width(width, monkeypatch, capsys):
    lines = shown(monkeypatch, capsys, width, ("call~", "time>"), [("[bold]a\nb", "1 us")])
    assert lines[1].split() == ["[bold]a", "b", "1", "us"]


def test_words_for_quality_are_explained_where_they_are_met(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    terminal.print_qualities((quality, "card") for quality in ["ok", None, "noisy", "tied", "noisy"])
    tied, noisy = capsys.readouterr().out.splitlines()
    assert tied.startswith("tied: ") and noisy.startswith("noisy: ")


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


def test_a_noisy_choice_of_the_interpreter_is_not_said_to_be_measured_again(capsys):
    terminal.print_qualities([("noisy", "cpu-interpreter")])
    assert "not measured again" in capsys.readouterr().out
    terminal.print_qualities([("noisy", "cpu-interpreter"), ("noisy", "card")])
    assert "`autotuned tune` measures it again" in " ".join(capsys.readouterr().out.split())
