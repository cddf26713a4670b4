"""Loss with the nearest shape's choice: its time over that of the best config, from the records of a store.

Usage: python tests/bench/transfer.py [--cache DIR]

Reads the user's store, or that in DIR, and prints a Markdown table per device: for every tuned call the neighbour that
`nearest=` would use if the call itself were not tuned, by its distance and whether it is larger. The times are those of
the search: a config that lost early has few samples, so single numbers are accurate to a few per cent.
"""

from __future__ import annotations

import argparse
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from autotuned.configfiles import nearest_shape
from autotuned.gpu.device import from_json
from autotuned.store import listing
from autotuned.store.record import Timing, TuningRecord

AXES = {
    "autotuned.kernels.matmul.matmul_kernel": "M",
    "autotuned.kernels.splitk_matmul.splitk_matmul_kernel": "M",
    "autotuned.kernels.softmax.softmax_kernel": "x_ptr",
    "autotuned.kernels.rmsnorm.rmsnorm_kernel": "N_COLS",
    "autotuned.kernels.layernorm_bwd.layernorm_bwd_kernel": "x_ptr",
    "autotuned.kernels.layernorm_bwd.layernorm_bwd_reduce_kernel": "n_cols",
}
BANDS = {"smaller, up to 2x": (False, 0.0, 1.0), "larger, up to 2x": (True, 0.0, 1.0),
         "smaller, 2x to 4x": (False, 1.0, 2.0), "larger, 2x to 4x": (True, 1.0, 2.0)}  # fmt: skip


class Loss(NamedTuple):
    """One call with a neighbour's choice: times over the best time; infinite if it does not run."""

    taken: float
    untuned: float


def losses(records: list[TuningRecord], axis: str, band: tuple[bool, float, float]) -> Iterator[Loss]:
    """The loss of every call that has a neighbour in a band of distances."""
    above, least, most = band
    shapes = [nearest_shape.shape_of(record.key.call, [axis]) for record in records]
    for record, ours in zip(records, shapes):
        others = [(shape.sizes, other) for other, shape in zip(records, shapes) if shape.rest == ours.rest]
        for far, sizes, other in nearest_shape.Neighbourhood(others).around(ours.sizes, {axis: 2.0**most}):
            if sizes != ours.sizes and far.above is above and least < far.octaves <= most:
                yield loss(record, other)
                break


def loss(record: TuningRecord, neighbour: TuningRecord) -> Loss:
    """The loss of a call with another call's choice, and with the untuned config: timings are not in the list's order."""
    best = min(timing.median_us for timing in record.timings if timing.usable)
    assert neighbour.winner is not None
    untuned = next((timing for timing in record.timings if timing.identity == record.untuned), None)
    return Loss(ratio(record.timing_of(neighbour.winner), best), ratio(untuned, best))


def ratio(timing: Timing | None, best_us: float) -> float:
    return timing.median_us / best_us if timing is not None and timing.usable and timing.median_us else math.inf


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def print_table(device: str, by_kernel: dict[str, list[TuningRecord]]) -> None:
    """Print one table: kernels and bands as rows, losses as columns."""
    print(f"\n{device}\n")
    print("| kernel, axis | neighbour | calls | geomean | worst | not usable | untuned, geomean |")
    print("|---|---|---|---|---|---|---|")
    for kernel, axis in AXES.items():
        for name, band in BANDS.items():
            found = list(losses(by_kernel.get(kernel, []), axis, band))
            usable = [one.taken for one in found if math.isfinite(one.taken)]
            if not found or not usable:
                continue
            untuned = geomean(one.untuned for one in found if math.isfinite(one.untuned))
            print(
                f"| `{kernel.rpartition('.')[2]}`, `{axis}` | {name} | {len(found)} | +{geomean(usable) - 1:.1%} | "
                f"+{max(usable) - 1:.0%} | {len(found) - len(usable)} | +{untuned - 1:.0%} |"
            )


def main() -> None:
    """Read the records and print a table per device."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cache", help="the folder of the store, AUTOTUNED_CACHE_DIR of the run that tuned")
    if (cache := parser.parse_args().cache) is not None:
        os.environ["AUTOTUNED_CACHE_DIR"] = cache
    found: dict[str, dict[str, list[TuningRecord]]] = defaultdict(lambda: defaultdict(list))
    for kernel in AXES:
        for _, record in listing.all_records(kernel):
            if record.winner is not None and any(timing.usable for timing in record.timings):
                found[from_json(record.key.context["device"]).slug][kernel].append(record)
    for device, by_kernel in sorted(found.items()):
        print_table(device, by_kernel)


if __name__ == "__main__":
    main()
