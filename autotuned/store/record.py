"""One tuning result: timings and winner, as JSON and in its file."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from autotuned import disk, env
from autotuned._startup import Frozen, errors
from autotuned.key.key import Key, load_key
from autotuned.store import conditions
from autotuned.store.conditions import BY_DEFAULT, Checked, Conditions, judge
from autotuned.typed_json import INT64_MAX, Json, canonical, integer, is_finite, named, texts, typed, wrong

SCHEMA = 2
Quality = Literal["ok", "tied", "noisy", "unresolved"]
QUALITIES: tuple[Quality, ...] = get_args(Quality)
FIELDS = {"schema", "kernel", "winner", "median_us", "quality", "conditions", "key", "timings", "provenance"}
TIMING_FIELDS = {"config", "median_us", "low_us", "high_us", "samples", "status", "error", "passed", "failed"}
_HEX = frozenset("0123456789abcdef")
STATUSES = ("ok", "same", "failed", "wrong", "crashed")


def identity_of(config: Mapping[str, Json]) -> str:
    """The text that identifies a config's canonical form (`tunable.configs.identity` gives it for a live config)."""
    return canonical(dict(config))


class Timing(Frozen):
    """The measurement of one config in microseconds; None if it failed.

    Status "same" means that another config with the same binary was measured instead, "wrong" that its result failed
    `check=`, "crashed" that it was skipped because a process ended during its first launch.
    """

    config: Mapping[str, Json]  # canonical form (`tunable.configs.to_json`)
    median_us: float | None = None
    low_us: float | None = None  # 20th percentile
    high_us: float | None = None  # 80th percentile
    samples: int = 0
    status: str = "ok"
    error: str | None = None  # the other config, the exception's type and text, or the difference
    passed: tuple[Checked, ...] = ()  # checks that it passed; the status reflects the latest check
    failed: tuple[Checked, ...] = ()  # checks that it failed

    @property
    def identity(self) -> str:
        """The text that identifies the config."""
        return identity_of(self.config)

    @property
    def usable(self) -> bool:
        """Whether this timing makes the config eligible."""
        return self.status in ("ok", "same") and bool(self.median_us)

    def right_for(self, needed: Conditions) -> bool | None:
        """Whether its results satisfy a call's check; None if unknown."""
        if not needed.checks:
            return self.status in ("ok", "same")
        return judge(self.passed, self.failed, needed.checks[0])

    def waits_for(self, needed: Conditions) -> bool:
        """Whether no check with this call's reference, at any tolerance, has examined the config."""
        wanted = {canonical(check.reference) for check in needed.checks}
        return wanted.isdisjoint(canonical(check.reference) for check in (*self.passed, *self.failed))

    def serves(self, needed: Conditions) -> bool:
        """Whether this timing makes the config eligible for a call's conditions."""
        return bool(self.median_us) and self.right_for(needed) is True

    def to_json(self) -> dict[str, Json]:
        """As stored in records and logbooks."""
        checks = {"passed": self.passed, "failed": self.failed}
        return {**self.fields(), **{name: [one.to_json() for one in some] for name, some in checks.items()}}

    @property
    def typical_us(self) -> list[float]:
        """Low, median and high time, as three samples."""
        return [us for us in (self.low_us or self.median_us, self.median_us, self.high_us or self.median_us) if us]


