"""Optuna's samplers and Kernel Tuner's strategies with `ask(n)` and `tell(results)`, for `strategy=`."""

from __future__ import annotations

import importlib
import importlib.util
import queue
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from autotuned.space.members import Members
from autotuned.space.parts import Point

IN_VAIN = 10_000  # consecutive suggestions that are not members before a sampler counts as finished


class Optuna:
    """One of Optuna's samplers; points that are not members are refused without counting, as by its constraints."""

    at_once = 1  # configs per `ask` if compiling is free
    asks_ahead = True

    def __init__(self, members: Members, seed: int, sampler: str) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        more = {"multivariate": True} if sampler == "TPE" else {}
        self._study = optuna.create_study(sampler=getattr(optuna.samplers, f"{sampler}Sampler")(seed=seed, **more))
        self._members, self._fails = members, optuna.trial.TrialState.FAIL
        self._ranges = {
            name: optuna.distributions.IntDistribution(0, len(values) - 1)
            for name, values in zip(members.names, members.values)
        }
        self._open: dict[Point, list[Any]] = {}
        self._known: dict[Point, float | None] = {}

    def ask(self, n: int) -> list[Any]:
        """`n` members that were not asked for before."""
        found: list[Point] = []
        for _ in range(IN_VAIN):
            trial = self._study.ask(self._ranges)
            point = tuple(trial.params[name] for name in self._members.names)
            if not self._members.holds(point):
                self._answer(trial, None)
            elif point in self._known:
                self._answer(trial, self._known[point])
            else:
                found += [] if point in self._open else [point]
                self._open.setdefault(point, []).append(trial)
            if len(found) == n:
                break
        return [self._members.config(point) for point in found]

    def tell(self, results: Iterable[tuple[Any, float | None, str]]) -> None:
        """Take times; a time not above 0 is a failure."""
        for config, us, _ in results:
            point = self._members.point(config)
            for trial in self._open.pop(point or (), ()):
                self._answer(trial, us)
            if point is not None:
                self._known[point] = us

    def _answer(self, trial: Any, us: float | None) -> None:
        self._study.tell(trial, us or None, state=None if us else self._fails)

    def close(self) -> None:
        """Do nothing."""


class _Closed(Exception):
    """The strategy was closed."""


class KernelTuner:
    """One of Kernel Tuner's strategies over its own space, in a thread that waits for the times it requested."""

    at_once = 16
    asks_ahead = True

    def __init__(self, members: Members, seed: int, name: str) -> None:
        self._members, self._seed, self._name = members, seed, name
        rows = ((tuple(v[i] for v, i in zip(members.values, point)), point) for point in members)
        self._points = dict(rows)
        self._wanted: queue.SimpleQueue[list[Point] | None] = queue.SimpleQueue()
        self._times: queue.SimpleQueue[dict[Point, float | None] | None] = queue.SimpleQueue()
        self._left: list[Point] = []
        self._open: dict[Point, float | None] = {}
        self._missing: set[Point] = set()
        self._ended = False
        threading.Thread(target=self._tune, daemon=True).start()

    def ask(self, n: int) -> list[Any]:
        """At most `n` configs that it requested; none at the end, and while it waits for times."""
        while not (self._left or self._missing or self._ended):
            if self._open:
                self._times.put(self._open)
            wanted = self._wanted.get()
            self._ended = wanted is None
            self._open = dict.fromkeys(wanted or ())
            self._left = list(self._open)
        asked, self._left = self._left[:n], self._left[n:]
        self._missing.update(asked)
        return [self._members.config(point) for point in asked]

    def tell(self, results: Iterable[tuple[Any, float | None, str]]) -> None:
        """Take the times that it requested; ignores others."""
        for config, us, _ in results:
            point = self._members.point(config)
            if point in self._open:
                self._open[point] = us
                self._missing.discard(point)

    def close(self) -> None:
        """End the thread."""
        self._times.put(None)

    def _run(self, rows: Any, options: Any) -> list[dict[str, Any]]:
        from kernel_tuner.util import RuntimeFailedConfig

        points = [self._points.get(tuple(row)) for row in rows]
        self._wanted.put([point for point in points if point is not None])
        times = self._times.get()
        if times is None:
            raise _Closed
        found = [times.get(point) if point is not None else None for point in points]
        names = self._members.names
        return [
            {**dict(zip(names, row)), **({"time": us} if us else {"__error__": RuntimeFailedConfig()})}
            for row, us in zip(rows, found)
        ]

    def _tune(self) -> None:
        import numpy as np
        from kernel_tuner.interface import Options
        from kernel_tuner.searchspace import Searchspace

        random.seed(self._seed)
        np.random.seed(self._seed)
        lists = {name: list(values) for name, values in zip(self._members.names, self._members.values)}
        space = Searchspace(lists, [member(list(lists), self._points)], 10**9)
        runner = _Runner(self._run)
        options = Options(
            objective=["time"], objective_higher_is_better=[False], strategy_options={}, verbose=False, budget=runner,
            max_fevals=600, eps=1e-6, tune_params=lists,
        )  # fmt: skip
        try:
            importlib.import_module(f"kernel_tuner.strategies.{self._name}").tune(space, runner, options)
        except _Closed:
            return
        self._wanted.put(None)


class _Runner:
    """Kernel Tuner's source of times; it never reports a used budget."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


def member(names: list[str], found: Any) -> Callable[..., bool]:
    """A constraint: the values of these names, in this order, are in a container."""
    return eval(f"lambda {', '.join(names)}: ({', '.join(names)},) in found", {"found": found})


def import_all() -> None:
    """Import all modules that the strategies here import when they start."""
    if importlib.util.find_spec("optuna"):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        optuna.create_study(sampler=optuna.samplers.TPESampler(multivariate=True)).ask()
    if importlib.util.find_spec("kernel_tuner"):
        for name in ("interface", "searchspace", "strategies.diff_evo", "strategies.genetic_algorithm"):
            importlib.import_module(f"kernel_tuner.{name}")
        importlib.import_module("scipy.stats")  # it samples with this


def peers() -> Iterator[tuple[str, Callable[[Members, int], Any]]]:
    """The installed peers by name, each a function of members and a seed that returns a strategy."""
    if importlib.util.find_spec("optuna"):
        for name in ("TPE", "Random"):
            yield f"Optuna {name}", lambda members, seed, name=name: Optuna(members, seed, name)
    if importlib.util.find_spec("kernel_tuner"):
        for name in ("diff_evo", "genetic_algorithm"):
            yield f"Kernel Tuner {name}", lambda members, seed, name=name: KernelTuner(members, seed, name)
