"""The fewest configs that hold every call: exact where it says so, bounded otherwise, and never a guess."""

import itertools
import math
import random

import numpy as np
import pytest

from autotuned.rules import cover


def drawn(seed: int, calls: int = 12, configs: int = 7, missing: float = 0.0) -> np.ndarray:
    source = random.Random(seed)
    rows = [[source.choice([0.0, 0.02, 0.04, 0.1, 0.3]) for _ in range(configs)] for _ in range(calls)]
    for row in rows:
        row[source.randrange(configs)] = 0.0
    rows = [[math.nan if loss and source.random() < missing else loss for loss in row] for row in rows]
    return np.asarray(rows)


def held(losses: np.ndarray, configs, within: float) -> int:
    return int((np.nan_to_num(losses[:, list(configs)], nan=9.0) <= within).any(axis=1).sum())


@pytest.mark.parametrize("seed", range(40))
def test_no_fewer_configs_hold_all_calls(seed):
    losses = drawn(seed, missing=0.2 * (seed % 2))
    found = cover.fewest(losses, 0.05)
    assert found.is_exact and held(losses, found.configs, 0.05) == len(losses) == len(found.held)
    count = len(found.configs)
    assert found.least == count
    assert all(held(losses, few, 0.05) < len(losses) for few in itertools.combinations(range(7), count - 1))


@pytest.mark.parametrize("seed", range(20))
def test_under_a_limit_no_other_configs_hold_more_calls(seed):
    losses = drawn(seed, calls=16, configs=8)
    found = cover.fewest(losses, 0.03, most=2)
    best = max(held(losses, few, 0.03) for few in itertools.combinations(range(8), 2))
    assert len(found.configs) <= 2 and len(found.held) == best == found.most_held


def test_of_equally_few_configs_those_that_lose_least_are_taken():
    losses = np.asarray([[0.04, 0.0, 0.0], [0.04, 0.01, 0.0]])
    assert cover.fewest(losses, 0.05).configs == (2,)


def test_a_config_without_a_time_holds_nothing():
    losses = np.asarray([[0.0, math.nan], [math.nan, 0.0]])
    assert cover.fewest(losses, 5.0).configs == (0, 1)


def test_a_search_that_is_cut_short_says_what_is_proven(monkeypatch):
    monkeypatch.setattr(cover, "NODES", 3)
    losses = drawn(5, calls=60, configs=24)
    found = cover.fewest(losses, 0.0)
    assert held(losses, found.configs, 0.0) == 60
    assert found.least <= len(found.configs)
    limited = cover.fewest(losses, 0.0, most=3)
    assert len(limited.held) <= limited.most_held


def test_no_calls_need_no_config():
    assert cover.fewest(np.zeros((0, 0)), 0.05).configs == ()
