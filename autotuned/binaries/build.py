"""Compiles what ships: for a call and config, the specialization that was used and the generic ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from autotuned._startup import Frozen
from autotuned.binaries.serve import Server
from autotuned.binaries.variant import Code, Form, Variant
from autotuned.errors import BinaryError, described
from autotuned.triton_compat import descriptors, specialization
from autotuned.triton_compat import kernel as toolchain
from autotuned.triton_compat.specialization import Specialization
from autotuned.tunable.call import Call


class Built(Frozen):
    """A variant with its machine code, or the `fault`; `generic` if it assumes nothing about the arguments."""

    variant: Variant | None
    code: bytes
    generic: bool
    fault: str = ""


class WantedBinary(Frozen):
    """One specialization to compile."""

    code: Code
    form: Form
    special: Specialization
    generic: bool


class Builder:
    """Compiles the variants of one kernel, each specialization once."""

    def __init__(self, server: Server) -> None:
        self._server, self._jit = server, server.jit
        self._done: dict[tuple[str, str], Built] = {}

    def wanted(self, call: Call, config: Any, code: Code) -> Iterator[WantedBinary]:
        """The specializations for a call with a config: its own first, then the generic ones.

        Raises:
            BinaryError: No binary can be built for such a call.
            Exception: From the config's hook, or from Triton if the arguments do not fit.
        """
        if config.pre_hook is not None and call.has_descriptors:
            config.pre_hook(call.full(config))  # it may set their blocks
        special = self._server.specialize(call, config, code.arch)
        seen: set[str] = set()
        for number, one in enumerate([special, *specialization.generic(self._jit, special)]):
            form = self._server.form_of(one)
            if form is None:
                kinds = [str(type_) for type_ in one.signature.values()]
                raise BinaryError(
                    f"expected pointers, numbers and constants that JSON can hold, got {', '.join(kinds)}: such calls "
                    "compile at their first use.", path="",
                )  # fmt: skip
            if form.text not in seen:
                seen.add(form.text)
                yield WantedBinary(code, form, one, number > 0)

    def build(self, wanted: WantedBinary) -> Built:
        """Compile one specialization; a failure is in the result."""
        at = wanted.code.text, wanted.form.text
        if at not in self._done:
            try:
                self._done[at] = self._compiled(wanted)
            except Exception as error:  # of any class, from the kernel, Triton or ptxas
                words = " ".join(described(error).split())
                self._done[at] = Built(None, b"", wanted.generic, words[:200])
        return self._done[at]

    def _compiled(self, wanted: WantedBinary) -> Built:
        found = specialization.compile_(self._jit, wanted.special, wanted.code.text + wanted.form.text)
        code, metadata = found.asm.get("cubin"), specialization.launch_metadata_of(found, wanted.special)
        types = descriptors.flat(wanted.special.signature.values())
        if not isinstance(code, bytes) or metadata.get("profile_scratch_size"):
            raise BinaryError("expected a kernel without profiler memory, got one that needs it", path="")
        if descriptors.encodings(types, found.metadata) is None:
            raise BinaryError("expected tiled tensor descriptors, got padded 4-bit or im2col ones", path="")
        blob = hashlib.sha256(code).hexdigest()
        name, version = self._server.name, toolchain.version()
        return Built(Variant(name, version, wanted.code, wanted.form, metadata, blob), code, wanted.generic)
