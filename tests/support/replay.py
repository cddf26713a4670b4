"""Races over samples recorded on a GPU: the picked config, the cost, and the loss."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import math
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import FakeConfig
from simulated import Gpu

import autotuned
from autotuned import autotune
from autotuned.search import race, racing, timers
from autotuned.search.timers import Timer
from autotuned.search.trial import Trial

DATA = Path(__file__).parents[1] / "data"
Disturbance = Callable[[float, float, random.Random], float]  # (sample in us, seconds so far, random) -> sample
BLOCK = 8  # consecutive samples of one config that `quality.py` takes
OVERHEAD_US = 100.0  # per sample: flush, restore and the host


@dataclass(frozen=True)
class Recording:
    """Samples of each config of one problem, in the order of measurement."""

    name: str
    samples_us: Sequence[Sequence[float]]

    @functools.cached_property
    def true_us(self) -> list[float]:
        """The mean of all samples without the outer twentieths, by config.

        Not the median: the samples of `add` have two modes 2.6% apart, and the median lies in either by chance.
        """
        return [_trimmed_mean(samples) for samples in self.samples_us]


def _trimmed_mean(samples: Sequence[float]) -> float:
    outer = len(samples) // 20
    inner = sorted(samples)[outer : len(samples) - outer]
    return math.fsum(inner) / len(inner)


@dataclass(frozen=True)
class Result:
    """Result of one race: winner, its loss against the best, cost, and quality."""

    picked: int
    regret: float
    seconds: float
    quality: str


def load(path: Path) -> Recording:
    """Read a file of `tests/bench/quality.py --record`."""
    data = json.loads(gzip.decompress(path.read_bytes()))
    samples: list[list[float]] = [[] for _ in data["configs"]]
    for index, _, block in data["blocks"]:
        samples[index] += block
    return Recording(data["problem"], samples)


def recordings() -> list[Recording]:
    """All recordings in the repository."""
    return [load(path) for path in sorted(DATA.glob("samples-*.json.gz"))]


def resampled(recording: Recording, seed: int, blocks: int = 150) -> Recording:
    """A bootstrap sample: blocks drawn at random, the same for all configs, since these shared conditions.

    Otherwise races over one recording would use nearly the same samples.
    """
    chance, count = random.Random(f"block {seed}"), min(map(len, recording.samples_us)) // BLOCK
    drawn = [BLOCK * chance.randrange(count) for _ in range(blocks)]
    samples_us = [[us for at in drawn for us in samples[at : at + BLOCK]] for samples in recording.samples_us]
    return Recording(recording.name, samples_us)


def undisturbed(sample_us: float, seconds: float, noise: random.Random) -> float:
    """The sample as recorded."""
    return sample_us


def run(
    recording: Recording, seed: int, disturb: Disturbance = undisturbed, order: Sequence[int] | None = None
) -> Result:
    """Race once: each config's samples come in the recorded order, from a start that the seed decides.

    Args:
        disturb: Changes each sample.
        order: The list of candidates, as indices into the recording.
    """
    noise, seconds = random.Random(seed), 0.0
    listed = list(order if order is not None else range(len(recording.samples_us)))
    start = noise.random()  # the same for all configs: samples recorded together are raced together
    places = [int(start * len(recording.samples_us[index])) for index in listed]

    def sample(turn: Sequence[Trial]) -> None:
        nonlocal seconds
        for trial in turn:
            recorded = recording.samples_us[listed[trial.index]]
            sample_us = disturb(recorded[places[trial.index] % len(recorded)], seconds, noise)
            places[trial.index] += 1
            seconds += (sample_us + OVERHEAD_US) / 1e6
            trial.samples_us.append(sample_us)

    trials = [Trial(place, lambda: None, lambda: None) for place in range(len(listed))]
    steady = race.race(trials, race.Track(sample), seed)
    best, quality = race.winner([trial for trial in trials if trial.samples_us], 0.5, steady)
    true_us, picked = recording.true_us, listed[best.index]
    return Result(picked, true_us[picked] / min(true_us) - 1, seconds, quality)


def exhaustive_seconds(recording: Recording, samples: int) -> float:
    """Seconds to take this many samples of every config."""
    return sum(samples * (us + OVERHEAD_US) for us in recording.true_us) / 1e6


def on_device(recording: Recording, seed: int, gpu: Gpu, timer: Timer, restore_us: float, scale: float = 1.0) -> Result:
    """Race once with the real timer on a simulated device, where a launch takes the recorded time times `scale`.

    Args:
        restore_us: Time for the device to restore the arguments that a kernel writes.

    Returns:
        As for `run`, with seconds of the host's clock from the first launch to the end.
    """
    start = random.Random(seed).random()
    trials = [
        Trial(index, lambda: gpu.operator(restore_us), _launches(gpu, samples, start, scale))
        for index, samples in enumerate(recording.samples_us)
    ]
    for trial in trials:  # as a search does, each once
        trial.prepare()
        trial.launch()
        timer.synchronize()

    def sample(turn: Sequence[Trial]) -> None:
        for trial, sample_us in zip(turn, timer.turn(turn)):
            trial.samples_us.append(sample_us)

    steady = race.race(trials, race.Track(sample), seed)
    best, quality = race.winner(trials, timer.resolution_us, steady)
    true_us = recording.true_us
    return Result(best.index, true_us[best.index] / min(true_us) - 1, gpu.now_us / 1e6, quality)


def search(recording: Recording, seed: int, gpu: Gpu, order: Sequence[int] | None = None) -> Result:
    """Search as for users: race, repetition and last comparison, with the real timer on a simulated device.

    The first config of the recording is the untuned one. Configs take the same time with tensors elsewhere.
    """
    start = random.Random(seed).random()
    launches = [_launches(gpu, samples, start, 1.0) for samples in recording.samples_us]
    listed = [FakeConfig({"at": at}) for at in order or range(len(launches))]

    def launching() -> Generator[None, int, None]:  # a generator, since a list of all samples would enter the key
        while True:
            launches[(yield)]()

    device = launching()
    next(device)

    @autotune(listed, key=["n"], objective="kernel", restore_value=["x"], cache_results=False,
              default=FakeConfig({"at": 0}))  # fmt: skip
    def kernel(x: Any, n: int, *, at: int) -> None:
        device.send(at)

    with pytest.MonkeyPatch.context() as patch:
        timer = gpu.install(patch)
        patch.undo()
        for module in (timers, racing):
            patch.setattr(module, "time", gpu.time())
        patch.setattr(timers, "for_device", lambda *given: timer)
        with autotuned.mode("search"):
            kernel(np.zeros(4), 4)
    true_us, picked = recording.true_us, kernel.best_config.kwargs["at"]
    return Result(picked, true_us[picked] / min(true_us) - 1, gpu.now_us / 1e6, "")


def _launches(gpu: Gpu, samples_us: Sequence[float], start: float, scale: float) -> Callable[[], None]:
    order = itertools.cycle(samples_us)
    list(itertools.islice(order, int(start * len(samples_us))))
    return lambda: gpu.launch(next(order) * scale)
