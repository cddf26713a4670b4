"""`check=`: compare a config's results with a reference, within a tolerance per dtype."""

from __future__ import annotations

import copy
import inspect
import numbers
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotuned.errors import CheckError, DecorationError, described
from autotuned.key import opaque
from autotuned.key.memory import is_torch, tensors_in
from autotuned.search.failures import is_memory_error
from autotuned.store.conditions import OTHERS, Checked, Restore
from autotuned.store.conditions import names as ordered
from autotuned.typed_json import Json, digest

# Relative; other dtypes must be equal, bit for bit (integers, booleans) or value for value (fp8).
TOLERANCES = {
    "float64": 1e-7, "complex128": 1e-7, "float32": 1e-4, "complex64": 1e-4, "float16": 1e-2, "bfloat16": 1e-2,
}  # fmt: skip
Output = tuple[str, Any]


@dataclass(frozen=True)
class Check:
    """How configs are checked during a search; `check=f` is short for `check=Check(f)`.

    Attributes:
        reference: A callable that takes arguments of the kernel by name, or "first": the first config that runs. It
            returns the expected values as a dict by argument name, as one tensor, or as a tuple in the order of the
            written arguments; or it writes into the written arguments (it gets copies of them) and returns None. All
            other arguments are the caller's own; it must not write them.
        tolerance: Allowed difference, relative to the expected element plus the mean of all: a number, or numbers by
            dtype name ("float16"). None: `TOLERANCES`.
        equal_nan: Whether NaN equals NaN.
        poison: Fill outputs with NaN (a pattern for integers) before each checked launch, so that a config that writes
            too little cannot pass on an earlier one's result. True: the arguments that the compiled kernel writes and
            does not read; a list: these names.
    """

    reference: Callable[..., Any] | str
    tolerance: float | Mapping[str, float] | None = None
    equal_nan: bool = True
    poison: bool | Sequence[str] = False

    def __post_init__(self) -> None:
        for name, expected, is_right in _FIELDS:
            if not is_right(value := getattr(self, name)):
                hint = f" Write poison=[{value!r:.60}]." if name == "poison" and isinstance(value, str) else ""
                raise DecorationError(f"Check: {name}: expected {expected}, got {value!r:.80}.{hint}")

    @property
    def poisoned(self) -> Sequence[str]:
        """Names in `poison`."""
        return () if isinstance(self.poison, bool) else self.poison


def _is_tolerance(given: Any) -> bool:
    if isinstance(given, Mapping):
        return all(_is_dtype(name) and _is_amount(amount) for name, amount in given.items())
    return given is None or _is_amount(given)


def _is_amount(given: Any) -> bool:
    """A number of 0 or more: with NaN everything would be wrong, with infinity nothing."""
    return isinstance(given, numbers.Real) and not isinstance(given, bool) and 0 <= float(given) < float("inf")


_DTYPE = re.compile(
    r"bool|u?int(4|8|16|32|64)|b?float(16|32|64|128)|complex(32|64|128|256)|longdouble|float8_\w+|float4_\w+"
)


def _is_dtype(name: Any) -> bool:
    return isinstance(name, str) and _DTYPE.fullmatch(name) is not None


def _is_poison(given: Any) -> bool:
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    return isinstance(given, bool) or (is_list and all(isinstance(name, str) for name in given))


def _is_reference(given: Any) -> bool:
    return callable(given) or (isinstance(given, str) and given == "first")


_FIELDS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("reference", "a callable or 'first'", _is_reference),
    ("tolerance", "a number of 0 or more, a dict of such by dtype name ('float16'), or None", _is_tolerance),
    ("equal_nan", "True or False", lambda given: isinstance(given, bool)),
    ("poison", "True, False or a list of argument names", _is_poison),
)


def as_check(given: Any, kernel: str) -> Check:
    """`check=` as a `Check`.

    Raises:
        DecorationError: It is not a valid check.
    """
    if not (isinstance(given, Check) or _is_reference(given)):
        raise DecorationError(f"`{kernel}`: check: expected a callable, 'first' or a Check, got {given!r:.80}.")
    return given if isinstance(given, Check) else Check(given)