class TuningRecord(Frozen):
    """The stored result for one key; `winner` is None while the search is unfinished."""

    key: Key
    winner: Mapping[str, Json] | None
    median_us: float | None
    quality: Quality | None  # None: unknown, as of a choice from a config file that does not say it
    timings: tuple[Timing, ...]
    provenance: Mapping[str, Json] = MappingProxyType({})
    conditions: Conditions = Conditions()  # of the timings, with the checks that the winner passed

    @property
    def is_doubtful(self) -> bool:
        """Whether its times were noisy; False for the interpreter's times, which mean nothing."""
        return self.quality == "noisy" and self.key.context["device"].get("name") != "interpreter"

    @property
    def untuned(self) -> str | None:
        """Identity of the measured config that runs without tuning; None if unknown."""
        default = self.provenance.get("default")
        return identity_of(default) if isinstance(default, dict) else None

    @property
    def unconfirmed(self) -> str | None:
        """Identity of the config that would have won, if time had sufficed to confirm it against the untuned one."""
        form = self.provenance.get("unconfirmed")
        return identity_of(form) if isinstance(form, dict) else None

    @property
    def members(self) -> Sequence[Json]:
        """Measured calls of its bucket, each with `sizes`, `count`, `vs_default` and `timings`."""
        found: Json = self.provenance.get("members")
        return found["calls"] if isinstance(found, dict) else ()

    @property
    def vs_default(self) -> float | None:
        """Speed-up of the winner over the untuned config; None if unknown."""
        default = self.provenance.get("default")
        if not self.timings:  # from a config file, which only has the ratio
            ratio: Json = self.provenance.get("vs_default")
            return float(ratio) if is_finite(ratio) and ratio > 0 else None
        return self.ratio_of(default if isinstance(default, dict) else self.timings[0].config)

    def ratio_of(self, config: Mapping[str, Json]) -> float | None:
        """Time of a config divided by the winner's; None if unknown or not finite."""
        base = self.timing_of(config)
        ratio = base.median_us / self.median_us if base and base.median_us and self.median_us else 0.0
        return ratio if is_finite(ratio) and ratio > 0 else None

    def timing_of(self, config: Mapping[str, Json]) -> Timing | None:
        """The timing of the config with this canonical form, or None."""
        wanted, alike = identity_of(config), (timing for timing in self.timings if timing.config == config)
        return next((timing for timing in alike if timing.identity == wanted), None)  # since 1 == True == 1.0

    def extended(self, timings: Sequence[Timing]) -> TuningRecord:
        """This record plus timings of configs that it lacks."""
        known = {timing.identity for timing in self.timings}
        return self.replace(timings=self.timings + tuple(one for one in timings if one.identity not in known))


def dump(record: TuningRecord) -> dict[str, Json]:
    """A record as JSON, small fields first so that a listing can stop early."""
    return {
        "schema": SCHEMA,
        "kernel": record.key.kernel,
        "winner": record.winner,
        "median_us": record.median_us,
        "quality": record.quality,
        "conditions": _by_default() if record.conditions == BY_DEFAULT else record.conditions.to_json(),
        "key": record.key.to_json(),
        "timings": [timing.to_json() for timing in record.timings],
        "provenance": dict(record.provenance),
    }


def _by_default() -> dict[str, Json]:
    return {"restore": None, "checks": []}  # `BY_DEFAULT` as JSON; most records have it


def load(data: Json, expected: Key | None = None) -> TuningRecord:
    """Read a record from JSON; RecordError, with the field in `.where`, if it violates the schema.

    A record of the `expected` key shares that object: most keys need not be built again.
    """
    fields = named(data, "record", FIELDS)
    if typed(fields["schema"], int, "schema") != SCHEMA:
        raise wrong("schema", f"schema {SCHEMA}", fields["schema"])
    parts = named(fields["key"], "key", {"call", "context"})
    key = expected
    if key is None or canonical({"kernel": fields["kernel"], **parts}) != key.text:
        key = load_key(fields["kernel"], parts["call"], parts["context"])
    winner = None if fields["winner"] is None else check_config(fields["winner"], "winner")
    quality = None if fields["quality"] is None else check_quality(fields["quality"], "quality")
    entries = typed(fields["timings"], list, "timings")
    timings = tuple(load_timing(entry, f"timings[{i}]") for i, entry in enumerate(entries))
    return TuningRecord(
        key,
        winner,
        _us(fields["median_us"], "median_us"),
        quality,
        timings,
        _provenance(fields["provenance"]),
        BY_DEFAULT if fields["conditions"] == _by_default() else conditions.load(fields["conditions"], "conditions"),
    )


