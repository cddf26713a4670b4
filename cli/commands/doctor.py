"""`autotuned doctor`: shows what this installation finds and uses, and its problems."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import autotuned
from autotuned import env, options
from autotuned._startup import later
from autotuned.errors import AutotunedError
from autotuned.store import layout
from autotuned.triton_compat import versions as supported
from autotuned.typed_json import Json

from .. import terminal

if TYPE_CHECKING:
    from autotuned.configfiles import file, lookup, writer
    from autotuned.offline.release import shared
else:
    file, lookup, writer = map(later, ("configfiles.file", "configfiles.lookup", "configfiles.writer"))
    shared = later("offline.release.shared")

T = TypeVar("T")


def doctor(as_json: terminal.AsJson = False) -> None:
    """Show devices, toolchain, folders and options.

    The last lines list the problems of the installation.
    """
    report = _Report()
    data = report.collect()
    if as_json:
        terminal.print_json(data)
    else:
        _print(data)


class _Report:
    """Collects facts; a failing one becomes a problem."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def _ask(self, what: str, question: Callable[[], T]) -> T | None:
        # Any part of an installation may be broken; report the rest nevertheless.
        try:
            return question()
        except Exception as error:
            text = " ".join(str(error).split())
            if isinstance(error, AutotunedError):  # its text says all
                said = text if text.startswith(f"{what}: ") else f"{what}: {text}"
            else:
                said = text if text.startswith("AUTOTUNED_") else f"{what}: {type(error).__name__}: {text}"
            self.problems += [said] if said not in self.problems else []
            return None

    def collect(self) -> dict[str, Json]:
        versions: dict[str, Json] = {"autotuned": autotuned.__version__, "python": platform.python_version()}
        versions["torch"] = self._ask("torch", _torch_version)
        devices, no_gpu = self._devices()
        versions["triton"] = self._ask("triton", _triton_version)
        self.problems += filter(None, (supported.fault(name, versions[name] or "") for name in supported.OLDEST))
        arch = devices[0]["arch"] if devices else "sm_90"  # without a GPU, to test whether ptxas runs
        versions["ptxas"] = self._ask("ptxas", lambda: _ptxas_version(arch)) if versions["triton"] else None
        launcher, reason = self._ask("launcher", _launcher) or (None, None)
        return {
            "versions": versions,
            "devices": devices,
            "no_gpu": no_gpu,
            "launcher": launcher,
            "launcher_reason": reason,
            "mode": self._ask("mode", env.current_mode),
            "cache": self._cache(),
            "store": self._store(),
            "config_folders": self._folders(),
            "options": self._options(),
            "problems": self.problems,
        }

    def _devices(self) -> tuple[list[dict[str, Json]], str | None]:
        if "torch" not in sys.modules:
            return [], "torch cannot be imported"
        return self._ask("devices", _gpus) or [], self._ask("CUDA", _why_no_gpu)

    def _cache(self) -> dict[str, Json]:
        root = self._ask("cache folder", layout.root)
        if root is None:
            return {"path": None, "unwritable": None, "records": None, "bytes": None}
        sizes = self._ask("records", lambda: [path.stat().st_size for path in root.glob("v*/*/*.json")])
        unwritable = self._ask("cache folder", lambda: writer.unwritable(root))
        if unwritable:
            self.problems.append(f"cache folder: cannot be written: {unwritable}. Set AUTOTUNED_CACHE_DIR.")
        return {
            "path": str(root),
            "unwritable": unwritable or None,
            "records": None if sizes is None else len(sizes),
            "bytes": None if sizes is None else sum(sizes),
        }

    def _folders(self) -> list[dict[str, Json]]:
        found = self._ask("config folders", _config_folders) or []
        self.problems += [f"config folder {one['path']}: it does not exist." for one in found if one["files"] is None]
        return found

    def _store(self) -> dict[str, Json] | None:
        url = env.store_url()
        found = self._ask("shared store", lambda: shared.probe(url)) if url else None
        if found is not None and found.problem:
            what = "cannot be read" if found.round_trip_ms is None else "cannot be written"
            self.problems.append(f"shared store {found.url}: it {what}: {found.problem}")
        return None if found is None else dict(vars(found))

    def _options(self) -> list[dict[str, Json]]:
        for variable in (env.command_line_device, env.compile_workers, env.seal_kind, env.install_kind):
            self._ask("options", variable)
        values = options.values()
        return [
            {"name": option.name, "value": values[option.name], "default": option.default, "help": option.help}
            for option in options.OPTIONS
        ]


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def _triton_version() -> str:
    from autotuned.triton_compat import kernel

    return kernel.version()


