"""`tune --executor ray` on a real local cluster: gathered here, killed workers and lost nodes, Ctrl-C."""

import json
import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")

from fake_gpus import MEET, environment, interrupted, log
from fake_gpus import command as write
from ray_nodes import Node

from autotuned.store import listing


@pytest.fixture(scope="module")
def folder():
    path = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def home(folder):
    """A home of its own: Ray looks for a token in one's own, asks for it wherever it finds one, and leaves one there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONUSERBASE", site.getuserbase())  # what is installed in one's own is to be found all the same
        patch.setenv("HOME", str(folder / "home"))
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="module")
def head(folder, home):
    """A node with two GPUs that are none."""
    node = Node(folder, folder / "store", gpus=2)
    yield node
    node.kill()


@pytest.fixture(params=["node", "client"])
def address(request, head, folder):
    """The two ways into a cluster where nothing is tuned: as a part of it, and through the client server of its head."""
    shutil.rmtree(folder / "store", ignore_errors=True)
    if request.param == "client" and not head.client:
        pytest.skip("needs ray[client]")
    return head.address if request.param == "node" else head.client


def command(tmp_path: Path, address: str, *options: str, **made) -> list[str]:
    return write(tmp_path, "--executor", "ray", "--ray-address", address, *options, **made)


def tune(tmp_path: Path, address: str, *options: str, code: int = 0, **made) -> dict:
    args = command(tmp_path, address, "--json", *options, **made)
    done = subprocess.run(
        args, capture_output=True, text=True, timeout=200, cwd=tmp_path, env=environment(TRITON_INTERPRET="1")
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_what_is_measured_on_the_nodes_is_gathered_here(tmp_path, folder, address):
    assert not list(listing.all_records())
    found = tune(tmp_path, address, "--out", "tuned", count=8, wait=MEET)
    assert [case["call"]["values"]["n"] for case in found["cases"]] == list(range(8))
    assert {(case["status"], case["source"]) for case in found["cases"]} == {("done", "measured")}
    assert [gpu["name"] for gpu in found["devices"]] == ["Ray 0", "Ray 1"]
    assert {gpu["host"] for gpu in found["devices"]} == {os.uname().nodename}
    assert min(gpu["cases"] for gpu in found["devices"]) >= 1
    assert {line[0] for line in log(tmp_path)} == {"0", "1"}  # what Ray gave each actor to see
    [file] = found["files"]
    assert Path(file).parent.parent == tmp_path / "tuned"
    assert len(re.findall(r'"median_us"', Path(file).read_text())) == 8
    assert len({record.key.digest for _, record in listing.all_records()}) == 8
    assert len(list((folder / "store").rglob("v2/*/*.json"))) >= 8  # their own stores are others


def test_a_node_that_is_new_is_told_what_is_stored_here(tmp_path, folder, head):
    tune(tmp_path, head.address, count=3)
    shutil.rmtree(folder / "store")
    launches = len(log(tmp_path))
    again = tune(tmp_path, head.address, count=3)
    assert {case["source"] for case in again["cases"]} == {"stored"}
    assert len(log(tmp_path)) == launches


def test_nodes_with_gpus_of_two_kinds_each_tune_every_case_into_files_of_their_own(tmp_path, folder):
    """Two nodes whose GPUs differ: which one a process landed on decides what it tunes for, and where that goes."""
    nodes = [Node(folder / "kinds", folder / "h100s", gpus=1, kind="h100")]
    try:
        nodes.append(Node(folder, folder / "a100s", gpus=1, head=nodes[0].address, kind="a100"))
        (tmp_path / "kinds").touch()
        found = tune(tmp_path, nodes[0].address, "--out", "tuned", count=3)
    finally:
        for node in nodes:
            node.kill()
    slugs = {"cpu-nvidia-h100-sm_90-100", "cpu-nvidia-a100-sm_80-100"}
    assert {case["status"] for case in found["cases"]} == {"done"}
    assert {(case["device"], case["call"]["values"]["n"]) for case in found["cases"]} == {
        (slug, n) for slug in slugs for n in range(3)
    }
    assert {(gpu["model"], gpu["cases"]) for gpu in found["devices"]} == {(slug, 3) for slug in slugs}
    assert {Path(file).parent.name for file in found["files"]} == slugs
    for file in found["files"]:
        text = Path(file).read_text()
        assert len(re.findall(r'"median_us"', text)) == 3
        assert ("A100" in text) != ("H100" in text)
    kept = {(record.key.context["device"]["name"], record.key.digest) for _, record in listing.all_records()}
    assert sorted(name for name, _ in kept) == ["NVIDIA A100"] * 3 + ["NVIDIA H100"] * 3


@pytest.mark.parametrize("who", ["process", "actor"])
def test_a_killed_worker_loses_nothing(tmp_path, address, who):
    victim = "os.getpid()" if who == "process" else "os.getppid()"
    fault = (
        "if n == 2:\n"
        "        try: os.close(os.open(HERE / 'died', os.O_CREAT | os.O_EXCL))\n"
        "        except FileExistsError: pass\n"
        f"        else: os.kill({victim}, signal.SIGKILL); time.sleep(30)"
    )
    found = tune(tmp_path, address, count=6, wait=fault)
    assert (tmp_path / "died").exists()
    assert [case["status"] for case in found["cases"]] == ["done"] * 6
    assert sum(gpu["restarts"] for gpu in found["devices"]) == 1
    configs = found["cases"][2]["measured_configs"]
    assert configs == 2
    # A process that dies takes the blame to its config; the loss of an actor is nobody's fault.
    stored = [record for _, record in listing.all_records() if record.key.digest == found["cases"][2]["digest"]]
    statuses = [timing.status for timing in stored[0].timings]
    assert statuses.count("failed") == (who == "process")


def test_a_recording_goes_along_with_the_tasks(tmp_path, head, monkeypatch):
    write(tmp_path, count=2)
    code = (
        "import autotuned, kernels, numpy as np\n"
        "with autotuned.record('calls.jsonl'), autotuned.mode('off'):\n"
        "    [kernels.work(np.zeros(4), n) for n in (5, 6, 6)]"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env=environment(TRITON_INTERPRET="1"))
    assert (tmp_path / "calls.jsonl").exists()
    args = command(tmp_path, head.address, "--json")
    args[args.index(str(tmp_path / "kernels.py"))] = "calls.jsonl"
    done = subprocess.run(
        args, capture_output=True, text=True, timeout=200, cwd=tmp_path, env=environment(TRITON_INTERPRET="1")
    )
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout)["cases"]
    assert [(case["status"], case["call"]["values"]["n"]) for case in cases] == [("done", 6), ("done", 5)]


def test_ctrl_c_keeps_what_was_measured_and_leaves_nothing_behind(tmp_path, address):
    args = command(tmp_path, address, "--json", "--out", "tuned", count=3000)
    process = subprocess.Popen(
        args, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(TRITON_INTERPRET="1"),
    )  # fmt: skip
    out, err = interrupted(process, tmp_path)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    found = json.loads(out)
    assert found["interrupted"] and found["cases"]
    [file] = found["files"]
    done = [case for case in found["cases"] if case["reason"] != "interrupted"]
    assert len(re.findall(r'"median_us"', Path(file).read_text())) == len(done)
    end = time.monotonic() + 60
    while [pid for pid in {line[1] for line in log(tmp_path)} if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_lost_node_s_keys_are_tuned_elsewhere(tmp_path, folder, head):
    second = Node(folder, folder / "second", gpus=1, head=head.address)
    try:
        # On the second node, told by its store, a launch waits; then the node is killed. The others leave it one.
        hold = (
            "while os.environ['AUTOTUNED_CACHE_DIR'].endswith('second'): note('held -'); time.sleep(0.2)\n"
            "    while 'held' not in (HERE / 'log').read_text(): time.sleep(0.05)"
        )
        args = command(tmp_path, head.address, "--json", count=6, wait=hold)
        process = subprocess.Popen(
            args, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(TRITON_INTERPRET="1"),
        )  # fmt: skip
        end = time.monotonic() + 120
        while not (tmp_path / "log").exists() or "held" not in (tmp_path / "log").read_text():
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.1)
    finally:
        second.kill()
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    found = json.loads(out)
    assert [case["status"] for case in found["cases"]] == ["done"] * 6
    assert len(found["devices"]) == 3
    assert all(case["measured_configs"] == 2 for case in found["cases"])
    assert not [timing for _, record in listing.all_records() for timing in record.timings if timing.status != "ok"]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:1", "expected a Ray cluster at 127.0.0.1:1"),
        ("ray://127.0.0.1:1", "expected a Ray cluster at ray://127.0.0.1:1"),
        ("ray://127.0.0.1", "expected ray://HOST:PORT, with the port of a client server (10001 by default), got"),
    ],
)
def test_a_cluster_that_is_not_there_is_one_line(tmp_path, address, words):
    args = command(tmp_path, address)
    done = subprocess.run(
        args, capture_output=True, text=True, timeout=200, cwd=tmp_path,
        env=environment(TRITON_INTERPRET="1", RAY_gcs_rpc_server_reconnect_timeout_s="1"),
    )  # fmt: skip
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and words in line