def check_quality(data: Json, where: str) -> Quality:
    """Check the name of a quality; RecordError for any other value."""
    if data not in QUALITIES:
        raise wrong(where, f"one of {', '.join(QUALITIES)}", data)
    found: Quality = data
    return found


def _provenance(data: Json) -> dict[str, Json]:
    """A record's provenance; checks the types of fields that are read back."""
    found: dict[str, Json] = typed(data, dict, "provenance")
    for name in ("seconds", "vs_default"):
        if found.get(name) is not None and not is_finite(found[name]):
            raise wrong(f"provenance.{name}", "a finite number", found[name])
    if found.get("members") is not None:
        _check_members(found["members"])
    if "written" in found:
        texts(found["written"], "provenance.written")
    if "timer" in found:
        typed(found["timer"], str, "provenance.timer")
    for name in ("default", "unconfirmed"):
        if found.get(name) is not None:
            check_config(found[name], f"provenance.{name}")
    return found


def _check_members(data: Json) -> None:
    fields = named(data, "provenance.members", {"by", "calls"})
    for i, call in enumerate(typed(fields["calls"], list, "provenance.members.calls")):
        where = f"provenance.members.calls[{i}]"
        entry = named(call, where, {"sizes", "count", "vs_default", "timings"})
        typed(entry["sizes"], dict, f"{where}.sizes")
        for j, timing in enumerate(typed(entry["timings"], list, f"{where}.timings")):
            load_timing(timing, f"{where}.timings[{j}]")


def check_config(data: Json, where: str) -> dict[str, Json]:
    """Check a config's canonical form; RecordError if a field is missing, unknown or of the wrong type."""
    form = data if type(data) is dict and data.keys() == _CONFIG else named(data, where, _CONFIG)
    if type(form["kwargs"]) is not dict:
        typed(form["kwargs"], dict, f"{where}.kwargs")
    if form["pre_hook"] is not False and not _is_hook(typed(form["pre_hook"], str, f"{where}.pre_hook")):
        raise wrong(f"{where}.pre_hook", "false, or the 16 hex digits of a hook", form["pre_hook"])
    if form["ir_override"] is not None:
        typed(form["ir_override"], str, f"{where}.ir_override")
    for name in ("num_warps", "num_stages", "num_ctas", "maxnreg"):
        number = form[name]
        if number is not None and not (type(number) is int and 0 <= number <= INT64_MAX):  # None: Triton's default
            integer(number, f"{where}.{name}")
    return form


_CONFIG = {"kwargs", "num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override", "pre_hook"}


def _is_hook(text: str) -> bool:
    return len(text) == 16 and _HEX.issuperset(text)


def check_winner(record: TuningRecord) -> None:
    """Raise RecordError unless a timing confirms the winner: a damaged field must not select another config."""
    if record.winner is None or not record.timings:  # a record from a config file has no timings
        return
    timing = record.timing_of(record.winner)
    if timing is None or timing.status != "ok" or timing.median_us != record.median_us:
        found = None if timing is None else timing.median_us
        raise wrong("winner", f"one of the timings that ran, of {record.median_us} us", found)


def load_timing(data: Json, where: str) -> Timing:
    """Read a timing from JSON; RecordError, with locations below `where`, if it violates the schema."""
    entry = named(data, where, TIMING_FIELDS)
    if entry["status"] not in STATUSES:
        raise wrong(f"{where}.status", f"one of {', '.join(STATUSES)}", entry["status"])
    error = None if entry["error"] is None else typed(entry["error"], str, f"{where}.error")
    return Timing(
        check_config(entry["config"], f"{where}.config"),
        _us(entry["median_us"], f"{where}.median_us"),
        _us(entry["low_us"], f"{where}.low_us"),
        _us(entry["high_us"], f"{where}.high_us"),
        integer(entry["samples"], f"{where}.samples"),
        entry["status"],
        error,
        () if entry["passed"] == [] else conditions.load_checks(entry["passed"], f"{where}.passed"),
        () if entry["failed"] == [] else conditions.load_checks(entry["failed"], f"{where}.failed"),
    )


