"""Options from environment variables, modes and logging; the only file that uses `os.environ`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from autotuned import _native

Mode = Literal["auto", "serve", "strict", "search", "off"]
Launcher = Literal["c", "python", "triton", "verify"]
OnSeal = Literal["error", "warn"]
MODES: tuple[Mode, ...] = get_args(Mode)
LAUNCHERS: tuple[Launcher, ...] = get_args(Launcher)
SEALS: tuple[OnSeal, ...] = get_args(OnSeal)
DEVICES = ("cuda", "interpreter")
INSTALLS = ("seed", "replace", "race", "replace-race")
log = logging.getLogger("autotuned")
SAID = 4096  # warnings that a process, or one tuned function, remembers
_said: set[str] = set()
_Value = TypeVar("_Value", bound=str)
_Default = TypeVar("_Default", bound=str)


class _Block:
    """An open `with autotuned.mode(...)`. Compared by identity: blocks of one mode may be left in any order."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode


# Modes pushed by `with autotuned.mode(...)`. Process-wide: autograd runs backward kernels on its own threads.
_pushed: list[_Block] = []
_on_mode_change: list[Callable[[], None]] = []


def get(name: str) -> str:
    """The value of a variable, stripped; "" if unset."""
    # Not through `os.environ`, which raises and catches an error for each unset variable.
    value = os.environ._data.get(_spelled(name))  # type: ignore[attr-defined]
    return "" if value is None else _read(value)


@lru_cache(maxsize=256)
def _read(value: Any) -> str:
    return os.environ.decodevalue(value).strip()


@lru_cache(maxsize=256)
def _spelled(name: str) -> Any:
    return os.environ.encodekey(name)


def _choice(name: str, allowed: tuple[_Value, ...], default: _Default) -> _Value | _Default:
    value = get(name)
    if not value:
        return default
    value = value.lower()
    for one in allowed:
        if value == one:
            return one
    otherwise = repr(default) if default else "the default"
    raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}. Unset it for {otherwise}.")


def current_mode() -> Mode:
    """The mode in force: the innermost `autotuned.mode(...)`, otherwise `AUTOTUNED_MODE`, otherwise "auto"."""
    innermost = _pushed[-1:]  # read once: another thread may leave its block
    return innermost[0].mode if innermost else _choice("AUTOTUNED_MODE", MODES, "auto")


@contextmanager
def mode(name: Mode) -> Iterator[None]:
    """Set what calls do when nothing is stored for them, process-wide, inside a `with` block.

    Args:
        name: "auto", "serve", "strict", "search" or "off"; see `docs/modes.md`.

    Raises:
        ValueError: `name` is not a mode.
    """
    if name not in MODES:
        raise ValueError(f"autotuned.mode: expected one of {', '.join(MODES)}, got {name!r}.")
    block = _Block(name)
    _pushed.append(block)
    try:
        _tell_mode_change()
        yield
    finally:
        _pushed.remove(block)  # not a plain pop: threads and tasks may leave their blocks in any order
        _tell_mode_change()


def on_mode_change(callback: Callable[[], None]) -> None:
    """Call `callback` whenever `autotuned.mode` is entered or left, to drop bound choices."""
    _on_mode_change.append(callback)


def _tell_mode_change() -> None:
    for callback in _on_mode_change:
        callback()


# Prefixes of variables that may change what Triton compiles; Triton itself knows which ones do.
_CODE_PREFIXES = (b"TRITON_", b"LLVM_", b"MLIR_", b"DISABLE_", b"NVPTX_", b"PTXAS_", b"AMDGCN_", b"ALLOW_", b"STORE_",
                  b"USE_", b"ENABLE_")  # fmt: skip
_on_code_change: list[Callable[[], None]] = []


def on_code_change(callback: Callable[[], None]) -> None:
    """Call `callback` just before this process sets or unsets a variable that may change what Triton compiles.

    Uses an audit hook: it costs hits nothing, and each of Python's events, such as `open`, `import` or `id`, 0.04 us
    (0.12 without the C extension; tests/bench/key.py). Changes by C code are not detected.
    """
    if not _on_code_change and _native.extension is not None:
        _native.extension.hear_environment(_hear)
    elif not _on_code_change:
        sys.addaudithook(_audit)
    _on_code_change.append(callback)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event == "os.putenv" or event == "os.unsetenv":
        _hear(args[0])


