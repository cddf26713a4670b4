"""Finds, loads and launches the shipped binary of a call, without Triton's compiler, driver or toolchain hash."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from autotuned import env, events
from autotuned._startup import Frozen
from autotuned.binaries import folders, libcuda
from autotuned.binaries.folders import KernelName, Shelf, Shelves
from autotuned.binaries.loaded import Loaded
from autotuned.binaries.variant import Code, Form, Variant, difference, form_of, form_of_call
from autotuned.configfiles import lookup, policy
from autotuned.configfiles.entry import Entry
from autotuned.configfiles.file import ConfigFile
from autotuned.errors import AutotunedError
from autotuned.gpu.device import Device
from autotuned.store import conditions
from autotuned.store.choice import Candidates, Choice, Look, Origin
from autotuned.store.conditions import Conditions
from autotuned.triton_compat import compiled, fingerprint, specialization
from autotuned.triton_compat import kernel as toolchain
from autotuned.triton_compat.specialization import Specialization, Specializer
from autotuned.tunable import mismatch
from autotuned.tunable.call import Call, refuse_grid
from autotuned.tunable.kernel import TunableKernel
from autotuned.typed_json import Json, canonical

log = logging.getLogger("autotuned")
TOOLCHAIN = ("triton", "triton_key", "ptxas")  # ignored when matching an entry that has a binary
_loaded: dict[tuple[str, int], Loaded | str] = {}  # (digest, device) -> kernel, or why it failed to load


def is_loaded(digest: str) -> bool:
    """Whether a binary is loaded on the current device."""
    return isinstance(_loaded.get((digest, toolchain.current_device())), Loaded)


def forget() -> None:
    """Load binaries again, including those that failed to load."""
    _loaded.clear()


class BinaryQuery(Frozen):
    """A call with a config, in the form used to look up binaries."""

    code: Code
    form: Form


class Server:
    """Finds and loads binaries for the calls of one tuned Triton kernel.

    Args:
        version: The user's salt, as spelled in the key's context.

    Attributes:
        name: The kernel's name.
        jit: Triton's function.
    """

    def __init__(self, tunable: TunableKernel, version: Json) -> None:
        self._tunable, self._version = tunable, version
        self.name = tunable.name
        self.jit = toolchain.innermost(tunable.fn)
        self._kernel = KernelName(tunable.name, str(tunable.function.__module__))
        self._names = [parameter.name for parameter in tunable.parameters]
        self._defaults = [parameter.default for parameter in tunable.parameters]
        self._specializers: dict[int, Specializer] = {}
        # Of the current call, by weak references to it; the second also with its config and `compiled_for` it.
        self._latest: tuple[Any, Code | None] = (None, None)
        self._latest_asked: tuple[Any, Any, tuple[Any, ...], BinaryQuery | None] = (None, None, (), None)
        self._latest_found: tuple[Shelf, Variant, BinaryQuery] | None = None
        # Valid while nothing that they are made of changes.
        self._latest_code: tuple[tuple[Any, ...], Code | None] = ((), None)
        self._latest_in: tuple[Any, Any, Code | None] = (None, None, None)
        self._latest_context: tuple[Any, str] = (None, "")
        self._shelves: Shelves | None = None

    def shelves(self, device: Device, state: Any = None) -> Shelves:
        """The binaries of this kernel for a device; `state` is the folders' state, if known."""
        found = self._shelves  # read once: another thread may replace it
        is_same = found is not None and (found.device is device or found.device == device)
        if found is None or not is_same or found.state != (state or lookup.state()):
            found = self._shelves = folders.shelves(self._kernel, device)
        return found

    # -- finding -------------------------------------------------------------------------------------------------

    def code(self, device: Device, source: str | None = None) -> Code | None:
        """The code that a binary for a device must be compiled from, with the tunable's latest `source` or a new one.

        None without an NVIDIA GPU, or if the code uses values that mean something only in this process.
        """
        arch, tunable = specialization.arch_of(device.arch), self._tunable
        source = tunable.exact_source(tunable.source if source is None else source)  # first: it finds opaque values
        is_local = self._version is None and (tunable.opaque or tunable.exact_opaque)
        if arch is None or is_local or not fingerprint.launch_interface():
            return None
        made_of, known = (source, tunable.environment(), arch), self._latest_code  # read once, like all of these
        if known[0] != made_of:
            environment = policy.that_change_code(made_of[1], toolchain.version())
            code = Code(source, self._version, environment, fingerprint.launch_interface(), arch)
            known = self._latest_code = made_of, code
        return known[1]

    def _code_of(self, call: Call) -> Code | None:
        """The code for a call's device, once per call, since it inspects everything the kernel uses."""
        of, code = self._latest  # read once: another thread may replace it
        if of is None or of() is not call:
            code = self.code(self._tunable.device(call))
            self._latest = weakref.ref(call), code
        return code

    def _code_in(self, context: Mapping[str, Json], call: Call, device: Device) -> Code | None:
        """`_code_of` a call whose context was just made; if that is the same object, nothing in it has changed."""
        known = self._latest_in  # read once: another thread may replace it
        if known[0] is not context or known[1] is not device or self._tunable.is_blurred:
            known = self._latest_in = context, device, self.code(device, context["source"])
        self._latest = weakref.ref(call), known[2]
        return known[2]

    def asked(self, call: Call, config: Any) -> BinaryQuery | None:
        """The look-up form of a call with a config; None if no binary can serve it, as with unusual constants."""
        code = self._code_of(call)
        if code is None:
            return None
        memory = compiled.compiled_for(call.arguments.values())  # a hook may change it between look-up and launch
        of, to, then, asked = self._latest_asked  # read once: another thread may replace it
        if of is None or of() is not call or to is not config or then != memory or self._tunable.filled:
            asked = self._asked_anew(call, config, code)
            self._latest_asked = weakref.ref(call), config, memory, asked
        return asked

    def memory(self, call: Call, config: Any) -> tuple[Any, ...] | None:
        """`compiled.compiled_for` the arguments of a call whose binary was just found; None if it was not."""
        of, to, memory, _ = self._latest_asked  # read once: another thread may replace it
        return memory if of is not None and of() is call and to is config else None

    def _asked_anew(self, call: Call, config: Any, code: Code) -> BinaryQuery | None:
        try:
            given = self._tunable.everything(call, config)
            form = form_of_call(self._specializer(code.arch), given)
        except Exception:  # Triton's own launch refuses it, in its words
            return None
        return None if form is None else BinaryQuery(code, form)

    def specialize(self, call: Call, config: Any, arch: int) -> Specialization:
        """What Triton would compile for a call with a config; raises what Triton raises."""
        return self._specializer(arch).of((), self._tunable.everything(call, config))

    def form_of(self, special: Specialization) -> Form | None:
        """The form of a specialization; None if no binary can have it."""
        return form_of(special, self._specializer(special.arch).constexprs)

    def _specializer(self, arch: int) -> Specializer:
        if arch not in self._specializers:
            self._specializers[arch] = Specializer(self.jit, arch)
        return self._specializers[arch]

    def look(
        self, call: Call, device: Device, part: Json, context: Mapping[str, Json], live: Candidates,
        needed: Conditions, state: Any = None,
    ) -> Look:  # fmt: skip
        """The choice of an entry with a binary for the call (`part` of its key), whatever toolchain measured it.

        `context` is the call's current context on the device, and `state` the folders' state, if known.
        """
        shelves = self.shelves(device, state)
        if not shelves:
            return Look(None, "absent")
        if why := specialization.changes_code(self.jit):
            return Look(None, "absent", why)
        code, seen = self._code_in(context, call, device), None
        for shelf in shelves if code is not None else ():
            for entry in self._entries(shelf, part, context):
                config, lack = live.get(entry.identity), conditions.lack(entry.conditions, needed)
                if config is None:
                    seen = Look(None, "config gone", mismatch.misfit(entry.config, live), shelf.path)
                elif lack:
                    seen = Look(None, "weaker conditions", f"measured {lack}", shelf.path)
                elif why := self._why_not(call, config, shelf, entry.binaries.__contains__):
                    seen = Look(None, "absent", f"{shelf.path}: {why}")
                else:
                    found = Choice(config, Origin.BINARY, where=shelf.path, conditions=entry.conditions)
                    return Look(found) if seen is None else seen.replace(choice=found)
        return seen or Look(None, "absent", "none for this call and code")

    def _entries(self, shelf: Shelf, part: Json, context: Mapping[str, Json]) -> list[Entry]:
        """Entries with binaries for a call, in all contexts that differ at most in the toolchain."""
        if shelf.config.device_json != context["device"]:
            return []
        of, ours = self._latest_context
        if of is not context:
            ours = _without_toolchain(context, toolchain.version())
            self._latest_context = context, ours
        found = shelf.config.in_all_contexts(part)
        return [entry for theirs, entry in found if entry.binaries and _rest(shelf.config, theirs) == ours]

    def has_any(self, call: Call) -> bool:
        """Whether there are binaries of this kernel for a call's device."""
        return bool(self.shelves(self._tunable.device(call)))

    def why_none(self, call: Call, config: Any) -> str:
        """Why no binary is launched for a call with a config; "" if one is."""
        if why := specialization.changes_code(self.jit):
            return why
        shelves = self.shelves(self._tunable.device(call))
        whys = [self._why_not(call, config, shelf, shelf.config.names_binary) for shelf in shelves]
        return "" if "" in whys else next(iter(whys), "there are no binaries for this device")

    def _why_not(self, call: Call, config: Any, shelf: Shelf, names: Callable[[str], bool]) -> str:
        """Why none of the named binaries serves a call; "" if one does."""
        asked = self.asked(call, config)
        if asked is None:
            return "its arguments or constants are of a kind that no binary is built for"
        best = None
        for one in shelf.fitting(asked.code, asked.form):
            is_named = names(one.digest)
            if best is None and (is_named or shelf.allows(one)):
                best = one
            if is_named:
                if best is not None and self._shelves is not None and self._shelves.begin_with(shelf):
                    self._latest_found = shelf, best, asked  # for `find`, which follows
                return ""
        theirs = [one for one in shelf.binaries.variants if names(one.digest)]
        if config.pre_hook is not None:  # it may set the blocks of descriptors
            later = [one.form.of_any_block for one in theirs if one.code.text == asked.code.text]
            if any(form.serves(asked.form.of_any_block) for form in later):
                return ""
        return _differences(theirs, asked.code, asked.form)

    def find(self, call: Call, config: Any, is_fresh: bool = False) -> tuple[Shelf, Variant, BinaryQuery] | None:
        """The binary for a call with a config, not yet loaded; None if none may be launched.

        `is_fresh`: no user code but heuristics has run since `look` found the config for the call.
        """
        if config.ir_override is not None or "ir_override" in config.kwargs:
            return None
        if is_fresh and not self._tunable.filled and (latest := self._latest_found) is not None:
            of, to, _, asked = self._latest_asked  # read once, like the above
            if of is not None and of() is call and to is config and asked is latest[2]:
                return latest
        if specialization.changes_code(self.jit):
            return None
        known = self._latest_found
        if known is not None and known[2] is self.asked(call, config):
            return known
        shelves = self.shelves(self._tunable.device(call))
        asked = self.asked(call, config) if shelves else None
        if asked is None:
            return None
        fitting = ((shelf, one) for shelf in shelves for one in shelf.fitting(asked.code, asked.form))
        return next(((shelf, one, asked) for shelf, one in fitting if shelf.allows(one)), None)

    # -- loading -------------------------------------------------------------------------------------------------

    def load(self, call: Call, config: Any, is_fresh: bool = False) -> Loaded | None:
        """The binary that `find` finds, loaded on the current device; None without one, or if loading fails."""
        found = self.find(call, config, is_fresh)
        return None if found is None else self._load(found[0], found[1])

    def loads(self, device: Device) -> list[Callable[[], Loaded | None]]:
        """Loaders for every binary of this kernel that may be launched on a device."""
        if specialization.changes_code(self.jit) or (code := self.code(device)) is None:
            return []
        found = {
            variant.digest: (shelf, variant)
            for shelf in self.shelves(device)
            for variant in shelf.binaries.variants
            if variant.code.text == code.text and shelf.allows(variant)
        }
        return [partial(self._load, *at) for at in found.values()]

    def why_not_loaded(self, digests: Iterable[str]) -> str:
        """Why none of an entry's binaries could be loaded onto the current device."""
        device = toolchain.current_device()
        refused = [known for digest in digests if isinstance(known := _loaded.get((digest, device)), str)]
        if refused or (why := specialization.changes_code(self.jit)):
            return refused[0] if refused else why
        return "its binaries are not there, or of another source, environment, architecture or Triton, or not allowed"

    def _load(self, shelf: Shelf, variant: Variant) -> Loaded | None:
        at, start = (variant.digest, toolchain.current_device()), time.perf_counter()
        known = _loaded.get(at)
        if known is None or (isinstance(known, str) and libcuda.may_pass(known)):
            try:
                _loaded[at] = Loaded(self.jit, variant, shelf.binaries.code(variant), at[1])
                events.emit("load", self.name, variant.digest, time.perf_counter() - start, shelf.path)
            except (AutotunedError, KeyError, TypeError, ValueError, AttributeError) as error:
                _loaded[at] = str(error)
                events.emit("refuse", self.name, variant.digest, 0.0, f"binary: {error}")
                env.warn_once(
                    f"binary {variant.digest}", "`%s`: the binary %s next to %s is skipped (%s); the call compiles.",
                    self._tunable.name, variant.digest[:12], shelf.path, error,
                )  # fmt: skip
            known = _loaded[at]
        if isinstance(known, Loaded) and known.src.fn is not self.jit:  # its module was imported again
            known = _loaded[at] = known.of(self.jit)
        return known if isinstance(known, Loaded) else None

    def fill(self, call: Call, config: Any) -> bool:
        """Put the binary for a call into Triton's cache, for Triton's launcher; False without one."""
        found = self.find(call, config)
        if found is None:
            return False
        shelf, variant, asked = found
        try:
            if asked.form.text != variant.form.text:
                return False  # Triton would look under another hash
            special = self.specialize(call, config, asked.code.arch)
            specialization.fill_cache(self.jit, special, variant.metadata, shelf.binaries.code(variant))
        except (OSError, AutotunedError) as error:
            log.debug("Triton's cache is not filled with %s: %s", variant.digest[:12], error)
            return False
        return True

    # -- launching -----------------------------------------------------------------------------------------------

    def has_blocks(self, call: Call, config: Any) -> bool:
        """Whether a callable grid launches a block, as `TunableKernel.launches`; `sized` may reuse the result."""
        try:
            arguments = self._arguments(call, config)
            sizes = call.grid(arguments)
            found = tuple([size.__index__() for size in sizes])
        except Exception:  # the launch will raise
            return True
        vars(call)["sized"] = config, (arguments, found)  # these hold the call's tensors, and are freed with it
        return not (isinstance(sizes, (tuple, list)) and 1 <= len(found) <= 3 and min(found) <= 0)

    def _arguments(self, call: Call, config: Any) -> dict[str, Any]:
        everything = self._tunable.everything(call, config)
        return dict(zip(self._names, map(everything.get, self._names, self._defaults)))

    def sized(self, call: Call, config: Any, was_asked: bool = False) -> tuple[dict[str, Any], tuple[int, ...]]:
        """All parameters of the Triton function, in order, and the grid's sizes, evaluated if callable.

        `was_asked`: no hook has run since `has_blocks` may have evaluated the call's grid, whose result is then used.
        """
        to, known = vars(call).pop("sized", (None, None))
        if was_asked and known is not None and to is config:
            found: tuple[dict[str, Any], tuple[int, ...]] = known
            return found
        arguments, grid = self._arguments(call, config), call.grid
        try:
            sizes = grid(arguments) if callable(grid) else grid
            return arguments, tuple([size.__index__() for size in sizes])
        except Exception as error:
            refuse_grid(grid, arguments, self._tunable.name, error)
            raise

    def launch(self, arguments: Mapping[str, Any], sizes: tuple[int, ...], binary: Loaded) -> Any:
        """Launch a binary with what `sized` returned; returns the kernel, as Triton's launch does."""
        stream = toolchain.stream_getter()(toolchain.current_device())
        try:
            binary.launch(sizes, stream, tuple(arguments.values()))
        except Exception as error:
            refuse_grid(sizes, arguments, self._tunable.name, error)
            raise
        return binary

    def launching(self, bound: Callable[[tuple[Any, ...], Any], Call], config: Any, otherwise: Any) -> Any:
        """A launch that looks up a binary each time, for the call that `bound` makes, and falls back on `otherwise`."""

        def run(values: tuple[Any, ...], grid: Any) -> Any:
            call = bound(values, grid)
            binary = self.load(call, config)
            return otherwise(values, grid) if binary is None else self.launch(*self.sized(call, config), binary)

        return run


