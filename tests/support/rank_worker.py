"""One rank of `distributed/test_agreement.py`: reads one scenario per line, plays it, and reports the result."""

import gc
import itertools
import json
import os
import sys
import time
import warnings
from pathlib import Path

import torch.distributed as dist
from fakes import FakeConfig
from newer import store_choice
from torch.distributed import distributed_c10d

import autotuned
from autotuned import FixedLaunches, autotune
from autotuned.distributed import agreement
from autotuned.errors import AutotunedError
from autotuned.search import timers
from autotuned.store import listing

RANK, SIZE, PORT = map(int, sys.argv[1:4])
STEPS = range(6)
COLLECTIVES = ("all_gather", "all_gather_object", "all_reduce", "barrier", "broadcast", "broadcast_object_list", "gather",
               "gather_object", "monitored_barrier", "reduce", "scatter", "send", "recv")  # fmt: skip
launched: list[int] = []
numbers = itertools.count()


def refuse(*args, **kwargs):
    raise AssertionError("a collective was called")


class State:
    """The current play; accessed through `globals()`, so that it is not in any rank's key."""

    play = None


STATE = State()


def body(x, *, step, rank=0):
    launched.append(step)
    play = globals()["STATE"].play
    if play.asked.get("fails") == play.rank:
        raise ValueError(f"fails on rank {play.rank}")
    if play.asked.get("communicates"):
        play.meet()


def told_us(call):
    """The time of a launch on this rank as given by the scenario, since clocks of busy machines are unreliable."""
    call()
    play = STATE.play
    return 2e4 * (1 + abs(launched[-1] - play.best)) * (1 + 0.1 * play.rank)


timers.host_us = told_us


class Play:
    """One scenario: a tuned function with this rank's times, and the requested actions."""

    def __init__(self, scenario):
        self.asked, self.rank = scenario, RANK  # not global: a global that the function uses would be in its key
        os.environ["AUTOTUNED_CACHE_DIR"] = scenario["cache"].format(rank=RANK)
        self.best = scenario.get("best", [3] * SIZE)[RANK]
        self.meeting = dist.PrefixStore(f"meeting/{scenario['number']}", distributed_c10d._get_default_store())
        launched.clear()
        STATE.play = self
        do_bench = FixedLaunches(rep=4, warmup=2) if scenario.get("communicates") else self.bench
        steps = [*STEPS, *([RANK] if scenario.get("own_configs") else [])]
        configs = [
            FakeConfig({"step": step, **({"rank": RANK} if index > 5 else {})}) for index, step in enumerate(steps)
        ]
        default = {"default": configs[5]} if scenario.get("default") else {}
        self.tuned = autotune(configs, do_bench=do_bench, name="app.body", version="1", **default)(body)

    def meet(self):
        """Wait until every rank has launched as often, like a kernel that communicates."""
        name = f"{len(launched)}/{launched[-1]}"
        self.meeting.add(name, 1)
        end = time.monotonic() + 20
        while self.meeting.add(name, 0) < SIZE:
            assert time.monotonic() < end, "another rank launched something else, or less often"
            time.sleep(1e-4)

    def bench(self, call, quantiles):
        call()
        time.sleep(self.asked.get("slow", [0] * SIZE)[RANK])
        return [1.0 + (launched[-1] - self.best) ** 2] * 3

    def compared(self):
        """Choose alone, then compare with the others; functions of earlier scenarios no longer exist."""
        gc.collect()
        self.tuned(1)
        with autotuned.sync(timeout_s=self.asked.get("timeout_s", 30.0)) as agreement:
            try:
                if RANK not in self.asked.get("absent", ()):
                    agreement.compare()
            except AutotunedError as error:
                return {"error": type(error).__name__, "text": str(error), "digest": autotuned.choices_digest()}
        return {"digest": autotuned.choices_digest()}

    def refreshed(self):
        """Run untuned, put a newer choice into this rank's store, refresh with the others, and return the launched config."""
        gc.collect()
        with autotuned.sync(timeout_s=self.asked.get("timeout_s", 30.0)):
            self.tuned(1)
            if RANK in self.asked["stored"]:
                store_choice(self.tuned, self.tuned.configs[self.best], 1)
            if RANK in self.asked.get("without", ()):
                self.tuned.tuner.bound_anew = lambda chosen: 1 / 0
            try:
                swaps = [] if RANK in self.asked.get("absent", ()) else autotuned.refresh().swapped
            except AutotunedError as error:
                return {"error": type(error).__name__, "text": str(error), "chose": self.call()["chose"]}
            chose = self.call()["chose"]
            self.tuned.tuner.launcher.clear()  # binds again, as for another signature of the key
            with autotuned.refresh(every_s=1e-3) as alone:
                while alone.latest is None:
                    time.sleep(1e-3)
            return {"chose": chose, "again": self.call()["chose"], "swapped": len(swaps), "alone": alone.latest.reason}

    def run(self):
        if self.asked.get("compare"):
            return self.compared()
        if self.asked.get("refresh"):
            return self.refreshed()
        if RANK in self.asked.get("stored", ()):
            self.tuned(1)
            self.tuned.cache_clear()
        before = self.tuned.cache_info().searches
        launched.clear()
        time.sleep(self.asked.get("late", [0] * SIZE)[RANK])
        answer = {}
        if self.asked.get("sync", True):
            with (
                autotuned.sync(timeout_s=self.asked.get("timeout_s", 30.0)) as agreement,
                autotuned.mode(self.asked.get("mode", "auto")),
            ):
                answer = self.call()
                if "error" not in answer:
                    agreement._ranks = None  # a hit makes no request
                    self.tuned(1)
        else:
            answer = self.call()
        return answer | {
            "searches": self.tuned.cache_info().searches - before,
            "hits": self.tuned.cache_info().hits,
            "launched": list(launched),
            "stored": [record.winner["kwargs"]["step"] for _, record in listing.all_records() if record.winner],
        }

    def call(self):
        try:
            self.tuned(1)
        except AutotunedError as error:
            return {"error": type(error).__name__, "text": str(error)}
        except ValueError as error:
            return {"error": "ValueError", "text": str(error)}
        return {"chose": launched[-1]}


def main():
    sys.path.insert(0, str(Path(__file__).parent))
    warnings.simplefilter("ignore")
    meeting = dist.TCPStore("127.0.0.1", PORT, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=meeting, rank=RANK, world_size=SIZE)
    for name in COLLECTIVES:
        for module in (dist, distributed_c10d):
            setattr(module, name, refuse)
    agreement.VOTE_S = 3.0
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(Play(json.loads(line)).run()), flush=True)


if __name__ == "__main__":
    main()