def _ptxas_version(arch: str) -> Json:
    from autotuned.triton_compat import fingerprint

    return fingerprint.of(arch, layout.root())["ptxas"]


def _launcher() -> tuple[str, str]:
    from autotuned.launch import launcher

    return launcher.in_use()


def _gpus() -> list[dict[str, Json]]:
    import torch

    from autotuned.gpu import device

    if not torch.cuda.is_available():
        return []
    found = [device.cuda(index) for index in range(torch.cuda.device_count())]
    return [{**gpu.to_json(), "slug": gpu.slug} for gpu in found]


def _why_no_gpu() -> str | None:
    """Why torch finds no GPU; None if there is one."""
    import torch

    if torch.cuda.is_available():
        return None
    if not torch.version.cuda and not torch.version.hip:
        return f"torch {torch.__version__} is built without GPU support"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return " ".join(str(error).split())
    return "torch.cuda.is_available() is False"


def _config_folders() -> list[dict[str, Json]]:
    return [
        {"path": str(folder), "files": _count(folder) if folder.is_dir() else None}
        for folder in lookup.config_folders()
    ]


def _count(folder: Any) -> int:
    devices = [device for device in folder.iterdir() if device.is_dir() and device.name != file.SCHEMAS]
    return sum(file.name.endswith(".json") for device in devices for file in device.iterdir())


def _print(data: dict[str, Json]) -> None:
    rows = [(name, version or "not usable") for name, version in data["versions"].items()]
    rows[0] = ("autotuned", f"{autotuned.__version__}, in {os.path.dirname(autotuned.__file__)}")
    rows += [
        ("device", f"{gpu['name']}, {gpu['arch']}, {gpu['sm_count']} SMs: {gpu['slug']}") for gpu in data["devices"]
    ]
    if data["no_gpu"]:
        rows.append(("device", f"no GPU: {data['no_gpu']}. `tune` uses Triton's interpreter."))
    rows.append(("launcher", f"{data['launcher'] or 'n/a'}: {data['launcher_reason'] or 'see problems'}"))
    rows.append(("mode", data["mode"] or "n/a"))
    rows.append(("cache", _cache_words(data["cache"])))
    if data["store"]:
        rows.append(("shared store", _store_words(data["store"])))
    rows += [("configs", _folder_words(folder)) for folder in data["config_folders"]]
    terminal.print_facts(rows)
    terminal.say("")
    terminal.print_facts(
        (option["name"], f"{option['value'] or '(' + option['default'] + ')'}: {option['help']}")
        for option in data["options"]
    )
    for problem in data["problems"]:
        terminal.say(f"problem: {problem}")


def _cache_words(cache: dict[str, Json]) -> str:
    if cache["path"] is None:
        return "n/a"
    writable = "cannot be written" if cache["unwritable"] else "can be written"
    return f"{cache['path']} ({writable}; {cache['records']} records, {cache['bytes']} bytes)"


def _store_words(store: dict[str, Json]) -> str:
    if store["round_trip_ms"] is None:
        return f"{store['url']} (cannot be read: see problems)"
    words = [store["rights"], f"{store['round_trip_ms']:.1f} ms a round trip", f"namespace {store['namespace']}"]
    words += ["signed" if store["signed"] else "not signed", *["one search in the fleet"] * bool(store["leases"])]
    return f"{store['url']} ({', '.join(words)})"


def _folder_words(folder: dict[str, Json]) -> str:
    return f"{folder['path']} ({'no such folder' if folder['files'] is None else str(folder['files']) + ' files'})"
