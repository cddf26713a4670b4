"""`tune` on a Ray cluster: an actor per GPU, with the measuring process."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotuned import disk, env
from autotuned.errors import AutotunedError
from autotuned.offline.workers.process import Worker, printed_to
from autotuned.offline.workers.slots import DeviceSlot, Process
from autotuned.recording.file import SUFFIX
from autotuned.store import layout
from autotuned.typed_json import Json, digest

log = logging.getLogger("autotuned")
LISTEN_S = 1.0  # longest wait of an actor for a message of its process
REACH_S = 10.0
ATTEMPTS, AGAIN_S = 4, 0.5  # attempts to connect if the head's server crashes, and the pause between them
CLIENT = "ray://"  # prefix of a client server's address, for hosts outside the cluster
PATIENCE_S = 20.0  # before a warning that no process was placed
PLACE_S = 60.0  # longest wait at the end for a GPU that is there, since it may be of another kind


class Cluster:
    """Starts processes on all GPUs of a Ray cluster, or one per node if it has no GPUs.

    If standard output is redirected, as for JSON, the output of kernels stays in Ray's logs.

    Args:
        address: The cluster, or ray://HOST:PORT of its client server; default `RAY_ADDRESS`, otherwise one on this
            host, otherwise a new one.

    Raises:
        AutotunedError: Ray is not installed, or the cluster cannot be reached.
    """

    gathers = True

    def __init__(self, address: str | None) -> None:
        try:
            import ray
        except ImportError as error:
            raise AutotunedError(
                "executor='ray': expected Ray, and it is not installed. Run: pip install 'autotuned[ray]'"
            ) from error
        self._ray = ray
        address = address or env.unstripped(["RAY_ADDRESS"]).get("RAY_ADDRESS") or None
        try:
            _reach(address)
            _connect(ray, address, log_to_driver=printed_to() in (None, 1), logging_level=logging.WARNING)
        except (OSError, ValueError, RuntimeError) as error:  # ConnectionError is an OSError
            raise AutotunedError(
                f"executor='ray': expected a Ray cluster at {address or 'this host'}, and it cannot be reached: {error}"
            ) from error
        self._count = self._devices()
        self._placed, self._is_told = time.monotonic(), False  # when a process was last seen in its slot

    def _devices(self) -> int:
        """Number of GPUs in the cluster now; without GPUs, of nodes."""
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        found = sum(int(node["Resources"].get("GPU", 0)) for node in nodes)
        return found or len(nodes)

    def slots(self) -> list[DeviceSlot]:
        """A slot per GPU; Ray places them."""
        return [DeviceSlot(f"Ray {index}") for index in range(self._count)]

    def start(self, slot: DeviceSlot, given: Mapping[str, Json]) -> RayProcess:
        """Start a process on any free GPU; it waits if all are in use."""
        return RayProcess(self._ray, self._options(), given)

    def _options(self) -> dict[str, Json]:
        if self._ray.cluster_resources().get("GPU", 0):
            return {"num_gpus": 1, "num_cpus": 0}
        return {"num_cpus": 1, "scheduling_strategy": "SPREAD"}

    def wait(self, processes: Sequence[Process], limit_s: float) -> None:
        """Return when a process has sent a message, or after the time limit."""
        mine = [process for process in processes if isinstance(process, RayProcess) and not process.is_over]
        self._say_if_none_is_placed(mine)
        answers = [process.answer for process in mine]
        if answers:
            self._ray.wait(answers, num_returns=1, timeout=limit_s)
        else:
            time.sleep(limit_s)

    def _say_if_none_is_placed(self, processes: Sequence[RayProcess]) -> None:
        now = time.monotonic()
        if any(process.is_placed for process in processes):
            self._placed = now
        elif processes and not self._is_told and now - self._placed > PATIENCE_S:
            self._is_told = True
            log.warning(
                "executor='ray': Ray has placed no process in %.0f s: others may be using the whole cluster (ray "
                "status shows it). Waiting; Ctrl-C ends it.", PATIENCE_S,
            )  # fmt: skip

    def is_needed(self, slot: DeviceSlot) -> bool:
        """Whether Ray has placed the slot's process, or still can: it cannot if the node was lost."""
        process = slot.process
        if not isinstance(process, RayProcess) or process.is_placed:
            return True
        return time.monotonic() - slot.begun < PLACE_S and self._devices() >= self._count

    def close(self) -> None:
        """Leave the cluster; ends one that was started here."""
        self._ray.shutdown()


