"""The layers, and the one home of each concern."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest
from trees import nodes_of, tree_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "autotuned"
C_FILES = sorted((PACKAGE / "launch" / "c").glob("*.[ch]"))
LAUNCHER = PACKAGE / "launch" / "c" / "module.c"
ENTRY = PACKAGE / "__main__.py"  # which is the command line's, and alone imports it
LIBRARY = sorted(
    path for path in PACKAGE.rglob("*.py") if path != ENTRY and path.parent.name not in ("kernels", "startup")
)
EVERYTHING = sorted([*LIBRARY, ENTRY, *(PACKAGE / "kernels").glob("*.py"), *(ROOT / "cli").rglob("*.py")])

# What lies at the top of `autotuned/`, then its packages: each imports from those before it, also where only types need
# it, and from itself, where no file leads back to itself.
RANKS = [
    {"errors", "env", "options", "events", "disk", "typed_json", "_native", "_startup", "experimental"},
    {"gpu"},
    {"key"},
    {"triton_compat", "store"},
    {"remote", "tunable", "rules"},
    {"space", "launch", "configfiles"},
    {"search", "binaries"},
    {"resolve"},
    {"recording", "distributed", "serving"},
    {"api"},
    {"dropin", "offline"},
    {"__init__"},
]
RANK = {name: rank for rank, names in enumerate(RANKS) for name in names}


def name_of(path: Path) -> str:
    """A module's name, without that of the package: that of a package is its folder's."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {name_of(path): path for path in LIBRARY}


@functools.cache
def imports_of(path: Path) -> frozenset[str]:
    """Modules of this package that a file imports: at its top, within functions, lazily, or for types only."""
    found: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "autotuned":
            names = {f"{node.module}.{alias.name}".removeprefix("autotuned.") for alias in node.names}
            found |= {name if name in MODULES else node.module.removeprefix("autotuned.") for name in names}
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("later", "map"):
            found.update(str(text.value) for text in ast.walk(node) if isinstance(text, ast.Constant))
        elif isinstance(node, ast.Import):
            found.update(alias.name.removeprefix("autotuned.") for alias in node.names)
    return frozenset({name for name in found if name.split(".")[0] in {*RANK, "cli", "kernels", "configs"}})


def test_the_top_of_the_package_is_a_few_files_and_the_packages():
    files = [path.name for path in PACKAGE.iterdir() if path.is_file() and path.suffix != ".so"]
    assert len(files) <= 13
    assert {path.name for path in PACKAGE.glob("*/__init__.py")} == {"__init__.py"}
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {path.stem for path in PACKAGE.glob("*.py")} | folders == {*RANK, "kernels", ENTRY.stem}


def test_the_design_page_lists_the_packages_in_this_order():
    listed = re.findall(r"^\| `(\w+)/` \|", (ROOT / "docs" / "design.md").read_text(), re.MULTILINE)
    ranks = [RANK[name] for name in listed if name in RANK]
    assert ranks == sorted(ranks) and set(listed) - RANK.keys() == {"kernels", "cli"}


def test_imports_point_down():
    upward = {}
    for module, path in MODULES.items():
        own = module.split(".")[0]
        home = RANKS[0] if own in RANKS[0] else {own}
        packages = {name.split(".")[0] for name in imports_of(path)} - home
        upward[module] = {name for name in packages if RANK.get(name, 99) >= RANK[own]}
    assert {module: names for module, names in upward.items() if names} == {}


def test_no_imports_run_in_a_circle():
    ahead = {name: {other for other in imports_of(path) if other in MODULES} for name, path in MODULES.items()}
    while done := {name for name, others in ahead.items() if not others & ahead.keys()}:
        ahead = {name: others for name, others in ahead.items() if name not in done}
    assert {name: others & ahead.keys() for name, others in ahead.items()} == {}


def test_nothing_imports_the_command_line():
    others = [path for path in EVERYTHING if not path.is_relative_to(ROOT / "cli")]
    assert [path for path in others if "cli" in {name.partition(".")[0] for name in imports_of(path)}] == [ENTRY]


def uses(pattern: str, files=EVERYTHING) -> set[str]:
    """Files whose code, docstrings and comments left out, matches a pattern."""
    return {path.relative_to(ROOT).as_posix() for path in files if may_use(pattern, path) and uses_it(pattern, path)}


def may_use(pattern: str, path: Path) -> bool:
    """Whether there is a match in all of the text: taking it apart costs a hundred times as much."""
    return re.search(pattern, joined(path)) is not None


@functools.cache
def joined(path: Path) -> str:
    return re.sub(r"\s*([.(])\s*", r"\1", path.read_text())


