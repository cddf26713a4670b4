"""What is stored, by `autotuned list`, `show` and `explain`."""

import json
from pathlib import Path

import pytest
from commands import error as _error
from commands import run as _run
from commands import run_json as _json
from fakes import CONTEXT, FakeConfig, form, make_key
from given import BEST, WORK, Write
from given import keep as _keep
from given import work as _work

from autotuned.configfiles import lookup, policy, writer
from autotuned.configfiles.file import Entry
from autotuned.gpu import device
from autotuned.key.key import Key
from autotuned.store import layout, listing, records
from autotuned.store.record import Timing, TuningRecord

pytestmark = pytest.mark.usefixtures("wide_output")


def test_an_empty_store_says_where_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "config_folders", lambda: iter([Path("somewhere")]))
    for args in (["list"], ["list", "any"]):
        text = _run(*args).stdout
        assert f"Nothing is stored in {layout.root()}" in text and "somewhere" in text
    assert _json("list") == {"cache": str(layout.root()), "choices": []}


def test_list_shows_records_and_files(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    _run("tune", _work(write, "1"), "--out", "tuned")
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", "tuned")
    file, record = [choice for choice in _json("list")["choices"] if choice["kernel"] == "mod_work.work"]
    assert file.keys() == record.keys() == {
        "kernel", "digest", "call", "config", "median_us", "vs_default", "quality", "device", "triton", "source",
        "path",
    }  # fmt: skip
    if record["source"] != "store":
        file, record = record, file
    assert record["path"].startswith(str(layout.root())) and record["quality"] == "ok"
    assert file["source"] == file["path"] == f"tuned/{device.cpu().slug}/mod_work.work.json"
    assert file["vs_default"] == 4 and file["digest"] == record["digest"]
    assert file["config"] == record["config"] and file["device"] == device.cpu().slug
    lines = _run("list", "work").stdout.splitlines()
    assert file["quality"] == "ok" and lines[0] == f"mod_work.work  {device.cpu().slug}, ok"
    assert lines[1].split()[:2] == ["call", "config"]
    assert [line.split()[0] for line in lines[2:]] == ["n=1"] * 2 and record["digest"][:12] in lines[2]


def test_list_explains_a_quality_once_below_all_kernels() -> None:
    config = form(FakeConfig({"BLOCK": 64}))
    for kernel in ("app.one", "app.two"):
        records.keep(
            TuningRecord(make_key(kernel=kernel), config, 16.0, "noisy", (Timing(config, 16.0, 9.0, 30.0, 5),))
        )
    lines = _run("list").stdout.splitlines()
    assert [line.partition("  ")[0] for line in lines if line.startswith("app.")] == ["app.one", "app.two"]
    assert [line for line in lines if line.startswith("noisy: ")] == lines[-1:]


def test_calls_are_listed_by_the_size_of_their_numbers() -> None:
    _keep(12)
    said = [line.split()[0] for line in _run("list").stdout.splitlines() if line.startswith("n=")]
    assert said == [f"n={n}" for n in range(12)]
    listed = json.loads(_run("list", "--json").stdout)["choices"]
    assert [choice["call"]["values"]["n"] for choice in listed] == list(range(12))


@pytest.mark.parametrize("args", [["tune", "mod_work"], ["list"], ["show", "work"], ["report"]], ids=lambda a: a[0])
def test_options_of_a_launch_are_not_shown_for_a_plain_callable(write: Write, args: list[str]) -> None:
    _work(write)
    if args[0] != "tune":
        _run("tune", "mod_work")
    said = _run(*args)
    assert "ms=1" in said.stdout and "num_warps" not in said.stdout + said.stderr


def test_a_record_that_somebody_edited_is_listed_as_it_stands(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    _run("tune", _work(write))
    [first, _] = [Path(choice["path"]) for choice in _json("list")["choices"]]
    record = json.loads(first.read_text())
    record["key"]["call"]["values"]["n"] = {"float": "no number"}
    first.write_text(json.dumps(record))
    result = _run("list", "--json")
    assert len(json.loads(result.stdout)["choices"]) == 1
    assert f"left out: {first} is malformed (its key does not match " in caplog.text


def test_list_of_an_unknown_kernel_names_the_nearest(write: Write) -> None:
    _run("tune", _work(write, "1"))
    assert "no kernel 'wrok'. Did you mean 'mod_work.work'?" in _error("list", "wrok")


def test_show_holds_every_part_of_a_key_and_every_timing(write: Write) -> None:
    text = WORK.replace(
        "    ran.append(ms)", "    if ms == 6:\n        raise ValueError('too much')\n    ran.append(ms)"
    )
    _run("tune", _work(write, "1 2", text=text))
    data = _json("show", "mod_work.work")
    assert data["kernel"] == "mod_work.work" and len(data["keys"]) == 2
    for key in data["keys"]:
        assert key["key"].keys() == {"call", "context"} and key["provenance"]["timer"].startswith("do_bench bench ")
        assert [timing["config"]["kwargs"]["ms"] for timing in key["timings"]] == [1, 4, 6]
        assert key["timings"][2]["status"] == "failed" and key["timings"][2]["error"] == "ValueError: too much"
    lines = _run("show", "work", data["keys"][0]["digest"][:8], "--full").stdout
    for word in ("call.values.n", "context.device.arch", "context.source", "provenance.date", "*  ms=1", "too much"):
        assert word in lines
    assert data["keys"][0]["digest"] in lines and data["keys"][1]["digest"] not in lines


def test_show_is_short_at_first() -> None:
    """Forty lines a key, most of them parts of the key, hid what was chosen."""
    configs = [form(FakeConfig({"BLOCK": block})) for block in range(9)]
    timings = [Timing(one, 10.0 + n, 10.0, 10.0, 40) for n, one in enumerate(configs)]
    timings[8] = Timing(configs[8], None, None, None, 0, "failed", "ValueError: too much")
    how = {"default": configs[7], "seconds": 1.0}
    records.keep(TuningRecord(make_key(), configs[6], 16.0, "tied", tuple(timings), how))
    lines = _run("show", "k").stdout.splitlines()
    facts = [line.split()[0] for line in lines[:6]]
    assert facts == ["app.k", "chosen", "time", "for", "key", "file"]
    assert "16 us, 1.06x the untuned speed, tied" in lines[2] and "sm_90" in lines[3]
    assert [line.split()[0] for line in lines[7:12]] == ["*", "BLOCK=0", "BLOCK=1", "BLOCK=2", "BLOCK=3"]
    assert lines[12] == "and 4 more, 1 failed" and "context.source" not in "\n".join(lines)
    assert any(line.startswith("tied: several configs") for line in lines) and "--full" in lines[-1]
    assert "too much" in _run("show", "k", "--full").stdout


def _keep_several() -> None:
    """Records of two kernels, two devices and two versions of Triton."""
    config, b200 = form(FakeConfig({"BLOCK": 64})), {**CONTEXT["device"], "name": "NVIDIA B200"}
    for kernel, changed in (("app.one", {}), ("app.one", {"device": b200}), ("app.two", {"triton": "3.6.0"})):
        key = make_key(kernel=kernel, **changed)
        assert records.keep(TuningRecord(key, config, 10.0, "ok", (Timing(config, 10.0, 10.0, 10.0, 40),)))


FILTERED = {
    "by device": (["--device", "B200"], 1),
    "by a version": (["--triton", "3.6"], 1),
    "by kernel": (["--kernel", "one"], 2),
    "by all": (["--kernel", "app.one", "--device", "b200", "--triton", CONTEXT["triton"]], 1),
}


@pytest.mark.parametrize(("options", "count"), FILTERED.values(), ids=FILTERED)
def test_listings_are_filtered(options: list[str], count: int) -> None:
    _keep_several()
    assert len(_json("list", *options)["choices"]) == count
    kernel = [] if "--kernel" in options else ["app.one" if "B200" in options else "app.two"]
    assert len(_json("show", *kernel, *options)["keys"]) == count


@pytest.mark.parametrize("command", [["list"], ["list", "--json"], ["show", "one"]], ids=" ".join)
def test_a_filter_that_nothing_fits_says_what_there_is(command: list[str]) -> None:
    _keep_several()
    assert "no choice for" in (said := _error(*command, "--device", "h300")) and "b200" in said


def test_filters_that_do_not_go_together_are_refused() -> None:
    assert "expected without KERNEL" in _run("list", "one", "--kernel", "two", code=2).stderr
    assert "plain listing" in " ".join(_run("list", "--digest", "--device", "h200", code=2).stderr.split())
    assert "expected the name of a kernel" in _run("show", code=2).stderr


def test_show_of_something_unknown_says_what_there_is(write: Write) -> None:
    assert "nothing is stored in" in _error("show", "work")
    _run("tune", _work(write, "1"))
    assert "Did you mean 'mod_work.work'?" in _error("show", "mod_work.wok")
    assert "no key begins with 'xyz'. Its keys are " in _error("show", "work", "xyz")
    _run("tune", _work(write, "1", name="mod_more"))
    assert "several names: mod_more.work, mod_work.work" in _error("show", "work")


def test_config_files_can_be_shown(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    _run("tune", _work(write, "1"), "--out", "tuned")
    _run("clear", "--yes")
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", "tuned")
    [key] = _json("show", "work")["keys"]
    assert key["timings"] is None and key["provenance"] is None and key["source"].endswith("mod_work.work.json")
    assert "1 ms, 4.00x the untuned speed" in _run("show", "work").stdout


def test_a_long_listing_is_whole_and_read_from_heads_only(monkeypatch):
    monkeypatch.setattr("autotuned.store.listing.BLOCK", 10)
    monkeypatch.setattr("autotuned.cli.commands.list.TABLE_ROWS", 5)
    paths = _keep(37) + _keep(3, "app.other")
    monkeypatch.setattr(listing, "all_records", lambda kernel=None: pytest.fail("whole records were read"))
    said = json.loads(_run("list", "--json").stdout)
    assert {each["path"] for each in said["choices"]} == {str(path) for path in paths}
    lines = _run("list").stdout.splitlines()
    assert sum(path.stem[:12] in line for line in lines for path in paths) == 40
    assert json.loads(_run("list", "other", "--json").stdout)["choices"][0]["kernel"] == "app.other"


def _put(key: Key, winner: bool = True) -> None:
    config = form(FakeConfig({"BLOCK": 64}))
    timing = Timing(config, 10.0, 10.0, 10.0, 40)
    found = (config, 10.0, "ok") if winner else (None, None, "unresolved")
    assert records.keep(TuningRecord(key, *found, (timing,)))


def test_choices_that_look_alike_say_in_what_they_differ() -> None:
    for parts in ({"version": "1"}, {"version": "2"}, {"version": "2", "trial": {"timer": "0123456789abcdef"}}):
        _put(make_key(**parts))
    words = [word for word in _run("list", "app.k").stdout.split() if word.startswith(("version=", "trial."))]
    assert sorted(words) == ["trial.timer=0123456789ab", "version=1", "version=2", "version=2"]
    assert _run("show", "app.k").stdout.count("version=2 trial.timer=0123456789ab") == 1


def test_an_unfinished_search_has_no_quality() -> None:
    _put(make_key(), winner=False)
    assert "clock" not in _run("list", "app.k").stdout
    assert [choice["quality"] for choice in _json("list")["choices"]] == [None]


def test_show_of_a_kernel_of_this_package_leaves_its_shipped_choices_to_list_once_there_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        entry = Entry(make_key(n).call, form(FakeConfig({"BLOCK": 64})), 10.0, None)
        writer.ship(make_key(n), entry, tmp_path)
    monkeypatch.setitem(lookup._packages, "own", [lookup.Folder(tmp_path, policy.DEFAULTS, package="autotuned")])
    shipped = _run("show", "app.k").stdout
    assert shipped.count("chosen ") == 3 and "This package ships" not in shipped
    _put(make_key(9))
    kept = _run("show", "app.k").stdout
    assert kept.count("chosen ") == 1 and "This package ships 3 choices for " in kept
    assert _run("show", "app.k", "--device", "nvidia").stdout.count("chosen ") == 4


# -- explain ----------------------------------------------------------------------------------------------------------


def test_explain_says_of_each_stored_key_whether_it_serves_here_and_now(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run("tune", _work(write, "1 2"))
    data = _json("explain", "work")
    assert data["kernel"] == "mod_work.work"
    assert [(key["reason"], key["answer"]) for key in data["keys"]] == [("hit", "store")] * 2
    text = _run("explain", "mod_work.work", data["keys"][0]["digest"][:10]).stdout
    assert ": answered by store" in text and BEST in text and "not compared: " in text
    monkeypatch.setattr(device, "cpu", lambda: device.Device("cpu", "another", "x86_64", 4))
    [missed, _] = _json("explain", "work")["keys"]
    assert missed["reason"] == "other device" and missed["nearest"] == data["keys"][0]["digest"]
    assert {change["path"].rpartition(".")[0] for change in missed["changes"]} == {"context.device"}
    assert "nearest stored key" in _run("explain", "work").stdout


def test_explain_of_a_target_asks_as_its_cases_would(write: Write) -> None:
    target = _work(write, "1 2") + ":work"
    assert [key["reason"] for key in _json("explain", target)["keys"]] == ["absent"] * 2
    _run("tune", target)
    assert [key["reason"] for key in _json("explain", target)["keys"]] == ["hit"] * 2
    _work(write, text=WORK.replace("ran.append(ms)", "ran.append(ms * 1)"))
    found = _json("explain", target)["keys"]
    assert [(key["reason"], [change["path"] for change in key["changes"]]) for key in found] == [
        ("other source", ["context.source"])
    ] * 2


def test_explain_leaves_a_damaged_record_where_it_is(write: Write) -> None:
    _run("tune", _work(write, "1 2"))
    path = next(path for path, _ in listing.all_records())
    path.write_text("{")
    assert sorted(key["reason"] for key in _json("explain", "work")["keys"]) == ["damaged", "hit"]
    assert path.read_text() == "{"


def test_explain_of_nothing(write: Write) -> None:
    assert "nothing is stored in" in _error("explain", "work")
    _run("tune", _work(write, "1"))
    assert "no key begins with 'xyz'" in _error("explain", "work", "xyz")
    assert "`autotuned explain mod_work:`" in (text := _error("explain", "mod_work")) and "Kernels in it are" in text
    assert "key" in _run("explain", "mod_work:").stdout
