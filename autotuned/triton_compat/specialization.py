"""Finds the specialization that Triton would compile for a call, without Triton's driver, and compiles it."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Collection, Mapping
from functools import cached_property, lru_cache
from typing import Any

from autotuned import env
from autotuned._startup import Frozen, forget_oldest
from autotuned.key.key import is_tensor
from autotuned.triton_compat import globals_used, kernel, versions
from autotuned.triton_compat.compiled import is_hooked
from autotuned.typed_json import Json, canonical

Kind = tuple[str, Any]  # how an argument is specialized: Triton's type, and 1, "D" for divisible by 16, "", or None
WARP_SIZE = 32
_LEAST = -(1 << 63)  # of the integers that Triton passes
_PLACES = ("extern_libs",)  # options with local paths
_LIBDEVICE = "TRITON_LIBDEVICE_PATH"  # a library that is linked into kernels


class Specialization(Frozen):
    """One binary of a kernel, as requested from Triton's compiler."""

    signature: Mapping[str, Any]  # Triton's type of each parameter, by name, in order; "constexpr" if compiled in
    constants: Mapping[tuple[int, ...], Any]  # compiled-in values by parameter path
    attrs: Mapping[tuple[int, ...], Any]  # assumptions by path, as names and values, such as divisibility by 16
    options: Any  # Triton's back-end options
    arch: int  # compute capability as in Triton's target: 90


# Types of numbers that a launch passes unchanged; half-precision ones are rounded, by Triton's launcher only.
NUMBERS = frozenset(("i1", "u1", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "fp32", "f32", "fp64"))


def is_fixed(value: Any) -> bool:
    """Whether no hook can change how a launch specializes this argument; False for descriptors."""
    if isinstance(value, tuple):
        return all(map(is_fixed, value))
    plain = value is None or isinstance(value, (bool, int, float, str, bytes, type))
    return plain or is_tensor(value) or type(value).__module__ in ("triton.language.core", "triton.runtime.jit")


