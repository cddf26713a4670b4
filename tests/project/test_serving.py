"""`bench/serving.py`: a rehearsal without a GPU, going on where it ended, and what the table says of results."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "bench"
sys.path.insert(0, str(BENCH))
import serving  # noqa: E402


def window(p99_us: float) -> dict[str, Any]:
    return {"calls": 100, "p99_us": p99_us, "p50_us": 5.0, "max_us": 50.0}


def results(**changed: Any) -> dict[str, Any]:
    windows = dict(zip(serving.KINDS, map(window, (10.0, 10.3, 10.05, 10.2))))
    done = {
        "p99": {"windows": windows, "swaps": 8, "tuned meanwhile": 3, "companion was busy to the end": True},
        "known": {"seconds": [0.1, 0.2], "refreshes": [0, 1]},
        "searched": {"seconds": [3.0, 61.0]},
        "losses": {"rows": [{"case": "a", "ratio": -0.5, "half_width": 0.001}], "swapped": 1},
    }
    return done | changed


def met(done: dict[str, Any]) -> list[bool | None]:
    return [row[-1] for row in serving.rows(done)]


def test_what_the_table_says_of_results() -> None:
    assert met(results()) == [None, True, False, True, False, True]
    lost = {"rows": [{"case": "a", "ratio": 0.02, "half_width": 0.001}], "swapped": 1}
    good = results(losses=lost, searched={"seconds": [59.0]}, known={"seconds": [0.1], "refreshes": [2]})
    assert met(good)[3:] == [False, True, False]
    assert met({}) == [None] * 6


def test_windows_in_which_nothing_was_done_meet_no_goal() -> None:
    idle = results()["p99"] | {"swaps": 0, "companion was busy to the end": False}
    idle["windows"]["swaps"] = window(10.0)
    found = list(serving.rows(results(p99=idle)))
    assert [row[-1] for row in found[:3]] == [None, False, False]
    assert all("it did nothing" in row[2] for row in found[1:3])


def test_it_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    options = Namespace(into=tmp_path, budget=100.0, report=False, pretended=True, one_gpu=False)
    monkeypatch.setattr(
        serving,
        "run",
        lambda piece, *rest: ran.append(piece) or ({} if piece != "tuned" or ran.count(piece) > 1 else None),
    )
    assert list(serving.work(options)) == ["ahead", "p99", "host", "known", "searched"]
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('\n{"piece": "lo')  # of a process that was killed
    assert list(serving.work(options))[5:] == ["tuned", "losses"]
    assert ran == ["ahead", "p99", "host", "known", "searched", "tuned", "tuned", "losses"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Namespace]:
    """Options of a rehearsal whose pieces run in this process, but the first, and its companions."""
    monkeypatch.setenv("SERVED", "pretended")
    monkeypatch.setenv("AUTOTUNED_DEVICE", "interpreter")
    monkeypatch.setenv("PYTHONPATH", str(BENCH))
    started = serving.run

    def run(piece: str, options: Namespace, left_s: float) -> Any:
        folder = tmp_path / piece
        if piece == "ahead":
            return started(piece, options, left_s)
        folder.mkdir(exist_ok=True)
        monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(folder / "cache"))
        import served

        served.matmul.cache_clear()
        served.scaled.cache_clear()
        return (serving.PIECES | serving.ONE_GPU)[piece](folder, options)

    monkeypatch.setattr(serving, "run", run)
    monkeypatch.setattr(serving, "FOLLOWED", 300)
    monkeypatch.setattr(serving.never, "MOST_BLOCKS", 30)
    options = Namespace(into=tmp_path, budget=100.0, report=False, pretended=True, calls=400, window=100, shapes=4)
    options.one_gpu, options.seconds, options.rounds, options.every = False, 0.3, 2, 0.05
    yield options
    sys.modules.pop("served", None)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the companion's processes in /proc")
def test_a_rehearsal_without_a_gpu(here: Namespace) -> None:
    """Windows with a companion that is stopped and goes on, and what comes after what it tunes."""
    pytest.importorskip("fsspec", reason="needs the package fsspec")
    waited = {"piece": "searched", "result": {"seconds": [1.0]}}  # the example of the docs waits for a search
    (here.into / "results.jsonl").write_text(json.dumps(waited))
    done = serving.work(here)
    assert list(done) == ["searched", "ahead", "p99", "host", "known", "tuned", "losses"]
    assert {kind: one["calls"] for kind, one in done["p99"]["windows"].items()} == dict.fromkeys(serving.KINDS, 400)
    assert done["p99"]["swaps"] == 4 * serving.SERVED
    assert done["known"]["refreshes"] == [1] * serving.FEW
    assert (done["tuned"]["tuned"], done["losses"]["swapped"]) == (4, 4)
    assert list(serving.rows(done))[-1][2].startswith("0 of 4, 4 swapped")


def test_a_rehearsal_of_swaps_in_the_background(here: Namespace) -> None:
    """Windows are kept one by one; a budget that ends is no result, and the next run goes on."""
    here.one_gpu, folder = True, here.into / "background"
    (here.into / "results.jsonl").write_text(json.dumps({"piece": "ahead", "result": {}}))
    short, options = (Namespace(**{**vars(here), "budget": budget}) for budget in (1.5, 60.0))
    assert serving.run("background", short, 0.0) is None
    assert 1 <= len(serving.lines_of(folder / "windows.jsonl")) < 6
    assert list(serving.work(options)) == ["ahead", "background"]
    found = serving.background(folder, options)
    lines = serving.lines_of(folder / "windows.jsonl")
    assert sorted(one["kind"] for one in lines) == sorted(serving.swapped.KINDS * 2)
    assert found is not None and found["swaps"] == sum(len(one["swap_s"]) for one in lines) > 2
    assert all(not one["swap_s"] for one in lines if one["kind"] != "background")
    assert {kind: one["calls"] for kind, one in found["windows"].items()} == {
        kind: sum(one["calls"] for one in lines if one["kind"] == kind) for kind in serving.swapped.KINDS
    }
    assert any("function calls" in line for line in found["profile"])


def test_what_the_table_says_of_swaps_in_the_background() -> None:
    kinds = dict(zip(serving.swapped.KINDS, ({100: 99, 200: 1}, {100: 99, 210: 1}, {100: 98, 200: 1, 300: 1})))
    lines = [{"kind": kind, "calls": 100, "max_us": 3.0, "bins": bins, "swap_s": []} for kind, bins in kinds.items()]
    lines[2]["swap_s"] = [0.01, 0.02]
    found = serving.swapped.summary(lines)
    assert [one["p99_us"] for one in found["windows"].values()] == [2.005, 2.105, 3.005]
    assert [row[-1] for row in serving.background_rows(found)] == [None, False]
    assert "2 swaps, each 15.0 ms" in list(serving.background_rows(found))[1][2]
    found["windows"]["background"] = found["windows"]["control"]
    assert [row[-1] for row in serving.background_rows(found)] == [None, True]
    assert [row[-1] for row in serving.background_rows(found | {"swaps": 0})] == [None, False]
    assert [row[-1] for row in serving.background_rows(None)] == [None, None]
