"""The small form of `tests/bench/fleet.py`: hosts that share a store and are killed at random."""

from pathlib import Path

import pytest
from hosts import Fleet


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_killed_hosts_search_nothing_twice_and_lose_nothing(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "parent"))
    fleet = Fleet(redis_url, tmp_path, hosts=3, keys=12, bench_s=0.01)
    try:
        found = fleet.run(kills=8, between_s=0.1)
    finally:
        fleet.close()
    assert (found.twice, found.lost, found.unreadable, found.wrong) == ([], [], [], [])
    assert found.kills == 8 and found.searches == 12 + found.again
