"""A compiled form of a kernel: what it was compiled for, what its launch needs, and which calls it may serve."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any

from autotuned._startup import Frozen, forget_oldest, later, once
from autotuned.errors import EncodingError
from autotuned.key import source
from autotuned.key.key import PLAIN
from autotuned.triton_compat import descriptors, specialization
from autotuned.triton_compat.specialization import NUMBERS, Kind, Specialization, Specializer, options_json
from autotuned.typed_json import Json, Told, canonical, digest_of_text, encode, integer, named, quoted, typed, wrong

if TYPE_CHECKING:
    from autotuned.key import exact, words
else:
    exact, words = later("key.exact"), later("key.words")  # for unusual constants, and for errors

DIGEST = 32  # hex digits of a variant's digest: 128 bits
_ONE, _NONE = "=1", "=None"  # types of an integer 1 and a None pointer, which are compiled in
_COMPILED_IN = ("constexpr", _ONE, _NONE)
_SIZES = ("shared", "num_warps", "num_ctas", "global_scratch_size", "profile_scratch_size", "global_scratch_align",
          "profile_scratch_align", "tmem_size")  # fmt: skip
MOST = 1 << 31
_MOST_OF = {"num_warps": 64, "num_ctas": 64}
_FLAGS = ("launch_pdl", "launch_cooperative_grid")
_MAP_NUMBERS = {"swizzle": 3, "elem_size": 16, "elem_type": 64}  # fields of a descriptor -> maximum


Types = tuple[tuple[str, str], ...]  # name and type of each parameter, in order


class Code(Frozen):
    """What a binary was compiled from and with, apart from its specialization; must equal the call's."""

    source: str  # fingerprint of the kernel, its callees and the globals it uses
    version: Json  # the user's salt
    environment: Mapping[str, str]  # Triton's variables that change code
    interface: str  # hash of Triton's launch interface (`fingerprint.launch_interface`)
    arch: int  # compute capability, as in Triton's target

    @once
    def text(self) -> str:
        """The canonical text."""
        return canonical(self.fields())

    @classmethod
    def load(cls, data: Json, where: str) -> Code:
        """Parse JSON; RecordError if invalid."""
        fields = named(data, where, cls._names)
        for name in ("source", "interface"):
            typed(fields[name], str, f"{where}.{name}")
        for name, value in typed(fields["environment"], dict, f"{where}.environment").items():
            typed(value, str, f"{where}.environment.{name}")
        integer(fields["arch"], f"{where}.arch", 1, 9999)
        return cls(**fields)


