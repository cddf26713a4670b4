"""Who may give code: folders that the program named for it, and the package that defines the kernel; nobody else."""

import logging
import subprocess
import sys
import zipfile

import pytest
from fakes import DEVICE
from made_binaries import code, form, ship, variant
from shipped import publish

import autotuned
from autotuned.binaries import file, folders
from autotuned.binaries.folders import KernelName
from autotuned.configfiles import lookup
from autotuned.gpu.device import from_json

HERE = from_json(DEVICE)
KERNEL = KernelName("app.k", "app.kernels")


def served(kernel=KERNEL, device=HERE):
    """The digests that a call may be launched from."""
    return [
        one.digest
        for shelf in folders.shelves(kernel, device)
        for one in filter(shelf.allows, shelf.fitting(code(), form()))
    ]


def package(monkeypatch, root, name, kernel="app.k"):
    """A package on the path that brings choices and binaries for a kernel."""
    (root / name).mkdir(parents=True)
    (root / name / "__init__.py").touch()
    ship(root / name, kernel=kernel)
    monkeypatch.syspath_prepend(str(root))
    for module in [loaded for loaded in sys.modules if loaded.partition(".")[0] == name.partition("/")[0]]:
        monkeypatch.delitem(sys.modules, module)


def test_a_folder_that_code_names_for_it(tmp_path):
    ship(tmp_path)
    autotuned.register_configs(tmp_path, binaries=True)
    assert served() == [variant()[0].replace(kernel="app.k").digest]


def test_a_folder_that_code_names_for_choices_alone(tmp_path):
    ship(tmp_path)
    autotuned.register_configs(tmp_path)
    assert served() == []
    assert list(lookup.shipped("app.k"))  # the choices serve


def test_the_environment_gives_json_only(tmp_path, monkeypatch):
    ship(tmp_path)
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", str(tmp_path))
    assert served() == [] and list(lookup.shipped("app.k"))


def test_a_foreign_package_that_offers_binaries_is_ignored(tmp_path, monkeypatch):
    package(monkeypatch, tmp_path, "helpful")
    publish(monkeypatch, "helpful")
    lookup._packages.clear()
    assert served() == [] and list(lookup.shipped("app.k"))


def test_the_package_that_defines_the_kernel_may(tmp_path, monkeypatch):
    package(monkeypatch, tmp_path, "app")
    publish(monkeypatch, "app")
    lookup._packages.clear()
    assert len(served()) == 1
    assert served(KernelName("app.k", "other.kernels")) == []


def test_a_namespace_that_several_distributions_install_into_may_not(tmp_path, monkeypatch):
    package(monkeypatch, tmp_path, "company/app")
    publish(monkeypatch, "company.app")
    lookup._packages.clear()
    assert served(KernelName("app.k", "company.app.kernels")) == [] and list(lookup.shipped("app.k"))


def test_what_no_line_names_is_not_loaded(tmp_path):
    ship(tmp_path, [variant(), variant(b"\x7fELF two", aligned=())], named=[])
    autotuned.register_configs(tmp_path, binaries=True)
    assert served() == []


def test_those_that_assume_most_come_first(tmp_path):
    made = [variant(b"\x7fELF wide", n="i64", aligned=()), variant(b"\x7fELF two", aligned=()), variant()]
    ship(tmp_path, made)
    autotuned.register_configs(tmp_path, binaries=True)
    assert served() == [one.replace(kernel="app.k").digest for one, _ in reversed(made[1:])]  # of the call's own types


@pytest.mark.parametrize(
    "other", [{"arch": 100}, {"source": "t"}, {"interface": "j"}, {"environment": {"TRITON_X": "1"}}], ids=str
)
def test_other_code_does_not_serve(tmp_path, other):
    ship(tmp_path, [variant(code=code(**other))])
    autotuned.register_configs(tmp_path, binaries=True)
    assert served() == []


def test_another_device_of_the_architecture_is_served_too(tmp_path):
    ship(tmp_path)
    autotuned.register_configs(tmp_path, binaries=True)
    assert len(served(device=from_json({**DEVICE, "name": "NVIDIA H200"}))) == 1
    assert served(device=from_json({**DEVICE, "arch": "sm_100"})) == []


BROKEN = {
    "nothing": lambda content: b"",
    "cut": lambda content: content[:100],
    "newer": lambda content: content.replace(b"binaries 1", b"binaries 9", 1),
    "another kernel's": lambda content: None,
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_damaged_file_is_said_once_and_the_choices_serve(tmp_path, caplog, kind):
    path = ship(tmp_path)
    [beside] = tmp_path.glob("*/*.bin")
    if kind == "another kernel's":
        other = ship(tmp_path / "other", kernel="app.other")
        beside.write_bytes(next(other.parent.glob("*.bin")).read_bytes())
    else:
        beside.write_bytes(BROKEN[kind](beside.read_bytes()))
    autotuned.register_configs(tmp_path, binaries=True)
    with caplog.at_level(logging.WARNING, "autotuned"):
        assert served() == []
        lookup.forget_files()
        assert served() == []
    assert [record.getMessage().count(str(beside)) for record in caplog.records] == [1]
    assert "skipped" in caplog.text and len(list(lookup.shipped("app.k"))) == 1
    assert path.exists()


def test_binaries_are_read_out_of_a_zip_file(tmp_path, monkeypatch):
    (tmp_path / "zipped").mkdir()
    (tmp_path / "zipped" / "__init__.py").touch()
    ship(tmp_path / "zipped")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        for file in (tmp_path / "zipped").rglob("*.*"):
            archive.write(file, file.relative_to(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "app.zip"))
    monkeypatch.delitem(sys.modules, "zipped", raising=False)
    autotuned.register_configs("zipped", binaries=True)
    assert len(served()) == 1


@pytest.mark.parametrize("binaries", [True, False])
def test_what_loads_binaries_is_imported_when_a_folder_may_give_them(tmp_path, binaries):
    program = (
        f"import sys, autotuned; autotuned.register_configs({str(tmp_path)!r}, binaries={binaries}); "
        "print(*(name in sys.modules for name in ('autotuned.binaries.serve', 'triton', 'torch')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [str(binaries), "False", "False"]


def test_a_faulty_variant_is_named_once_a_call_finds_none(tmp_path, caplog, monkeypatch):
    ship(tmp_path, [variant(), variant(b"\x7fELF two", block=128)])
    read = file.read

    def damaged(content, path):
        made = read(content, path)
        faulty = next(row for row in made._reader._rows if row[5] == {"BLOCK": 128})
        faulty[3] = [["x_ptr"]]
        return made

    monkeypatch.setattr(file, "read", damaged)
    autotuned.register_configs(tmp_path, binaries=True)
    with caplog.at_level(logging.WARNING, "autotuned"):
        assert len(served()) == 1 and caplog.text == ""
        [shelf] = folders.shelves(KERNEL, HERE)
        for _ in range(2):
            assert not list(shelf.fitting(code(), form(block=128)))
    assert caplog.text.count("is left out") == len(caplog.records) == 1
