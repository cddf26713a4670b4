"""Keeps what Triton compiles in a folder, so that the next start, in another container, loads it from there."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from autotuned import disk, env, events
from autotuned._startup import Frozen
from autotuned.binaries import file as binaryfile
from autotuned.binaries.file import BinaryFile
from autotuned.binaries.variant import Code, Form, Variant, plain
from autotuned.configfiles import policy
from autotuned.dropin import kept_choices, kept_host
from autotuned.dropin.stock_tuner import keeping
from autotuned.errors import AutotunedError, BinaryError
from autotuned.key import exact, source
from autotuned.resolve import active
from autotuned.search import failures
from autotuned.triton_compat import compiled, fingerprint, globals_used, launcher, specialization
from autotuned.triton_compat import kernel as toolchain
from autotuned.triton_compat.specialization import Specialization
from autotuned.typed_json import Json, canonical, digest

_TTIR = "ttir"
log = logging.getLogger("autotuned")


class KeptKernel(Frozen):
    """One compilation: a kernel, its code, and the specialization. Names a file."""

    kernel: str
    code: Code
    form: Form
    special: Specialization

    @property
    def digest(self) -> str:
        """The file's name."""
        return digest([self.kernel, self.code.text, self.form.text])


class Kept:
    """Stands in for Triton's `compile`: looks into a folder first, and stores there what Triton compiles.

    Args:
        folder: One file per kernel and specialization. Whoever may write it can run code on the GPU.

    Attributes:
        loaded, compiled: How many kernels came from the folder, and from Triton.
    """

    def __init__(self, folder: Path, original: Callable[..., Any]) -> None:
        self.folder, self._original = folder, original
        self.loaded = self.compiled = 0

    def __call__(self, src: Any, target: Any = None, options: Any = None, **more: Any) -> Any:
        """Triton's `compile`."""
        now = next(iter(_installed), None)
        if now is not self:
            return (self._original if now is None else now)(src, target=target, options=options, **more)
        start, wanted = time.perf_counter(), _wanted(src, target, options)
        compile_ = partial(self._made, wanted, src, target=target, options=options, **more)
        found = self._found(src, wanted) if wanted is not None else None
        if found is None or wanted is None:
            return self._compiled(wanted, compile_)
        globals_used.record(src.fn)
        self.loaded += 1
        events.emit("load", wanted.kernel, wanted.digest, time.perf_counter() - start, str(self._path(wanted)))
        compiled.replace_if_refused(found, partial(self._instead, wanted, compile_))
        return found

    def _made(self, wanted: KeptKernel | None, src: Any, **more: Any) -> Any:
        """Triton's kernel, compiled from the code it is kept under, even if Triton's cache has an older one."""
        with globals_used.cached_as(src, wanted.digest) if wanted is not None else nullcontext():
            return self._original(src, **more)

    def _compiled(self, wanted: KeptKernel | None, compile_: Callable[[], Any]) -> Any:
        made = compile_()
        self.compiled += 1
        if wanted is not None:
            self._keep(wanted, made)
        return made

    def _instead(self, wanted: KeptKernel, compile_: Callable[[], Any], error: Exception) -> Any:
        """Compile a kernel that the driver, older than the compiler, refused to load; None if out of memory."""
        if failures.is_passing(error):
            return None
        self._refuse(wanted, error, self._path(wanted))
        return self._compiled(wanted, compile_)

    def _refuse(self, wanted: KeptKernel, error: Exception, about: Path) -> None:
        events.emit("refuse", wanted.kernel, wanted.digest, 0.0, f"binary: {error}")
        env.warn_once(f"kept {about}", "`%s`: its kept binary is not used: %s", wanted.kernel, error)

    def _path(self, wanted: KeptKernel) -> Path:
        return self.folder / f"{wanted.digest}{binaryfile.SUFFIX}"

    def _found(self, src: Any, wanted: KeptKernel) -> Any:
        """The compiled kernel of a file; None if there is no intact file of this compilation."""
        path = self._path(wanted)
        try:
            file = binaryfile.read(disk.read_bytes(path), str(path))
            asked = wanted.kernel, wanted.code.text, wanted.form.text
            found = (one for one in file.variants if (one.kernel, one.code.text, one.form.text) == asked)
            variant = next(found, None)
            if variant is None:
                raise BinaryError(f"binaries {path}: expected `{wanted.kernel}`, got another kernel.", path=str(path))
            disk.touch(path)  # `gc --binaries` removes the least recently used first
            metadata = dict(variant.metadata)
            ttir = str(metadata.pop(_TTIR, "")).encode()
            stages = {"cubin": file.code(variant), **({_TTIR: ttir} if ttir else {})}
            return specialization.compiled_from(src, wanted.special, metadata, stages, wanted.digest)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, AutotunedError, ValueError, TypeError, KeyError) as error:
            self._refuse(wanted, error, self.folder if isinstance(error, OSError) else path)
            return None

    def _keep(self, wanted: KeptKernel, made: Any) -> None:
        """Store a kernel; a failure only costs the next start a compilation."""
        code, path = getattr(made, "asm", {}).get("cubin"), self._path(wanted)
        if not isinstance(code, bytes) or binaryfile.is_of_newer(path):
            return
        metadata = specialization.launch_metadata_of(made, wanted.special)
        metadata[_TTIR] = str(made.asm.get(_TTIR, ""))  # says which arguments are written
        parts = wanted.kernel, toolchain.version(), wanted.code, wanted.form, metadata
        file = BinaryFile(wanted.kernel)
        file.add(Variant(*parts, hashlib.sha256(code).hexdigest()), code)
        try:
            disk.write_bytes(path, file.dump(), disk.READABLE)
        except (OSError, TypeError, ValueError) as error:
            env.warn_once(f"kept {self.folder}", "compiled kernels are not kept in %s: %s", self.folder, error)


