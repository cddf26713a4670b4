"""`install(binaries=DIR)`: what Triton built with a C compiler is back at the next start; nothing else is."""

from __future__ import annotations

import hashlib
import itertools
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest
import triton
from damages import DAMAGES
from triton.runtime import build as triton_build

from autotuned.dropin import install, kept_host

SOURCE = """
#include <Python.h>
static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, "of_host", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_of_host(void) {
  PyObject *made = PyModule_Create(&def);
  PyModule_AddIntConstant(made, "answer", ANSWER);
  return made;
}
"""


@pytest.fixture(scope="module")
def compile_c(tmp_path_factory):
    """What runs cc, once for each source: the library is copied from then on."""
    folder, call, made = tmp_path_factory.mktemp("built"), subprocess.check_call, {}

    def compile_c(command, **options):
        library = command[command.index("-o") + 1]
        asked = Path(command[1]).read_text()
        if asked in made:
            shutil.copy(made[asked], library)
        else:
            call(command, **options)
            made[asked] = shutil.copy(library, folder / f"{len(made)}.so")

    return compile_c


@pytest.fixture
def build(compile_c, tmp_path, monkeypatch):
    """Builds a module as Triton builds its driver, in a new container; says its answer and how often cc has run."""
    runs, starts = [], itertools.count()
    monkeypatch.setattr(subprocess, "check_call", lambda *args, **more: runs.append(args) or compile_c(*args, **more))

    def build(kept, answer="1"):
        install.uninstall()
        install.install(binaries=kept)
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / f"host-{next(starts)}"))
        made = triton_build.compile_module_from_src(SOURCE.replace("ANSWER", answer), "of_host")
        return made.answer, len(runs)

    yield build
    install.uninstall()


def test_what_the_c_compiler_built_is_back_in_another_container(build, tmp_path):
    assert build(tmp_path / "kept") == (1, 1)
    (tmp_path / "kept").rename(tmp_path / "moved")
    assert build(tmp_path / "moved") == (1, 1)
    assert build(tmp_path / "moved", "2") == (2, 2)
    assert build(tmp_path / "other") == (1, 3)


def whole(code):
    return hashlib.sha256(code).digest() + zlib.compress(code)


@pytest.mark.parametrize("damage", [*DAMAGES, "no library"])
def test_a_damaged_library_is_built_again_and_replaced(build, tmp_path, caplog, damage):
    build(tmp_path / "kept")
    [path] = (tmp_path / "kept").iterdir()
    path.write_bytes(DAMAGES.get(damage, lambda content: whole(b"no library"))(path.read_bytes()))
    assert build(tmp_path / "kept") == (1, 2)
    assert "is not used, and built again" in caplog.text
    assert build(tmp_path / "kept") == (1, 2)


@pytest.mark.parametrize("content", [b"", b"x", b"\0" * 4096, whole(b"\x7fELF" + b"\0" * 60)])
def test_no_bytes_in_place_of_a_library_fail_a_program(build, tmp_path, content):
    build(tmp_path / "kept")
    [path] = (tmp_path / "kept").iterdir()
    path.write_bytes(content)
    assert build(tmp_path / "kept") == (1, 2)


def test_another_flag_or_version_is_another_library(tmp_path):
    parts = ("name.so", b"source", [["cuda"], {}])
    names = {kept_host._digest(*parts), kept_host._digest("b.so", *parts[1:]), kept_host._digest("name.so", b"", parts[2]),
             kept_host._digest(*parts[:2], [["cuda", "x"], {}])}  # fmt: skip
    assert len(names) == 4 and kept_host._digest(*parts) in names


def test_a_builder_of_somebody_else_is_asked_each_time(build, tmp_path, monkeypatch):
    asked = []
    own = triton_build._build

    def theirs(name, src, srcdir, *rest):
        asked.append(name)
        monkeypatch.setattr(triton.knobs.build, "impl", None)
        made = own(name, src, srcdir, *rest, [])
        monkeypatch.setattr(triton.knobs.build, "impl", theirs)
        return made

    build(tmp_path / "kept")
    monkeypatch.setattr(triton.knobs.build, "impl", theirs)
    build(tmp_path / "kept")
    assert asked == ["of_host"]


def test_uninstall_takes_the_builder_back(tmp_path):
    before = triton_build._build
    install.install(binaries=tmp_path)
    assert triton_build._build is not before
    install.uninstall()
    assert triton_build._build is before