def tolerances(check: Check) -> dict[str, float]:
    """Tolerances by dtype; `OTHERS` for the rest."""
    given = check.tolerance
    if given is None or isinstance(given, Mapping):
        return {OTHERS: 0.0, **TOLERANCES, **{str(dtype): float(number) for dtype, number in (given or {}).items()}}
    return {OTHERS: float(given)}


def asked(check: Check, kernel: str, first: str, restore: Restore) -> Checked:
    """A check as records store it; `first` is the first config's identity, `restore` what is restored around trials."""
    is_first = check.reference == "first"
    reference: Json = {"first": digest(first)} if is_first else opaque.spell(check.reference, f"check of `{kernel}`")
    poison = check.poison if isinstance(check.poison, bool) else ordered(check.poison)
    return Checked(reference, tolerances(check), bool(check.equal_nan), poison or False, restore)


class Checker:
    """Expected outputs of a call."""

    def __init__(self, check: Check, kernel: str, arguments: Mapping[str, Any]) -> None:
        self.check = check
        self._tolerance = tolerances(check)
        self.names: list[str] = []  # the arguments to compare
        self._kernel, self._arguments = kernel, arguments
        self._expected: list[Any] | None = None

    def expects(self, names: Sequence[str]) -> bool:
        """Whether the expected values of these arguments are known."""
        return self._expected is not None and self.names == list(names)

    def ask_reference(self, names: Sequence[str]) -> None:
        """Run the reference on the caller's arguments; `names` are those that the kernel writes.

        Raises:
            CheckError: It raises, or returns values that do not fit these arguments.
        """
        assert callable(self.check.reference)
        arguments = _accepted(self.check.reference, self._arguments)
        tensors = {name: [tensor for _, tensor in tensors_in(name, self._arguments[name])] for name in names}
        copies = {name: [_copy(tensor) for tensor in found] for name, found in tensors.items()}
        copied, uncopied = _copied(arguments, tensors, copies)
        try:
            result = self.check.reference(**{**arguments, **copied})
        except Exception as error:
            if is_memory_error(error):
                raise
            raise self._error(f"the reference raised {described(error)}; no config was judged") from error
        if result is None and uncopied:
            name, problem = next(iter(uncopied.items()))
            raise self._error(
                f"expected the reference to return the values of {name!r}, which cannot be copied for it ({problem}), "
                "got None"
            )
        if result is not None:
            given = self._by_name(result, names)
            copies = {name: self._of_one(name, given[name]) for name in names}
        self._expected = [tensor for name in names for tensor in copies[name]]
        self.names = list(names)

    def _by_name(self, result: Any, names: Sequence[str]) -> Mapping[str, Any]:
        if isinstance(result, Mapping):
            missing = [name for name in names if name not in result]
            if missing:
                raise self._error(f"the kernel writes {missing[0]!r}, which the reference does not return")
            return result
        if not names:
            raise self._error(
                "expected a kernel that writes some of its arguments, found none written. Let the reference return a "
                "dict by argument name, or name what is written in restore_value"
            )
        values = result if isinstance(result, (tuple, list)) else (result,)
        if len(values) != len(names):
            raise self._error(f"expected outputs for {', '.join(names)} from the reference, got {len(values)}")
        return dict(zip(names, values))

    def _of_one(self, name: str, given: Any) -> list[Any]:
        wanted = [tuple(tensor.shape) for _, tensor in tensors_in(name, self._arguments[name])]
        tensors = [tensor for _, tensor in tensors_in(name, given)]
        got = [tuple(tensor.shape) for tensor in tensors]
        if got != wanted:
            shapes = ", ".join(map(str, got)) or type(given).__name__
            raise self._error(
                f"expected shape {', '.join(map(str, wanted))} for {name!r} from the reference, got {shapes}"
            )
        return tensors

    def take(self, names: Sequence[str], outputs: Sequence[Output]) -> None:
        """Expect the present outputs of these arguments."""
        self.names = list(names)
        self._expected = [_copy(tensor) for _, tensor in outputs]

    def difference(self, outputs: Sequence[Output], stricter: Checked | None = None) -> str | None:
        """How the outputs differ from the expected ones, by the tolerances of `stricter` if given; None if not."""
        assert self._expected is not None
        allowed = self._tolerance if stricter is None else stricter.tolerance
        equal_nan = self.check.equal_nan if stricter is None else stricter.equal_nan
        for (name, tensor), expected in zip(outputs, self._expected):
            if text := _compare(tensor, expected, allowed, equal_nan):
                return f"Wrong: {name}: {text}"
        return None

    def refuse_majority(self, wrong: int, checked: int) -> None:
        """Blame the reference if most configs differ from it.

        Raises:
            CheckError: More than half of the checked configs differ.
        """
        if 2 * wrong > checked:
            name = "the first config" if self.check.reference == "first" else "the reference"
            raise self._error(
                f"{name} disagrees with the majority: {wrong} of {checked} configs checked differ from it; no config "
                "was judged. Repair the reference or the kernel, or allow more with Check(..., tolerance=)"
            )

    def _error(self, text: str) -> CheckError:
        return CheckError(f"`{self._kernel}`: check: {text}.", kernel=self._kernel)