class Form(Frozen):
    """A specialization as data: what distinguishes two binaries of one kernel and code.

    Attributes:
        types: Name and type of each parameter, in order; "constexpr", "=1" and "=None" are compiled in. A tuple's items
            follow it: `pair`, "tuple[2]"; `pair[0]`, "*fp32"; `pair[1]`, "i32".
        assumes: Assumptions about parameters, as canonical text by name.
        constants: Values of the constexpr parameters, as spelled by `exact.spell`.
        options: Triton's.
    """

    types: Types
    assumes: Mapping[str, str]
    constants: Json
    options: Json

    @once
    def fixed(self) -> str:
        """Canonical text of the parts that must be equal for a binary to serve."""
        # As `canonical` writes a list of them.
        return f"[{self.constants_text},{_text_of(self.options)},{_names_text(self.types)}]"

    @once
    def constants_text(self) -> str:
        """Canonical text of the constants."""
        return canonical(self.constants)

    @once
    def text(self) -> str:
        """Canonical text of everything."""
        return canonical([self.fixed, [list(pair) for pair in self.types], dict(self.assumes)])

    @once
    def of_any_block(self) -> Form:
        """The same for descriptors of any block, which a config's hook may set before the launch."""
        types = [(name, type_.partition("[")[0] if descriptors.is_type(type_) else type_) for name, type_ in self.types]
        return self.replace(types=tuple(types))

    @property
    def rank(self) -> int:
        """Lower means more specialized; the lowest that serves is used."""
        return -len(self.assumes)

    def serves(self, call: Form) -> bool:
        """Whether a binary of this form computes the same as one of the call's own form (`why_not` is empty)."""
        same = self.types == call.types and self.fixed == call.fixed
        return same and self.assumes.items() <= call.assumes.items()

    def why_not(self, call: Form, exact: bool = False) -> str:
        """The first assumption of this form that the call does not meet, or ""; with `exact`, any difference counts."""
        if self.fixed != call.fixed:
            return self._other_constant(call)
        for (name, own), (_, theirs) in zip(self.types, call.types):
            if own != theirs:  # another width, or a compiled-in 1, changes type promotion
                return f"`{name}`: {_type_words(theirs)}; compiled were: {_type_words(own)}"
            assumed, fulfilled = self.assumes.get(name), call.assumes.get(name)
            if assumed != fulfilled and (exact or assumed is not None):
                what = ("divisible by 16", "not divisible") if assumed is None else ("not divisible by 16", "divisible")
                return f"`{name}`: {'address ' * own.startswith('*')}{what[0]}; compiled were: {what[1]}"
        return ""

    def _other_constant(self, call: Form) -> str:
        """A constant that differs between two forms; else their options do."""
        theirs, own = call.constants, self.constants
        if isinstance(theirs, dict) and isinstance(own, dict):
            for name in theirs.keys() & own.keys():
                if canonical(theirs[name]) != canonical(own[name]):
                    return f"`{name}`: {words.value_words(theirs[name])}; compiled were: {words.value_words(own[name])}"
        return "other constants or options"

    @property
    def launched(self) -> list[tuple[str, str]]:
        """Name and type of the parameters that a launch passes, in order."""
        return [(name, type_) for name, type_ in self.types if is_launched(type_)]

    @once
    def parameters(self) -> list[str]:
        """Names of the parameters in order, without tuple items."""
        return [name for name, _ in self.types if "[" not in name]

    def place(self, name: str) -> list[int]:
        """Index path of a parameter or tuple item in the values of all parameters."""
        if name in self.parameters:
            return [self.parameters.index(name)]
        whole, *items = name.replace("]", "").split("[")
        return [self.parameters.index(whole), *map(int, items)]

    @property
    def signature(self) -> dict[str, Any]:
        """Triton's type of each parameter."""
        if not self.has_tuples:
            return {name: "constexpr" if type_ in _COMPILED_IN else type_ for name, type_ in self.types}
        types = iter(self.types)
        return {name: _triton_type(type_, types) for name, type_ in types}

    @property
    def has_tuples(self) -> bool:
        """Whether a parameter is a tuple, whose items follow it."""
        return "tuple[" in " ".join([type_ for _, type_ in self.types])

    @property
    def has_descriptors(self) -> bool:
        """Whether a parameter, or an item of a tuple, is a tensor descriptor."""
        return "tensordesc<" in " ".join([type_ for _, type_ in self.types])

    def to_json(self) -> dict[str, Json]:
        """As stored in a file."""
        types = [list(pair) for pair in self.types]
        return {"types": types, "assumes": dict(self.assumes), "constants": self.constants, "options": self.options}

    @classmethod
    def load(cls, fields: Mapping[str, Json], where: str, known: Types | None = None) -> Form:
        """Parse its four fields; RecordError if one is invalid. `known`: the types, of a call that has the same."""
        assumes = typed(fields["assumes"], dict, f"{where}.assumes")
        types = _load_types(fields["types"], where) if known is None else known
        if assumes and {*map(type, assumes.values())} != {str}:
            name = next(name for name, text in assumes.items() if type(text) is not str)
            raise wrong(f"{where}.assumes.{name}", "str", assumes[name])
        for name in ("constants", "options"):
            if not isinstance(fields[name], dict):
                typed(fields[name], dict, f"{where}.{name}")
        return cls(types, assumes, fields["constants"], fields["options"])


def _load_types(data: Json, where: str) -> Types:
    """Check the names and types of parameters; RecordError if one is invalid."""
    pairs = typed(data, list, where)
    types = tuple([tuple(pair) if type(pair) is list else (pair,) for pair in pairs])
    if types and {(*map(type, pair),) for pair in types} != {(str, str)}:
        odd = next(pair for pair in pairs if type(pair) is not list or [*map(type, pair)] != [str, str])
        raise wrong(f"{where}.types", "a name and a type", odd)
    following = iter(types)
    for name, type_ in following if any("]" in type_ for _, type_ in types) else ():  # tuples have items
        _check_items(name, type_, following, f"{where}.types")
    return types


# Texts of types, which many variants have.
_names_text: Callable[[Types], str] = lru_cache(maxsize=256)(lambda types: canonical([name for name, _ in types]))
_types_text: Callable[[Types], str] = lru_cache(maxsize=256)(canonical)


def difference(forms: Iterable[Form], call: Form, exact: bool = False) -> str:
    """Why none of these forms serves a call (`Form.why_not`), by the closest; "" if one does or there are none."""
    forms = list(forms)
    same = [form for form in forms if form.fixed == call.fixed]
    return min((form.why_not(call, exact) for form in same or forms), key=lambda why: (len(why), why), default="")


def _type_words(type_: str) -> str:
    return {_ONE: "an integer that is 1", _NONE: "None"}.get(type_, type_)


@lru_cache(maxsize=1024)
def is_launched(type_: str) -> bool:
    """Whether a launch passes a value for this type."""
    return type_ in NUMBERS or type_.startswith("*") or descriptors.is_type(type_)


