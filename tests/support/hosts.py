"""Hosts that share a store and are killed at random: what each searched, served and kept, and whether it is right."""

import os
import random
import signal
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import autotuned
from autotuned import disk
from autotuned.remote.client import Client
from autotuned.remote.place import MAX_RECORD_BYTES, RECORDS, digest_of, place
from autotuned.store import layout, listing, record

SECRET = "a key of a fleet, not a secret"
BLOCKS, BEST = (4, 1, 6), 1
LEASE_S = 1.0
HOUR_S = 3600.0


class Outcome(NamedTuple):
    """The result of a run; all but the first four fields are faults and should be empty."""

    keys: int
    kills: int
    searches: int
    again: int  # searches of a key whose holder was killed before it released the key
    twice: list[str]  # keys searched again without a kill, or more often than kills explain
    lost: list[str]
    unreadable: list[str]
    wrong: list[str]  # keys served a choice that was not measured: an unverified record


class Fleet:
    """Hosts as forked processes, each with its own cache folder and clock.

    Args:
        url: URL of the store.
        folder: Folder for all files.
        hosts: Number of hosts.
        keys: Number of keys that each host requests, in its own order.
        bench_s: Time to measure one config.
        seed: Seed of all random choices.
    """

    def __init__(self, url: str, folder: Path, hosts: int, keys: int, bench_s: float, seed: int = 0) -> None:
        self.url, self.folder, self.hosts, self.keys, self.bench_s = url, folder, hosts, keys, bench_s
        self.random = random.Random(seed)
        self.log = folder / "log"
        self.log.touch()
        self._running: dict[int, int] = {}  # by host: process
        self.killed: set[int] = set()

    def run(self, kills: int, between_s: float) -> Outcome:
        """Let all hosts get all keys, while `kills` of them are killed and restarted."""
        self._put_unverified()
        for host in range(self.hosts):
            self._begin(host)
        done, count = set(), 0
        while len(done) < self.hosts or count < kills:
            for host in [host for host, process in self._running.items() if self._has_ended(process)]:
                done.add(host)
                del self._running[host]
            if count < kills:
                if not self._running:  # all have ended: restart one
                    self._begin(self.random.randrange(self.hosts))
                time.sleep(self.random.uniform(0, 2 * between_s))
                host = self.random.choice(list(self._running))
                self._kill(host)
                count += 1
                done.discard(host)
                self._begin(host)
            else:
                time.sleep(0.02)
        return self._judged(count)

    def _put_unverified(self) -> None:
        """Write records with another signing key, of a losing config, in place of the first keys' records."""
        os.environ["AUTOTUNED_CACHE_DIR"] = str(self.folder / "liar")
        liar = Client(place(self.url, key="another key, of nobody here", wait_s=30.0))
        tuned = self._function()
        for n in range(0, self.keys, 10):
            tuned(n)
        for _, found in list(listing.all_records()):
            lie = next(timing for timing in found.timings if timing.config["kwargs"]["block"] != BEST)
            liar.keep(found.replace(winner=lie.config, median_us=lie.median_us))
        liar.flush(60)
        liar.close()

    def _function(self):
        ran: list[int] = []
        pause_s = self.bench_s

        def bench(call, quantiles):
            call()
            time.sleep(pause_s)
            return [float(ran[-1])] * 3

        @autotuned.autotune(
            configs=[autotuned.Config({"block": block}) for block in BLOCKS], key=["n"], do_bench=bench, version=1,
            name="fleet.work",
        )  # fmt: skip
        def work(n, block):
            ran.append(block)
            return block

        return work

    def _begin(self, host: int) -> None:
        order = self.random.sample(range(self.keys), self.keys)
        process = os.fork()
        if not process:
            code = 1
            try:
                self._live(host, order)
                code = 0
            except BaseException:
                (self.folder / f"error-{os.getpid()}").write_text(traceback.format_exc())
            finally:
                os._exit(code)
        self._running[host] = process

    def _live(self, host: int, order: list[int]) -> None:
        """The life of a host's process."""
        os.environ["AUTOTUNED_CACHE_DIR"] = str(self.folder / f"host-{host}")
        clock, ahead_s = time.time, (host % 3 - 1) * HOUR_S
        time.time = lambda: clock() + ahead_s
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND)
        say = lambda *words: os.write(descriptor, (" ".join(map(str, (os.getpid(), *words))) + "\n").encode())
        with autotuned.connect(self.url, key=SECRET, wait_s=30.0, lease_s=LEASE_S) as connection:
            client, released, leased = connection.client, connection.client._released, connection.client._leased
            client._leased = lambda digest, *rest: _said(leased(digest, *rest), say, digest)
            client._released = lambda digest, *rest: (released(digest, *rest), say("released", digest))
            with autotuned.on_event(lambda event: event.kind == "search" and say("searched", event.key)):
                tuned = self._function()
                for n in order:
                    say("got", n, tuned(n))
            client.drain()
            client.flush(30)

    def _has_ended(self, process: int) -> bool:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            why = self.folder / f"error-{process}"
            assert status == 0, why.read_text() if why.exists() else status
        return bool(ended)

    def _kill(self, host: int) -> None:
        process = self._running.pop(host)
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        if status:
            self.killed.add(process)

    def close(self) -> None:
        for host in list(self._running):
            self._kill(host)

    def _judged(self, kills: int) -> Outcome:
        begun: dict[str, list[int]] = defaultdict(list)
        let_go, wrong, searches = set(), [], 0
        for process, what, *rest in (line.split() for line in self.log.read_text().splitlines()):
            if what == "searched":
                searches += 1
            elif what == "leased":
                begun[rest[0]].append(int(process))
            elif what == "released":
                let_go.add((int(process), rest[0]))
            elif what == "got" and int(rest[1]) != BEST:
                wrong.append(f"key {rest[0]}: {rest[1]}")
        held = {digest: [one for one in some if one in self.killed and (one, digest) not in let_go]
                for digest, some in begun.items()}  # fmt: skip
        finished = defaultdict(int)
        for line in self.log.read_text().splitlines():
            if line.split()[1] == "searched":
                finished[line.split()[2]] += 1
        twice = [digest for digest, count in finished.items() if count > 1 + len(held.get(digest, ()))]
        again = sum(max(0, count - 1) for count in finished.values())
        lost, unreadable = self._in_the_store(set(finished))
        return Outcome(self.keys, kills, searches, again, twice, lost, unreadable + list(self._damaged()), wrong)

    def _in_the_store(self, digests: set[str]) -> tuple[list[str], list[str]]:
        client = Client(place(self.url, key=SECRET, wait_s=30.0))
        backend, unreadable, there = client._backend(), [], set()
        for name in backend.names(RECORDS):
            data, _ = backend.read(name, MAX_RECORD_BYTES)
            try:
                found = client.place.load(digest_of(name), data or b"")
                there |= {digest_of(name)} if found.winner and found.winner["kwargs"]["block"] == BEST else set()
            except OSError as error:
                unreadable.append(f"{name}: {error}")
        client.close()
        missing = sorted(digests - there) + [f"{self.keys - len(digests)} keys"] * (len(digests) < self.keys)
        return missing, unreadable

    def _damaged(self) -> Iterator[str]:
        for host in range(self.hosts):
            os.environ["AUTOTUNED_CACHE_DIR"] = str(self.folder / f"host-{host}")
            paths = list(layout.kernel_folder("fleet.work").glob("*.json"))
            if len(paths) != self.keys:
                yield f"host {host} has {len(paths)} records of {self.keys}"
            yield from map(str, layout.kernel_folder("fleet.work").glob(f"{layout.DAMAGED}/*"))
            for path in paths:
                found = record.load(disk.read_json(path))
                if found.winner is None or found.winner["kwargs"]["block"] != BEST:
                    yield f"{path} has chosen {found.winner}"


def _said(who: str, say, digest: str) -> str:
    if not who:
        say("leased", digest)
    return who