def outputs_of(arguments: Mapping[str, Any], names: Sequence[str]) -> list[Output]:
    """The tensors of the named arguments."""
    return [pair for name in names for pair in tensors_in(name, arguments.get(name))]


def _compare(tensor: Any, expected: Any, tolerance_of: Mapping[str, float], equal_nan: bool) -> str | None:
    dtype = str(tensor.dtype).removeprefix("torch.")
    tolerance = tolerance_of.get(dtype, tolerance_of[OTHERS])
    library = _library_of(tensor)
    got, want = _wide(tensor, dtype), _wide(expected, dtype)
    if not len(got):
        return None
    bad, finite = got != want, library.isfinite(got) & library.isfinite(want)
    allowed = tolerance * (abs(want[finite]) + _mean(abs(want), library))
    bad[finite] = abs(got[finite] - want[finite]) > allowed
    if equal_nan:
        bad = bad & ~(library.isnan(got) & library.isnan(want))
    if not bool(bad.any()):
        return None
    where = int(bad.nonzero()[0].reshape(-1)[0])
    return (
        f"{int(bad.sum())} of {len(got)} elements differ from the reference; element {where}: expected "
        f"{want[where].item():.6g}, got {got[where].item():.6g} (tolerance {tolerance:g})"
    )


def _accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments that a function takes by name."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return arguments
    return {parameter.name: arguments[parameter.name] for parameter in parameters if parameter.name in arguments}


def _copied(
    arguments: Mapping[str, Any], tensors: Mapping[str, list[Any]], copies: Mapping[str, list[Any]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Copies of the arguments that hold these tensors, with the tensors' copies inside; and why others have none."""
    copied, uncopied = {}, {}
    for name in arguments.keys() & tensors.keys():
        instead = {id(tensor): made for tensor, made in zip(tensors[name], copies[name])}
        try:
            copied[name] = copy.deepcopy(arguments[name], instead)
            if {id(tensor) for _, tensor in tensors_in(name, copied[name])} != {*map(id, copies[name])}:
                uncopied[name] = "a copy of it holds the same tensors"  # as with functions and weak references
        except Exception as error:  # user classes may raise anything
            uncopied[name] = described(error)
    return copied, uncopied


def _copy(value: Any) -> Any:
    return value.detach().clone() if is_torch(value) else value.copy()


def _wide(tensor: Any, dtype: str) -> Any:
    """All elements, flat, in a type wide enough to hold and subtract them."""
    kind = "complex128" if "complex" in dtype else "int64" if "int" in dtype else "float64"
    if hasattr(tensor, "detach"):
        return tensor.detach().to(getattr(sys.modules["torch"], kind)).reshape(-1)
    return tensor.astype(kind).reshape(-1)


def _library_of(tensor: Any) -> Any:
    """torch, numpy or cupy, from the tensor's class or its bases."""
    homes = [kind.__module__.split(".")[0] for kind in type(tensor).__mro__]
    return sys.modules[next(home for home in homes if home in ("torch", "numpy", "cupy"))]


def is_all_nan(tensor: Any) -> bool:
    """Whether all elements are NaN."""
    return bool(_library_of(tensor).isnan(_wide(tensor, str(tensor.dtype))).all())


def _mean(values: Any, library: Any) -> Any:
    finite = values[library.isfinite(values)]
    return finite.mean() if len(finite) and "int" not in str(values.dtype) else 0