def uses_it(pattern: str, path: Path) -> bool:
    return re.search(pattern, code_of(path)) is not None


@functools.cache
def code_of(path: Path) -> str:
    """A file's code without docstrings and comments."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            body[0].value.value = ""
    return ast.unparse(tree)


@pytest.mark.parametrize(
    ("pattern", "home"),
    [
        pytest.param(r"os\.(environ|getenv|putenv)", {"autotuned/env.py"}, id="environment variables"),
        pytest.param(r"\bos\.replace\b|\btempfile\b", {"autotuned/disk.py"}, id="temporary files and replace"),
        pytest.param(r"\bfilelock\b", {"autotuned/store/locks.py"}, id="file locks"),
        pytest.param(r"\bplatformdirs\b", {"autotuned/disk.py"}, id="the user's cache folder"),
        pytest.param(
            r"triton\._C|triton\.runtime\.(jit|driver|cache|interpreter)|triton\.backends|triton\.compiler|"
            r"device_caches|used_global_vals|pre_run_hooks|packed_metadata",
            {"autotuned/triton_compat/", "autotuned/binaries/loaded.py"},
            id="Triton's private names",
        ),
        pytest.param(r"nvmlInit|nvidia-ml|nvml\.dll", {"autotuned/gpu/nvml.py"}, id="NVIDIA's management library"),
        pytest.param(r"\bexec\(", {"autotuned/launch/codegen.py", "autotuned/launch/table.py"}, id="generated code"),
        pytest.param(
            r"zlib\.decompress|json\.load\(|\.read_bytes\(\)|\bopen\([^)]*['\"]rb['\"]",
            {"autotuned/disk.py", "autotuned/triton_compat/fingerprint.py", "cli/commands/record.py"},
            id="reading files: the reader with limits; Triton's own, hashed; whether a line was added",
        ),
        pytest.param(r"\beval\(|\b(pickle|marshal)\b", set(), id="nothing that runs stored data"),
    ],
)
def test_each_concern_has_one_home(pattern, home):
    folders = tuple(name for name in home if name.endswith("/"))
    found = {f"{path.rpartition('/')[0]}/" if path.startswith(folders) else path for path in uses(pattern)}
    assert found == home


def test_the_library_never_prints():
    allowed = {
        "autotuned/api/triton_listener.py",  # what Triton prints, where Triton's own variable says so
        "autotuned/offline/workers/worker.py",  # programs of their own, whose standard output their parent reads
        "autotuned/offline/workers/process.py",  # which asks where this process prints to
        "autotuned/offline/workers/compile_server.py",
    }
    quiet = [path for path in EVERYTHING if not path.is_relative_to(ROOT / "cli")]
    assert uses(r"\bprint\(|sys\.(stdout|stderr)", quiet) <= allowed


def test_no_file_holds_more_than_one_concern_can_need():
    long = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in [*EVERYTHING, *C_FILES]}
    assert {name: lines for name, lines in long.items() if lines > 450} == {}


def test_no_package_is_too_large_to_know():
    sizes: dict[str, int] = {}
    for path in [*EVERYTHING, *C_FILES]:
        folder = path.parent.relative_to(ROOT).as_posix()
        sizes[folder] = sizes.get(folder, 0) + len(path.read_text().splitlines())
    assert {folder: lines for folder, lines in sizes.items() if lines > 3500} == {}


def test_the_c_launcher_includes_each_part_after_those_that_it_says_it_relies_on():
    included = re.findall(r'^#include "(\w+\.h)"$', LAUNCHER.read_text(), re.MULTILINE)
    assert sorted(included) == [path.name for path in C_FILES if path != LAUNCHER]
    for path in C_FILES:
        head = path.read_text().split("*/", 1)[0]
        for other in re.findall(r"`(\w+\.h)`", head):
            assert included.index(other) < included.index(path.name), f"{path.name} relies on {other}"


def test_functions_are_short():
    lengths = []
    for path in [*LIBRARY, *(ROOT / "cli").rglob("*.py")]:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef):
                code = node.body[ast.get_docstring(node) is not None :]
                lengths.append(node.end_lineno - code[0].lineno + 1 if code else 0)
    lengths.sort()
    assert lengths[len(lengths) // 2] < 10
    assert lengths[len(lengths) * 9 // 10] < 30
    assert lengths[-1] <= 60


def test_every_module_says_in_one_sentence_what_lives_there():
    first = {path: (ast.get_docstring(tree_of(path)) or "").split("\n\n")[0] for path in EVERYTHING}
    assert [path for path, text in first.items() if not text.rstrip(".:").strip() or text[-1] not in ".:"] == []