class Specializer:
    """Finds the specializations of a Triton function's calls on one architecture.

    Uses Triton's rules for options, which need neither driver nor compiler. Uses Triton's binder only for calls with
    arguments other than tensors, numbers and None: its first use imports all of Gluon, 50 modules.
    """

    def __init__(self, jit: Any, arch: int) -> None:
        self._jit, self._arch, self._backend = jit, arch, _backend(arch)
        self._params = [_rules(param) for param in jit.params]
        self._defaults = {param.name: param.default for param in jit.params}
        self._names = self._defaults.keys()
        self.parameters = tuple([(name, constexpr) for name, constexpr, *_ in self._params])
        self.constexprs = [name for name, constexpr in self.parameters if constexpr]
        # Text of Triton's assumptions for the specializations that have one.
        self.assumed = tuple([(one, canonical(found)) for one in ("", "D") if (found := self._backend.parse_attr(one))])

    @cached_property
    def _bind(self) -> Callable[..., Any]:
        from triton.runtime.jit import create_function_from_signature

        bind: Callable[..., Any] = create_function_from_signature(self._jit.signature, self._jit.params, self._backend)
        return bind

    def _bound(self, given: dict[str, Any]) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
        """Like Triton's binder: arguments, type and specialization of each, and options."""
        each = self._each(given)
        if each is None:
            bound: tuple[dict[str, Any], list[Any], dict[str, Any]] = self._bind(**given)
            return bound
        arguments = {name: each[0][name] for name in self._names}
        found = [(kind[0], each[0][name]) if own else kind for (name, own), kind in zip(self.parameters, each[1])]
        return arguments, found, self._rest(given)

    def _rest(self, given: Mapping[str, Any]) -> dict[str, Any]:
        names = self._names
        return {name: given[name] for name in given if name not in names}

    def _each(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Kind]] | None:
        """All values by name and each parameter's kind (a constexpr's without its value); None if only Triton knows.

        One loop without calls, since calls take most of the time of a first launch.
        """
        tensor, found = getattr(sys.modules.get("torch"), "Tensor", None), list[Kind]()
        values = {**self._defaults, **given}
        for name, constexpr, pointer, fixed, by_value, aligned in self._params:
            value = values[name]
            kind, number = type(value), value  # `number` may be divisible by 16
            if constexpr:
                if value is inspect.Parameter.empty:
                    return None
                found += [("constexpr", None)]
                continue
            if kind is int and value == 1 and by_value:
                found += [(fixed or "constexpr", 1)]
                continue
            if kind is int and _LEAST <= value < -_LEAST:
                type_ = fixed or ("i32" if -(1 << 31) <= value < 1 << 31 else "i64")
            elif kind is tensor:
                type_, number = fixed or f"{pointer}{_dtype(value.dtype)}", value.data_ptr()
            elif value is None or kind is bool or kind is float:
                type_ = fixed or ("constexpr" if value is None else "u1" if kind is bool else "fp32")
                found += [(type_, None)]
                continue
            else:
                return None
            found += [(type_, ("D" if aligned and number % 16 == 0 else "") if by_value else None)]
        return values, found

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Specialization:
        """A call's specialization; raises Triton's error for arguments that do not fit."""
        from triton import knobs

        given = {**kwargs, "debug": kwargs.get("debug", self._jit.debug) or knobs.runtime.debug}
        arguments, found, options = self._bind(*args, **given) if args else self._bound(given)
        options, signature, constants, attrs = self._jit._pack_args(self._backend, given, arguments, found, options)
        return Specialization(signature, constants, attrs, options, self._arch)

    def looked_up(self, kwargs: Mapping[str, Any]) -> tuple[tuple[dict[str, Any], list[Kind]], Any] | None:
        """The specialization for a look-up: `_each` and Triton's options; None if only `of` can tell.

        It does without `_pack_args`, which is half of a first launch's calls.
        """
        import triton.knobs as knobs

        given = {**kwargs, "debug": kwargs.get("debug", self._jit.debug) or knobs.runtime.debug}
        each = self._each(given)
        if each is None:
            return None
        odd = [one for one in map(each[0].__getitem__, self.constexprs) if type(one) not in _PLAIN]
        options = self._parsed(self._rest(given)) if not odd or all(map(self._is_plain, odd)) else None
        return None if options is None else (each, options)

    def _is_plain(self, text: Any) -> bool:
        """Whether Triton reads no assumption from a constant string: up to 3.8 it reads one from any with a "D"."""
        return type(text) is str and not self._backend.parse_attr(text)

    def _parsed(self, given: dict[str, Any]) -> Any:
        """Triton's options for the given ones, cached until knobs or environment change; None if only Triton knows."""
        now, latest = _state(), _options.get(self._arch, _NO_OPTIONS)  # read once: another thread may replace it
        if now is not latest[0]:
            latest = _options[self._arch] = now, {}
        values = given.values()
        asked = *given, *map(type, values), *values
        try:
            options = latest[1].get(asked)
        except TypeError:  # not hashable
            return None
        if options is None and now is not None:
            counts = {name: given[name] for name in given if name in _COUNTS}
            alike = *given, *[(type(value), value) for name, value in given.items() if name not in counts]
            base = latest[1].get(alike)
            if base is None or {*map(type, counts.values())} != {int} or counts.get("num_warps", 1) not in _WARPS:
                options = self._backend.parse_options(dict(given))
                if not given.keys() <= vars(options).keys():  # Triton refuses the call
                    return None
                latest[1][alike] = options
            else:
                options = _with_counts(base, counts)
            latest[1][asked] = options
        is_ambiguous = options is None or vars(options).keys() & self._names  # a parameter is named like an option
        return None if is_ambiguous else options


