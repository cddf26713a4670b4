"""The recorder of whole spaces over a compiler, what it says of configs that do not run, and timed searches."""

import itertools
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import fake_cuda
import forked
import pytest

from autotuned import Space

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import record_spaces  # noqa: E402
import space_tables  # noqa: E402
import wall_spaces  # noqa: E402


def test_what_does_not_run_is_recorded_with_its_reason(tmp_path, monkeypatch, launches):
    fake_cuda.limit_shared_memory(monkeypatch, 32 << 10)
    values = {"BLOCK_M": [16, 64], "BLOCK_N": [16, 64], "BLOCK_K": [16, 64], "GROUP_M": [1], "num_warps": [4],
              "num_stages": [4]}  # fmt: skip
    fits = lambda BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M: (BLOCK_M == BLOCK_N) and (BLOCK_M, BLOCK_K) != (64, 16)
    small = replace(record_spaces.PROBLEMS["matmul"], space=Space(values, where=[fits]), small=[(512, 512, 512)])
    monkeypatch.setitem(record_spaces.PROBLEMS, "matmul", small)
    assert record_spaces.record(tmp_path, 600, ["matmul"], 0, "cpu")
    [path] = tmp_path.glob("matmul-*.csv.gz")
    found = {row[:3]: status for row, (ms, status) in space_tables.read(path).rows.items() if ms is None}
    # A pretended GPU writes nothing, which is wrong; what needs more shared memory than it has is not launched.
    assert found == {(16, 16, 16): "wrong", (16, 16, 64): "wrong", (64, 64, 64): "memory"}
    assert len(launches) == 2


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two made-up tables of the whole matmul space; a tenth of it is within 5% of the best."""
    folder = tmp_path_factory.mktemp("made")
    members = record_spaces.PROBLEMS["matmul"].space.members()
    for shape, best in (((64, 48, 32), 0.1), ((32, 64, 32), 0.05)):
        table = space_tables.Recorded({"shape": shape, "device": "made"}, members.names)
        for point in members:
            row = tuple(values[at] for values, at in zip(members.values, point))
            far = abs(math.log2(row[0] / 32)) + abs(math.log2(row[1] / 32)) + abs(row[4] - 4) / 4
            table.rows[row] = (best * (1 + far / 4), "ok") if row[2] < 128 else (None, "memory")
        space_tables.write(table, folder / f"matmul-{'x'.join(map(str, shape))}-made.csv.gz")
    return folder


def test_seconds_of_a_search_with_the_record_of_another_card(made, tmp_path, monkeypatch):
    clock = itertools.count(0, 5)  # by which the budget is enough for one process
    monkeypatch.setattr(wall_spaces, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(wall_spaces.subprocess, "run", lambda command, env, **more: forked.run(command, env))
    wall_spaces.measure(made, 20.0, True, tmp_path / "runs.json", ["auto, prior"])
    [first] = json.loads((tmp_path / "runs.json").read_text())
    assert first["picked"] <= 1.05 and 0 < first["seconds"] <= first["all_s"] and first["trials"] <= 8, first


def test_tables_must_be_there(tmp_path):
    with pytest.raises(SystemExit, match="expected two tables"):
        wall_spaces.measure(tmp_path, 100.0, True, None, ["auto"])
