"""`autotuned report`: the numbers, the table and the page."""

import json
import re
from html.parser import HTMLParser
from importlib.metadata import entry_points

import pytest
from autotuned.cli.views import plots
from fakes import FakeConfig, form, make_key
from typer.testing import CliRunner

from autotuned.configfiles import lookup, policy
from autotuned.errors import RecordingError
from autotuned.recording import file
from autotuned.recording.file import RecordedCall, Writer
from autotuned.store import listing, records
from autotuned.store.record import Timing, TuningRecord

[ENTRY] = entry_points(group="console_scripts", name="autotuned")
FIRST, BEST, DEFAULT, BROKEN, WRONG = (form(FakeConfig({"BLOCK": block})) for block in (16, 32, 64, 128, 256))


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def keep(n=1024, kernel="app.k", quality="ok", best_us=10.0):
    timings = (
        Timing(FIRST, 30.0, 29.0, 31.0, 12),
        Timing(BEST, best_us, best_us, best_us, 40),
        Timing(DEFAULT, 15.0, 14.0, 16.0, 3),
        Timing(BROKEN, status="failed", error="OutOfResources: <shared> memory & more"),
        Timing(WRONG, status="wrong", error="out differs by 3"),
    )
    provenance = {"seconds": 1.5, "default": DEFAULT, "written": [], "timer": "race-1"}
    records.keep(TuningRecord(make_key(n, kernel), BEST, best_us, quality, timings, provenance))


