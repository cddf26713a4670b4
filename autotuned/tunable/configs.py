"""The configs that a call may use: listed or computed, pruned, each with its identity."""

from __future__ import annotations

import difflib
import enum
import gc
import hashlib
import inspect
import itertools
import logging
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotuned import disk
from autotuned._startup import Frozen, errors, later
from autotuned.key.key import PLAIN
from autotuned.typed_json import Fallback, Json, canonical, encode, is_numpy_scalar

if TYPE_CHECKING:
    from typing import Protocol

    from autotuned.key import opaque
    from autotuned.tunable import readers

    class HasParameters(Protocol):
        """The part of a `Tunable` that configs and calls are checked against."""

        name: str
        parameters: Sequence[Any]
        filled: frozenset[str]
        has_options: bool

        def allows(self, name: str) -> bool:
            """Whether a config may set a parameter or back-end option with this name."""
else:
    opaque, readers = later("key.opaque"), later("tunable.readers")

log = logging.getLogger("autotuned")

# Every field of triton.Config in 3.6 to 3.9, with its default. Unknown fields are errors: ignoring one would give two
# different configs one identity.
OPTIONS = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None, "ir_override": None}
_FIELDS = ("kwargs", *OPTIONS, "pre_hook")
_by_name = operator.attrgetter(*_FIELDS)
Config = Any


class Pruner(Frozen):
    """The parts of `prune_configs_by`, with Triton's meaning."""

    early: Callable[..., Any] | None = None
    perf_model: Callable[..., float] | None = None
    top_k: float = 1.0


PRUNERS = ("early_config_prune", "perf_model", "top_k")


def check_prune(prune: Any) -> None:
    """Raise DecorationError for an invalid `prune_configs_by`, which Triton would silently ignore."""
    if prune is not None and not isinstance(prune, Mapping):
        raise errors.DecorationError(
            f"@autotune: prune_configs_by: expected a dict of {', '.join(PRUNERS)}, got {prune!r:.80}."
        )
    if unknown := [name for name in prune or () if name not in PRUNERS]:
        raise errors.DecorationError(
            f"@autotune: prune_configs_by: expected {', '.join(PRUNERS)}, got {unknown[0]!r}. Remove it or correct "
            "its name."
        )


def pruner_of(prune: Mapping[str, Any] | None) -> Pruner:
    """`prune_configs_by` as a pruner."""
    given = prune or {}
    return Pruner(given.get("early_config_prune"), given.get("perf_model"), given.get("top_k", 1.0))


def is_config(value: object) -> bool:
    """Whether a value looks like `triton.Config`; also true for subclasses and forks."""
    return all(hasattr(value, name) for name in ("kwargs", "all_kwargs", "num_warps", "pre_hook"))


def _fields(config: Config) -> dict[str, Any]:
    """All attributes of a config, read by name if it has no others.

    Reading `__dict__` slows down attribute access in Python 3.11 and 3.12, and Triton reads seven at each launch.
    """
    try:
        known = dict(zip(_FIELDS, _by_name(config)))
    except AttributeError:
        return dict(vars(config))
    kind: Any = type(config)
    has_no_other = len(gc.get_referents(config)) == len(known) + 1  # its attributes and its class
    return known if has_no_other and _has_no_field(kind) else dict(vars(config))


@lru_cache(maxsize=16)
def _has_no_field(kind: Any) -> bool:
    return not any(hasattr(kind, name) for name in _FIELDS)


def to_json(config: Config, kernel: str, fallback: Fallback | None = None) -> dict[str, Json]:
    """A config's canonical form: all fields with defaults, `pre_hook` by its code.

    Raises:
        ConfigError: The config has an unknown field, or an option that is not a number.
        EncodingError: A value of `kwargs` cannot be written as typed JSON.
    """
    fields = _fields(config)
    kwargs = fields.pop("kwargs")
    hook = fields.pop("pre_hook")
    unknown = {name for name, value in fields.items() if name not in OPTIONS and value is not None}
    if unknown:
        raise errors.ConfigError(
            f"`{kernel}`: expected configs with the fields kwargs, {', '.join(OPTIONS)} and pre_hook, "
            f"got also {', '.join(sorted(unknown))}. Upgrade autotuned, or put options into kwargs.",
            kernel=kernel,
        )
    form = {name: _option(name, fields.get(name, default), kernel) for name, default in OPTIONS.items()}
    if form["ir_override"] is not None:
        form["ir_override"] = _content(form["ir_override"])
    values = {name: _value(value, name, kernel, fallback) for name, value in kwargs.items()}
    return {"kwargs": values, **form, "pre_hook": hook is not None and opaque.hook(hook)}


