"""Ranks with NCCL, one GPU each: one search and one choice for all, also for what communicates.

Run by hand on a host with several GPUs: `python tests/gpu/nccl_ranks.py [RANKS...]` (default: as many as there are
GPUs). With `--backend gloo` it runs on the CPU, in Triton's interpreter, with small shapes: a rehearsal of the script.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import triton.language as tl

CHUNKS = (1, 2, 4, 8)
LIMIT_S = 300.0  # for all that a group does


class Place(NamedTuple):
    """Where ranks run, and with which sizes."""

    device: str
    shapes: tuple[tuple[int, int], ...]
    numbers: tuple[int, ...]  # elements of what is reduced
    every: int  # of the kernel's configs every so many'th is tried


PLACES = {
    "nccl": Place("cuda", ((64, 1024), (256, 4096), (1024, 8192)), (1 << 12, 1 << 22), 1),
    "gloo": Place("cpu", ((2, 64), (3, 200)), (1 << 8, 1 << 12), 4),
}


def main() -> int:
    """Start the ranks of each group in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", nargs="*", type=int, help="how many, several for several groups in turn")
    parser.add_argument("--backend", choices=PLACES, default="nccl")
    asked = parser.parse_args()
    for size in asked.ranks or [gpus() if asked.backend == "nccl" else 4]:
        if asked.backend == "nccl" and gpus() < max(size, 1):
            print(f"{size} ranks: skipped, there are {gpus()} GPUs")
            continue
        with tempfile.TemporaryDirectory() as folder:
            group(size, asked.backend, Path(folder))
    return 0


def gpus() -> int:
    """How many there are."""
    import torch

    return torch.cuda.device_count()


def group(size: int, backend: str, folder: Path) -> None:
    """Run one group and compare what its ranks say."""
    told = run(size, backend, folder)
    searched = len(PLACES[backend].shapes)
    for what in ("rmsnorm", "stored", "all_reduce"):
        chosen = [one[what]["configs"] for one in told]
        assert chosen == [chosen[0]] * size, (what, chosen)
    assert sum(one["rmsnorm"]["searches"] for one in told) == searched, told
    assert [one["stored"]["searches"] for one in told] == [0] * size, "what one rank had was searched for"
    launches = [one["all_reduce"]["launches"] for one in told]
    assert launches == [launches[0]] * size and set(launches[0]) == set(map(str, CHUNKS)), launches
    print(f"{size} ranks agree ({backend}): {told[0]['rmsnorm']['configs']}")
    print(f"  all_reduce in chunks: {told[0]['all_reduce']['configs']}, launches of each: {launches[0]}")
    for rank, one in enumerate(told):
        seconds = {what: one[what]["seconds"] for what in one}
        print(f"  rank {rank}: searches {one['rmsnorm']['searches']} of {searched}, seconds {seconds}")