# Triton's options by architecture and given options, for one state of knobs and environment; all kernels share them.
_options: dict[int, tuple[Any, dict[Any, Any]]] = {}
_NO_OPTIONS: tuple[Any, dict[Any, Any]] = (None, {})
_PLAIN = frozenset((type(None), bool, int, float))
_COUNTS, _WARPS = ("num_warps", "num_stages"), (1, 2, 4, 8, 16, 32)
_bases: dict[int, tuple[Any, Any, Mapping[str, int]]] = {}  # by id: options, the options they came from, and counts
_MOST_BASES = 256


def _with_counts(base: Any, counts: Mapping[str, int]) -> Any:
    """Copy options with other numbers of warps and stages, on which no other option depends; Triton needs 90 calls."""
    made = object.__new__(type(base))
    vars(made).update(vars(base), **counts)
    forget_oldest(_bases, _MOST_BASES - 1)
    _bases[id(made)] = made, base, counts
    return made


def made_of(options: Any) -> tuple[Any, Mapping[str, int]] | None:
    """The options that these were copied from, and the differences; None if Triton made them."""
    made, base, counts = _bases.get(id(options), (None, None, {}))
    return (base, counts) if made is options else None


def _rules(param: Any) -> tuple[str, bool, str, str, bool, bool]:
    """How arguments of a Triton parameter are specialized.

    Returns its name, whether it is a constexpr, the prefix of a pointer's type, the annotated type ("" to use the
    argument's), and whether arguments are specialized by value and by alignment.
    """
    if param.is_constexpr:
        return param.name, True, "", "", False, False
    fixed = param.annotation_type
    plain = fixed == "u1" or fixed[:2] in ("fp", "bf")
    by_value, aligned = not (param.do_not_specialize or plain), not param.do_not_specialize_on_alignment
    return param.name, False, "*k" if param.is_const else "*", fixed, by_value, aligned


@lru_cache(maxsize=64)
def _dtype(dtype: Any) -> str:
    from triton._utils import canonicalize_dtype

    return str(canonicalize_dtype(dtype))


@lru_cache(maxsize=64)
def arch_of(name: str) -> int | None:
    """90 for "sm_90"; None for other than NVIDIA GPUs."""
    kind, _, number = name.partition("_")
    return int(number) if kind == "sm" and number.isascii() and number.isdigit() else None


def options_json(options: Any) -> dict[str, Any]:
    """The options that affect code, without local paths; TypeError if they name a library other than Triton's own."""
    from triton import knobs

    libraries = dict(getattr(options, "extern_libs", None) or ())
    kind: Any = type(options)  # mypy: a class is not Hashable
    if libraries and libraries != _own_libraries(kind, options.arch, str(knobs.nvidia.libdevice_path)):
        raise TypeError("expected Triton's own libdevice, got another library in extern_libs")
    return {name: value for name, value in vars(options).items() if name not in _PLACES}


@lru_cache(maxsize=16)
def _own_libraries(kind: Any, arch: Any, libdevice: str) -> dict[str, str]:
    """The libraries that Triton links by default; `libdevice` is the path for which the result is cached."""
    return dict(kind(arch=arch).extern_libs or ())


def generic(jit: Any, special: Specialization) -> list[Specialization]:
    """Variants without assumptions on addresses and integers: as called, and with integers of value 1 as parameters.

    A compiled-in 1 promotes types differently from a 32-bit parameter, so each variant serves its own calls. Pointers
    that are None stay None, since the code checks for it.
    """
    own = [place for place, parameter in enumerate(jit.params) if parameter.is_constexpr]
    folded = {path for path, value in special.constants.items() if type(value) is int and path[0] not in own}
    as_met = special.replace(attrs={})
    if not folded:
        return [as_met]
    pairs = enumerate(special.signature.items())
    signature = {name: _unfolded(type_, (place,), folded) for place, (name, type_) in pairs}
    constants = {path: value for path, value in special.constants.items() if path not in folded}
    return [as_met, as_met.replace(signature=signature, constants=constants)]