@lru_cache(maxsize=1024)
def _items(type_: str) -> int:
    """Number of items of a tuple type; -1 for other types."""
    # Without `re`: compiling a pattern takes 0.2 ms at the first call.
    digits = type_[len("tuple[") :].partition("]")[0] if type_.startswith("tuple[") and "]" in type_ else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 3 else -1


def _triton_type(type_: str, following: Iterator[tuple[str, str]]) -> Any:
    if (count := _items(type_)) >= 0:
        return tuple(_triton_type(next(following)[1], following) for _ in range(count))
    return "constexpr" if type_ in (_ONE, _NONE) else type_


def _check_items(name: str, type_: str, following: Iterator[tuple[str, str]], where: str) -> None:
    """Check that a tuple's items follow it, under their names."""
    for place in range(_items(type_)):
        inner, inner_type = next(following, ("", ""))
        if inner != f"{name}[{place}]":
            raise wrong(where, f"{name}[{place}]", inner)
        _check_items(inner, inner_type, following, where)


class Variant(Frozen):
    """A binary of a kernel, with everything that decides whether it may be launched for a call."""

    kernel: str  # its public name
    triton: str  # the version that compiled it, for people
    code: Code
    form: Form
    # What a launch needs: the function's `name`, `shared` bytes, scratch sizes, and Triton's other fields.
    metadata: Mapping[str, Json]
    blob: str  # SHA-256 of the machine code

    @once
    def digest(self) -> str:
        """Hash of everything, including the machine code's hash; named by a config file's entry."""
        code, form = self.code.text, self.form
        # The same as `canonical(to_json())`, built from cached texts of shared parts.
        text = (
            f'{{"blob":{encode_basestring_ascii(self.blob)},"code":{code},"form":{{"assumes":'
            f'{canonical(dict(form.assumes))},"constants":{form.constants_text},'
            f'"options":{_text_of(form.options)},"types":{_types_text(form.types)}}},"kernel":{quoted(self.kernel)},'
            f'"metadata":{_text_of(self.metadata)},"triton":{quoted(self.triton)}}}'
        )
        return digest_of_text(text)[:DIGEST]

    def to_json(self) -> dict[str, Json]:
        """All fields."""
        return {
            "kernel": self.kernel, "triton": self.triton, "code": self.code.fields(), "form": self.form.to_json(),
            "metadata": self.metadata, "blob": self.blob,
        }  # fmt: skip

    @property
    def launch(self) -> dict[str, Json]:
        """Options and metadata in one, as in Triton's kernels; metadata wins, since compiling may change options."""
        return {**self.form.options, **self.metadata}


def check_launch(data: Json, where: str) -> dict[str, Json]:
    """Check options or metadata; RecordError if no launch is possible with them."""
    fields: dict[str, Json] = typed(data, dict, where)
    for name, value in fields.items():
        if not _is_attribute(name):
            raise wrong(where, "fields with names of attributes", name)
        if name in _FLAGS and not isinstance(value, (bool, type(None))):
            raise wrong(f"{where}.{name}", "true or false", value)
        if name in _SIZES and value is not None:
            integer(value, f"{where}.{name}", 0, _MOST_OF.get(name, MOST))
    for place, described in enumerate(typed(fields.get("tensordesc_meta") or [], list, f"{where}.tensordesc_meta")):
        if described is not None:
            _check_map(described, f"{where}.tensordesc_meta[{place}]")
    return fields