def run(*args, code=0):
    result = CliRunner().invoke(ENTRY.load(), ["report", *args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def own(cases):
    """Without the config files that come with the package."""
    return [case for case in cases if case["kernel"].startswith("app.")]


def test_json_has_speed_ups_spread_failures_and_seconds():
    keep()
    [case] = own(json.loads(run("app.k", "--json").stdout)["cases"])
    assert (case["vs_first"], case["vs_default"], case["spread"]) == (3.0, 1.5, 3.0)
    assert (case["failed"], case["wrong"], case["seconds"], case["count"]) == (1, 1, 1.5, None)
    assert [config["roles"] for config in case["configs"]] == [["first"], ["chosen"], ["default"], [], []]


def test_totals_are_geometric_means():
    keep(1, best_us=10.0)
    keep(2, best_us=2.5, quality="tied")
    totals = json.loads(run("app.k", "--json").stdout)["totals"]
    assert totals["vs_first"] == pytest.approx((3 * 12) ** 0.5)
    expected = {"kernels": 1, "cases": 2, "configs": 10, "failed": 4, "tied": 1, "noisy": 0, "seconds": 3.0}
    assert {name: totals[name] for name in expected} == expected


@pytest.mark.parametrize("command", ["list", "report"])
def test_what_comes_with_this_package_is_shown_only_by_a_name(command, tmp_path, monkeypatch):
    """Also of a kernel with records; and a table, whose heading names the kernel, says `file` and not the file's name."""
    keep()
    keep(2048)
    CliRunner().invoke(ENTRY.load(), ["export", "--out", str(tmp_path)])
    listing.clear()
    keep(4096)
    monkeypatch.setitem(lookup._packages, "own", [lookup.Folder(tmp_path, policy.DEFAULTS)])
    counts, rows = {}, {}
    for names in ((), ("k",)):
        result = [CliRunner().invoke(ENTRY.load(), [command, *names, *more]).stdout for more in (["--json"], [])]
        found = json.loads(result[0])
        counts[names] = len(found["choices" if command == "list" else "cases"])
        rows[names] = [line.split() for line in result[1].splitlines() if line.startswith("n=")]
    assert counts == {(): 1, ("k",): 3}
    assert ["file" in row for row in rows["k",]] == [True, True, False] and "app.k.json" not in result[1]


def test_the_table_and_its_last_line():
    keep()
    out = run("k").stdout
    assert "BLOCK=32" in out and "3.00x" in out and "1.50x" in out and "2 of 5" in out
    assert out.splitlines()[-1].startswith("1 case of 1 kernel; 5 configs measured (2 failed) in 1.5 s; on average")


def test_numbers_in_calls_are_sorted_by_size():
    for n in (64, 256, 1024):
        keep(n)
    found = json.loads(run("app.k", "--json").stdout)["cases"]
    assert [case["call"]["values"]["n"] for case in found] == [64, 256, 1024]


def test_an_unknown_kernel_is_refused_with_the_nearest():
    keep(kernel="app.matmul")
    result = run("app.matmull", code=1)
    assert "no kernel 'app.matmull'. Did you mean" in result.stderr


def test_a_search_that_is_not_finished_is_left_out():
    records.keep(TuningRecord(make_key(), None, None, "unresolved", (Timing(FIRST, 1.0, 1.0, 1.0, 3),), {}))
    said = run("app.k", "--json", code=1)
    assert json.loads(said.stdout)["cases"] == [] and "expected a choice to report, got none in" in said.stderr


# -- the page -----------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Tags and text; fails on tags that are not closed."""

    EMPTY = {"meta", "br"}

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def page(tmp_path, *args):
    run(*args, "--out", str(tmp_path / "new" / "report.html"))
    return (tmp_path / "new" / "report.html").read_text()


def test_the_page_is_well_formed_and_needs_nothing_else(tmp_path):
    keep(1)
    keep(2, kernel="app.<b>other</b>")
    text = page(tmp_path)
    parsed = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(parsed.tags)
    assert not re.search(r"https?:|url\(|@import", text)
    assert "<b>other" not in text and "OutOfResources: <shared> memory & more" in "".join(parsed.words)


def test_the_page_has_a_dot_for_each_config_that_ran(tmp_path):
    keep()
    parsed = Page(page(tmp_path, "app.k"))
    dots = [
        value
        for name, value in parsed.attributes
        if name == "class" and value in ("chosen", "first", "default", "other")
    ]
    assert sorted(dots) == ["chosen", "default", "first"]
    titles = "".join(parsed.words)
    assert "BLOCK=32 num_warps=4 num_stages=3: 10 us, chosen" in titles
    assert "1 failed, 1 wrong" in titles


def test_the_dots_lie_where_their_times_are(tmp_path):
    keep()
    strip = re.search(r'<svg class="strip".*?</svg>', page(tmp_path, "app.k"), re.DOTALL)[0]
    x = {kind: float(place) for kind, place in re.findall(r'<circle class="(\w+)" cx="([\d.]+)"', strip)}
    assert x["chosen"] < x["default"] < x["first"]
    # 1.5 and 3 times as slow, on a logarithmic scale that ends at 3.
    assert (x["default"] - x["chosen"]) / (x["first"] - x["chosen"]) == pytest.approx(0.369, abs=0.001)


def test_bars_are_all_seen_beside_one_of_a_thousand():
    """On a linear scale every bar beside it was a hair."""
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height', plots.bars([("a", 1000.0), ("b", 2.0)]))]
    assert widths[0] == pytest.approx(10 * widths[1], rel=0.01)
    linear = [float(width) for width in re.findall(r'width="([\d.]+)" height', plots.bars([("a", 3.0), ("b", 2.0)]))]
    assert linear[0] == pytest.approx(2 * linear[1])


@pytest.mark.parametrize("slowest", [1.01, 1.25, 1.5, 2.0, 10.0, 100.0, 1001.0])
def test_no_word_of_a_scale_is_cut_off(slowest):
    """`1.25x` stood at the very edge of the strip."""
    strip = plots.strip([plots.Dot(1.0, "a"), plots.Dot(slowest, "b")])
    words = re.findall(r'<text class="tick" x="([\d.]+)" y="31" text-anchor="middle">([\d.]+x)', strip)
    assert words and all(float(x) + 3 * len(word) <= plots.STRIP_WIDTH for x, word in words)


def test_an_empty_store_is_an_error_of_one_line():
    said = run(code=1)
    assert said.stdout == "" and said.stderr.startswith("error: expected a choice to report, got none in")


def test_a_page_that_cannot_be_written_is_said(tmp_path):
    keep()
    (tmp_path / "file").write_text("")
    result = run("--out", str(tmp_path / "file" / "report.html"), code=1)
    assert "--out" in result.stderr and "nothing can be written to" in result.stderr


# -- coverage -----------------------------------------------------------------------------------------------------


def recording(tmp_path, **counts):
    writer = Writer(tmp_path / "calls.jsonl")
    for n, count in counts.items():
        call = RecordedCall("app.k", "app:k", make_key(int(n[1:])), {}, None, count)
        writer.call(call, call.identity)
    writer.close()
    return tmp_path / "calls.jsonl"


def test_coverage_counts_calls_and_names_what_is_missing(tmp_path):
    keep(1)
    path = recording(tmp_path, n1=30, n2=10)
    found = json.loads(run("app.k", "--calls", str(path), "--json").stdout)
    assert [case["count"] for case in found["cases"]] == [30]
    covered = found["coverage"]
    assert {name: covered[name] for name in ("distinct", "tuned", "calls", "tuned_calls")} == {
        "distinct": 2, "tuned": 1, "calls": 40, "tuned_calls": 30,
    }  # fmt: skip
    [missing] = covered["missing"]
    assert (missing["kernel"], missing["count"], missing["nearest"]) == ("app.k", 10, make_key(1).digest)
    [change] = missing["changes"]
    said = " ".join(run("app.k", "--calls", str(path)).stdout.split())
    assert "1 of 2 distinct calls are tuned, 75.0% of 40 calls; list --missing says which" in said
    words = Page(page(tmp_path, "--calls", str(path))).words
    assert "Called, and not tuned" in words and "tuned != called, from the nearest" in words
    assert "n 1 != 2" in words, change


def test_calls_of_one_key_are_counted_together(tmp_path):
    keep(1)
    writer = Writer(tmp_path / "calls.jsonl")
    for grid, count in (([1], 30), ([2], 5)):
        call = RecordedCall("app.k", "app:k", make_key(1), {}, {"same": grid}, count)
        writer.call(call, call.identity)
    writer.close()
    found = json.loads(run("app.k", "--calls", str(tmp_path / "calls.jsonl"), "--json").stdout)
    assert [case["count"] for case in found["cases"]] == [35]


def test_a_recording_that_is_none_is_refused(tmp_path):
    (tmp_path / "calls.jsonl").write_text("nothing\n")
    assert "expected recorded calls" in run("--calls", str(tmp_path / "calls.jsonl"), code=1).stderr


# -- the file of calls --------------------------------------------------------------------------------------------


def test_lines_of_many_writers_are_merged(tmp_path):
    path = recording(tmp_path, n1=1, n2=5)
    recording(tmp_path, n1=1)
    one = RecordedCall("app.k", "app:k", make_key(1), {}, None)
    writer = Writer(path)
    writer.more({one.identity: 10})
    writer.close()
    assert [(call.key.call["values"]["n"], call.count) for call in file.read(path)] == [(1, 12), (2, 5)]


def test_a_torn_line_costs_only_itself(tmp_path, caplog):
    path = recording(tmp_path, n1=1)
    path.write_bytes(path.read_bytes()[:-1] + b'\n{"id": "x", "ker')
    recording(tmp_path, n2=2)
    assert [call.count for call in file.read(path)] == [2, 1]
    assert "1 of its lines" in caplog.text


def test_a_recording_of_another_version_is_told_from_what_is_none(tmp_path, caplog):
    """It was said to hold no calls, and that the command must call a tuned kernel."""
    path = recording(tmp_path, n1=1, n2=1)
    mine, other = path.read_text().splitlines()
    path.write_text(other.replace('"schema": 1', '"schema": 2') + "\n")
    with pytest.raises(RecordingError, match=r"of another \(schema 2; this version reads 1\)"):
        file.read(path)
    path.write_text(mine + "\n" + other.replace('"schema": 1', '"schema": 2') + "\n")
    assert len(file.read(path)) == 1 and "schema 2; this version reads 1" in caplog.text
