"""`autotuned report`: the numbers, the table and the page."""

import json
import os
import re
import stat
import threading
from html.parser import HTMLParser

import pytest
from autotuned.cli.main import app
from autotuned.cli.views import plots
from fakes import CONTEXT, FakeConfig, form, make_key
from typer.testing import CliRunner

from autotuned.configfiles import lookup, policy
from autotuned.errors import RecordingError
from autotuned.gpu.device import INTERPRETER
from autotuned.key.key import Key
from autotuned.recording import file
from autotuned.recording.file import RecordedCall, Writer
from autotuned.store import listing, records
from autotuned.store.record import Timing, TuningRecord

FIRST, BEST, DEFAULT, BROKEN, WRONG = (form(FakeConfig({"BLOCK": block})) for block in (16, 32, 64, 128, 256))


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def keep(n=1024, kernel="app.k", quality="ok", best_us=10.0, **context):
    timings = (
        Timing(FIRST, 30.0, 29.0, 31.0, 12),
        Timing(BEST, best_us, best_us, best_us, 40),
        Timing(DEFAULT, 15.0, 14.0, 16.0, 3),
        Timing(BROKEN, status="failed", error="OutOfResources: <shared> memory & more"),
        Timing(WRONG, status="wrong", error="out differs by 3"),
    )
    provenance = {"seconds": 1.5, "default": DEFAULT, "written": [], "timer": "race-1"}
    records.keep(TuningRecord(make_key(n, kernel, **context), BEST, best_us, quality, timings, provenance))


def run(*args, code=0):
    result = CliRunner().invoke(app, ["report", *args])
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
    assert (case["vs_default"], case["spread"], case["toolchain"]) == (1.5, 3.0, "triton 3.9.0")
    assert (case["failed"], case["wrong"], case["seconds"], case["count"]) == (1, 1, 1.5, None)
    assert [config["roles"] for config in case["configs"]] == [[], ["chosen"], ["default"], [], []]


def test_a_device_and_toolchain_are_summed_with_geometric_means():
    keep(1, best_us=10.0)
    keep(2, best_us=2.5, quality="tied")
    [found] = json.loads(run("app.k", "--json").stdout)["devices"]
    assert found["vs_default"] == pytest.approx((1.5 * 6) ** 0.5)
    assert (found["least"], found["most"]) == (1.5, 6.0)
    expected = {"kernel": None, "cases": 2, "configs": 10, "failed": 4, "tied": 1, "noisy": 0, "seconds": 3.0}
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("command", ["list", "report"])
def test_what_comes_with_this_package_is_shown_only_by_a_name(command, tmp_path, monkeypatch):
    """Also of a kernel with records; and a table, whose heading names the kernel, says `file` and not the file's name."""
    keep()
    keep(2048)
    CliRunner().invoke(app, ["export", "--out", str(tmp_path)])
    listing.clear()
    keep(4096)
    monkeypatch.setitem(lookup._packages, "own", [lookup.Folder(tmp_path, policy.DEFAULTS)])
    counts, rows = {}, {}
    for names in ((), ("k",)):
        result = [CliRunner().invoke(app, [command, *names, *more]).stdout for more in (["--json"], [])]
        found = json.loads(result[0])
        counts[names] = len(found["choices" if command == "list" else "cases"])
        rows[names] = [line.split() for line in result[1].splitlines() if line.startswith("n=")]
    assert counts == {(): 1, ("k",): 3}
    assert ["file" in row for row in rows["k",]] == [True, True, False] and "app.k.json" not in result[1]


def test_the_table_and_its_last_line():
    keep()
    out = run("k").stdout
    assert "BLOCK=32" in out and "3.00x" in out and "1.50x" in out and "2 of 5" in out
    assert out.splitlines()[-1] == (
        "nvidia-h100-80gb-hbm3-sm_90-132, triton 3.9.0: 1.50x the untuned speed on average, 1 call; 5 configs measured "
        "(2 failed) in 1.5 s"
    )


def test_numbers_in_calls_are_sorted_by_size():
    for n in (64, 256, 1024):
        keep(n)
    found = json.loads(run("app.k", "--json").stdout)["cases"]
    assert [case["call"]["values"]["n"] for case in found] == [64, 256, 1024]


def test_an_unknown_kernel_is_refused_with_the_nearest():
    keep(kernel="app.matmul")
    result = run("app.matmull", code=1)
    assert "no kernel 'app.matmull'. Did you mean" in result.stderr


def test_where_nothing_is_tuned_one_line_says_so(tmp_path):
    """Also where a search is not finished, and where a recording is given."""
    recorded = recording(tmp_path, n1=2)
    for args in ([], ["--calls", str(recorded)], ["--json"], ["--out", str(tmp_path / "page.html")]):
        result = run(*args, code=1)
        assert result.stdout == "" and result.stderr.startswith("error: nothing is tuned in ")
    assert not (tmp_path / "page.html").exists()
    records.keep(TuningRecord(make_key(), None, None, "unresolved", (Timing(FIRST, 1.0, 1.0, 1.0, 3),), {}))
    assert "nothing is tuned in" in run("k", code=1).stderr