def _value(value: Any, name: str, kernel: str, fallback: Fallback | None) -> Json:
    """A value of `kwargs` as JSON; a subclass of a plain type differs from an equal plain value, as for Triton."""
    try:
        derived = list(_derived(value))
    except RecursionError:
        raise errors.ConfigError(
            f"`{kernel}`: a config sets {name!r}: expected a value that can be written down, got a "
            f"{type(value).__name__} that holds itself, or more than {DEPTH} levels or {ITEMS:,} items. Give it "
            "a plain value.",
            kernel=kernel,
        ) from None
    form = encode(value, f"config of '{kernel}', {name}", fallback)
    return {"derived": [form, *derived]} if derived else form


DEPTH, ITEMS = 64, 100_000  # most levels and items of a nested value in a config


def _derived(value: Any) -> Iterator[str]:
    """The subclasses of plain types in a value, with their places; RecursionError if it is cyclic or too large."""
    waiting: list[tuple[Any, str, tuple[int, ...]]] = [(value, "", ())]
    for count in itertools.count():
        if not waiting:
            return
        one, where, within = waiting.pop()
        if id(one) in within or len(within) > DEPTH or count > ITEMS:
            raise RecursionError
        kind = type(one)
        if isinstance(one, _PLAIN) and kind not in _PLAIN and kind is not bool and not isinstance(one, enum.Enum):
            yield f"{where}:{kind.__qualname__}"
        waiting += [(item, f"{where}[{place}]", (*within, id(one))) for place, item in _items(one, kind)]


def _items(value: Any, kind: type) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, (tuple, list)):
        return enumerate(value)
    if isinstance(value, dict):
        return [(f"{what} {place}", one) for place, pair in enumerate(value.items()) for what, one in zip("kv", pair)]
    return [("", value.value)] if kind.__name__ == "constexpr" else ()


_PLAIN = (str, int, float, tuple)


def plain(option: Any) -> Any:
    """A launch option in a form Triton can serialize: integer-like values, such as NumPy's, become Python's."""
    if type(option) in (int, bool, str, type(None)):
        return option
    if is_numpy_scalar(option):
        return option.item()
    try:
        return option if isinstance(option, str) else operator.index(option)
    except TypeError:
        return option


def _option(name: str, given: Any, kernel: str) -> Any:
    """A launch option as plain Python; ConfigError if it should be a number and is not."""
    value = plain(given)
    if name != "ir_override" and type(value) is not int and value is not None:
        raise errors.ConfigError(
            f"`{kernel}`: a config sets {name}: expected an int, got {given!r:.60}. Write {name}=4.", kernel=kernel
        )
    return value


def stored_form(default: Any, kernel: str, fallback: Fallback) -> dict[str, Json] | None:
    """The canonical form of `default=` if that is a config, for comparison with the winner."""
    return to_json(default, kernel, fallback) if is_config(default) else None


def _content(path: str) -> str:
    """An IR file's content and suffix, which tells Triton the stage; its name is irrelevant."""
    try:
        content = disk.read_bytes(Path(path))
    except (OSError, ValueError):  # never wins, as it cannot compile; once readable it is another config
        return f"unreadable:{path}"
    return f"sha256:{hashlib.sha256(content).hexdigest()}{Path(path).suffix}"


def plain_values(config: Config) -> tuple[Any, ...] | None:
    """Everything that `identity` depends on, as a cache key; None for values other than integers and text."""
    fields = _fields(config)
    kwargs = fields.pop("kwargs")
    values = *fields.values(), *kwargs.values()
    kinds = tuple(map(type, values))  # 1 equals True
    is_plain = _AS_KEY.issuperset(kinds) and fields.get("ir_override") is None
    return (len(fields), *fields, *kwargs, *kinds, *values) if is_plain else None


_AS_KEY = PLAIN - {float}  # -0.0 equals 0.0


