"""Writers that are killed at random while they tune, and damage sprinkled in: nothing good is lost.

Short as a test; the whole of it by hand, from a checkout: `python tests/stress/test_stress.py`.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from autotuned import disk
from autotuned.errors import AutotunedError
from autotuned.store import layout, listing, record
from autotuned.store.record import TuningRecord

SUPPORT = Path(__file__).resolve().parents[1] / "support"
sys.path.append(str(SUPPORT))  # when run by hand

import forked  # noqa: E402

# Tunes keys in an order of its own, and says each key when its record is kept. Payload: kilobytes of each record.
WRITER = f"""
import random, sys
sys.path.insert(0, {str(SUPPORT)!r})
from fakes import FakeConfig
from autotuned import autotune

seed, keys, payload = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
configs = [FakeConfig({{"step": step, "note": "x" * payload * 100}}) for step in range(10)]
last = [0]
def body(n, *, step, note):
    last[0] = step
def bench(call, quantiles):
    call()
    return [1.0 + (last[0] - 3) ** 2] * 3
tuned = autotune(configs, do_bench=bench, name="app.body", version="1")(body)
order = list(range(keys))
random.Random(seed).shuffle(order)
print("ready", flush=True)
for n in order:
    tuned(n)
    assert last[0] in (3, 2, 4), last  # 3 is the fastest; the next ones where a kill hit its first launch
    print("kept", n, flush=True)
"""


class Stress:
    """One run: `writers` processes over `keys` keys, `kills` of them killed, with some files damaged in between."""

    def __init__(self, writers: int, keys: int, kills: int, payload_kb: int, seed: int = 0) -> None:
        self.writers, self.keys, self.kills, self.payload_kb = writers, keys, kills, payload_kb
        self.chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.damaged: set[int] = set()
        self._seeds = 0

    def run(self) -> Counter[str]:
        running = [self._start() for _ in range(self.writers)]
        while self.counts["kills"] < self.kills:
            place = self.chance.randrange(len(running))
            self._wait(running[place])
            time.sleep(self.chance.uniform(0.0, 0.1))
            self.counts["kills"] += self._end(running[place], kill=True) == -signal.SIGKILL
            running[place] = self._start()
            if self.chance.random() < 0.2:
                self._damage()
            self._check_all_parse()
        for process in running:
            self._end(process)
        self._end(self._start())  # one that nobody disturbs: what is missing is tuned, what is damaged is healed
        self._check_end()
        return self.counts

    def _start(self) -> forked.Program:
        self._seeds += 1
        self.counts["writers"] += 1
        arguments = [str(self._seeds), str(self.keys), str(self.payload_kb)]
        return forked.start([sys.executable, "-c", WRITER, *arguments])

    def _wait(self, process: forked.Program) -> None:
        """Until it is at work: killing a process that imports modules says nothing."""
        assert process.stdout.readline() == "ready\n"

    def _end(self, process: forked.Program, kill: bool = False) -> int | None:
        if kill:
            process.kill()
        self.counts["kept"] += process.finish().count("kept ")
        assert kill or process.returncode == 0
        return process.returncode

    def _files(self) -> list[Path]:
        return sorted((layout.root() / "v2").glob("*/*.json"))

    def _damage(self) -> None:
        files = self._files()
        if files:
            path = self.chance.choice(files)
            text = path.read_bytes()
            cut = self.chance.choice([b"", b"{", b"\x00" * 100, text[: len(text) // 2], b"[]"])
            path.write_bytes(cut)  # not atomically: it is damage
            self.counts["damaged"] += 1

    def _check_all_parse(self) -> None:
        for path in self.chance.sample(self._files(), k=min(5, len(self._files()))):
            try:
                record.load(disk.read_json(path))
                self.counts["parsed"] += 1
            except (ValueError, AutotunedError):
                self.counts["met damaged"] += 1
                assert self.counts["damaged"]
            except OSError:
                self.counts["moved while looking"] += 1

    def _check_end(self) -> None:
        found: list[TuningRecord] = [each for _, each in listing.all_records()]
        assert len(found) == len({each.key.digest for each in found}) == self.keys
        for each in found:
            assert len(each.timings) == 10
            assert (
                each.winner == min((t for t in each.timings if t.status == "ok"), key=lambda t: t.median_us or 0).config
            )
            blamed = [timing for timing in each.timings if timing.status != "ok"]
            assert all(timing.status == "crashed" for timing in blamed)  # `tune` tries them again
            self.counts["configs skipped for a kill in their first launch"] += len(blamed)
        assert self.counts["configs skipped for a kill in their first launch"] <= self.counts["kills"] // 4
        litter = [path for path in layout.root().rglob(".*") if path.suffix == ".logbook"]
        # One is left by whoever is killed between the record and the removal of its logbook; `gc` clears it.
        self.counts["logbooks beside complete records"] = len(litter)
        assert len(litter) <= self.counts["kills"] // 50 + 1, litter
        temporary = list(layout.root().rglob(".*.tmp"))
        self.counts["temporary files of killed writers"] = len(temporary)
        # Whoever is killed while it writes its name beside the lock has no logbook yet by which the next would know.
        assert [path for path in temporary if path.parent.name != "locks"] == []
        assert len(temporary) <= self.counts["kills"] // 50 + 1, temporary
        aside = [path for path in layout.root().rglob("damaged/*") if path.is_file()]
        self.counts["moved aside"] = len(aside)
        assert len(aside) <= self.counts["damaged"]


def test_killed_writers_and_damage_lose_nothing() -> None:
    counts = Stress(writers=3, keys=20, kills=8, payload_kb=1).run()
    assert counts["kills"] == 8


def main() -> None:
    """The whole of it, with its counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--keys", type=int, default=400)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--payload-kb", type=int, default=1, help="kilobytes of each record; 5000 for 5 MB")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["AUTOTUNED_CACHE_DIR"] = folder
        start = time.monotonic()
        counts = Stress(options.writers, options.keys, options.kills, options.payload_kb, options.seed).run()
        print(json.dumps({**counts, "keys": options.keys, "seconds": round(time.monotonic() - start, 1)}, indent=1))
        assert layout.root() == Path(folder)
        assert layout.logbook_path(Path("a.json")).name == ".a.logbook"


if __name__ == "__main__":
    main()