def _rest(config: ConfigFile, context: Mapping[str, Json]) -> str:
    """`_without_toolchain` of a group's context, computed once per file."""
    known: dict[int, tuple[Any, str]] = config.indexes.setdefault("without toolchain", {})
    at = id(context)  # which stays valid, since the context is kept
    if at not in known:
        known[at] = context, _without_toolchain(context, str(context.get("triton")))
    return known[at][1]


def _without_toolchain(context: Mapping[str, Json], triton: str) -> str:
    """Canonical text of a context without device, toolchain and variables without effect."""
    rest = {name: value for name, value in context.items() if name not in (*TOOLCHAIN, "device")}
    return canonical({**rest, "environment": policy.that_change_code(rest.get("environment") or {}, triton)})


def _differences(variants: list[Variant], code: Code, form: Form) -> str:
    """Why none of these variants serves, by the closest one."""
    if not variants:
        return "its binaries are not in the file next to it"
    same = [variant for variant in variants if variant.code.text == code.text]
    if same:
        return difference((variant.form for variant in same), form)
    theirs = variants[0].code
    wrong = [name for name in Code._names if getattr(theirs, name) != getattr(code, name)]
    words = {"interface": "Triton's launch interface", "arch": "architecture"}
    return f"compiled for another {', '.join(words.get(name, name) for name in wrong)}"
