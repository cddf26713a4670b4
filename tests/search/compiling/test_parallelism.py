"""Tests of `workers`: how many configs are compiled at once."""

import os
import sys
from pathlib import Path

import pytest

from autotuned.search.compiling import parallelism


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host of 16 cores and 64 GB whose files lie below a folder; `write(path, text)` adds one."""

    def write(path: str, text: str) -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        monkeypatch.delenv(name, raising=False)
    write("proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 62914560 kB\n")
    write("proc/self/cgroup", "0::/job\n")
    return tmp_path, write


def test_one_core_is_left_to_who_measures(host):
    assert parallelism.count(40, root=host[0]) == 15


def test_no_more_than_there_are_configs(host):
    assert parallelism.count(6, root=host[0]) == 6


@pytest.mark.parametrize("configs", [0, 1, 2, 3])
def test_a_short_list_needs_no_pool(host, configs):
    assert parallelism.count(configs, root=host[0]) == 0


@pytest.mark.parametrize(("cores", "count"), [(1, 0), (2, 2), (3, 3), (4, 3), (8, 7)])
def test_affinity_counts(host, monkeypatch, cores, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert parallelism.count(40, root=host[0]) == count


@pytest.mark.parametrize(
    ("files", "count"),
    [
        pytest.param({"sys/fs/cgroup/job/cpu.max": "400000 100000"}, 3, id="quota of version 2"),
        pytest.param({"sys/fs/cgroup/cpu.max": "200000 100000"}, 2, id="quota of the group around it"),
        pytest.param({"sys/fs/cgroup/job/cpu.max": "max 100000"}, 15, id="no quota"),
        pytest.param({"sys/fs/cgroup/job/cpu.max": "50000 100000"}, 0, id="half a core"),
        pytest.param(
            {"proc/self/cgroup": "4:cpu,cpuacct:/job\n", "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "800000",
             "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000"}, 7, id="quota of version 1",
        ),
        pytest.param({"sys/fs/cgroup/job/cpu.max": "nonsense"}, 15, id="nothing that can be read"),
        pytest.param(
            {"sys/fs/cgroup/job/memory.max": str(4 << 30), "sys/fs/cgroup/job/memory.current": str(3 << 30)}, 4,
            id="memory of the group",
        ),
        pytest.param({"proc/meminfo": "MemAvailable: 1048576 kB\n"}, 4, id="memory of the host"),
        pytest.param({"proc/meminfo": "MemAvailable: 300000 kB\n"}, 0, id="memory for one"),
    ],
)  # fmt: skip
def test_control_groups_and_memory_count(host, files, count):
    for path, text in files.items():
        host[1](path, text)
    assert parallelism.count(40, root=host[0]) == count


def test_a_host_without_these_files_is_taken_by_its_cores(tmp_path, host):
    assert parallelism.count(40, root=Path(tmp_path / "empty")) == 15


@pytest.mark.parametrize(
    ("name", "value", "count"),
    [
        ("LOCAL_WORLD_SIZE", "4", 3),
        ("LOCAL_WORLD_SIZE", "8", 2),
        ("LOCAL_WORLD_SIZE", "16", 0),
        ("SLURM_NTASKS_PER_NODE", "4(x2)", 3),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 7),
        ("MPI_LOCALNRANKS", "no number", 15),
    ],
)
def test_ranks_share_the_cores(host, monkeypatch, name, value, count):
    monkeypatch.setenv(name, value)
    assert parallelism.count(40, root=host[0]) == count
    assert parallelism.count(40, all_cores=True, root=host[0]) == 15


@pytest.mark.parametrize(
    ("cores", "memory_kb", "places"),
    [
        pytest.param(range(16), 60 << 20, [*range(16)], id="all cores"),
        pytest.param({8, 9}, 60 << 20, [8, 9], id="bound to two, which are no other rank's"),
        pytest.param(range(16), 1 << 20, [0, 1, 2, 3], id="memory for four"),
        pytest.param({8, 9}, 1 << 20, [0, 1], id="bound, of these four two"),
        pytest.param({5, 6}, 300_000, [0], id="memory for one"),
        pytest.param({5, 6}, 1000, [0], id="memory for none"),
    ],
)
def test_ranks_compile_at_the_places_of_their_own_cores(host, monkeypatch, cores, memory_kb, places):
    host[1]("proc/meminfo", f"MemAvailable: {memory_kb} kB\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(cores))
    assert parallelism.places(host[0]) == places
    host[1]("sys/fs/cgroup/job/cpu.max", "100000 100000")
    assert parallelism.places(host[0]) == places[:1]


@pytest.mark.parametrize(
    ("asked", "configs", "count"), [("3", 40, 3), ("64", 10, 10), ("1", 40, 0), ("0", 40, 0), ("2", 2, 2)]
)
def test_the_user_decides(host, monkeypatch, asked, configs, count):
    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", asked)
    assert parallelism.count(configs, root=host[0]) == count


@pytest.mark.parametrize("text", ["many", "-1", "2.5"])
def test_what_is_no_number_is_an_error_that_says_so(host, monkeypatch, text):
    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", text)
    with pytest.raises(ValueError, match=f"AUTOTUNED_COMPILE_WORKERS: expected a number of 0 or more, got '{text}'"):
        parallelism.count(40, root=host[0])
