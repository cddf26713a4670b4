"""The commands that build, keep and name binaries: what they say, their exit codes and their JSON."""

import json
import os
import sys
from pathlib import Path

import pytest
from commands import error, run, run_json
from made_binaries import ship, variant

from autotuned.errors import OptionError
from autotuned.offline.tuning import tune

KERNEL = """
import torch
import triton
import triton.language as tl
from autotuned import Config, autotune


@autotune([Config({"BLOCK": 64})], key=["n"], name="app.k")
@triton.jit
def k(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr, n)


@k.case
def cases(device):
    yield {"args": (torch.empty(64, device=device), 1024), "grid": (1,)}
"""


def test_import_says_that_binaries_stay_where_they_lie(tmp_path):
    ship(tmp_path / "tuned")
    assert run_json("import", tmp_path / "tuned")["binaries"] == 1
    said = run("import", tmp_path / "tuned").output
    assert said.startswith("imported 0 choices; 1 was there already\n")
    assert "1 compiled kernel not imported: register_configs(FOLDER, binaries=True)" in said


def test_gc_bounds_a_folder_of_kept_kernels(tmp_path):
    for age, name in enumerate(("a" * 8, "b" * 8, "c" * 8)):
        path = tmp_path / f"{name}.bin"
        path.write_bytes(bytes(100))
        os.utime(path, (1e9 - age, 1e9 - age))
    (tmp_path / "other.txt").write_text("stays")
    found = run_json("gc", "--binaries", str(tmp_path), "--max-size", "250")
    assert (found["deleted"], found["records"], found["bytes"], found["cache"]) == (1, 2, 200, str(tmp_path))
    assert sorted(path.name[0] for path in tmp_path.iterdir()) == ["a", "b", "o"]
    assert "deleted 2 kernels" in run("gc", "--binaries", tmp_path, "--max-age", "1d").output


def test_gc_removes_what_no_entry_names_beside_config_files(tmp_path):
    path = ship(tmp_path, [variant(), variant(b"\x7fELF two", block=64)], [variant()[0].replace(kernel="app.k").digest])
    stray = path.with_name("app.gone.bin")
    stray.write_bytes(path.with_suffix(".bin").read_bytes())
    before, size = path.read_text(), path.with_suffix(".bin").stat().st_size
    found = run_json("gc", "--binaries", tmp_path)
    left = path.with_suffix(".bin").stat().st_size
    assert (found["deleted"], found["leftovers"], found["records"], found["bytes"]) == (1, 1, 1, left)
    assert found["freed_bytes"] == 2 * size - left and path.read_text() == before and not stray.exists()
    assert "deleted 0 kernels and 0 leftovers" in run("gc", "--binaries", tmp_path).stdout
    assert "no entry names" in " ".join(run("gc", "--binaries", tmp_path, "--max-age", "1d", code=2).stderr.split())


def test_gc_refuses_a_folder_that_is_not_there(tmp_path):
    said = " ".join(run("gc", "--binaries", tmp_path / "typo", code=2).stderr.split())
    assert f"invalid value for --binaries: expected an existing folder, found none at {tmp_path}/typo" in said


def test_gc_leaves_what_it_cannot_read_beside_config_files(tmp_path):
    path = ship(tmp_path, named=[])
    path.with_suffix(".bin").write_bytes(content := b"autotuned-binaries 1 9 nothing")
    assert run_json("gc", "--binaries", tmp_path)["deleted"] == 0
    assert path.with_suffix(".bin").read_bytes() == content


def test_tune_wants_a_folder_for_them():
    with pytest.raises(OptionError, match="expected a folder for them in out=, got none"):
        tune("autotuned.kernels.numpy_matmul", binaries=True)
    said = run("tune", "autotuned.kernels.numpy_matmul", "--binaries", code=2).stderr
    assert "invalid value for --binaries: expected --out DIR with it, got none" in " ".join(said.split())


