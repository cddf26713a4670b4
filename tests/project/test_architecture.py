"""The layers, and the one home of each concern."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = sorted(
    path
    for path in (ROOT / "autotuned").rglob("*.py")
    if path.parent.name not in ("kernels", "startup")
    and (path.name != "__init__.py" or path.parent == ROOT / "autotuned")
)
C_FILES = sorted((ROOT / "autotuned" / "launch" / "c").glob("*.[ch]"))
LAUNCHER = ROOT / "autotuned" / "launch" / "c" / "module.c"
EVERYTHING = sorted([*LIBRARY, *(ROOT / "autotuned" / "kernels").glob("*.py"), *(ROOT / "cli").rglob("*.py")])

# Each module may import those of its own rank only where listed together, and of lower ranks freely.
RANKS = [
    {
        *(
            "search.benchmark",
            "launch.codegen",
            "resolve.counters",
            "errors",
            "search.do_bench",
            "_frozen",
            "_lazy",
            "store.mounts",
            "gpu.nvml",
        ),
        *("search.race", "tunable.readers", "key.source_text", "resolve.hooks", "triton_compat.ttir", "launch.verify"),
    },
    {
        "gpu.clocks",
        "env",
        "search.failures",
        "gpu.inventory",
        "distributed.ranks",
        "key.reach",
        "triton_compat.versions",
        "typed_json",
    },
    {
        *(
            "store.conditions",
            "gpu.device",
            "disk",
            "json_fields",
            "key.held",
            "key.key",
            "search.timers",
            "configfiles.nearest_shape",
            "key.naming",
        ),
        *("configfiles.policy", "triton_compat.kernel", "gpu.visible", "search.parallelism"),
    },
    {
        *(
            "key.nearest_key",
            "launch.grid_program",
            "key.classes",
            "triton_compat.compiled",
            "triton_compat.fingerprint",
            "triton_compat.frontend",
            "store.journal",
        ),
        *("key.stored_key", "store.locks", "triton_compat.cache", "resolve.advice", "recording.tensors", "key.walk"),
    },
    {
        "recording.file",
        "launch.driver_call",
        "store.gc",
        "key.tensors",
        "store.record",
        "search.shared_memory",
        "key.source",
    },
    {
        "launch.table",
        "recording.arguments",
        "configfiles.file",
        "store.logbook",
        "store.lookup",
        "key.opaque",
        "search.snapshots",
    },
    {"tunable.configs", "search.check", "launch.launcher", "store.records", "configfiles.unreachable"},
    {
        "search.gpu_lock",
        "api.triton_listener",
        "tunable.mismatch",
        "recording.grids",
        "store.listing",
        "tunable.argument_names",
        "search.poison",
    },
    {"configfiles.lookup", "search.warm_start", "tunable.kernel"},
    {
        "launch.bound",
        "search.compile",
        "dropin.empties",
        "tunable.function",
        "search.job",
        "resolve.request",
        "configfiles.writer",
    },
    {"search.trials", "api.decorator", "resolve.fallback", "search.protection", "resolve.sources"},
    {
        "distributed.agreement",
        "search.comparison",
        "resolve.context",
        "configfiles.exchange",
        "resolve.explain",
        "search.sampling",
        "dropin.widened",
    },
    {"configfiles.audit", "dropin.stock_tuner", "search.search"},
    {"resolve.searcher", "dropin.seeded"},
    {"resolve.chooser"},
    {"recording.recorder"},
    {"resolve.tuner"},
    {"api.function", "api.tuned"},
    {"offline.targets", "api.heuristics", "api.freeze", "dropin.replaced"},
    {"dropin.fronted", "offline.verify", "offline.replay"},
    {"dropin.install"},
    {"dropin.import_hook"},
    {"__init__"},
]
RANK = {name: rank for rank, names in enumerate(RANKS) for name in names}
# Imported inside a function: `tuned` imports triton, and a program has either kernels or plain callables.
ALLOWED_UP = {("api.decorator", "api.tuned"), ("api.decorator", "api.function")}


def name_of(path: Path) -> str:
    """A module's name in `RANKS`: by its folders, without that of the package."""
    return ".".join(path.relative_to(ROOT / "autotuned").with_suffix("").parts)


def imports_of(path: Path) -> set[str]:
    """Modules of this package that a file imports, type-checking imports left out."""
    tree = tree_of(path)
    typing_only = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "autotuned":
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("later", "map"):
            found.update(f"autotuned.{text.value}" for text in ast.walk(node) if isinstance(text, ast.Constant))
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    below = {name.removeprefix("autotuned.") for name in found if name.startswith("autotuned.")}
    top = {name.split(".")[0] for name in below}
    return (below & RANK.keys()) | (top & {"cli", "kernels", "configs"})


def test_every_module_has_a_rank():
    assert {name_of(path) for path in LIBRARY} == set(RANK)


@pytest.mark.parametrize("path", LIBRARY, ids=name_of)
def test_imports_point_down(path):
    up = {name for name in imports_of(path) if RANK.get(name, 99) >= RANK[name_of(path)]}
    assert {name for name in up if (name_of(path), name) not in ALLOWED_UP} == set()


@pytest.mark.parametrize("path", EVERYTHING, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_imports_the_command_line(path):
    assert path.is_relative_to(ROOT / "cli") or "cli" not in imports_of(path)


def uses(pattern: str, files=EVERYTHING) -> set[str]:
    """Files whose code, docstrings and comments left out, matches a pattern."""
    return {path.relative_to(ROOT).as_posix() for path in files if may_use(pattern, path) and uses_it(pattern, path)}


def may_use(pattern: str, path: Path) -> bool:
    """Whether there is a match in all of the text: taking it apart costs a hundred times as much."""
    return re.search(pattern, re.sub(r"\s*([.(])\s*", r"\1", path.read_text())) is not None


def uses_it(pattern: str, path: Path) -> bool:
    return re.search(pattern, code_of(path)) is not None


@functools.lru_cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.lru_cache
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
            {
                "autotuned/triton_compat/kernel.py",
                "autotuned/triton_compat/fingerprint.py",
                "autotuned/triton_compat/compiled.py",
                "autotuned/triton_compat/frontend.py",
                "autotuned/triton_compat/cache.py",
            },
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
    assert uses(pattern) == home


def test_the_library_never_prints():
    # `api/triton_listener.py` prints what Triton prints, where Triton's own variable says so.
    quiet = [path for path in EVERYTHING if not path.is_relative_to(ROOT / "cli") and path.name != "announce.py"]
    assert uses(r"\bprint\(|sys\.(stdout|stderr)", quiet) == set()


def test_no_file_holds_more_than_one_concern_can_need():
    long = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in [*EVERYTHING, *C_FILES]}
    assert {name: lines for name, lines in long.items() if lines > 460} == {}


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
                lengths.append(node.end_lineno - node.body[0].lineno + 1 if node.body else 0)
    lengths.sort()
    assert lengths[len(lengths) // 2] < 10
    assert lengths[len(lengths) * 9 // 10] < 30


@pytest.mark.parametrize("path", EVERYTHING, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_module_says_in_one_sentence_what_lives_there(path):
    first = (ast.get_docstring(tree_of(path)) or "").split("\n\n")[0]
    assert first.rstrip(".:").strip() != ""
    assert first.endswith((".", ":"))