def _connect(ray: Any, address: str | None, **options: Any) -> None:
    """Connect, and retry if the connection breaks: the head forks a server per client, which may crash.

    Seen with Ray 2.60 and gRPC 1.85: a segmentation fault in gRPC, more than once in about sixty connections.
    """
    for left in reversed(range(ATTEMPTS)):
        try:
            ray.init(address=address, **options)
            return
        except ConnectionAbortedError as error:
            if not left:
                raise
            log.info("%s: %s; connecting again.", address, error)
            time.sleep(AGAIN_S)


class RayProcess:
    """A process on a node of the cluster, reached through its actor."""

    def __init__(self, ray: Any, options: Mapping[str, Json], given: Mapping[str, Json]) -> None:
        self._ray = ray
        actor = ray.remote(max_restarts=0, max_concurrency=4, **options)(Host)
        self._actor = actor.remote(dict(given), env.for_nodes(), list(sys.path), os.getcwd(), _recordings(given))
        self._why = ""
        self._over = False
        self.answer = self._actor.listen.remote(LISTEN_S)
        self.is_placed, self.lost = False, False

    @property
    def is_over(self) -> bool:
        """Whether the process has ended and all its messages have been read."""
        return self._over

    def send(self, command: Mapping[str, Json]) -> None:
        """Send a command; does nothing if the actor has ended."""
        self._actor.send.remote(dict(command))

    def messages(self) -> list[dict[str, Json]]:
        """Messages since the last call; does not wait."""
        if self._over or not self._ray.wait([self.answer], timeout=0)[0]:
            return []
        try:
            found: dict[str, Json] = self._ray.get(self.answer)
        except self._ray.exceptions.RayError as error:
            self._over = self.lost = True
            self._why = f"its Ray node or worker was lost ({_last_line(error)})"
            return []
        self.is_placed = True
        self._over, self._why = found["over"], found["why"]
        if not self._over:
            self.answer = self._actor.listen.remote(LISTEN_S)
        messages: list[dict[str, Json]] = found["messages"]
        return messages

    def why(self) -> str:
        """How the process ended."""
        return self._why

    def interrupt(self) -> None:
        """Let the process store its results and end."""
        self._actor.interrupt.remote()

    def kill(self) -> None:
        """Kill the process and its actor."""
        self._over = True
        self._ray.kill(self._actor)  # the process then ends itself


def _reach(address: str | None) -> None:
    """Test the address first: without an answer, Ray's core would end this process instead of raising.

    Raises:
        OSError: There is no answer.
        AutotunedError: A client server's port is missing; Ray would wait half a minute for it.
    """
    host, colon, port = (address or "").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.removeprefix(CLIENT).strip("[]"), int(port)), REACH_S).close()
    elif (address or "").startswith(CLIENT):
        raise AutotunedError(
            f"ray_address: expected {CLIENT}HOST:PORT, with the port of a client server (10001 by default), got "
            f"{address!r}."
        )


def _recordings(given: Mapping[str, Json]) -> dict[str, str]:
    """The content of the recordings among the targets, since nodes may not have the files."""
    return {
        target: Path(target).read_text()
        for target in given["targets"]
        if target.endswith(SUFFIX) and Path(target).is_file()
    }


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__


class Host:
    """The actor on a node, which owns the measuring process.

    Args:
        given: The first command for the process.
        settings: Environment variables that are valid on every node.
        path: The command's import path; missing folders are dropped.
        folder: The command's working folder; if it is missing, the actor's own (that of a Ray job).
        recordings: Content of recordings, by target.
    """

    def __init__(
        self,
        given: dict[str, Json],
        settings: dict[str, str | None],
        path: list[str],
        folder: str,
        recordings: Mapping[str, str],
    ) -> None:
        here = folder if os.path.isdir(folder) else os.getcwd()
        places = [place for place in path if os.path.exists(place)] + [place for place in sys.path if place not in path]
        targets = [_as_file(recordings[target]) if target in recordings else target for target in given["targets"]]
        self._worker = Worker({**given, "targets": targets}, settings, places, here)

    def listen(self, limit_s: float) -> dict[str, Json]:
        """The process's next messages, and whether it has ended; no messages after the time limit."""
        messages = self._worker.wait(limit_s)
        over = self._worker.is_over
        for message in messages:
            if message["event"] == "ready":
                message["host"] = os.uname().nodename
        return {"messages": messages, "over": over, "why": self._worker.why() if over else ""}

    def send(self, command: Mapping[str, Json]) -> None:
        """Send the process a command."""
        self._worker.send(command)

    def interrupt(self) -> None:
        """Send Ctrl-C to the process."""
        self._worker.interrupt()


def _as_file(text: str) -> str:
    """Write a recording to a file on this node."""
    path = layout.root() / "calls" / f"{digest(text)[:32]}{SUFFIX}"
    disk.write_text(path, text)
    return str(path)
