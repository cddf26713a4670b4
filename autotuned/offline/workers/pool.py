"""`tune` on several devices: a process for each, units handed out one by one, and nothing lost with a process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import autotuned
from autotuned.cli.progress import Display
from autotuned.configfiles import file, writer
from autotuned.configfiles.file import Entry
from autotuned.errors import AutotunedError
from autotuned.key.key import Key
from autotuned.offline.cases import share
from autotuned.offline.results import Row, Wishes
from autotuned.offline.workers import process
from autotuned.offline.workers.interrupts import Interrupts
from autotuned.offline.workers.process import Ending
from autotuned.offline.workers.queue import Queue, Task
from autotuned.offline.workers.slots import Executor, Seat
from autotuned.search.job import Progress
from autotuned.store import record, records
from autotuned.typed_json import Json

TICK_S = 0.2
BLAMELESS = 3  # ends with no config to blame: of a device in a row, or of a unit, after which either is given up
PATIENCE_S = 60.0  # how long the place of a lost node is waited for when only it could do what is left
SHIP_S = 2.0  # between two writings of config files: each reads and writes whole files


class Pool:
    """Measures the units of targets on all devices of an executor; every kind of device measures every unit.

    Attributes:
        device: "cuda" or "interpreter".
        files: Config files written so far.
        interrupted: Whether Ctrl-C ended it.
    """

    def __init__(self, targets: Sequence[str], wishes: Wishes, as_json: bool, display: Display, executor: Executor):
        self._wishes, self._display, self._executor = wishes, display, executor
        self._given = {"targets": list(targets), "force": wishes.force, "as_json": as_json,
                       "gathers": executor.gathers, "timeout_s": wishes.timeout_s}  # fmt: skip
        self._start = time.monotonic()
        self._seats: list[Seat] = []
        self._interrupts = Interrupts()
        self._queues: dict[str, Queue] = {}
        self._condemned: dict[str, dict[str, str]] = {}
        self._seen: set[tuple[str, str]] = set()  # model and digest: with --force, what is not to be forced again
        self._kernels: set[str] = set()
        self._unshipped: list[tuple[Key, Entry]] = []
        self._shipped = self._start
        self.device = ""
        self.files: set[str] = set()
        self.without_cases: list[str] = []
        self.interrupted = False

    def rows(self) -> list[Row]:
        """What came of each case, by kind of device and in the order of the targets."""
        models = dict.fromkeys([*(seat.model for seat in self._seats), *self._queues])  # a place may change its kind
        queues = [self._queues[model] for model in models if model in self._queues]
        return [Row(**queue.rows[number]) for queue in queues for number in sorted(queue.rows)]

    def devices(self) -> list[dict[str, Json]]:
        """The devices that were named, and what each did."""
        return [seat.to_json() for seat in self._seats if seat.name]

    def run(self) -> None:
        """Measure until all is done.

        Raises:
            AutotunedError, OSError: What a process raised; no device is left; a config file cannot be written.
        """
        with self._interrupts:
            try:
                self._seats = self._executor.seats()
                for seat in self._seats:
                    self._start_process(seat)
                while self._goes_on():
                    self._turn()
                self._abandon_rest()
            except KeyboardInterrupt:
                self.interrupted = True
                self._finish()
            finally:
                for seat in self._seats:
                    if seat.process is not None:
                        seat.process.kill()
                self._executor.close()
                self._ship(0.0)

    # -- one turn ------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        for seat in self._alive():
            self._deal(seat)
        self._executor.wait([seat.process for seat in self._alive() if seat.process is not None], TICK_S)
        self._interrupts.check()
        for seat in self._alive():
            ending = self._listen(seat)
            if ending is not None:
                self._ended(seat, ending)
        self._ship(SHIP_S)

    def _alive(self) -> list[Seat]:
        return [seat for seat in self._seats if not seat.gone]

    def _goes_on(self) -> bool:
        """Whether something is left to do, or may be, and a device that may do it."""
        if not self._queues or any(seat.model is None and self._executor.is_needed(seat) for seat in self._alive()):
            return True  # its kind may be another one
        open_ = self._open_models()
        return any(seat.model in open_ and self._may_work(seat) for seat in self._alive())

    def _open_models(self) -> list[str]:
        return [model for model, queue in self._queues.items() if not queue.is_done]

    def _may_work(self, seat: Seat) -> bool:
        """Whether it works, or is to be waited for: for a while also where a lost node had its place."""
        begun_s = time.monotonic() - seat.begun
        return seat.ready or self._executor.is_needed(seat) or begun_s < PATIENCE_S

    def _abandon_rest(self) -> None:
        """No device is left for what some kinds still have to do.

        Raises:
            AutotunedError: For one of them no row can say so.
        """
        unsaid = [model for model in self._open_models() if not self._abandon(model)]
        if unsaid:
            raise AutotunedError(
                f"expected all cases for {', '.join(unsaid)}, got those above: the last device of this kind was given "
                "up before it had listed the others. Run the same command again to go on."
            )

    def _abandon(self, model: str) -> bool:
        """Let what a kind still has to do fail; whether a row says so."""
        queue, mine = self._queues[model], [seat for seat in self._seats if seat.model == model]
        why = "".join(f"; {seat.name}: {seat.gone or 'waits for its place'}" for seat in mine)
        queue.listed, tasks = True, queue.drop()
        self._skip(tasks, queue, "failed", f"no device of this kind is left{why}")
        return bool(tasks)

    def _start_process(self, seat: Seat) -> None:
        seat.reset(self._executor.start(seat, self._given))

    def _queue(self, seat: Seat) -> Queue:
        assert seat.model is not None
        return self._queues.setdefault(seat.model, Queue())

    def _deal(self, seat: Seat) -> None:
        """Give a free device something to do, if there is something."""
        if not seat.ready or seat.listing or seat.task is not None:
            return
        assert seat.process is not None
        queue = self._queue(seat)
        if not queue.listed and not any(other.listing for other in self._alive() if other.model == seat.model):
            seat.listing = True
            seat.process.send({"do": "list"})
        elif queue.listed or self._wishes.budget_s is None:  # shares of a budget are known when all units are
            self._hand_out(seat, queue)

    def _hand_out(self, seat: Seat, queue: Queue) -> None:
        left_s = self._left_s()
        if left_s == 0:
            self._skip(queue.drop(), queue, "skipped", "the budget is used up")
            return
        open_count = queue.open_count
        seat.task = task = queue.take(seat.name, {other.name for other in self._like(seat)})
        if task is None:
            return
        assert seat.process is not None
        together = len(self._like(seat))
        seen = (seat.model or "", task.digest)
        seat.process.send({
            "do": "measure", "number": task.number, "digest": task.digest, "seen": seen in self._seen,
            "condemned": self._condemned.get(task.digest, {}), "known": self._known(task),
            "budget_s": None if left_s is None else min(left_s, left_s * together * share(task.count, open_count)),
        })  # fmt: skip
        self._display.begin(task.row["kernel"], Row(**task.row).words, seat.name)

    def _like(self, seat: Seat) -> list[Seat]:
        """The devices of its kind, itself too, and those that may turn out to be."""
        coming = (other for other in self._alive() if other.ready or self._executor.is_needed(other))
        return [other for other in coming if other.model in (seat.model, None)]

    def _known(self, task: Task) -> Json:
        """What this host has stored for a task that is measured on another one."""
        if not self._executor.gathers or self._wishes.force or task.key is None:
            return None
        found = records.read_of(Key(**task.key))
        return None if found is None else record.dump(found)

    def _skip(self, tasks: Sequence[Task], queue: Queue, status: str, why: str) -> None:
        for task in tasks:
            queue.rows[task.number] = {**task.row, "status": status, "reason": why}

    def _left_s(self) -> float | None:
        budget_s = self._wishes.budget_s
        return None if budget_s is None else max(0.0, self._start + budget_s - time.monotonic())

    # -- what processes say --------------------------------------------------------------------------------------

    def _listen(self, seat: Seat) -> Ending | None:
        """Take in what a process says; how it ended, if it did."""
        process = seat.process
        assert process is not None
        for message in process.messages():
            self._take(seat, message)
        now = time.monotonic()
        if process.is_over:
            why = process.why()
            blamed = {} if process.lost else seat.doing.culprit(why)
            return Ending(why, blamed, now - (seat.doing.since or seat.begun))
        limit_s = self._wishes.timeout_s
        late = seat.doing.overdue(limit_s, now)
        return Ending("it took too long", late, limit_s) if late else None

    def _take(self, seat: Seat, message: dict[str, Json]) -> None:
        match message["event"]:
            case "ready":
                self._take_ready(seat, message)
            case "unit":
                self._take_unit(seat, message)
            case "listed":
                self._queue(seat).listed, seat.listing = True, False
                self.without_cases = message["without_cases"]
            case "case":
                seat.doing.nothing()
                seat.doing.digest = message["digest"]
            case "progress":
                self._take_progress(seat, Progress(**message["progress"]))
            case "keep":
                self._display.keep(self._said(seat, message["line"]))
            case "row":
                self._take_row(seat, message)
            case "error":
                raise process.raised(message, seat.name if len(self._seats) > 1 else "")

    def _take_progress(self, seat: Seat, progress: Progress) -> None:
        seat.doing.note(progress, time.monotonic())
        if progress.stage == "sampling" and not progress.compiling:
            self._queue(seat).compiled(seat.name)
        self._display.observe(progress, seat.name)

    def _take_ready(self, seat: Seat, message: dict[str, Json]) -> None:
        if message["version"] != autotuned.__version__:
            raise AutotunedError(
                f"{seat.name}: expected autotuned {autotuned.__version__} as here, got {message['version']}. Install "
                "one version on all nodes."
            )
        self.device, seat.ready, seat.place = message["device"], True, message.get("place", "")
        # Of the product too: two kinds that are interpreted are two kinds all the same.
        seat.model = f"{seat.kind}  {message['model']}" if seat.kind else message["model"]
        self._queue(seat)  # from now on it is not done without what this kind has to do

    def _take_unit(self, seat: Seat, message: dict[str, Json]) -> None:
        kernel = message["row"]["kernel"]
        if kernel not in self._kernels and self._wishes.out is not None:
            check_files(kernel, self._wishes.out)
        self._kernels.add(kernel)
        task = Task(message["number"], message["row"], message["group"], message["count"], message["key"])
        if self._queue(seat).add(task):
            self._show_count()

    def _take_row(self, seat: Seat, message: dict[str, Json]) -> None:
        seat.doing.nothing()
        queue, task, row = self._queue(seat), seat.task, Row(**message["row"])
        assert task is not None
        seat.task, seat.ends, seat.done = None, 0, seat.done + 1
        self._seen.add((seat.model or "", task.digest))
        queue.done(seat.name, message["row"])
        self._keep(message)
        self._show_count()
        self._display.keep(self._said(seat, row.line))

    def _show_count(self) -> None:
        queues = self._queues.values()
        self._display.count(sum(len(queue.rows) for queue in queues), sum(queue.known for queue in queues))

    def _said(self, seat: Seat, line: str) -> str:
        return f"{seat.name}: {line}" if len(self._seats) > 1 else line

    def _keep(self, message: Mapping[str, Json]) -> None:
        """Keep what a row rests on: a record of another host in this one's store, an entry for its config file."""
        if message["record"] is not None:
            records.keep(record.load(message["record"]))
        if message["entry"] is not None and self._wishes.out is not None:
            entry = file.load_entry(message["entry"], "entry")
            self._unshipped.append((Key(**message["key"]), entry))

    def _ship(self, after_s: float) -> None:
        """Write the entries that have come since, if the last time is long enough ago."""
        if self._unshipped and time.monotonic() - self._shipped >= after_s:
            assert self._wishes.out is not None
            self.files |= {str(path) for path in writer.ship_all(self._unshipped, self._wishes.out.absolute())}
            self._unshipped.clear()  # only now: where this is interrupted, they are written at the end
            self._shipped = time.monotonic()

    # -- when one ends -------------------------------------------------------------------------------------------

    def _ended(self, seat: Seat, ending: Ending) -> None:
        """Condemn what ended a process, let its unit go on elsewhere, and start another one.

        Raises:
            AutotunedError: No device is left.
        """
        assert seat.process is not None
        seat.process.kill()
        self._condemned.setdefault(seat.doing.digest, {}).update(ending.blamed)
        for line in process.left_out(ending):
            self._display.keep(self._said(seat, line))
        # Several were compiled at once: the journal has their names, and the next process compiles them one by one.
        if ending.blamed:
            seat.ends = 0
        else:
            self._blame(seat, ending)
        if seat.model is not None:
            self._queue(seat).give_back(seat.name)
        if seat.ends >= BLAMELESS:
            self._give_up(seat, ending)
        else:
            self._start_process(seat)

    def _blame(self, seat: Seat, ending: Ending) -> None:
        """Blame an end that no config can be blamed for: the unit, if it has ended others, else the device."""
        seat.ends += 1
        task = seat.task
        if len(self._seats) > 1 or task is None:
            self._display.keep(f"{seat.name}: {ending.why}; starting another one")
        if task is None:
            return
        task.ended_on.append(seat.name)
        if len(task.ended_on) >= BLAMELESS:
            seat.ends = 0
            reason = f"the measuring process ended {BLAMELESS} times with it, and no config can be blamed"
            self._queue(seat).done(seat.name, {**task.row, "status": "failed", "reason": f"{reason} ({ending.why})"})

    def _give_up(self, seat: Seat, ending: Ending) -> None:
        seat.gone = ending.why
        if len(self._seats) > 1:
            self._display.keep(f"{seat.name} is given up: {ending.why}, {BLAMELESS} times in a row")
        if not self._alive():
            raise AutotunedError(
                f"the measuring process ended {BLAMELESS} times, and no config can be blamed for it. Its own words are "
                "above; --in-process measures without it."
            )

    def _finish(self) -> None:
        """Let interrupted processes store what they have."""
        for seat in self._alive():
            if seat.process is not None:
                seat.process.interrupt()
        end = time.monotonic() + process.END_S
        while time.monotonic() < end and (running := [seat for seat in self._alive() if not _is_over(seat)]):
            self._executor.wait([seat.process for seat in running if seat.process is not None], TICK_S)
            for seat in running:
                for message in seat.process.messages() if seat.process is not None else ():
                    if message["event"] == "row":
                        self._take(seat, message)


def _is_over(seat: Seat) -> bool:
    return seat.process is None or seat.process.is_over


def check_files(kernel: str, out: Path) -> None:
    """Fail before a kernel is measured if a config file of it that is there cannot be added to."""
    for path in sorted(out.glob(f"*/{file.file_name(kernel)}")):
        writer.shippable(path, kernel)
