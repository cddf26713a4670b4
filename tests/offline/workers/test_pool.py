"""Tests of `autotuned/offline/workers/pool.py` with processes that are none: what is left to do is never waited for without an end."""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from autotuned.cli.progress import Display
from fakes import FakeConfig, form, make_key

import autotuned
from autotuned.configfiles.file import Entry
from autotuned.errors import AutotunedError
from autotuned.offline.results import CaseResult, TuneOptions
from autotuned.offline.workers import pool, ray_cluster
from autotuned.offline.workers.pool import DevicePool
from autotuned.offline.workers.slots import DeviceSlot

TURNS = 500  # more than any of these takes
KEY = make_key()
KEPT = {
    "key": {"kernel": KEY.kernel, **KEY.to_json()}, "record": None,
    "entry": Entry(KEY.call, form(FakeConfig({"step": 1})), 1.0, 1.0).to_json(),
}  # fmt: skip
Script = Callable[["Played", dict[str, Any]], None]


class Played:
    """A process that does what a function says, of its start and of each command."""

    lost = False

    def __init__(self, script: Script, number: int) -> None:
        self.script, self.number = script, number
        self.said: list[dict[str, Any]] = []
        self.is_over = False
        script(self, {"do": "start"})

    def say(self, event: str, **fields: Any) -> None:
        self.said.append({"event": event, **fields})

    def send(self, command: dict[str, Any]) -> None:
        self.script(self, command)

    def messages(self) -> list[dict[str, Any]]:
        said, self.said = self.said, []
        return said

    def why(self) -> str:
        return "it ended"

    def interrupt(self) -> None:
        self.is_over = True

    def kill(self) -> None:
        self.is_over = True


class Scripts:
    """Starts such processes, by the name of their device."""

    gathers = False

    def __init__(self, each_turn: Callable[[int], None] = lambda turn: None, **scripts: Script) -> None:
        self.scripts, self.each_turn = scripts, each_turn
        self.turn = 0
        self.unneeded: set[str] = set()
        self.starts: dict[str, int] = {}

    def slots(self) -> list[DeviceSlot]:
        return [DeviceSlot(name) for name in self.scripts]

    def start(self, slot: DeviceSlot, given: Any) -> Played:
        self.starts[slot.name] = number = self.starts.get(slot.name, 0) + 1
        return Played(self.scripts[slot.name], number)

    def wait(self, processes: Any, limit_s: float) -> None:
        self.turn += 1
        assert self.turn < TURNS, "it would go on for ever"
        self.each_turn(self.turn)

    def is_needed(self, slot: DeviceSlot) -> bool:
        return slot.name not in self.unneeded

    def close(self) -> None:
        pass


def does(model: str, process: Played, command: dict[str, Any]) -> None:
    """What a sound process does that has two cases."""
    match command["do"]:
        case "start":
            process.say("ready", device="interpreter", model=model, version=autotuned.__version__)
        case "list":
            for number in range(2):
                result = asdict(CaseResult("k", "skipped", digest=f"{model} {number}"))
                process.say("case", number=number, result=result, group="", count=0, key=None)
            process.say("listed", without_cases=[])
        case "measure":
            process.say("done", result=asdict(CaseResult("k", "done", digest=command["digest"])), **KEPT)


def run(executor: Scripts, options: TuneOptions = TuneOptions()) -> DevicePool:
    with Display() as display:
        made = DevicePool(["t"], options, display, executor)
        made.run()
    return made


def results(made: DevicePool) -> list[tuple[str, str | None]]:
    return [(case.status, case.reason) for case in made.result().cases]


def test_a_kind_without_devices_is_not_waited_for_when_the_last_device_turns_out_to_be_of_another():
    """The only H100 is given up before the other device has said what it is; that may have been one too."""
    late: list[Played] = []

    def h100(process, command):
        if command["do"] == "measure" or (command["do"] == "start" and process.number > 1):
            process.is_over = True
        else:
            does("h100", process, command)

    def a100(process, command):
        late.append(process) if command["do"] == "start" else does("a100", process, command)

    def each_turn(turn):
        if turn == 20:
            does("a100", late[0], {"do": "start"})

    made = run(Scripts(each_turn, one=h100, two=a100))
    gone = ("failed", "no device of this kind is left; one: it ended")
    assert results(made) == [gone, gone, ("done", None), ("done", None)]


def test_a_kind_whose_node_is_lost_is_not_waited_for_for_ever(monkeypatch):
    """A new process waits for a place that is gone: it never says that it is ready."""
    monkeypatch.setattr(pool, "PATIENCE_S", 0.0)

    def h100(process, command):
        if command["do"] == "measure":
            process.is_over = process.lost = True
            executor.unneeded.add("one")
        elif process.number == 1:
            does("h100", process, command)

    executor = Scripts(one=h100, two=lambda process, command: does("a100", process, command))
    gone = ("failed", "no device of this kind is left; one: waits for its slot")
    assert results(run(executor)) == [gone, gone, ("done", None), ("done", None)]