def _hear(name: bytes | str) -> None:
    if (name if isinstance(name, bytes) else name.encode()).startswith(_CODE_PREFIXES):
        for callback in _on_code_change:
            callback()


@lru_cache(maxsize=1)
def stamp() -> Callable[[], int | None]:
    """A function that returns a number, which changes with any environment variable; None without the C extension."""
    return _native.extension.environment if _native.extension is not None else lambda: None


def launcher() -> Launcher | Literal[""]:
    """The requested launch path: "c", "python", "triton", "verify", or "" for the fastest available."""
    return _choice("AUTOTUNED_LAUNCHER", LAUNCHERS, "")


def command_line_device() -> str:
    """The device requested for the command line: "cuda", "interpreter", or "" for the available one."""
    return _choice("AUTOTUNED_DEVICE", DEVICES, "")


def install_kind() -> str:
    """What `autotuned run` tells its processes to install: one of `INSTALLS`, or ""."""
    return _choice("AUTOTUNED_INSTALL", INSTALLS, "")


@contextmanager
def cache_dir_set(folder: Path) -> Iterator[None]:
    """Use another cache folder inside a `with` block."""
    with _put_back("AUTOTUNED_CACHE_DIR"):
        os.environ["AUTOTUNED_CACHE_DIR"] = str(folder)
        yield


def kept_binaries() -> str | None:
    """The folder in which `autotuned run` tells its processes to keep compiled kernels, or None."""
    return get("AUTOTUNED_BINARIES") or None


def seal_kind() -> OnSeal | Literal[""]:
    """How a sealed process treats a search or compilation: one of `SEALS`, or "" if it is not sealed."""
    return _choice("AUTOTUNED_SEAL", SEALS, "")


def is_of_the_process(value: Any) -> bool:
    """Whether a value is the process's environment, arguments, path or modules, which are not part of the code."""
    return any(value is one for one in (os.environ, sys.argv, sys.path, sys.modules))


def race_budget_s() -> float | None:
    """Seconds that a race may take in processes of `autotuned run`; None if unset or no number above 0."""
    try:
        seconds = float(get("AUTOTUNED_RACE_BUDGET_S") or 0)
    except ValueError:
        return None
    return seconds if seconds > 0 else None


def for_command(kind: str, startup: str, binaries: str = "", budget_s: float | None = None) -> dict[str, str]:
    """The environment for a command of `autotuned run`; its Pythons first run the sitecustomize.py in `startup`."""
    path = filter(None, (startup, os.environ.get("PYTHONPATH")))  # not split: an empty part is the working directory
    more = {"AUTOTUNED_BINARIES": os.path.abspath(binaries)} if binaries else {}
    more |= {} if budget_s is None else {"AUTOTUNED_RACE_BUDGET_S": str(budget_s)}
    return {**os.environ, **more, "AUTOTUNED_INSTALL": kind, "PYTHONPATH": os.pathsep.join(path)}


def compile_workers() -> int | None:
    """Number of configs that may compile at once; None if unset, ValueError if it is not a number."""
    text = get("AUTOTUNED_COMPILE_WORKERS")
    if text and not text.isdecimal():
        problem = f"AUTOTUNED_COMPILE_WORKERS: expected a number of 0 or more, got {text!r}. Unset it for the default."
        raise ValueError(problem)
    return int(text) if text else None


def say_if_workers_are_wrong() -> None:
    """Warn once about a wrong `AUTOTUNED_COMPILE_WORKERS` where nothing uses it; elsewhere it is an error."""
    try:
        compile_workers()
    except ValueError as error:
        message = "AUTOTUNED_COMPILE_WORKERS is ignored here, where nothing is compiled ahead: %s"
        warn_once("AUTOTUNED_COMPILE_WORKERS", message, error)