def identity(config: Config, kernel: str, fallback: Fallback | None = None) -> str:
    """A text that is equal for equal candidates; cached for plain values."""
    values = plain_values(config)
    known = _identities.get(values)
    if known is None:
        known = canonical(to_json(config, kernel, fallback))
        if values is not None and len(_identities) < _MOST_IDENTITIES:
            _identities[values] = known
    return known


_identities: dict[Any, str] = {}  # `plain_values` -> identity
_MOST_IDENTITIES = 1 << 16


def label(form: Mapping[str, Json] | None, options: bool = True) -> str:
    """A config in words: `BLOCK=1024 num_warps=4 num_stages=3`; `options`: whether to show the launch options."""
    if form is None:
        return "unfinished"
    words = [
        f"{name}={value if not isinstance(value, (dict, list)) else canonical(value)}"
        for name, value in form["kwargs"].items()
        if not (options and form.get(name) is not None)  # Triton prefers the field outside `kwargs`
    ]
    for name, default in OPTIONS.items() if options else ():
        if name in ("num_warps", "num_stages") or form[name] != default:
            words.append(f"{name}={form[name]}")
    if form["pre_hook"]:
        words.append("pre_hook")
    return " ".join(words) or "no parameters"


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the closest match, then all known names."""
    known = list(known)
    near = difflib.get_close_matches(name, known, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{hint} Arguments are: {', '.join(known) or 'none'}."


def listed(configs: Any, kernel: str) -> list[Config]:
    """An iterable of configs as a list without duplicates.

    Raises ConfigError if an item is not a config, or two configs differ only in their hook.
    """
    try:
        configs = list(configs)
    except TypeError:
        raise errors.ConfigError(
            f"`{kernel}`: configs: expected a list of triton.Config, or a callable returning one, "
            f"got {type(configs).__name__}.",
            kernel=kernel,
        ) from None
    for config in configs:
        if not is_config(config):
            raise errors.ConfigError(
                f"`{kernel}`: configs: expected triton.Config objects, got {type(config).__name__}: {config!r:.80}. "
                "Write Config({'BLOCK': 64}, num_warps=4).",
                kernel=kernel,
            )
    return _without_duplicates(configs, kernel)


def _without_duplicates(configs: Sequence[Config], kernel: str) -> list[Config]:
    seen: dict[str, Config] = {}
    for config in configs:
        # Values without a JSON form are compared by identity.
        if plain_values(config) is not None:
            name = identity(config, kernel)
        else:
            form = to_json(config, kernel, lambda value, where: {"object": id(value)})
            name = canonical({**form, "pre_hook": config.pre_hook is not None})
        if name not in seen:
            seen[name] = config
        elif seen[name].pre_hook is not config.pre_hook:
            raise errors.ConfigError(
                f"`{kernel}`: configs: two configs have the same values ({config}) and different pre_hooks, so a "
                "stored choice could not say which one it is. Remove one, or give them different values.",
                kernel=kernel,
            )
        else:
            log.info("`%s`: config listed twice, kept once: %s", kernel, config)
    return list(seen.values())


def check(configs: Iterable[Config], tunable: HasParameters) -> None:
    """Make options plain numbers; ConfigError for unknown names and for misplaced or non-numeric options."""
    for config in configs:
        for name in config.kwargs:
            _check_name(name, tunable)
        if tunable.has_options:
            _make_plain(config, tunable)


def check_complete(configs: Sequence[Config], tunable: HasParameters) -> None:
    """ConfigError for a config without a parameter that others set and nothing else fills in: it could never run."""
    tuned = {name for config in configs for name in config.kwargs} - tunable.filled
    needed = [one.name for one in tunable.parameters if one.name in tuned and one.default is inspect.Parameter.empty]
    for config in configs:
        if lacking := [name for name in needed if name not in config.kwargs]:
            raise errors.ConfigError(
                f"`{tunable.name}`: configs: expected {lacking[0]!r} in every config, since some set it and it has no "
                f"default, got one without it: {config}.",
                kernel=tunable.name,
            )


def _check_name(name: Any, tunable: HasParameters) -> None:
    if name in (*OPTIONS, "pre_hook") and (tunable.has_options or not tunable.allows(name)):
        raise errors.ConfigError(
            f"`{tunable.name}`: a config sets {name!r} among its parameters: expected it outside of them, got it "
            f"inside, where Triton overrides or ignores it. Write Config({{...}}, {name}=...).",
            kernel=tunable.name,
        )
    if not tunable.allows(name):
        known = [parameter.name for parameter in tunable.parameters]
        raise errors.ConfigError(
            f"`{tunable.name}`: a config sets {name!r}, which is not a parameter of the kernel."
            + suggestion(str(name), known),
            kernel=tunable.name,
        )


def _make_plain(config: Config, tunable: HasParameters) -> None:
    """Convert options from NumPy's numbers to Python's, which Triton can serialize."""
    for name in OPTIONS:
        given = getattr(config, name, None)
        if (value := _option(name, given, tunable.name)) is not given:
            setattr(config, name, value)
    parameters = {parameter.name for parameter in tunable.parameters}
    options = {name: plain(value) for name, value in config.kwargs.items() if name not in parameters}
    if any(value is not config.kwargs[name] for name, value in options.items()):
        config.kwargs = {**config.kwargs, **options}


def prune(
    configs: Sequence[Config],
    pruner: Pruner,
    named: Mapping[str, Any],
    keywords: Mapping[str, Any],
    kernel: str,
    seen: set[str] | None = None,
) -> list[Config]:
    """The configs left by the user's pruners, which may be generators and may return new configs.

    Adds the names of arguments that pruners may have read to `seen`. Raises PruningError if a pruner leaves nothing or
    returns something other than configs; exceptions of pruners propagate.
    """
    left, seen = list(configs), set() if seen is None else seen
    if pruner.early is not None:
        seen |= readers.read_by(pruner.early, keywords)
        left = _early(left, pruner.early, readers.Watched(named, seen), keywords, kernel)
    if pruner.perf_model is not None:
        model = pruner.perf_model
        seen |= readers.read_by(model, [*named, *keywords])
        left = _fastest(left, lambda config: model(**named, **keywords, **config.all_kwargs()), pruner.top_k, kernel)
    return left


def _early(
    configs: list[Config], early: Callable[..., Any], named: Mapping[str, Any], keywords: Mapping[str, Any], kernel: str
) -> list[Config]:
    pruner_name = getattr(early, "__name__", repr(early))
    result = early(list(configs), named, **keywords)  # a copy: it may modify its list
    if result is None:
        raise errors.PruningError(
            f"`{kernel}`: pruner {pruner_name}: expected a list of configs, got None. Return the configs to keep.",
            kernel=kernel,
        )
    try:
        left = listed(result, kernel)
    except errors.AutotunedError as error:
        raise errors.PruningError(f"`{kernel}`: pruner {pruner_name}: {error}", kernel=kernel) from error
    if not left:
        raise errors.PruningError(
            f"No valid autotuner configs after pruning: `{kernel}`: pruner {pruner_name} left none of {len(configs)} "
            "configs for this call. Keep at least one, or give @autotune a default=.",
            kernel=kernel,
        )
    return left


def _fastest(configs: list[Config], expected: Callable[[Config], Any], top_k: float, kernel: str) -> list[Config]:
    """The `top_k` configs (a number or fraction) with the least expected time."""
    keep = _how_many(top_k, len(configs), kernel)
    if len(configs) <= keep:
        return configs
    times = [expected(config) for config in configs]
    for time in times:
        if not hasattr(time, "__float__"):
            raise errors.PruningError(
                f"`{kernel}`: perf_model: expected a number for each config, got {time!r:.60}. Return the time that it "
                "is expected to take.",
                kernel=kernel,
            )
    # NaN last: comparisons with it would leave its neighbours unsorted.
    order = sorted(range(len(configs)), key=lambda index: (times[index] != times[index], times[index]))
    return [configs[index] for index in order[:keep]]


def _how_many(top_k: float, of: int, kernel: str) -> int:
    if isinstance(top_k, int) and not isinstance(top_k, bool) and top_k >= 1:
        return top_k
    if isinstance(top_k, float) and 0 < top_k <= 1:
        return max(1, int(of * top_k))
    raise errors.PruningError(
        f"`{kernel}`: top_k: expected an int of 1 or more, or a float above 0 and at most 1, got {top_k!r}.",
        kernel=kernel,
    )