# At most one; a kernel goes on calling the `compile` of its first launch, which may be an earlier one.
_installed: list[Kept] = []


def begin(folder: Path) -> Callable[[], None]:
    """Keep kernels, what the C compiler builds, and choices in a folder; returns an undo function."""

    def stand_in(original: Callable[..., Any]) -> Kept:
        _installed[:] = [Kept(folder, original)]
        return _installed[0]

    undo = [
        specialization.stand_in_for_compile(stand_in),
        launcher.stand_in_for_build(lambda original: partial(kept_host.build, folder, original)),
    ]
    keeping.append(folder)
    active.elsewhere.append(kept_choices.all_of_them)

    def end() -> None:
        for one in undo:
            one()
        _installed.clear()
        keeping.remove(folder)
        active.elsewhere.remove(kept_choices.all_of_them)

    return end


def _wanted(src: Any, target: Any, options: Mapping[str, Any] | None) -> KeptKernel | None:
    """Describe a compilation; None if it cannot be kept, or if something else changes what is compiled."""
    if specialization.changes_code() or not fingerprint.launch_interface():
        return None
    try:
        special = specialization.asked_of_compiler(src, target, options)
        if special is None:
            return None
        found = exact.Exact(source.Fingerprint(src.fn))
        value = found.value()
        if found.opaque:
            return None
        environment = policy.that_change_code(toolchain.environment(), toolchain.version())
        parts = value, None, environment, fingerprint.launch_interface(), special.arch
        return KeptKernel(source.public_name(src.fn), Code(*parts), _form(src, special), special)
    except Exception as error:  # an unknown kind of kernel compiles as usual
        log.debug("%s is not kept: %s: %s", getattr(src, "name", src), type(error).__name__, error)
        return None


def _form(src: Any, special: Specialization) -> Form:
    """The specialization as data, with tuples and descriptors; EncodingError if only this process knows a constant."""
    constants = {
        canonical(list(path)): exact.spell(value, f"constant {path}") for path, value in special.constants.items()
    }
    types = [(name, canonical(_type(type_))) for name, type_ in special.signature.items()]
    assumes = {canonical(list(path)): canonical(attrs) for path, attrs in special.attrs.items() if attrs}
    options: Json = plain(specialization.options_json(special.options))
    return Form((("source", type(src).__name__), *types), assumes, constants, options)


def _type(type_: Any) -> Json:
    """Triton's type of a parameter; a named tuple with its class, whose methods kernels may call."""
    if not isinstance(type_, tuple):
        return plain(type_)
    items = [_type(inner) for inner in type_]
    return items if type(type_) is tuple else [exact.spell(type(type_), "its type"), items]