def _unfolded(type_: Any, path: tuple[int, ...], folded: Collection[tuple[int, ...]]) -> Any:
    """A type with compiled-in integers turned into parameters, preserving tuple classes."""
    if not isinstance(type_, tuple):
        return "i32" if path in folded else type_
    items = [_unfolded(inner, (*path, place), folded) for place, inner in enumerate(type_)]
    return tuple(items) if type(type_) is tuple else type(type_)(*items)


@lru_cache(maxsize=16)
def target(arch: int) -> Any:
    """Triton's target for a compute capability."""
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", arch, WARP_SIZE)


@lru_cache(maxsize=16)
def _backend(arch: int) -> Any:
    from triton.compiler.compiler import make_backend

    return make_backend(target(arch))


def compile_(jit: Any, special: Specialization, code: str) -> Any:
    """Triton's compiled kernel for a specialization, from its cache or compiled now (with Triton's errors); not loaded.

    Args:
        jit: A Triton function.
        special: The specialization.
        code: Text of everything that the kernel is compiled from.
    """
    import triton

    source = _source(jit, special)
    with globals_used.cached_as(source, code):
        return triton.compile(source, target=target(special.arch), options=dict(vars(special.options)))


def _source(jit: Any, special: Specialization) -> Any:
    from triton.compiler import ASTSource

    return ASTSource(jit, dict(special.signature), dict(special.constants), dict(special.attrs))


def launch_metadata_of(compiled: Any, special: Specialization) -> dict[str, Json]:
    """The metadata of a compiled kernel that does not follow from its options: name and launch requirements."""
    said = {**options_json(special.options), **dict.fromkeys((*_PLACES, *_OF_THE_BUILD))}
    found = compiled.metadata._asdict()
    return {
        name: value for name, value in found.items()
        if name not in kernel.environment() and (name not in said or name not in _OF_THE_BUILD + _PLACES)
        and not (name in said and _same(said[name], value))
    }  # fmt: skip


_OF_THE_BUILD = ("hash", "target", "triton_version")


def _same(one: Any, other: Any) -> bool:
    return list(one) == list(other) if isinstance(one, tuple) and isinstance(other, (list, tuple)) else one == other


def changes_code(jit: Any = None) -> str:
    """Why Triton may compile other code than specialization and environment determine; "" if it does not.

    Knobs set by the user, hooks, and overrides of kernels, IR or tools are such reasons: Triton then decides, as
    without binaries. With a `jit`, so is a launch that is not Triton's own.
    """
    global _latest_knobs
    if why := versions.strange_triton():
        return why
    if jit is not None and is_hooked(jit):
        return "Triton's launch is replaced or hooked"
    now, (then, found) = _state(), _latest_knobs
    if now is None or now is not then:
        found = _set_knob()
        _latest_knobs = now, found
    return found


def _state() -> tuple[Any, ...] | None:
    """An object that stays the same until the environment or a knob changes; None if changes cannot be detected."""
    global _latest_state
    import triton.knobs as knobs

    then, stamp = _latest_state, env.stamp()()  # read once: another thread may replace it
    if stamp is None:
        return None
    now = stamp, knobs.runtime.__dict__, knobs.compilation.__dict__, knobs.language.__dict__, knobs.nvidia.__dict__
    if now != then:
        then = _latest_state = stamp, *[dict(part) for part in now[1:]]
    return then


_latest_state: tuple[Any, ...] = ()
_latest_knobs: tuple[Any, str] = (None, "")  # a state, and the variables it sets


