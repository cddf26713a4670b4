"""The replay of `tests/bench/spaces.py`, on a small table: the same adapters, with one seed each."""

from __future__ import annotations

import importlib.util
import math
import random
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench" / "spaces.py"


@pytest.fixture(scope="module")
def spaces():
    spec = importlib.util.spec_from_file_location("bench_spaces", BENCH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tables(spaces, tmp_path_factory):
    """A made-up stencil on two made-up cards; a tenth of the configs fails."""
    folder = tmp_path_factory.mktemp("spaces")
    for card, best in (("one", 5.0), ("two", 5.6)):
        source, rows = random.Random(card), ["x,y,tile,pad,time_ms"]
        for x in (4, 8, 16, 32, 64, 128):
            for y in (1, 2, 4, 8, 16):
                for tile in (1, 2, 3, 4, 6):
                    for pad in (0, 1):
                        far = abs(math.log2(x * y) - best - 2) + abs(tile - 3) / 2 + (0.2 if x < 32 and not pad else 0)
                        ms = "" if x * y * tile > 4096 else f"{(1 + far) * source.uniform(0.99, 1.01):.5f}"
                        rows += [f"{x},{y},{tile},{pad},{ms}"] if x * y >= 16 else []
        (folder / f"stencil-{card}.csv").write_text("\n".join(rows))
    return [spaces.load(path) for path in sorted(folder.glob("*.csv"))]


def names_of(spaces):
    return ["guided", "random", "guided, prior", "guided, 20 times", "guided, misled", *dict(spaces.peers())]


def test_every_strategy_is_replayed(spaces, tables):
    found = {name: spaces.replay(tables[0], run, 0, 8) for name, run in spaces.runs(tables[0], tables).items()}
    assert set(found) == set(names_of(spaces))
    assert found["guided"] <= 60 and found["guided, prior"] <= 20 and found["guided, misled"] <= found["guided"] + 60


@pytest.mark.parametrize("name", ["Optuna TPE", "Kernel Tuner diff_evo", "Kernel Tuner genetic_algorithm"])
def test_peers_find_it_too(spaces, tables, name):
    pytest.importorskip(name.split(" ")[0].lower() if name.startswith("Optuna") else "kernel_tuner")
    run = dict(spaces.peers())[name]
    assert spaces.replay(tables[0], run, 0, 8) <= len(tables[0].times)


def test_a_replay_repeats_itself(spaces, tables):
    run = spaces.ours("guided")
    assert len({spaces.replay(tables[1], run, 3, 4) for _ in range(3)}) == 1
