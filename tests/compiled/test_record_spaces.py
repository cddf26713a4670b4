"""The recorder of whole spaces over a compiler: its pool, and what it says of configs that do not run."""

import sys
from dataclasses import replace
from pathlib import Path

from autotuned import Space

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import record_spaces  # noqa: E402
import space_tables  # noqa: E402


def test_what_does_not_run_is_recorded_with_its_reason(tmp_path, monkeypatch, launches):
    values = {"BLOCK_M": [64, 256], "BLOCK_N": [64, 256], "BLOCK_K": [32, 128], "GROUP_M": [1, 3], "num_warps": [4],
              "num_stages": [3]}  # fmt: skip
    fits = lambda BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M: (BLOCK_M == BLOCK_N) and (BLOCK_M, BLOCK_K) != (256, 32)
    small = replace(record_spaces.PROBLEMS["matmul"], space=Space(values, where=[fits]), small=[(512, 512, 512)])
    monkeypatch.setitem(record_spaces.PROBLEMS, "matmul", small)
    assert record_spaces.record(tmp_path, 600, ["matmul"], 0, "cpu")
    [path] = tmp_path.glob("matmul-*.csv.gz")
    found = {row[:3]: status for row, (ms, status) in space_tables.read(path).rows.items() if ms is None}
    # A pretended GPU writes nothing, which is wrong; what needs more shared memory than it has is not launched.
    assert found == {(64, 64, 32): "wrong", (64, 64, 128): "wrong", (256, 256, 128): "memory"}
    assert len(launches) == 4
