"""`tune` on several devices: a process each, cases dealt one by one, nothing lost if a process ends."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from autotuned.configfiles import writer
from autotuned.configfiles.entry import load_entry
from autotuned.errors import AutotunedError
from autotuned.key.key import Key
from autotuned.offline.cases import share
from autotuned.offline.results import INTERRUPTED, OUT_OF_TIME, CaseResult, Observer, TuneOptions, TuneResult
from autotuned.offline.shipping import Shipping
from autotuned.offline.workers import process
from autotuned.offline.workers.interrupts import Interrupts
from autotuned.offline.workers.process import Ending
from autotuned.offline.workers.queue import Queue, QueuedCase
from autotuned.offline.workers.slots import DeviceSlot, Executor
from autotuned.remote import connection
from autotuned.search.job import Progress
from autotuned.store import record, records
from autotuned.typed_json import Json

TICK_S = 0.2
BLAMELESS = 3  # ends without a config to blame before a device (consecutive ends) or a case is given up
PATIENCE_S = 60.0  # longest wait for a lost node's slot if only it can measure the remaining cases
SHIP_S = 2.0  # between two writes of config files


class DevicePool:
    """Measures the cases of targets on all devices of an executor; every kind of device measures every case."""

    def __init__(self, targets: Sequence[str], options: TuneOptions, observer: Observer, executor: Executor):
        self._options, self._observer, self._executor = options, observer, executor
        wanted = options.wanted and options.wanted.to_json()
        self._given = {"targets": list(targets), "force": options.force, "gathers": executor.gathers,
                       "timeout_s": options.timeout_s, "wanted": wanted, "follows": options.follows}  # fmt: skip
        self._start = time.monotonic()
        self._slots: list[DeviceSlot] = []
        self._interrupts = Interrupts()
        self._queues: dict[str, Queue] = {}
        self._excluded: dict[str, dict[str, str]] = {}
        self._seen: set[tuple[str, str]] = set()  # model and digest of cases not to measure again
        self._kernels: set[str] = set()
        folder = None if options.out is None else options.out.absolute()
        self._shipping = Shipping(folder, observer.note, SHIP_S)
        self._result = TuneResult(budget_s=options.budget_s)

    def result(self) -> TuneResult:
        """The result so far: cases by kind of device, in the order of the targets."""
        models = dict.fromkeys([*(slot.model for slot in self._slots), *self._queues])  # a slot's kind may change
        queues = [self._queues[model] for model in models if model in self._queues]
        self._result.cases = [
            CaseResult(**queue.results[number]) for queue in queues for number in sorted(queue.results)
        ]
        self._result.devices = [slot.result() for slot in self._slots if slot.name]
        self._result.files = sorted(self._shipping.files)
        self._result.seconds = time.monotonic() - self._start
        return self._result

    def run(self) -> None:
        """Measure all cases; raises a process's error, or AutotunedError if no device is left."""
        with self._interrupts:
            try:
                self._slots = self._executor.slots()
                for slot in self._slots:
                    self._start_process(slot)
                while self._goes_on():
                    self._turn()
                self._abandon_rest()
            except KeyboardInterrupt:
                self._result.interrupted = True
                self._finish()
                for slot in self._alive():
                    if slot.case is not None:
                        self._skip([slot.case], self._queue(slot), "skipped", INTERRUPTED)
            finally:
                for slot in self._slots:
                    if slot.process is not None:
                        slot.process.kill()
                self._executor.close()
                self._shipping.finish()

    # -- one turn ------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        for slot in self._alive():
            self._deal(slot)
        self._executor.wait([slot.process for slot in self._alive() if slot.process is not None], TICK_S)
        self._interrupts.check()
        for slot in self._alive():
            ending = self._listen(slot)
            if ending is not None:
                self._ended(slot, ending)
        self._shipping.write()

    def _alive(self) -> list[DeviceSlot]:
        return [slot for slot in self._slots if not slot.gone]

    def _goes_on(self) -> bool:
        """Whether work is left, or may come, for an available device."""
        if not self._queues or any(slot.model is None and self._executor.is_needed(slot) for slot in self._alive()):
            return True  # it may be of a new kind, with all cases left
        open_ = self._open_models()
        return any(slot.model in open_ and self._may_work(slot) for slot in self._alive())

    def _open_models(self) -> list[str]:
        return [model for model, queue in self._queues.items() if not queue.is_done]

    def _may_work(self, slot: DeviceSlot) -> bool:
        """Whether a slot works or is worth waiting for; for `PATIENCE_S` also if its node was lost."""
        begun_s = time.monotonic() - slot.begun
        return slot.ready or self._executor.is_needed(slot) or begun_s < PATIENCE_S

    def _abandon_rest(self) -> None:
        """Fail the cases of kinds without a device; AutotunedError if a kind's cases are unknown."""
        unknown = [model for model in self._open_models() if not self._abandon(model)]
        if unknown:
            raise AutotunedError(
                f"expected all cases for {', '.join(unknown)}, got those above: the last device of this kind was given "
                "up before it had listed the others. Run the same command again to continue."
            )

    def _abandon(self, model: str) -> bool:
        """Fail a kind's remaining cases; False if it has none."""
        queue, mine = self._queues[model], [slot for slot in self._slots if slot.model == model]
        why = "".join(f"; {slot.name}: {slot.gone or 'waits for its slot'}" for slot in mine)
        queue.listed, cases = True, queue.drop()
        self._skip(cases, queue, "failed", f"no device of this kind is left{why}")
        return bool(cases)

    def _start_process(self, slot: DeviceSlot) -> None:
        slot.reset(self._executor.start(slot, self._given))

    def _queue(self, slot: DeviceSlot) -> Queue:
        assert slot.model is not None
        return self._queues.setdefault(slot.model, Queue())

    def _deal(self, slot: DeviceSlot) -> None:
        """Give a free device its next command."""
        if not slot.ready or slot.listing or slot.case is not None:
            return
        assert slot.process is not None
        queue = self._queue(slot)
        if not queue.listed and not any(other.listing for other in self._alive() if other.model == slot.model):
            slot.listing = True
            slot.process.send({"do": "list"})
        elif queue.listed or self._options.budget_s is None:  # a budget can be shared only once all cases are known
            self._hand_out(slot, queue)

    def _hand_out(self, slot: DeviceSlot, queue: Queue) -> None:
        left_s = self._options.left_s(self._start)
        if left_s == 0:
            self._skip(queue.drop(), queue, "skipped", OUT_OF_TIME)
            return
        open_count = queue.open_count
        slot.case = case = queue.take(slot.name, {other.name for other in self._like(slot)})
        if case is None:
            return
        assert slot.process is not None
        together = len(self._like(slot))
        seen = (slot.model or "", case.digest)
        slot.process.send({
            "do": "measure", "number": case.number, "digest": case.digest, "seen": seen in self._seen,
            "excluded": self._excluded.get(case.digest, {}), "known": self._known(case),
            "budget_s": None if left_s is None else min(left_s, left_s * together * share(case.count, open_count)),
        })  # fmt: skip
        self._observer.begin(CaseResult(**case.result), slot.name)

    def _like(self, slot: DeviceSlot) -> list[DeviceSlot]:
        """The devices of a slot's kind, including itself and devices of a yet unknown kind."""
        coming = (other for other in self._alive() if other.ready or self._executor.is_needed(other))
        return [other for other in coming if other.model in (slot.model, None)]

    def _known(self, case: QueuedCase) -> Json:
        """This host's record for a case that is measured on another one."""
        if not self._executor.gathers or self._options.force or case.key is None:
            return None
        found = records.read_of(Key(**case.key))
        return None if found is None else record.dump(found)

    def _skip(self, cases: Sequence[QueuedCase], queue: Queue, status: str, why: str) -> None:
        for case in cases:
            queue.results[case.number] = {**case.result, "status": status, "reason": why}

    # -- messages of processes -----------------------------------------------------------------------------------

    def _listen(self, slot: DeviceSlot) -> Ending | None:
        """Handle a process's messages; returns its ending if it ended or must be ended."""
        process = slot.process
        assert process is not None
        for message in process.messages():
            self._take(slot, message)
        now = time.monotonic()
        if process.is_over:
            why = process.why()
            blamed = {} if process.lost else slot.doing.culprit(why)
            return Ending(why, blamed, now - (slot.doing.since or slot.begun))
        limit_s = self._options.timeout_s
        late = slot.doing.overdue(limit_s, now)
        return Ending("it took too long", late, limit_s) if late else None

    def _take(self, slot: DeviceSlot, message: dict[str, Json]) -> None:
        match message["event"]:
            case "ready":
                self._take_ready(slot, message)
            case "case":
                self._take_case(slot, message)
            case "listed":
                self._queue(slot).listed, slot.listing = True, False
                self._result.without_cases = message["without_cases"]
            case "begin":
                slot.doing.nothing()
                slot.doing.digest = message["digest"]
            case "progress":
                self._take_progress(slot, Progress(**message["progress"]))
            case "note":
                self._observer.note(message["line"], self._name(slot))
            case "done":
                self._take_result(slot, message)
            case "error":
                raise process.raised(message, slot.name if len(self._slots) > 1 else "")

    def _take_progress(self, slot: DeviceSlot, progress: Progress) -> None:
        slot.doing.note(progress, time.monotonic())
        if progress.stage == "sampling" and not progress.compiling:
            self._queue(slot).compiled(slot.name)
        self._observer.observe(progress, slot.name)

    def _take_ready(self, slot: DeviceSlot, message: dict[str, Json]) -> None:
        if message["version"] != process.version():
            raise AutotunedError(
                f"{slot.name}: expected autotuned {process.version()} as here, got {message['version']}. Install "
                "one version on all nodes."
            )
        self._result.device, slot.ready, slot.host = message["device"], True, message.get("host", "")
        # Including the product: interpreters on different products are different kinds.
        slot.model = f"{slot.kind}  {message['model']}" if slot.kind else message["model"]
        self._queue(slot)  # from now on this kind has work to do

    def _take_case(self, slot: DeviceSlot, message: dict[str, Json]) -> None:
        kernel = message["result"]["kernel"]
        if kernel not in self._kernels and self._options.out is not None:
            writer.check_all(kernel, self._options.out)
        self._kernels.add(kernel)
        case = QueuedCase(message["number"], message["result"], message["group"], message["count"], message["key"])
        if self._queue(slot).add(case):
            self._show_count()

    def _take_result(self, slot: DeviceSlot, message: dict[str, Json]) -> None:
        slot.doing.nothing()
        queue, case = self._queue(slot), slot.case
        assert case is not None
        slot.case, slot.ends, slot.done = None, 0, slot.done + 1
        self._seen.add((slot.model or "", case.digest))
        self._keep(message)
        queue.done(slot.name, message["result"])
        self._show_count()
        self._observer.done(CaseResult(**message["result"]), self._name(slot))

    def _show_count(self) -> None:
        queues = self._queues.values()
        self._observer.count(sum(len(queue.results) for queue in queues), sum(queue.known for queue in queues))

    def _name(self, slot: DeviceSlot) -> str:
        """Name for lines about a device; "" if it is the only one."""
        return slot.name if len(self._slots) > 1 else ""

    def _keep(self, message: Mapping[str, Json]) -> None:
        """Store a result's record if it comes from another host, and collect its entry for the config file."""
        if message["record"] is not None:
            is_kept = connection.keep(record.load(message["record"]))
            if message["result"]["kept"] is not None:
                message["result"]["kept"] = is_kept
        if message["entry"] is not None:
            self._shipping.add(Key(**message["key"]), load_entry(message["entry"], "entry"))

    # -- ended processes -----------------------------------------------------------------------------------------

    def _ended(self, slot: DeviceSlot, ending: Ending) -> None:
        """Exclude the config that ended a process, requeue its case, restart; AutotunedError if no device is left."""
        assert slot.process is not None
        slot.process.kill()
        self._excluded.setdefault(slot.doing.digest, {}).update(ending.blamed)
        for line in process.left_out(ending):
            self._observer.note(line, self._name(slot))
        # Without a culprit, several were compiling: the journal lists them, and the next process tries each alone.
        if ending.blamed:
            slot.ends = 0
        else:
            self._blame(slot, ending)
        if slot.model is not None:
            self._queue(slot).give_back(slot.name)
        if slot.ends >= BLAMELESS:
            self._give_up(slot, ending)
        else:
            self._start_process(slot)

    def _blame(self, slot: DeviceSlot, ending: Ending) -> None:
        """Handle an end without a config to blame: fail the case if it has ended several processes."""
        slot.ends += 1
        case = slot.case
        if len(self._slots) > 1 or case is None:
            self._observer.note(f"{ending.why}; starting another one", slot.name)
        if case is None:
            return
        case.ended_on.append(slot.name)
        if len(case.ended_on) >= BLAMELESS:
            slot.ends = 0
            reason = f"the measuring process ended {BLAMELESS} times with it, and no config can be blamed"
            self._queue(slot).done(slot.name, {**case.result, "status": "failed", "reason": f"{reason} ({ending.why})"})

    def _give_up(self, slot: DeviceSlot, ending: Ending) -> None:
        slot.gone = ending.why
        if len(self._slots) > 1:
            self._observer.note(f"{slot.name} is given up: {ending.why}, {BLAMELESS} times in a row")
        if not self._alive():
            raise AutotunedError(
                f"the measuring process ended {BLAMELESS} times, and no config is to blame. Its output is above; "
                "isolate=False measures without such a process."
            )

    def _finish(self) -> None:
        for slot in self._alive():
            if slot.process is not None:
                slot.process.interrupt()
        end = time.monotonic() + process.END_S
        while time.monotonic() < end:
            running = [(slot, slot.process) for slot in self._alive() if slot.process and not slot.process.is_over]
            if not running:
                return
            self._executor.wait([worker for _, worker in running], TICK_S)
            for slot, worker in running:
                for message in worker.messages():
                    if message["event"] == "done":
                        self._take(slot, message)