def _set_knob() -> str:
    """A description of the knob, edit or tool that changes code; "" without one."""
    from triton import knobs

    runtime, compilation = knobs.runtime, knobs.compilation
    asked = {
        "debug": runtime.debug, "add_stages_inspection_hook": runtime.add_stages_inspection_hook,
        "override_arch": runtime.override_arch, "override": compilation.override,
        "dump_ir": compilation.dump_ir, "always_compile": compilation.always_compile,
        "use_ir_loc": compilation.use_ir_loc, "instrumentation_mode": compilation.instrumentation_mode,
        "front_end_debugging": compilation.front_end_debugging, "enable_asan": compilation.enable_asan,
    }  # fmt: skip
    for name, value in asked.items():
        if value:
            return f"the knob {name} is set"
    edited = [*_edited(compilation), *_edited(knobs.nvidia)]
    if edited:
        return f"the knob {edited[0]} was set by the program"
    return f"{_LIBDEVICE} is set" if env.triton_tool(_LIBDEVICE) else ""


def _edited(knobs: Any) -> list[str]:
    """The knobs of a group that differ from the environment's values."""
    return [
        name for name, value in sorted(vars(knobs).items())
        if name != "listener" and value != _given(inspect.getattr_static(type(knobs), name, None))
    ]  # fmt: skip


def _given(knob: Any) -> Any:
    return knob.get() if hasattr(knob, "get") else knob


def fill_cache(jit: Any, special: Specialization, metadata: Mapping[str, Json], binary: bytes) -> None:
    """Put a binary into Triton's file cache, under Triton's hash; may raise OSError."""
    from triton.compiler.compiler import get_cache_key
    from triton.runtime.cache import get_cache_manager

    source = _source(jit, special)
    text = get_cache_key(source, _backend(special.arch), special.options, env_vars=kernel.environment())
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
    cache, stem = get_cache_manager(digest), str(source.name)[:150]
    if not cache.get_group(f"{stem}.json"):
        cache.put_group(f"{stem}.json", _put(cache, stem, _whole(special, metadata, digest), {"cubin": binary}))


def _whole(special: Specialization, metadata: Mapping[str, Json], digest: str) -> dict[str, Any]:
    said = {**vars(special.options), **kernel.environment(), **metadata, "hash": digest}
    return {**said, "target": vars(target(special.arch)), "triton_version": kernel.version()}


def _put(cache: Any, stem: str, metadata: Mapping[str, Any], stages: Mapping[str, bytes]) -> dict[str, str]:
    """Put metadata and stages into a Triton cache; returns their paths by name."""
    return {
        **{f"{stem}.{name}": cache.put(content, f"{stem}.{name}") for name, content in stages.items()},
        f"{stem}.json": cache.put(json.dumps(metadata, default=vars), f"{stem}.json", binary=False),
    }


# -- every compilation of the process ----------------------------------------------------------------------------------


def asked_of_compiler(source: Any, asked_target: Any, options: Mapping[str, Any] | None) -> Specialization | None:
    """The specialization requested from Triton's compiler; None for overrides, other sources and other back ends."""
    from triton.compiler.compiler import make_backend

    needed = ("fn", "signature", "constants", "attrs", "name")
    if getattr(asked_target, "backend", "") != "cuda" or not all(hasattr(source, name) for name in needed):
        return None
    found = make_backend(asked_target).parse_options(dict(options or {}, **source.parse_options()))
    if getattr(found, "ir_override", None):
        return None
    return Specialization(source.signature, source.constants, source.attrs, found, asked_target.arch)


def compiled_from(
    source: Any, special: Specialization, metadata: Mapping[str, Json], stages: Mapping[str, bytes], digest: str
) -> Any:
    """Triton's compiled kernel made from stored machine code, as if it came from its cache; may raise OSError."""
    from triton.compiler.compiler import CompiledKernel
    from triton.runtime.cache import get_cache_manager

    cache, stem = get_cache_manager(digest), str(source.name)[:150]
    return CompiledKernel(source, _put(cache, stem, _whole(special, metadata, digest), stages), digest)


def stand_in_for_compile(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    """Replace Triton's `compile` by `make(original)` for kernels first launched later; returns an undo function."""
    from triton import compiler

    return kernel.stand_in(compiler, "compile", make)
