"""Tests of `guard`: whatever configs read and write, and whatever shares memory, trials find what the caller gave."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from autotuned.key.memory import tensors_in
from autotuned.search.safety import protection as snapshots
from autotuned.search.safety.protection import Guard
from autotuned.triton_compat.compiled import Access, union

thoroughly = settings(max_examples=300, deadline=None, database=None, derandomize=True)
NAMES = ("a", "b", "c", "d")
SETS = st.frozensets(st.sampled_from(NAMES))
SPANS = st.tuples(st.integers(0, 12), st.integers(1, 6), st.sampled_from([1, 2, -1]))
ARGUMENTS = st.lists(st.lists(SPANS, min_size=1, max_size=2), min_size=len(NAMES), max_size=len(NAMES))
# What a config reads and writes, whether its TTIR tells, and what is done with it: a sample, a check, a failure.
CONFIGS = st.lists(
    st.tuples(SETS, SETS, st.booleans(), st.lists(st.sampled_from(["sample", "check", "fail"]), max_size=3)),
    min_size=1,
    max_size=4,
)


def view(buffer: Any, start: int, count: int, step: int) -> Any:
    return buffer[start : start + count][::step]


def made(arguments: dict[str, Any], ahead: Any, restore: Any) -> Guard:
    timer = SimpleNamespace(is_short=False, free=lambda: None)
    job = SimpleNamespace(
        call=SimpleNamespace(arguments=arguments), timer=timer, restore=restore, zero=[], check=None, stricter=None, named=None, watch=False,
        hooks=SimpleNamespace(before=None, after=None),
    )  # fmt: skip
    return Guard(job, ahead)  # type: ignore[arg-type]


class Launches:
    """Stands in for a kernel: notes what it reads, and writes something else each time."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments, self._count = arguments, 0

    def tensors(self, names: Any) -> list[Any]:
        return [tensor for name in sorted(names) for _, tensor in tensors_in(name, self._arguments[name])]

    def read(self, names: Any) -> list[Any]:
        return [tensor.copy() for tensor in self.tensors(names)]

    def write(self, names: Any) -> None:
        for tensor in self.tensors(names):
            self._count += 1
            tensor[...] = -self._count


def equal(one: list[Any], other: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@thoroughly
@drawn(ARGUMENTS, CONFIGS, st.sampled_from([None, [], ["a"], list(NAMES)]))
def test_trials_find_what_the_caller_gave(spans: Any, configs: Any, restore: Any) -> None:
    """A sample what it reads, and a first launch or a check everything; at the end the caller has it back."""
    buffer = np.arange(20.0)
    before = buffer.copy()
    arguments = {
        name: tuple(view(buffer, *span) for span in parts) if len(parts) > 1 else view(buffer, *parts[0])
        for name, parts in zip(NAMES, spans, strict=True)
    }
    launches = Launches(arguments)
    given = {name: launches.read([name]) for name in NAMES}

    def launch(read: Any, written: Any, is_looked_at: bool) -> None:
        if is_looked_at:
            guard.protection.renew()
        guard.prepare()
        assert all(equal(launches.read([name]), given[name]) for name in (NAMES if is_looked_at else read))
        launches.write(written)

    ahead, found, launched = SimpleNamespace(access=None), [], []
    guard = made(arguments, ahead, restore)
    for read, writes, tells, acts in configs:
        found.append(Access(read, writes) if tells else None)
        ahead.access = None if None in found else union(found)
        written = writes if restore is None else writes & set(restore)  # a list of the user's names what is written
        guard.protect()
        guard.protection.begin()
        launch(read, written, is_looked_at=True)
        guard.protection.learn()
        launched.append((read, written))
        for act in acts:
            for sampled in launched if act == "sample" else launched[-1:]:
                launch(*sampled, is_looked_at=act != "sample")
            if act == "fail":
                guard.protection.learn()
    guard.release(lost=False)
    assert (buffer == before).all()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_interrupt_while_the_data_are_put_back_at_the_end_leaves_them_as_given(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {name: np.arange(4.0) for name in NAMES[:3]}
    guard = made(arguments, SimpleNamespace(access=None), None)
    guard.protect()
    guard.protection.begin()
    Launches(arguments).write(arguments)
    guard.protection.learn()
    restore, calls = snapshots.Snapshot.restore, []

    def interrupted(snapshot: snapshots.Snapshot) -> None:
        calls.append(snapshot)
        if len(calls) == number:
            raise KeyboardInterrupt
        restore(snapshot)

    monkeypatch.setattr(snapshots.Snapshot, "restore", interrupted)
    with pytest.raises(KeyboardInterrupt):
        guard.release(lost=False)
    assert all((array == np.arange(4.0)).all() for array in arguments.values())