def test_tune_ends_like_export_if_some_cannot_be_built(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("kernels_not_built.py").write_text(KERNEL)
    done = run("tune", "kernels_not_built.py", "--out=tuned", "--binaries", code=3)
    assert "error: missing: 1 binary" in done.stderr and "no binary: tuned/" in done.stderr


@pytest.mark.parametrize("names", [[], ["app.k"], ["k"]], ids=["all", "name", "suffix"])
def test_export_with_an_empty_store_builds_for_the_files_that_are_there(tmp_path, monkeypatch, names):
    """Its kernel is interpreted in these tests, which is said; on the compiled harness it is built."""
    monkeypatch.chdir(tmp_path)
    ship(tmp_path / "tuned", made=[])
    Path("kernels_to_build.py").write_text(KERNEL)
    done = run("export", *names, "--out=tuned", "--binaries", "--target=kernels_to_build.py", "--json", code=3)
    [file] = json.loads(done.stdout)["binaries"]["files"]
    assert (file["kernel"], file["of"], file["entries"], file["variants"]) == ("app.k", 1, 0, 0)
    assert file["missing"] == ["the kernel is interpreted here: unset TRITON_INTERPRET to compile it."]
    assert "error: missing: 1 binary" in done.stderr


def test_export_without_the_option_needs_a_store(tmp_path):
    ship(tmp_path / "tuned", made=[])
    assert "nothing is stored" in error("export", "--out", tmp_path / "tuned")
    assert "no kernel 'k': nothing is stored" in error("export", "k", "--out", tmp_path / "tuned")


def test_check_names_what_is_wrong_beside_a_file(tmp_path):
    path = ship(tmp_path, made=[variant()], named=["0" * 32])
    [beside] = path.parent.glob("*.bin")
    texts = [fault["text"] for fault in json.loads(run("check", tmp_path, "--json", code=1).stdout)["faults"]]
    assert f"{beside.name} lacks binaries that entries name (1): autotuned export --binaries." in texts
    assert f"{beside.name} has binaries that no entry names (1); they are never loaded." in texts
    beside.write_bytes(b"no such file")
    texts = [fault["text"] for fault in json.loads(run("check", tmp_path, "--json", code=1).stdout)["faults"]]
    assert any(text.startswith(f"binaries {beside}: expected a file that begins with") for text in texts)


def test_diff_tells_other_binaries_from_other_choices(tmp_path):
    ship(tmp_path / "a")
    ship(tmp_path / "b", made=[variant(b"\x7fELF two")])
    [change] = run_json("diff", tmp_path / "a", tmp_path / "b")["changes"]
    assert change["kind"] == "compiled"
    assert run("diff", tmp_path / "a", tmp_path / "b").stdout.endswith("0 added, 0 removed, 0 changed, 1 compiled\n")


def test_merge_puts_binaries_together_and_says_what_it_cannot_read(tmp_path):
    ship(tmp_path / "a")
    ship(tmp_path / "b", made=[variant(b"\x7fELF two", aligned=())])
    run("merge", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "out")
    [merged] = (tmp_path / "out").glob("*/*.json")
    [entry] = json.loads(merged.read_text())["groups"][0]["entries"]
    assert len(entry["compiled"]) == 2
    next((tmp_path / "b").glob("*/*.bin")).write_bytes(b"damaged")
    done = run("merge", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "again", code=3)
    assert "expected a file that begins with" in done.stderr
    [merged] = (tmp_path / "again").glob("*/*.json")
    [entry] = json.loads(merged.read_text())["groups"][0]["entries"]
    assert len(entry["compiled"]) == 1


def test_run_hands_the_folder_to_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = "import os; print(os.environ['AUTOTUNED_BINARIES'], os.environ['AUTOTUNED_INSTALL'])"
    handed = []
    monkeypatch.setattr(os, "execvpe", lambda file, command, environment: handed.append(environment))
    run("run", "--binaries", "kept", "--", sys.executable, "-c", program)
    assert handed[0]["AUTOTUNED_BINARIES"] == str(tmp_path / "kept")
    run("run", "--", sys.executable, "-c", program)
    assert "AUTOTUNED_BINARIES" not in handed[1]