@lru_cache(maxsize=1024)
def _is_attribute(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and name[0] != "_"


def _check_map(data: Json, where: str) -> None:
    fields: dict[str, Json] = typed(data, dict, where)
    for name, most in _MAP_NUMBERS.items():
        integer(fields.get(name), f"{where}.{name}", 0, most)
    for size in typed(fields.get("block_size"), list, f"{where}.block_size"):
        integer(size, f"{where}.block_size", 1, 256)


def check_metadata(data: Json, where: str) -> dict[str, Json]:
    """Check a binary's metadata; RecordError if no launch is possible with it."""
    fields = check_launch(data, where)
    name: str = typed(fields.get("name"), str, f"{where}.name")
    if not name.isascii() or not name.isprintable():
        raise wrong(f"{where}.name", "a function's name", name)
    if not isinstance(fields.get("shared"), int):
        raise wrong(f"{where}.shared", "a number of bytes", fields.get("shared"))
    return fields


def form_of(special: Specialization, constexprs: Iterable[str]) -> Form | None:
    """A specialization as data; None for half-precision numbers, or constants without a spelling."""
    own, attrs, given = frozenset(constexprs), special.attrs, special.constants
    types: dict[str, str] = {}
    constants: dict[str, Json] = {}
    assumes: dict[str, str] = {}
    try:
        for name, path, type_ in _parts(special.signature):
            if type_ == "constexpr":
                value = given.get(path)
                type_ = "constexpr" if name in own else _compiled_in(name, value)  # noqa: PLW2901
                if type_ == "constexpr":
                    constants[name] = _spelled(name, value)
            types[name] = type_
            if path in attrs and attrs[path]:
                assumes[name] = canonical(attrs[path])
        pairs = tuple(types.items())
        return Form(pairs, assumes, constants, _options_of(special.options)) if _are_known(pairs) else None
    except (EncodingError, TypeError):
        return None


def form_of_call(specializer: Specializer, given: Mapping[str, Any]) -> Form | None:
    """`form_of` a call's specialization; raises what Triton raises."""
    found = specializer.looked_up(given)
    if found is None:
        return form_of(specializer.of((), given), specializer.constexprs)
    (values, kinds), options = found
    known = _types_and_assumptions(specializer.parameters, tuple(kinds), specializer.assumed)
    try:
        constants = {name: _spelled(name, values[name]) for name in specializer.constexprs}
        return None if known is None else Form(*known, constants, _options_of(options))
    except (EncodingError, TypeError):
        return None


@lru_cache(maxsize=1024)
def _types_and_assumptions(
    parameters: tuple[tuple[str, bool], ...], kinds: tuple[Kind, ...], assumed: tuple[tuple[str, str], ...]
) -> tuple[Types, dict[str, str]] | None:
    """The first fields of a call's form, shared by most calls of a kernel; None if a launch cannot pass a type."""
    types: list[tuple[str, str]] = []
    assumes: dict[str, str] = {}
    texts = dict(assumed)
    for (name, constexpr), (type_, special) in zip(parameters, kinds):
        compiled_in = type_ == "constexpr" and not constexpr
        types += [(name, _compiled_in(name, special) if compiled_in else type_)]
        if special in texts:
            assumes[name] = texts[special]
    pairs = tuple(types)
    return (pairs, assumes) if _are_known(pairs) else None


_SMALL = 1 << 63  # smaller integers are plain JSON


@lru_cache(maxsize=1024)
def _are_known(types: Types) -> bool:
    """Whether each type is passed by a launch, compiled in, or a tuple of these."""
    return all(type_ in _COMPILED_IN or is_launched(type_) or _items(type_) >= 0 for _, type_ in types)


def _spelled(name: str, value: Any) -> Json:
    if type(value) is bool or (type(value) is int and -_SMALL < value < _SMALL):
        return value
    where = f"constant {name!r}"
    return encode(value, where) if source.is_exact(value) else exact.spell(value, where)


def _options_of(options: Any) -> Json:
    """Options as JSON, converted once per object: one object serves many calls (`Specializer.looked_up`)."""
    known = _written.get(id(options))
    if known is None or known[0] is not options:
        forget_oldest(_written, _MOST_WRITTEN - 1)
        made_of = specialization.made_of(options)
        data = plain(options_json(options)) if made_of is None else {**_options_of(made_of[0]), **made_of[1]}
        known = _written[id(options)] = options, Told(data)
    return known[1]


_written: dict[int, tuple[Any, Json]] = {}
_MOST_WRITTEN = 256


def _text_of(data: Json) -> str:
    return data.text if type(data) is Told else canonical(data)


def _compiled_in(name: str, value: Any) -> str:
    """The type of a compiled-in part that is not a constexpr parameter; a tuple may hold its own constants."""
    if value is None:
        return _NONE
    if type(value) is int and value == 1:
        return _ONE
    return "constexpr" if "[" in name else "?"


def _parts(signature: Mapping[str, Any]) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, path and type of each parameter; a tuple's items follow it."""
    if {*map(type, signature.values())} == {str}:
        return [(name, (place,), signature[name]) for place, name in enumerate(signature)]
    return [part for place, (name, type_) in enumerate(signature.items()) for part in _flat(name, (place,), type_)]


def _flat(name: str, path: tuple[int, ...], type_: Any) -> Iterator[tuple[str, tuple[int, ...], str]]:
    if not isinstance(type_, tuple):
        yield name, path, type_
        return
    # Include a named tuple's class, whose methods kernels may call.
    kind = "" if type(type_) is tuple else f" {digest_of_text(canonical(exact.spell(type(type_), 'its class')))}"
    yield name, path, f"tuple[{len(type_)}]{kind}"
    for place, inner in enumerate(type_):
        yield from _flat(f"{name}[{place}]", (*path, place), inner)


def plain(value: Any) -> Json:
    """Options as JSON, tuples as lists; TypeError for other values."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, Mapping):
        return {str(name): one if type(one) in PLAIN else plain(one) for name, one in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(inner) for inner in value]
    if isinstance(value, (int, float, str)):
        return value
    raise TypeError(f"expected an option that JSON can hold, got one of type {type(value).__name__}")
