"""Files of binaries: what is built for the entries of config files, merged, checked and exported."""

from __future__ import annotations

import re
import sys

import torch
from served_binaries import call, fresh

import autotuned
from autotuned.binaries import file as binaryfile
from autotuned.binaries import writer as binary_writer
from autotuned.configfiles import exchange
from autotuned.offline import binaries


def test_the_file_holds_what_was_met_and_the_generic_ones(shipped):
    [path] = shipped.glob("*/app.add.bin")
    file = binaryfile.read(path.read_bytes(), str(path))
    forms = {tuple(type_ for _, type_ in variant.form.types) for variant in file.variants}
    pointers = ("*fp32", "*fp32")
    assert forms == {
        (*pointers, "i32", "=1", "constexpr"), (*pointers, "i32", "i32", "constexpr"),
    }  # fmt: skip
    assert len(file.variants) == 4  # n = 96 is divisible by 16, n = 100 is not
    named = {
        digest
        for _, entry in exchange.read(next(shipped.glob("*/app.add.json")))[0].entries()
        for digest in entry.binaries
    }
    assert named == {variant.digest for variant in file.variants}


def test_the_machine_code_is_what_triton_compiles(shipped):
    [path] = shipped.glob("*/app.add.bin")
    file = binaryfile.read(path.read_bytes(), str(path))
    codes = {file.code(variant) for variant in file.variants}
    add = fresh().add
    assert {call(add, n).asm["cubin"] for n in (96, 100)} < codes


def test_merged_files_have_the_binaries_of_both(shipped, tmp_path):
    [config] = shipped.glob("*/app.add.json")
    halves = []
    for number in (0, 1):
        half = tmp_path / f"half{number}" / config.parent.name
        half.mkdir(parents=True)
        whole, _ = exchange.read(config)
        [group] = whole.groups()
        for place, name in enumerate(list(group.entries)):
            if place != number:
                del group.entries[name]
        binary_writer.write(
            half / config.name, whole, binary_writer.read(next(shipped.glob("*/app.add.bin")), "app.add")
        )
        halves.append(half.parent)
    autotuned.merge(halves, tmp_path / "out")
    assert (
        next((tmp_path / "out").glob("*/app.add.bin")).read_bytes() == next(shipped.glob("*/app.add.bin")).read_bytes()
    )
    assert autotuned.check(tmp_path / "out").faults == []
    [change] = autotuned.diff(halves[0], tmp_path / "out").changes
    assert change.kind == "added"


def test_check_says_what_is_not_there(shipped):
    next(shipped.glob("*/app.add.bin")).unlink()
    assert [str(fault).partition("json: ")[2] for fault in autotuned.check(shipped).faults] == [
        "app.add.bin lacks binaries that entries name (4): autotuned export --binaries."
    ]


def test_check_says_what_was_edited_and_what_lies_there_alone(shipped):
    path = next(shipped.glob("*/app.add.json"))
    text = path.read_text()
    path.write_text(re.sub(r'"BLOCK": \d+', '"BLOCK": 128', text))
    (path.parent / "gone.bin").write_bytes(next(shipped.glob("*/app.add.bin")).read_bytes())
    faults = "".join(map(str, autotuned.check(shipped).faults))
    assert (
        "Entries edited since name binaries of another config (2)" in faults
        and "expected a config file next to it" in faults
    )


def test_binaries_of_a_newer_version_are_left_alone(shipped):
    path = next(shipped.glob("*/app.add.bin"))
    content = path.read_bytes().replace(b"autotuned-binaries 1 ", b"autotuned-binaries 2 ", 1)
    path.write_bytes(content)
    result = binaries.build(shipped, ["shipped_kernel"], device="cpu")
    assert any("got a newer one: it is left alone" in line for file in result.files for line in file.missing)
    assert path.read_bytes() == content


def test_building_again_changes_nothing(shipped):
    files = [next(shipped.glob("*/app.add.json")), next(shipped.glob("*/app.add.bin"))]
    before = [file.read_bytes() for file in files]
    binaries.build(shipped, ["shipped_kernel"], device="cpu")
    assert [file.read_bytes() for file in files] == before


def test_a_kernel_named_by_two_targets_is_built_once(shipped):
    once, twice = (
        binaries.build(shipped, targets, device="cpu").to_json()
        for targets in (["shipped_kernel"], ["shipped_kernel", "shipped_kernel:add"])
    )
    assert twice == once


def test_tune_builds_what_its_files_need(driver, tmp_path):
    fresh()
    result = autotuned.tune(["shipped_kernel"], out=tmp_path / "tuned", binaries=True, isolate=False)
    assert [(file.kernel, file.entries, file.of, file.missing) for file in result.binaries.files] == [
        ("app.add", 2, 2, []), ("app.only", 1, 1, []), ("app.padded", 2, 2, []),
    ]  # fmt: skip
    assert result.to_json()["binaries"]["files"][0]["generic"] == 4
    assert autotuned.check(tmp_path / "tuned").faults == []


def test_a_kernel_with_one_config_ships_too(driver, library, tmp_path, monkeypatch, nothing_compiles_later):
    """There is nothing to choose, and its binary serves all the same."""
    fresh()
    result = autotuned.tune(["shipped_kernel:only"], out=tmp_path / "tuned", binaries=True, isolate=False)
    [file] = result.binaries.files
    assert (file.kernel, file.entries, file.variants, file.missing) == ("app.only", 1, 2, [])
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "empty"))
    autotuned.register_configs(tmp_path / "tuned", binaries=True)
    fresh()
    only, x = sys.modules["shipped_kernel"].only, torch.zeros(256)
    nothing_compiles_later()
    with autotuned.seal():
        for n in (96, 96, 100):
            only[(4,)](x, n)
    assert len(library.launches) == 3 and only.cache_info().hits == 1


def test_warmup_builds_for_the_calls_of_a_recording(driver, tmp_path):
    add = fresh().add
    with autotuned.record(tmp_path / "calls.jsonl"):
        call(add)
    autotuned.export(tmp_path / "tuned", "app.add")
    result = autotuned.warmup(tmp_path / "calls.jsonl", binaries=tmp_path / "tuned")
    [file] = result.binaries.files
    assert (file.entries, file.variants, file.missing) == (1, 3, [])


def test_export_builds_beside_what_it_writes_and_says_what_it_cannot(driver, tmp_path):
    add = fresh().add
    for n in (96, 100, 104):  # there is no case of the last
        call(add, n)
    result = autotuned.export(tmp_path / "tuned", "app.add", binaries=True, targets=["shipped_kernel"])
    [file] = result.binaries.files
    assert (file.entries, file.of) == (2, 3)
    assert file.missing == ["1 entries have no case and no recorded call here: name a target or a recording with them."]


def test_entries_of_another_source_get_none(shipped, monkeypatch):
    monkeypatch.setattr("autotuned.tunable.kernel.TunableKernel.source", property(lambda self: "edited"))
    [file, _] = binaries.build(shipped, ["shipped_kernel"], device="cpu").files
    assert file.missing == ["its entries were tuned for another source: tune again here, and build then."]


def test_without_a_gpu_tensors_of_cases_have_no_memory(shipped, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = next(shipped.glob("*/app.add.bin")).read_bytes()
    next(shipped.glob("*/app.add.bin")).unlink()
    assert binaries.build(shipped, ["shipped_kernel"]).missing == []
    assert next(shipped.glob("*/app.add.bin")).read_bytes() == before
