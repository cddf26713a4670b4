"""Ranks with NCCL, one GPU each: one search and one choice for all, also for what communicates.

Run by hand on a host with several GPUs: python tests/gpu/nccl_ranks.py [RANKS...] (default: as many as there are GPUs)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import triton.language as tl

SHAPES = [(64, 1024), (256, 4096), (1024, 8192)]
CHUNKS = (1, 2, 4, 8)


def main() -> int:
    """Start the ranks of each group in turn."""
    import torch

    sizes = [int(size) for size in sys.argv[1:]] or [torch.cuda.device_count()]
    for size in sizes:
        if torch.cuda.device_count() < size:
            print(f"{size} ranks: skipped, there are {torch.cuda.device_count()} GPUs")
            continue
        with tempfile.TemporaryDirectory() as folder:
            group(size, Path(folder))
    return 0


def group(size: int, folder: Path) -> None:
    """Run one group and compare what its ranks say."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    command = [sys.executable, __file__, "--rank"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(size), str(store.port), str(folder)], stdout=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]
    told = [json.loads(process.communicate(timeout=150)[0].splitlines()[-1]) for process in ranks]
    assert all(process.returncode == 0 for process in ranks)
    for what in ("rmsnorm", "all_reduce"):
        chosen = [one[what]["configs"] for one in told]
        assert chosen == [chosen[0]] * size, (what, chosen)
    assert sum(one["rmsnorm"]["searches"] for one in told) == len(SHAPES), told
    assert {tuple(one["all_reduce"]["launches"].items()) for one in told} == {
        tuple(told[0]["all_reduce"]["launches"].items())
    }
    assert all(one["stored"]["searches"] == 0 for one in told), "a choice that one rank had was searched for"
    print(
        f"{size} ranks agree: {told[0]['rmsnorm']['configs']}; all_reduce in chunks: {told[0]['all_reduce']['configs']}"
    )
    for rank, one in enumerate(told):
        print(f"  rank {rank}: {json.dumps(one)}")


def rank_main(rank: int, size: int, port: int, folder: Path) -> None:
    """One rank."""
    os.environ["AUTOTUNED_CACHE_DIR"] = str(folder / f"rank-{rank}")  # as on hosts that share no disk
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=size, device_id=torch.device("cuda", rank))
    told = {"rmsnorm": rmsnorm(), "stored": stored(rank), "all_reduce": all_reduce(rank)}
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(told), flush=True)


def rmsnorm() -> dict:
    """A kernel that each rank could search for alone: one does, and a hit costs what it costs without `sync`."""
    import torch

    import autotuned
    from autotuned.kernels import rmsnorm as module

    def call(rows: int, columns: int) -> None:
        x = torch.randn(rows, columns, device="cuda", dtype=torch.float16)
        module.rmsnorm_(x, torch.randn_like(x), torch.ones(columns, device="cuda", dtype=torch.float16))

    start = time.perf_counter()
    with autotuned.sync(timeout_s=100):
        configs = []
        for shape in SHAPES:
            call(*shape)
            configs.append(str(module.rmsnorm_kernel.best_config))
        seconds = time.perf_counter() - start
    return {"configs": configs, "searches": module.rmsnorm_kernel.cache_info().searches, "seconds": round(seconds, 3)}


def stored(rank: int) -> dict:
    """A choice that rank 0 alone has: all take it, without a search."""
    import torch
    import triton

    import autotuned

    configs = [triton.Config({"BLOCK": block}) for block in (128, 256, 512, 1024)]
    tuned = autotuned.autotune(configs, key=["n"], name="nccl.add")(triton.jit(add))
    x = torch.zeros(1 << 16, device="cuda")
    if rank == 0:
        tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, x.numel())
    before = tuned.cache_info().searches
    with autotuned.sync(timeout_s=100):
        start = time.perf_counter()
        tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, x.numel())
        seconds = time.perf_counter() - start
    return {
        "config": str(tuned.best_config),
        "searches": tuned.cache_info().searches - before,
        "seconds": round(seconds, 3),
    }


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


def all_reduce(rank: int) -> dict:
    """What communicates is measured by all ranks together."""
    import torch
    from triton import Config

    import autotuned

    configs = [Config({"chunks": chunks}) for chunks in CHUNKS]
    tuned = autotuned.autotune(configs, do_bench=autotuned.Fixed(rep=10, warmup=3), name="nccl.chunked")(chunked)
    chosen = []
    start = time.perf_counter()
    with autotuned.sync(timeout_s=100):
        for size in (1 << 12, 1 << 22):
            tuned(torch.ones(size, device="cuda"))
            chosen.append(str(tuned.best_config))
    seconds = time.perf_counter() - start
    return {"configs": chosen, "launches": LAUNCHES.of, "seconds": round(seconds, 3)}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
    else:
        sys.exit(main())