def test_a_kind_that_is_gone_before_its_cases_are_known_is_an_error_and_the_others_are_kept(monkeypatch):
    def h100(process, command):
        if command["do"] == "list":
            process.is_over = True
        else:
            does("h100", process, command)

    with Display() as display:
        two = Scripts(one=h100, two=lambda process, command: does("a100", process, command))
        made = DevicePool(["t"], TuneOptions(), display, two)
        with pytest.raises(
            AutotunedError, match="expected all cases for h100, got those above: the last device of this"
        ):
            made.run()
    assert results(made) == [("done", None)] * 2


def test_a_device_that_comes_back_as_another_kind_leaves_nothing_open():
    def changes(process, command):
        model = "h100" if process.number == 1 else "a100"
        if command["do"] == "measure" and model == "h100":
            process.is_over = True
        else:
            does(model, process, command)

    gone = ("failed", "no device of this kind is left")
    found = results(run(Scripts(one=changes)))
    assert sorted(found, key=str) == [("done", None)] * 2 + [gone] * 2


@pytest.mark.parametrize("when", ["as files are written", "as messages are read"])
def test_the_first_ctrl_c_loses_nothing_that_was_measured(monkeypatch, when):
    """It may come while a config file is half written, or between two messages that were read together."""
    shipped: list[Any] = []

    def ship_all(entries: list[Any], out: Path) -> list[Path]:
        if when == "as files are written" and not shipped:
            os.kill(os.getpid(), signal.SIGINT)
        shipped.extend(entries)
        return [out / "file"]

    def one(process, command):
        if command["do"] == "measure" and when == "as messages are read":
            process.say("note", line="a line")
        does("h100", process, command)

    def note(display, line, device=""):
        if line == "a line":
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(pool.writer, "ship_all", ship_all)
    monkeypatch.setattr(Display, "note", note)
    monkeypatch.setattr(pool, "SHIP_S", 0.0)
    before = signal.getsignal(signal.SIGINT)
    made = run(Scripts(one=one), TuneOptions(out=Path("tuned")))
    assert signal.getsignal(signal.SIGINT) is before
    assert made.result().interrupted
    done, cut_off = made.result().cases
    assert (done.status, cut_off.status, cut_off.reason, len(shipped)) == ("done", "skipped", "interrupted", 1)


def test_a_second_ctrl_c_does_not_wait_for_processes():
    def deaf(process, command):
        process.interrupt = lambda: None

    with pytest.raises(KeyboardInterrupt):
        run(Scripts(lambda turn: os.kill(os.getpid(), signal.SIGINT), one=deaf))


def test_where_ctrl_c_is_ignored_it_stays_ignored(monkeypatch):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:

        def each_turn(turn):
            os.kill(os.getpid(), signal.SIGINT)

        made = run(Scripts(each_turn, one=lambda process, command: does("h100", process, command)))
    finally:
        signal.signal(signal.SIGINT, before)
    assert not made.result().interrupted and len(made.result().cases) == 2


class Ray:
    """Connects to a head whose servers for clients crash as often as it says."""

    def __init__(self, crashes: int) -> None:
        self.crashes, self.asked = crashes, 0

    def init(self, **options: Any) -> None:
        self.asked += 1
        if self.asked <= self.crashes:
            raise ConnectionAbortedError("Initialization failure from server")

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"GPU": 2.0}}]

    def wait(self, answers: list[Any], **options: Any) -> None:
        """Nothing is said."""


def test_a_server_for_this_client_that_crashes_is_asked_for_again(monkeypatch):
    monkeypatch.setattr(ray_cluster, "_reach", lambda address: None)
    monkeypatch.setattr(ray_cluster, "AGAIN_S", 0.0)
    for crashes in (0, 1, 3):
        monkeypatch.setitem(sys.modules, "ray", Ray(crashes))
        assert len(ray_cluster.Cluster("ray://head:1").slots()) == 2
    monkeypatch.setitem(sys.modules, "ray", Ray(4))
    with pytest.raises(AutotunedError, match="expected a Ray cluster at ray://head:1, and it cannot be reached: Init"):
        ray_cluster.Cluster("ray://head:1")


def test_a_cluster_that_places_nothing_is_said_once(monkeypatch, caplog):
    monkeypatch.setattr(ray_cluster, "_reach", lambda address: None)
    monkeypatch.setattr(ray_cluster, "PATIENCE_S", -1.0)
    monkeypatch.setitem(sys.modules, "ray", Ray(0))
    there = ray_cluster.Cluster("ray://head:1")
    process = ray_cluster.RayProcess.__new__(ray_cluster.RayProcess)
    vars(process).update(_over=False, answer="", is_placed=True)
    there.wait([process], 0.0)
    assert caplog.messages == []
    process.is_placed = False
    for _ in range(3):
        there.wait([process], 0.0)
    (said,) = caplog.messages
    assert said.startswith("executor='ray': Ray has placed no process")
