"""The files of compiled kernels that this process may load, each read once. This is where code is trusted.

A binary is code that runs on the GPU. It is loaded from folders that the program registered with `register_configs(...,
binaries=True)`, and from the package that defines the kernel. Folders of `AUTOTUNED_CONFIG_PATH`, and packages with
files for other packages' kernels, only supply JSON.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from autotuned import disk, env
from autotuned._startup import Frozen, forget_oldest, renewed
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
    """A config file and its compiled kernels; those that no entry names are not served."""

    path: str
    config: ConfigFile
    binaries: BinaryFile

    def allows(self, variant: Variant) -> bool:
        """Whether an entry names it."""
        return self.config.names_binary(variant.digest)

    def fitting(self, code: Code, form: Form) -> Iterator[Variant]:
        """The variants for a call of this form, allowed or not, the most specialized first."""
        found = False
        for variant in self.binaries.serving(code, form):
            found = True
            yield variant
        if not found:
            _say_faults(self.binaries)


class KernelName(Frozen):
    """A kernel's public name, and the module that defines its function."""

    name: str
    module: str


class Shelves:
    """The config files of a kernel with binaries for a device, in look-up order; folders are searched lazily, once.

    A device's own files come first, then those of other devices of its architecture, whose machine code is the same.
    """

    def __init__(self, kernel: KernelName, device: Device) -> None:
        self._kernel, self.device = kernel, device
        self._found: list[Shelf] = []
        self._folders = iter(lookup.folders())
        self._finding = renewed(threading.RLock())
        self.state = lookup.state()

    def __iter__(self) -> Iterator[Shelf]:
        place = 0
        while place < len(self._found) or self._more(place):
            yield self._found[place]
            place += 1

    def __bool__(self) -> bool:
        return bool(self._found) or self._more(0)

    def begin_with(self, shelf: Shelf) -> bool:
        """Whether this is the first of them."""
        return bool(self._found) and self._found[0] is shelf

    def _more(self, place: int) -> bool:
        """Search folders until one has a shelf at a place; returns whether one has."""
        with self._finding:
            while len(self._found) <= place:
                folder = next(self._folders, None)
                self.state = lookup.state()  # reaching the next folder may have searched entry points
                if folder is None:
                    return False
                if folder.may_give_code(self._kernel.module):
                    self._found += _in_folder(folder.path, self._kernel.name, self.device)
        return True


_known: dict[tuple[KernelName, Device], Shelves] = {}


def shelves(kernel: KernelName, device: Device) -> Shelves:
    """The binaries of a kernel for a device."""
    found = _known.get((kernel, device))
    if found is None or found.state != lookup.state():
        found = _known[kernel, device] = Shelves(kernel, device)
        forget_oldest(_known, _MOST)
    return found


_MOST = 4096  # kernels to remember


def _in_folder(folder: Traversable, kernel: str, device: Device) -> list[Shelf]:
    paths = [(path, config) for path, config in lookup.with_devices(folder, kernel)
             if (config.device.kind, config.device.arch) == (device.kind, device.arch)]  # fmt: skip
    paths.sort(key=lambda pair: pair[1].device != device)
    found = [_shelf(path, folder / config.device.slug / binaryfile.name_of(kernel), config) for path, config in paths]
    return [shelf for shelf in found if shelf is not None]


def _shelf(path: Traversable, bin_path: Traversable, config: ConfigFile) -> Shelf | None:
    if not config.names_binary(""):
        return None
    binaries = read(bin_path)
    if binaries is None or binaries.kernel != config.kernel:
        if binaries is not None:
            _say(str(bin_path), f"expected kernel {config.kernel!r}, got {binaries.kernel!r}: it is skipped.")
        return None
    return Shelf(str(path), config, binaries)


def read(path: Traversable) -> BinaryFile | None:
    """The usable binaries at a path, or None. Warns once about a fault; names faulty variants once a call misses."""
    try:
        return binaryfile.read(disk.read_resource(path), str(path))
    except (FileNotFoundError, NotADirectoryError, KeyError):  # KeyError: missing in a zip
        return None
    except BinaryError as error:
        env.warn_once(str(error), "%s They are skipped: kernels compile.", error)
        return None
    except (OSError, ValueError) as error:
        _say(str(path), f"{error}: they are skipped.")
        return None


def _say_faults(file: BinaryFile) -> None:
    """Warn once about the faulty variants of a file that did not serve a call."""
    for fault in file.faults[:_FAULTS]:
        _say(file.path, fault)
    if len(file.faults) > _FAULTS:
        _say(file.path, f"and {len(file.faults) - _FAULTS} more are left out.")


_FAULTS = 3  # faults of one file to report one by one


def _say(path: str, fault: str) -> None:
    env.warn_once(f"{path}: {fault}", "binaries %s: %s", path, fault)
