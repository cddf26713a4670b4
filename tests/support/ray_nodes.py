"""Ray nodes on this machine, each with pretended GPUs and its own store; ended with all their processes."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

from pids import is_running


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


# Whether a cluster counts a node, by a resource that only this node has: `ray start` reports success before that.
_COUNTED = """
import sys, time, ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
while not any(node["Alive"] and sys.argv[2] in node["Resources"] for node in ray.nodes()):
    time.sleep(0.05)
"""


class Node:
    """One node: `ray start --block` in its own process group; ready once its cluster counts it.

    Args:
        folder: Folder for Ray's files; short, since it contains sockets.
        store: The store of its measurements.
        head: Address of the cluster to join; a new one by default.
        kind: Product of its GPUs, for kernels that read it (`fake_gpus.KERNELS`).

    Attributes:
        client: Address of a head's client server; "" if Ray is installed without it.
    """

    def __init__(self, folder: Path, store: Path, gpus: int, head: str = "", kind: str = "") -> None:
        self.address = head or f"127.0.0.1:{free_port()}"
        place = [f"--address={head}"] if head else ["--head", f"--port={self.address.rpartition(':')[2]}"]
        place += [] if head else [f"--temp-dir={folder}", "--include-dashboard=false"]
        self.client = ""
        if not head and importlib.util.find_spec("grpc"):
            self.client = f"ray://127.0.0.1:{free_port()}"
            place += [f"--ray-client-server-port={self.client.rpartition(':')[2]}"]
        code = "from ray.scripts.scripts import main; main()"
        args = [sys.executable, "-c", code, "start", "--block", f"--num-gpus={gpus}", "--num-cpus=4", *place]
        args += ["--node-ip-address=127.0.0.1", "--object-store-memory=100000000", "--disable-usage-stats"]
        mark = f"node-{uuid.uuid4().hex}"
        args += [f"--resources={json.dumps({mark: 1})}"]
        folder.mkdir(exist_ok=True)
        self._process = subprocess.Popen(
            args,
            cwd=folder,  # not the checkout, whose sources would shadow the installed package
            # Ray's client server forks while gRPC's threads run, and gRPC's fork handlers may crash the child.
            env={
                **os.environ,
                "GRPC_ENABLE_FORK_SUPPORT": "0",
                "AUTOTUNED_CACHE_DIR": str(store),
                "TRITON_INTERPRET": "1",
                "FAKE_KIND": kind,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        try:
            self._await_start()
            subprocess.run([sys.executable, "-c", _COUNTED, self.address, mark], cwd=folder, check=True, timeout=60)
        except BaseException:
            self.kill()
            raise

    def _await_start(self) -> None:
        assert self._process.stdout is not None
        said = []
        for line in self._process.stdout:
            said.append(line)
            if "--block" in line:  # its last line before it waits
                return
        raise AssertionError(f"no Ray node: {''.join(said)}")

    def kill(self) -> None:
        """Kill all its processes at once, like a lost host."""
        ids = [self._process.pid, *_below(self._process.pid)]
        for pid in ids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        end = time.monotonic() + 30
        while any(is_running(pid) for pid in ids[1:]) and time.monotonic() < end:
            time.sleep(0.05)


def _below(pid: int) -> list[int]:
    """All descendants of a process."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = [tuple(map(int, line.split())) for line in listed.splitlines()]
    found = [child for child, parent in parents if parent == pid]
    return found + [other for child in found for other in _below(child)]