def run(size: int, backend: str, folder: Path) -> list[dict[str, Any]]:
    """What each rank says at its end; all are ended when one fails or takes too long."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {**os.environ, **({"TRITON_INTERPRET": "1"} if backend == "gloo" else {})}
    command = [sys.executable, __file__, "--rank", backend, str(size), str(store.port), str(folder)]
    ranks = [
        subprocess.Popen([*command, str(rank)], env=environment, stdout=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    end = time.monotonic() + LIMIT_S
    try:
        while any(process.poll() is None for process in ranks) and time.monotonic() < end:
            if any(process.poll() for process in ranks):
                break  # the others would wait for it
            time.sleep(0.1)
    finally:
        for process in ranks:
            process.kill()
    said = [process.communicate()[0].splitlines() for process in ranks]
    codes = [process.returncode for process in ranks]
    assert codes == [0] * size, f"exit codes of the ranks: {codes}"
    return [json.loads(lines[-1]) for lines in said]


def rank_main(backend: str, size: int, port: int, folder: Path, rank: int) -> None:
    """One rank."""
    os.environ["AUTOTUNED_CACHE_DIR"] = str(folder / f"rank-{rank}")  # as on hosts that share no disk
    import torch
    import torch.distributed as dist

    from autotuned.configfiles import lookup

    lookup._packages["own"] = []  # what this package ships for its kernels would be taken, and nothing be searched for
    place = PLACES[backend]
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    device_id = None
    if backend == "nccl":
        torch.cuda.set_device(rank)
        device_id = torch.device("cuda", rank)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, device_id=device_id)
    told = {"rmsnorm": rmsnorm(place), "stored": stored(place, rank), "all_reduce": all_reduce(place)}
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(told), flush=True)


def rmsnorm(place: Place) -> dict[str, Any]:
    """A kernel that each rank could search for alone: one does, and a hit costs what it costs without `sync`."""
    import torch

    import autotuned
    from autotuned.kernels import rmsnorm as module

    def call(rows: int, columns: int) -> None:
        x = torch.randn(rows, columns, device=place.device, dtype=torch.float16)
        module.rmsnorm_(x, torch.randn_like(x), torch.ones(columns, device=place.device, dtype=torch.float16))

    start = time.perf_counter()
    if place.every > 1:
        module.rmsnorm_kernel.configs = module.rmsnorm_kernel.configs[:: place.every]
    with autotuned.sync(timeout_s=100):
        configs = []
        for shape in place.shapes:
            call(*shape)
            configs.append(str(module.rmsnorm_kernel.best_config))
        seconds = time.perf_counter() - start
    return {"configs": configs, "searches": module.rmsnorm_kernel.cache_info().searches, "seconds": round(seconds, 3)}


def stored(place: Place, rank: int) -> dict[str, Any]:
    """A choice that rank 0 alone has: all take it, without a search."""
    import torch
    import torch.distributed as dist
    import triton

    import autotuned

    configs = [triton.Config({"BLOCK": block}) for block in (128, 256, 512, 1024)]
    tuned = autotuned.autotune(configs, key=["n"], name="nccl.add")(triton.jit(add))
    x = torch.zeros(place.numbers[-1] // 64, device=place.device)

    def call() -> None:
        tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, x.numel())

    if rank == 0:
        call()
    before = tuned.cache_info().searches
    dist.barrier()  # its search may take longer than the others would wait for somebody who has the choice
    with autotuned.sync(timeout_s=100):
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
    searches = tuned.cache_info().searches - before
    return {"configs": [str(tuned.best_config)], "searches": searches, "seconds": round(seconds, 3)}


def add(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


class Launches:
    """How often each number of chunks was launched; an object, so that its content is in no key."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}


LAUNCHES = Launches()


def chunked(x, *, chunks: int) -> None:
    """An all-reduce in so many parts: what every rank must launch as often."""
    import torch.distributed as dist

    LAUNCHES.of[chunks] = LAUNCHES.of.get(chunks, 0) + 1
    for part in x.chunk(chunks):
        dist.all_reduce(part)


def all_reduce(place: Place) -> dict[str, Any]:
    """What communicates is measured by all ranks together."""
    import torch
    from triton import Config

    import autotuned

    configs = [Config({"chunks": chunks}) for chunks in CHUNKS]
    tuned = autotuned.autotune(configs, do_bench=autotuned.FixedLaunches(rep=10, warmup=3), name="nccl.chunked")(
        chunked
    )
    chosen = []
    start = time.perf_counter()
    with autotuned.sync(timeout_s=100):
        for number in place.numbers:
            tuned(torch.ones(number, device=place.device))
            chosen.append(str(tuned.best_config))
    seconds = time.perf_counter() - start
    return {"configs": chosen, "launches": LAUNCHES.of, "seconds": round(seconds, 3)}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        backend, size, port, folder, rank = sys.argv[2:]
        rank_main(backend, int(size), int(port), Path(folder), int(rank))
    else:
        sys.exit(main())