def _us(value: Json, where: str) -> float | None:
    if value is None:
        return None
    if not is_finite(value) or value < 0:
        raise wrong(where, "microseconds, finite and not negative", value)
    return float(value)


# -- its file ----------------------------------------------------------------------------------------------------------


def root() -> Path:
    """The cache folder."""
    return disk.cache_dir(env.cache_dir_setting())


def schema_folder(below: Path | None = None) -> Path:
    """The folder of this schema's records, in the cache folder or another one."""
    return (root() if below is None else below) / f"v{SCHEMA}"


def kernel_folder(kernel: str, below: Path | None = None) -> Path:
    """The folder of a kernel's records, in the cache folder or another one."""
    return _in_folder(root() if below is None else below, kernel)


def has_any(kernel: str) -> bool:
    """Whether there are records of a kernel in the cache folder."""
    folder, known = root(), _looked_in.get(kernel)
    if known is None or known[0] is not folder:
        known = _looked_in[kernel] = folder, os.path.join(folder, f"v{SCHEMA}", disk.file_stem(kernel))
    if not os.access(known[1], os.F_OK):  # most kernels have none; takes a third of the time of an error
        return False
    try:
        files = os.listdir(known[1])
    except OSError:
        return False
    return any(file.endswith(".json") for file in files)


_looked_in: dict[str, tuple[Path, str]] = {}  # by kernel: the cache folder, and the kernel's within


@lru_cache(maxsize=1024)
def _in_folder(below: Path, kernel: str) -> Path:
    return schema_folder(below) / disk.file_stem(kernel)


def record_path(key: Key, below: Path | None = None) -> Path:
    """The path of a key's record, in the cache folder or another one; `layout` has the other paths."""
    return kernel_folder(key.kernel, below) / f"{key.digest}.json"


class Unread(Frozen):
    """Why a file gives no record (`choice.Look` lists the problems); "" if it gives one."""

    problem: str = ""
    detail: str = ""
    path: str = ""


def inspect(path: Path, key: Key | None = None) -> tuple[TuningRecord | None, Unread]:
    """Read a record file, expected to be of a key, or say why it cannot be read; changes and logs nothing."""
    where = str(path)
    try:
        data = disk.read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(path):
            return None, Unread("damaged", "it is a broken link", where)
        return None, Unread("absent", "", where)
    except OSError as error:
        if os.path.isdir(path):
            return None, Unread("damaged", "a folder is in its place", where)
        return None, Unread("unreadable", str(error), where)
    except ValueError as error:
        return None, Unread("damaged", str(error), where)
    if is_newer(data):
        return None, Unread("newer schema", str(data["schema"]), where)
    try:
        found = load(data, key)
        check_winner(found)
        return found, Unread("", "", where)
    except errors.RecordError as error:
        return None, Unread("damaged", str(error), where)


def look_up(key: Key, below: Path | None = None) -> tuple[TuningRecord | None, Unread]:
    """Read the record of a key, or say why it cannot be read; changes and logs nothing.

    Args:
        below: A folder laid out like the cache folder; None for the cache folder.
    """
    found, seen = inspect(record_path(key, below), key)
    if found is not None and found.key is not key and found.key != key:
        return None, Unread("damaged", "it holds the record of another key", seen.path)
    return found, seen


def is_newer(data: Any) -> bool:
    """Whether JSON was written by a later version of this package."""
    schema = data.get("schema") if isinstance(data, dict) else None
    return isinstance(schema, int) and not isinstance(schema, bool) and schema > SCHEMA


USE_RESOLUTION_S = 86400.0  # a record's time is updated at most this often, since look-ups should not write


def note_use(path: Path) -> None:
    """Mark a record as used, at most once a day: `gc` removes the least recently used."""
    try:
        age_s = time.time() - os.stat(path).st_mtime
    except OSError:
        return
    if age_s > USE_RESOLUTION_S:
        disk.touch(path)