def notebook() -> str:
    """The notebook of this process, as Jupyter's server reports it; "" if unknown."""
    return get("JPY_SESSION_NAME")


# Processes per host, as set by torchrun, Slurm, Open MPI and MPICH.
_RANKS = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def local_ranks() -> int:
    """Number of processes of this job on this host, at least 1."""
    texts = (get(name).partition("(")[0] for name in _RANKS)  # Slurm writes "4(x2)" for two hosts of four
    return max([1, *(int(text) for text in texts if text.isdecimal())])


def config_path_setting() -> str:
    """`AUTOTUNED_CONFIG_PATH` as given; "" if unset."""
    return get("AUTOTUNED_CONFIG_PATH")


def config_path() -> list[Path]:
    """Folders of `AUTOTUNED_CONFIG_PATH`, in order, `~` expanded."""
    return [Path(part).expanduser() for part in config_path_setting().split(os.pathsep) if part.strip()]


def cache_dir_setting() -> str:
    """`AUTOTUNED_CACHE_DIR` as given; "" if unset."""
    return get("AUTOTUNED_CACHE_DIR")


def record_path() -> Path | None:
    """The file of `AUTOTUNED_RECORD`, absolute, `~` expanded; None if it is unset or names a store."""
    setting = get("AUTOTUNED_RECORD")
    return Path(setting).expanduser().absolute() if setting and not record_store() else None


def record_store() -> str:
    """URL of the store named by `AUTOTUNED_RECORD`, `-` for that of `AUTOTUNED_STORE`; "" for a file or if unset."""
    setting = get("AUTOTUNED_RECORD")
    return setting if setting == "-" or "://" in setting else ""


def is_recorded() -> bool:
    """Whether `AUTOTUNED_RECORD` is set."""
    return bool(get("AUTOTUNED_RECORD"))


def for_recording(path: Path) -> dict[str, str]:
    """This process's environment with `AUTOTUNED_RECORD` set, for a command to record."""
    return {**os.environ, "AUTOTUNED_RECORD": str(path)}


def unstripped(names: Iterable[str]) -> dict[str, str]:
    """Unmodified values of the variables that are set, even if empty."""
    return {name: os.environ[name] for name in names if name in os.environ}


def changed(settings: Mapping[str, str | None]) -> dict[str, str]:
    """This process's environment with some variables changed, for a new process; None removes a variable."""
    merged = {**os.environ, **settings}
    return {name: value for name, value in merged.items() if value is not None}


# Options of this package that are valid on every host, and suffixes of variables that name a local path.
_ON_NODES = ("AUTOTUNED_MODE", "AUTOTUNED_LOG", "AUTOTUNED_LAUNCHER", "AUTOTUNED_COMPILE_WORKERS", "AUTOTUNED_DEVICE")
_PLACES = ("_DIR", "_HOME", "_PATH")


def for_nodes() -> dict[str, str | None]:
    """The part of this environment that is also valid on other hosts: no local folders or files."""
    code = tuple(prefix.decode() for prefix in _CODE_PREFIXES)
    return {
        name: value
        for name, value in os.environ.items()
        if name in _ON_NODES or (name.startswith(code) and not name.endswith(_PLACES))
    }


connected: list[Any] = []  # shared stores given to `autotuned.connect`; the last one is in force


def has_store() -> bool:
    """Whether a shared store is configured."""
    return bool(connected or get("AUTOTUNED_STORE"))


def store_url() -> str:
    """URL of the shared store, secrets included; "" for none."""
    return get("AUTOTUNED_STORE")


def store_settings() -> dict[str, Any]:
    """The environment's settings of the shared store, as arguments of `autotuned.connect`; ValueError if invalid."""
    wait = get("AUTOTUNED_STORE_WAIT_S")
    try:
        given = {"wait_s": float(wait)} if wait else {}
    except ValueError:
        problem = f"AUTOTUNED_STORE_WAIT_S: expected seconds, got {wait!r}. Unset it for 0.3."
        raise ValueError(problem) from None
    read_only = _choice("AUTOTUNED_STORE_READ_ONLY", ("0", "1"), "0") == "1"
    # An empty key differs from an unset one: if a secret is not mounted, unsigned records must not be trusted.
    key = get("AUTOTUNED_STORE_KEY") if "AUTOTUNED_STORE_KEY" in os.environ else None
    return {"key": key, "read_only": read_only, **given}