def test_devices_and_versions_are_filters():
    keep(1)
    keep(2, triton="3.6.0")
    keep(3, device=INTERPRETER.to_json())
    for args, sizes in ((["--device", "h100"], [1, 2]), (["--triton", "3.6"], [2]), (["--device", "interpreter"], [3])):
        found = json.loads(run(*args, "--json").stdout)
        assert sorted(case["call"]["values"]["n"] for case in found["cases"]) == sizes
    assert (
        "no choice for device 'h300'. Devices are cpu-interpreter, nvidia-h100"
        in run("--device", "h300", code=1).stderr
    )


# -- side by side -------------------------------------------------------------------------------------------------


def test_two_toolchains_stand_side_by_side(tmp_path):
    keep(1, triton="3.6.0", best_us=12.0)
    keep(1, best_us=10.0)
    keep(2)
    found = json.loads(run("--compare", "triton=3.6.0", "triton=3.9", "--json").stdout)
    [pair] = found["pairs"]
    assert (pair["ratio"], pair["same_config"], pair["kept"]) == (1.2, True, 1.0)
    assert [case["call"]["values"]["n"] for case in found["only_b"]] == [2] and found["only_a"] == []
    out = run("--compare", "triton=3.6.0", "triton=3.9").stdout
    assert "1.20x" in out and out.splitlines()[-1] == "1 on both sides, 0 on A only, 1 on B only"
    text = page(tmp_path, "--compare", "triton=3.6.0", "triton=3.9")
    assert "1.20x" in "".join(Page(text).words) and "triton 3.6.0 \u2192 triton 3.9.0" in text


@pytest.mark.parametrize("side", ["nowhere", "triton=", "kernel=k", "h100", "device=h100,"])
def test_a_side_that_is_none_is_refused(side):
    keep()
    said = " ".join(run("--compare", "triton=3.9", side, code=2).stderr.split())
    assert "expected device=NAME, triton=VERSION" in said and "--compare" in said


def test_a_side_without_choices_and_a_recording_are_refused(tmp_path):
    keep()
    assert "no choice for triton '3.1'" in run("--compare", "triton=3.1", "triton=3.9", code=1).stderr
    run("--compare", "triton=3.9", "triton=3.9", "--calls", "calls.jsonl", code=2)


# -- the page -----------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Tags and text; fails on tags that are not closed."""

    EMPTY = {"meta", "br", "input", "wbr"}

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


def test_the_page_says_what_tuning_bought_by_kernel_shape_and_config(tmp_path):
    for n in (1, 64, 4096):
        keep(n)
    words = " ".join("".join(Page(page(tmp_path, "app.k")).words).split())
    assert "1.50xthe untuned speed on nvidia-h100-80gb-hbm3-sm_90-132, triton 3.9.0: 3 calls of 1 kernel" in words
    assert "n=64: 1.50x, BLOCK=32" in words  # a point of the plot over sizes
    assert "One config for all, BLOCK=32 num_warps=4 num_stages=3: 1.00x the tuned time" in words
    assert "BLOCK best 1.00x, worst 3.00x" in words and "16: 3.00x, chosen 0 times" in words
    assert "2 failed" not in words and "1 failed, 1 wrong" in words and "OutOfResources" in words


def test_the_page_is_readable_without_eyes(tmp_path):
    """Tables have captions and headings of rows and columns, plots words, and filters labels."""
    keep(1)
    keep(2, triton="3.6.0")
    text = page(tmp_path)
    assert text.count("<caption") == text.count("<table>") > 3
    assert all('scope="' in head for head in re.findall(r"<th\b[^>]*>", text))
    images = re.findall(r"<svg [^>]*>", text)
    assert images and all('role="img"' in one and "aria-label=" in one or 'aria-hidden="true"' in one for one in images)
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(re.findall(r'id="([^"]+)"', text))
    assert len(re.findall(r'<label><input type="checkbox" id="t\d" checked>triton 3', text)) == 2


def test_devices_and_toolchains_are_filters_of_the_page_too(tmp_path):
    """By CSS alone: a box that is not checked hides what has its name as a class."""
    keep(1)
    keep(2, triton="3.6.0")
    text = page(tmp_path)
    assert "body:has(#t0:not(:checked)) .t0 { display: none; }" in text and "#d0" not in text
    rows = re.findall(r'<tr class="([^"]*)">', text)
    assert {"d0 t0", "d0 t1"} == set(rows)
    assert re.findall(r'<g class="s\d ([^"]*)">', text) == ["d0 t1", "d0 t0"] or "d0 t0" in text


def test_the_interpreter_is_in_no_plot_and_no_mean_beside_a_device(tmp_path):
    keep(1)
    keep(2)
    for n in (3, 4):
        keep(n, device=INTERPRETER.to_json(), best_us=1000.0)
    parsed = Page(page(tmp_path))
    words = " ".join("".join(parsed.words).split())
    assert "1.50xthe untuned speed on nvidia" in words and "untuned speed on cpu-interpreter" not in words
    assert "n=3: " not in words and "n=1: 1.50x" in words and "Times of cpu-interpreter are those of" in words
    found = json.loads(run("--json").stdout)
    assert [(one["interpreted"], one["cases"]) for one in found["devices"]] == [(False, 2), (True, 2)]
    assert found["devices"][0]["vs_default"] == 1.5 and len(found["tunables"]) == 1


