"""A kernel whose winner depends on whether M is a multiple of 64, which no neighbour shows."""

from pathlib import Path
from typing import Any

from fakes import CONTEXT, FakeConfig, by_identity, form

import autotuned
from autotuned.key.key import Key
from autotuned.store import listing, records
from autotuned.store.record import Timing, TuningRecord

ALIGNED, RAGGED, SLOW = FakeConfig({"BLOCK": 64}), FakeConfig({"BLOCK": 128}), FakeConfig({"BLOCK": 256})
LIVE = by_identity(ALIGNED, RAGGED, SLOW)
TUNED = [16 * number - (number == 79) for number in range(1, 81)]  # one is odd


def key(m: int, **context: Any) -> Key:
    """The key of a call with M rows, also those of a tensor, and 512 columns."""
    tensor = {"dtype": "torch.float32", "strides": "*1", "shape": [m, 512]}
    return Key("app.k", {"tensors": {"x": tensor}, "values": {"M": m, "N": 512}, "none": []}, {**CONTEXT, **context})


def keep(m: int, only: Any = None, **context: Any) -> None:
    """Put a record of a tuned call into the store."""
    best = ALIGNED if m % 64 == 0 and (only is None or ALIGNED in only) else RAGGED
    times = [(config, 10.0 if config is best else 15.0 if config is not SLOW else 30.0) for config in LIVE.values()]
    timings = tuple(Timing(form(config), us, us, us, 5) for config, us in times if only is None or config in only)
    records.keep(TuningRecord(key(m, **context), form(best), 10.0, "ok", timings, {"default": form(SLOW)}))


def keep_all(only: Any = None, **context: Any) -> None:
    """Store records of all tuned calls."""
    for m in TUNED:
        keep(m, only, **context)


_texts: dict[str, str] = {}  # of the config files that `ruled_files` has made


def ruled_files(folder: Path) -> Path:
    """A folder with config files that have a rule, and an empty store; created once per process."""
    if not _texts:
        keep_all()
        _texts.update(
            {str(Path(path).relative_to(folder / "few")): Path(path).read_text() for path in files(folder).files}
        )
        listing.clear()
    for name, text in _texts.items():
        (folder / "few" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "few" / name).write_text(text)
    return folder / "few"


def files(out: Path, **options: Any) -> Any:
    """Write config files from the store."""
    autotuned.export(out / "exported")
    return autotuned.compress(out / "exported", out=out / "few", **{"within": "5%", **options})
