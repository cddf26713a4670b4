"""Processes of one user that change the same record at once: the better one is left, whoever comes first."""

import os
import select
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import make_key
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import block_of, data_in, measured

from autotuned.remote.client import Client
from autotuned.remote.place import place
from autotuned.store import records

KEY = make_key()
WAIT_S = 0.5  # a process that is kept out until then is kept out by the lock


def forked(action: Callable[[], Any]) -> int:
    """Do something in a child process, on a thread that holds no lock, whatever the forking one holds."""
    pid = os.fork()
    if pid:
        return pid
    code = [1]

    def act() -> None:
        try:
            action()
            code[0] = 0
        except BaseException:
            traceback.print_exc()

    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    os._exit(code[0])


def ended(pid: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def between_reading_and_keeping(patch: pytest.MonkeyPatch, action: Callable[[], Any]) -> list[int]:
    """Begin something in another process once a record was read, and give it time to end before one is kept."""
    read, began = records.read_of, []

    def read_of(key: Any) -> Any:
        found = read(key)
        if not began:
            told, tell = os.pipe()
            began.append(forked(lambda: (action(), os.write(tell, b"."))))
            select.select([told], [], [], WAIT_S)
        return found

    patch.setattr(records, "read_of", read_of)
    return began


def test_what_another_process_measures_while_an_answer_is_adopted_is_left(
    redis_url: str, hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosts.on("b", redis_url) as other:
        other.keep(measured(KEY, 64, samples=3))
    with hosts.on("a", redis_url) as one:
        began = between_reading_and_keeping(monkeypatch, lambda: one.keep(measured(KEY, 128, samples=50)))
        one.ask([KEY]).wait(10)
        assert ended(began[0])
        monkeypatch.undo()
        os.environ["AUTOTUNED_CACHE_DIR"] = str(hosts._folder / "a")
        assert block_of(records.read_of(KEY)) == 128


def test_an_older_answer_does_not_replace_what_another_process_adopted_meanwhile(
    redis_url: str, hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both follow the store: the one whose answer is the older one comes to it later."""
    with hosts.on("b", redis_url) as other:
        other.keep(measured(KEY, 64, samples=3))
        other.flush(10)
        with hosts.on("a", redis_url) as one:
            first, second = one._backend(), Client(place(redis_url, wait_s=10.0))
            read_all = first.read_all

            def late(names: list[str], most: int) -> Any:
                answers = list(read_all(names, most))
                if block_of(records.read_of(KEY)) is None:
                    other._write(measured(KEY, 128, samples=50), True)
                    assert ended(forked(lambda: second.ask([KEY]).wait(10)))
                return answers

            monkeypatch.setattr(first, "read_all", late)
            assert one.ask([KEY]).wait(10) == [KEY]
            assert block_of(records.read_of(KEY)) == 128


@settings(max_examples=8, deadline=None)
@given(samples=st.lists(st.integers(3, 60), min_size=3, max_size=3, unique=True), late=st.booleans())
def test_the_best_of_all_is_left_in_whatever_order_processes_come(
    samples: list[int], late: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The store has one record, two processes adopt, a third measures, and another host writes meanwhile."""
    pytest.importorskip("fsspec", reason="needs the package fsspec")
    folder: Path = tmp_path_factory.mktemp("race")
    at, blocks = place(f"file://{folder}/mount", wait_s=10.0), dict(zip(samples, (64, 128, 512)))
    first, second, third = (measured(KEY, block, samples=one, b512=20.0 if block != 512 else 10.0)
                            for one, block in blocks.items())  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNED_CACHE_DIR", str(folder / "a"))
        store = Client(at)
        store._write(first, False)
        go, begin = os.pipe()

        def act(number: int) -> None:
            client = Client(at)
            os.read(go, 1)
            if number == 2:
                client.keep(second)
            else:
                client.ask([KEY]).wait(10)
            client.flush(10)

        pids = [forked(lambda number=number: act(number)) for number in range(3)]
        os.write(begin, b".." if late else b"...")
        store._write(third, False)
        os.write(begin, b"." if late else b"")
        assert [ended(pid) for pid in pids] == [True] * 3
        store.ask([KEY]).wait(10)
        store.flush(10)
        assert block_of(records.read_of(KEY)) == blocks[max(samples)]
        assert block_of(at.load(KEY.digest, data_in(store, KEY) or b"")) == blocks[max(samples)]
        store.close()