def test_the_page_of_many_calls_stays_small_and_says_what_it_left_out(tmp_path):
    for n in range(350):
        keep(1 + n)
    for n in range(70):
        keep(1, kernel=f"other.k{n}")
    text = page(tmp_path, "app.k")
    assert "50 more are left out here: " in text and len(text) < 1_000_000
    assert "and 250 more, which --json has" in run("app.k").stdout
    text = page(tmp_path)
    assert "11 more are left out here: name a kernel" in "".join(Page(text).words)
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(re.findall(r'id="([^"]+)"', text))


def test_a_page_survives_odd_values(tmp_path):
    """No time of the default, ratios beyond floats, calls without numbers, and one config."""
    huge = (Timing(FIRST, 1e300, 1e300, 1e300, 1), Timing(BEST, 1e-300, 1e-300, 1e-300, 1))
    records.keep(TuningRecord(make_key(-1), BEST, 1e-300, "ok", huge, {"default": FIRST}))
    records.keep(TuningRecord(make_key(0), FIRST, 5.0, "ok", (Timing(FIRST, 5.0, None, None, 1),), {"default": BROKEN}))
    imported = TuningRecord(Key("app.none", {}, CONTEXT), BEST, None, "ok", (), {"vs_default": None})
    records.keep(imported)
    Page(page(tmp_path))
    found = json.loads(run("--json").stdout)
    assert [case["vs_default"] for case in found["cases"]] == [None, None, None]
    assert found["devices"][0]["vs_default"] is None


def test_the_dots_lie_where_their_times_are(tmp_path):
    keep()
    strip = re.search(r'<svg class="strip".*?</svg>', page(tmp_path, "app.k"), re.DOTALL)[0]
    x = {kind: float(place) for kind, place in re.findall(r'<circle class="(\w+)" cx="([\d.]+)"', strip)}
    first = float(re.search(r'<path d="M(\d+) 11h0"', strip)[1])
    assert x["chosen"] < x["default"] < first
    # 1.5 and 3 times as slow, on a logarithmic scale that ends at 3.
    assert (x["default"] - x["chosen"]) / (first - x["chosen"]) == pytest.approx(0.369, abs=0.005)
    assert "BLOCK=32 num_warps=4 num_stages=3: 10 us, chosen" in strip


def test_points_lie_where_their_sizes_and_ratios_are():
    points = [plots.Point(size, ratio, "", 0) for size, ratio in ((1.0, 1.0), (100.0, 2.0), (10.0, 4.0))]
    drawn = plots.over_sizes(points, "n", "title")
    (x1, y1), (x2, y2), (x3, y3) = (
        tuple(map(float, at)) for at in re.findall(r"translate\(([\d.]+),([\d.]+)\)", drawn)
    )
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2) and y1 - y3 == pytest.approx(
        y3 - y2, abs=0.2
    )  # by size: 1, 10, 100
    assert y1 > y3 > y2 or y1 > y2


@pytest.mark.parametrize("slowest", [1.01, 1.25, 1.5, 2.0, 10.0, 100.0, 1001.0])
def test_no_word_of_a_scale_is_cut_off(slowest):
    """`1.25x` stood at the very edge of the strip."""
    strip = plots.strip([plots.Dot(1.0, "a"), plots.Dot(slowest, "b")])
    words = re.findall(r'<text class="tick" x="([\d.]+)" y="31" text-anchor="middle">([\d.]+x)', strip)
    assert words and all(float(x) + 3 * len(word) <= plots.STRIP_WIDTH for x, word in words)


def test_a_page_goes_through_a_pipe_which_stays(tmp_path):
    keep()
    os.mkfifo(pipe := tmp_path / "page.html")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    run("app.k", "--out", str(pipe))
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    reader.join()
    assert "</html>" in read[0]


@pytest.mark.parametrize("name", ["r.pdf", "report"])
def test_a_page_is_written_only_into_a_file_that_a_browser_opens(tmp_path, name):
    result = run("--out", str(tmp_path / name), code=2)
    assert f"--out: expected a name that ends in .html, got '{tmp_path}/{name}'" in " ".join(result.stderr.split())
    assert not (tmp_path / name).exists()


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
        writer.call(call)
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
    assert "1 of 2 distinct calls are tuned, 75.0% of 40 calls; list --missing shows which are not" in said
    words = Page(page(tmp_path, "--calls", str(path))).words
    assert "Called, and not tuned" in words and "tuned != called, from the nearest" in words
    assert "n 1 != 2" in words, change


def test_calls_of_one_key_are_counted_together(tmp_path):
    keep(1)
    writer = Writer(tmp_path / "calls.jsonl")
    for grid, count in (([1], 30), ([2], 5)):
        call = RecordedCall("app.k", "app:k", make_key(1), {}, {"same": grid}, count)
        writer.call(call)
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
