"""The files of compiled kernels that this process may load from, each read once: who may give code is decided here.

A config file only chooses; a binary is code that runs on the GPU. It is taken from folders that code of the program
named for it (`register_configs(..., binaries=True)`), and from the package that defines the kernel. Folders of
`AUTOTUNED_CONFIG_PATH`, and packages that offer files for another one's kernels, give JSON only.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from autotuned import disk, env
from autotuned._startup import Frozen
from autotuned.binaries import file as binaryfile
from autotuned.binaries.file import BinaryFile
from autotuned.binaries.variant import Code, Form, Variant
from autotuned.configfiles import lookup
from autotuned.configfiles.file import ConfigFile
from autotuned.errors import BinaryError
from autotuned.gpu.device import Device

if TYPE_CHECKING:
    from importlib.abc import Traversable  # for annotations only: it moves in Python 3.14


class Shelf(NamedTuple):
    """A config file with the compiled kernels beside it.

    Attributes:
        path: Of the config file. `allowed`: the digests that stand in lines of its entries: no other binary is loaded.
    """

    path: str
    config: ConfigFile
    binaries: BinaryFile
    allowed: frozenset[str]

    def serving(self, code: Code, form: Form) -> list[Variant]:
        """The variants that may be launched for a call of this form, those first that assume most."""
        found = [variant for variant in self.binaries.matching(code, form.fixed) if variant.form.serves(form)]
        found = [variant for variant in found if variant.digest in self.allowed]
        return sorted(found, key=lambda variant: variant.form.rank)


class Kernel(Frozen):
    """Whose binaries are looked for: the kernel's public name, and the module that defines its function."""

    name: str
    module: str


class Shelves:
    """The config files of a kernel that have binaries for a device, in the order in which folders are asked.

    Those of other devices of its architecture come after its own: the machine code is the same. A folder is looked
    into when nothing before it serves; then it is remembered.
    """

    def __init__(self, kernel: Kernel, device: Device) -> None:
        self._kernel, self._device = kernel, device
        self._found: list[Shelf] = []
        self._folders = iter(lookup.folders())
        self._finding = threading.RLock()
        self.state = lookup.state()

    def __iter__(self) -> Iterator[Shelf]:
        place = 0
        while place < len(self._found) or self._more(place):
            yield self._found[place]
            place += 1

    def __bool__(self) -> bool:
        return bool(self._found) or self._more(0)

    def _more(self, place: int) -> bool:
        """Look into folders until there is a shelf at a place; whether there is one."""
        with self._finding:
            while len(self._found) <= place:
                folder = next(self._folders, None)
                self.state = lookup.state()  # to come to the next folder may have been to look for entry points
                if folder is None:
                    return False
                if folder.may_give_code(self._kernel.module):
                    self._found += _in_folder(folder.path, self._kernel.name, self._device)
        return True


_known: dict[tuple[Kernel, Device], Shelves] = {}


def shelves(kernel: Kernel, device: Device) -> Shelves:
    """Where there are binaries of a kernel for a device."""
    found = _known.get((kernel, device))
    if found is None or found.state != lookup.state():
        found = _known[kernel, device] = Shelves(kernel, device)
        while len(_known) > _MOST:
            _known.pop(next(iter(_known)))
    return found


_MOST = 4096  # kernels of which it is remembered


def _in_folder(folder: Traversable, kernel: str, device: Device) -> list[Shelf]:
    paths = [(path, config) for path, config in lookup.with_devices(folder, kernel)
             if (config.device.kind, config.device.arch) == (device.kind, device.arch)]  # fmt: skip
    paths.sort(key=lambda pair: pair[1].device != device)
    found = [_shelf(path, folder / config.device.slug / binaryfile.name_of(kernel), config) for path, config in paths]
    return [shelf for shelf in found if shelf is not None]


def _shelf(path: Traversable, beside: Traversable, config: ConfigFile) -> Shelf | None:
    allowed = frozenset(digest for _, entry in config.entries() for digest in entry.binaries)
    if not allowed:
        return None
    binaries = read(beside)
    if binaries is None or binaries.kernel != config.kernel:
        if binaries is not None:
            _say(str(beside), f"expected kernel {config.kernel!r}, got {binaries.kernel!r}: it is skipped.")
        return None
    return Shelf(str(path), config, binaries, allowed)


def read(path: Traversable) -> BinaryFile | None:
    """The binaries at a path; None where there are none, or nothing can be used. What is left out is said once."""
    try:
        file = binaryfile.read(disk.read_resource(path), str(path))
    except (FileNotFoundError, NotADirectoryError, KeyError):  # KeyError: how a zip says that there is none
        return None
    except BinaryError as error:
        env.warn_once(str(error), "%s They are skipped: kernels compile as without them.", error)
        return None
    except (OSError, ValueError) as error:
        _say(str(path), f"{error}: they are skipped.")
        return None
    for fault in file.faults[:_FAULTS]:
        _say(str(path), fault)
    if len(file.faults) > _FAULTS:
        _say(str(path), f"and {len(file.faults) - _FAULTS} more are left out.")
    return file


_FAULTS = 3  # of one file that are said one by one


def _say(path: str, fault: str) -> None:
    env.warn_once(f"{path}: {fault}", "binaries %s: %s", path, fault)