def redacted(url: str) -> str:
    """A URL without its secrets: user, password and query."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return "***" if url else ""
    users, at, rest = rest.rpartition("@")  # before the others: a password may contain any character
    if "?" in users:  # in the password, unless the @ is part of the query
        return f"{scheme}://***"
    rest, hash_mark, fragment = rest.partition("#")
    rest, query, _ = rest.partition("?")
    shown = "".join(letter for letter in fragment if letter.isalnum() or letter in "._-")
    fragment = fragment if shown == fragment else "***"
    return f"{scheme}://{'***@' * bool(at)}{rest}{query}{'***' * bool(query)}{hash_mark}{fragment}"


def has_columns() -> bool:
    """Whether `COLUMNS` gives the terminal's width."""
    return bool(get("COLUMNS"))


_chose_interpreter = False  # whether `use_interpreter` was called in this process


def use_interpreter() -> None:
    """Make Triton interpret kernels on the CPU; RuntimeError if it is already imported, since it decides at import."""
    global _chose_interpreter
    if "triton" in sys.modules and not (interpreter_requested() or _chose_interpreter):
        raise RuntimeError("Triton was imported before TRITON_INTERPRET=1 was set: set it before the first import.")
    _chose_interpreter = True
    os.environ["TRITON_INTERPRET"] = "1"


@contextmanager
def _put_back(name: str) -> Iterator[None]:
    before = os.environ.get(name)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        elif os.environ.get(name) != before:  # setting it drops what is bound
            os.environ[name] = before


@contextmanager
def interpreter_put_back() -> Iterator[None]:
    """Restore `TRITON_INTERPRET` after a `with` block; kernels decorated inside stay interpreted."""
    with _put_back("TRITON_INTERPRET"):
        yield


def interpreter_requested() -> bool:
    """Whether `TRITON_INTERPRET` asks for Triton's interpreter."""
    return get("TRITON_INTERPRET").lower() in ("1", "true", "on", "yes", "y")


def triton_tool(name: str) -> str:
    """The path in one of Triton's tool variables, such as `TRITON_PTXAS_PATH`; "" if unset."""
    return get(name)


def configure_logging() -> None:
    """Log to stderr at `AUTOTUNED_LOG`'s level; does nothing if that is unset."""
    level = get("AUTOTUNED_LOG").upper()
    if not level:
        return
    if not isinstance(logging.getLevelName(level), int):
        log.warning("AUTOTUNED_LOG: expected debug, info, warning or error, got %r; ignored.", level.lower())
        return
    if not any(handler.get_name() == log.name for handler in log.handlers):
        handler = logging.StreamHandler()
        handler.set_name(log.name)
        handler.setFormatter(logging.Formatter("autotuned: %(message)s"))
        log.addHandler(handler)
    log.setLevel(level)
    log.propagate = False


def warn_once(about: str, message: str, *args: object, said: set[str] = _said) -> None:
    """Log a warning once per `about`, for this process or for the owner of `said`."""
    if about not in said:
        if len(said) >= SAID:  # bounds memory; warnings may then repeat
            said.clear()
        said.add(about)
        log.warning(message, *args)


@contextmanager
def log_level(level: str) -> Iterator[None]:
    """Log to stderr at a level inside a `with` block, here and in child processes."""
    before = log.level, log.propagate, list(log.handlers)
    with _put_back("AUTOTUNED_LOG"):
        os.environ["AUTOTUNED_LOG"] = level
        try:
            configure_logging()
            yield
        finally:
            level_before, log.propagate, log.handlers[:] = before
            log.setLevel(level_before)


def temporary_folders() -> list[str]:
    """Folders for temporary files, found without `tempfile`, which would write a file."""
    named = (os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return [os.path.realpath(folder) for folder in (*named, "/tmp", "/var/tmp") if folder]
