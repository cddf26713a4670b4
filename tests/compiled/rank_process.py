"""One rank of `test_ahead_ranks.py` and `test_race_ranks.py`: tunes one kernel and prints what it found, as JSON.

Arguments: "ahead", "loop" (the same for a tuner that loops by itself) or "race", then words for what is different on
this rank: `limit=SECONDS` until a waiter gives up, `slow=SECONDS` that measuring a config takes, `budget=SECONDS` of a
race, `needs=PATH` for a device whose work ends once that file exists, and `sends=PATH` to make one after the call.
"""

import json
import logging
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config, knobs

import autotuned
from autotuned.search import timers
from autotuned.store import locks

WAY, WORDS = sys.argv[1], dict(word.split("=") for word in sys.argv[2:])
TIMES = {block: 1.0 + (block != 64) for block in (16, 32, 64, 128, 256, 512)}
compiled, said, searches = [], [], []
by_config = fake_cuda.by_config(TIMES)


def bench(call, quantiles):
    times = by_config(call, quantiles)
    if "slow" in WORDS:
        print("measured", by_config.calls[-1], flush=True)
        time.sleep(float(WORDS["slow"]))
    return times


class Loops(triton.runtime.Autotuner):
    def run(self, *args, **kwargs):
        self.nargs = dict(zip(self.arg_names, args))
        self.configs_timings = {one: self._bench(*args, config=one, **kwargs) for one in self.prune_configs(kwargs)}
        self.best_config = min(self.configs_timings, key=self.configs_timings.get)
        return self.fn.run(*args, **kwargs, **self.best_config.all_kwargs())


def tune(fn):
    kind = Loops if WAY == "loop" else triton.runtime.Autotuner
    return kind(fn, fn.arg_names, [Config({"BLOCK": block}) for block in TIMES], ["n"], None, None, do_bench=bench)


@tune
@triton.jit
def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


def note(*, cache_hit, **event):
    if not cache_hit:
        compiled.append(threading.current_thread().name.partition("_")[0])


def synchronize():
    while "needs" in WORDS and not Path(WORDS["needs"]).exists():
        time.sleep(0.01)


class Said(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())


def begin(patch):
    fake_cuda.install_with_host_clock(patch)
    patch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=synchronize))
    patch.setattr(timers.HostTimer, "synchronize", lambda timer: synchronize())
    knobs.compilation.listener = note
    locks.LOCK_TIMEOUT_S = float(WORDS.get("limit", 60))
    locks.MESSAGE_AFTER_S = 60.0  # on a busy machine ranks wait longer than the usual 5 s, which would be logged
    logging.getLogger("autotuned").addHandler(Said(logging.WARNING))
    autotuned.on_event(lambda event: searches.append(event.key) if event.kind == "search" else None)
    autotuned.install(race=WAY == "race", budget_s=float(WORDS["budget"]) if "budget" in WORDS else None)
    print("ready", flush=True)
    sys.stdin.readline()  # all begin together


def found(seconds):
    last = fake_cuda.Launcher.launches[-1]
    times = {config.kwargs["BLOCK"]: times[0] for config, times in add.configs_timings.items()}
    return {
        "chosen": add.best_config.kwargs["BLOCK"], "launched": last.arguments["BLOCK"], "times": times,
        "measured": by_config.calls, "searches": len(searches), "compiled": compiled, "said": said, "seconds": seconds,
        "launches": len(fake_cuda.Launcher.launches),
    }  # fmt: skip


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        begin(patch)
        start = time.perf_counter()
        add[(4,)](torch.zeros(600), torch.zeros(600), 600)
        seconds = time.perf_counter() - start
        if "sends" in WORDS:
            Path(WORDS["sends"]).touch()
        print(json.dumps(found(seconds)))
