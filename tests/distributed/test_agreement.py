"""`autotuned.sync` between four real ranks (gloo): one choice for all, no collective, and nobody waits for ever."""

import itertools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import forked
import torch.distributed as dist
from fakes import FakeConfig, form, make_key

import autotuned
from autotuned import errors
from autotuned.distributed import agreement as agree
from autotuned.distributed import ranks
from autotuned.errors import SyncError
from autotuned.resolve import active
from autotuned.resolve.request import Question
from autotuned.store.choice import Choice, Origin
from autotuned.store.conditions import Conditions
from autotuned.store.record import Timing, TuningRecord

SIZE = 4
SUPPORT = Path(__file__).parents[1] / "support"
numbers = itertools.count()


class Group:
    """Four processes that play one scenario after the other."""

    def __init__(self, store):
        self.store = store  # the server of the ranks' store lives as long as this object
        code = [sys.executable, str(SUPPORT / "rank_worker.py")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path[1:]]),
            "OMP_NUM_THREADS": "1",
        }
        self.processes = [
            forked.start([*code, str(rank), str(SIZE), str(store.port)], environment) for rank in range(SIZE)
        ]

    def ready(self):
        for process in self.processes:
            assert process.stdout.readline() == "ready\n"
        return self

    def play(self, cache, **scenario):
        scenario |= {"cache": str(cache), "number": next(numbers)}
        for process in self.processes:
            process.stdin.write(json.dumps(scenario) + "\n")
            process.stdin.flush()
        answers = []
        watchdog = threading.Timer(60, self.kill)
        watchdog.start()
        for process in self.processes:
            line = process.stdout.readline()
            assert line, "a rank has ended; what it wrote to standard error is shown with this failure"
            answers.append(json.loads(line))
        watchdog.cancel()
        return answers

    def kill(self):
        for process in self.processes:
            process.kill()

    def close(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait()
            process.stdout.close()


@pytest.fixture(scope="module")
def group():
    group = Group(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    try:
        yield group.ready()
        group.close()
        assert [process.returncode for process in group.processes] == [0] * SIZE
    finally:
        group.kill()


@pytest.fixture
def own(tmp_path):
    """A store for each rank, as on hosts that share no disk."""
    return tmp_path / "rank-{rank}"


def of(answers, field):
    return [answer[field] for answer in answers]


BEST = [1, 2, 3, 4]  # each rank alone would choose another


def test_b74_without_sync_ranks_choose_apart_and_call_nothing_of_each_other(group, own):
    answers = group.play(own, best=BEST, sync=False)
    assert of(answers, "chose") == BEST and of(answers, "searches") == [1] * SIZE


def test_ranks_that_chose_apart_are_told_the_first_key_when_they_compare(group, own):
    answers = group.play(own, best=[2, 2, 4, 2], compare=True)
    assert of(answers, "error") == ["SyncError"] * SIZE
    texts = set(of(answers, "text"))
    assert len(texts) == 1 and "`app.body` key " in texts.pop()
    assert '"step":2' in answers[0]["text"] and '"step":4' in answers[0]["text"] and "rank 2" in answers[0]["text"]
    digests = of(answers, "digest")
    assert len(set(digests)) == 2 and digests.count(digests[2]) == 1


def test_ranks_that_chose_alike_go_on_and_have_one_digest(group, own):
    answers = group.play(own, best=[2] * SIZE, compare=True)
    assert [answer.keys() for answer in answers] == [{"digest"}] * SIZE and len(set(of(answers, "digest"))) == 1


def test_a_rank_that_does_not_compare_is_named(group, own):
    answers = group.play(own, best=[2] * SIZE, compare=True, absent=[1], timeout_s=5.0)
    assert all("within 5 s, got none from rank 1 " in answers[rank]["text"] for rank in (0, 2, 3))


def test_all_ranks_swap_what_one_has_found_at_the_same_refresh(group, own):
    answers = group.play(own, best=[2] * SIZE, default=True, refresh=True, stored=[1])
    assert of(answers, "chose") == of(answers, "again") == [2] * SIZE and of(answers, "swapped") == [1] * SIZE
    assert all("all ranks must call refresh() at the same point" in reason for reason in of(answers, "alone"))


def test_of_two_choices_that_ranks_have_found_all_take_that_of_the_first(group, own):
    answers = group.play(own, best=[4, 3, 2, 1], default=True, refresh=True, stored=[1, 2])
    assert of(answers, "chose") == of(answers, "again") == [3] * SIZE


def test_no_rank_swaps_what_one_is_without(group, own):
    answers = group.play(own, best=[2] * SIZE, default=True, refresh=True, stored=[0, 1, 2, 3], without=[2])
    assert of(answers, "chose") == of(answers, "again") == [5] * SIZE and of(answers, "swapped") == [0] * SIZE


def test_where_a_rank_does_not_refresh_no_other_swaps(group, own):
    answers = group.play(own, best=[2] * SIZE, default=True, refresh=True, stored=[0], absent=[3], timeout_s=2.0)
    assert of(answers, "chose") == [5] * SIZE
    assert all("within 2 s, got nothing from rank 3 " in answers[rank]["text"] for rank in (0, 1, 2))


def test_one_rank_searches_and_all_take_its_winner(group, own):
    answers = group.play(own, best=BEST)
    assert sorted(of(answers, "searches")) == [0, 0, 0, 1]
    [winner] = set(of(answers, "chose"))
    assert winner == BEST[of(answers, "searches").index(1)]
    assert of(answers, "hits") == [1] * SIZE
    # Kept by every rank, so that none has to ask after the next start.
    assert of(answers, "stored") == [[winner]] * SIZE


@pytest.mark.parametrize("late", [[0, 0, 0, 0], [1, 0, 0, 0]], ids=["in time", "hit comes last"])
@pytest.mark.parametrize("mode", ["auto", "strict", "serve"])
def test_b74_a_choice_that_one_rank_has_is_taken_by_all(group, own, mode, late):
    answers = group.play(own, best=BEST, stored=[0], mode=mode, late=late)
    assert of(answers, "chose") == [BEST[0]] * SIZE
    assert of(answers, "searches") == [0] * SIZE


def test_ranks_that_have_different_choices_take_one(group, own):
    answers = group.play(own, best=BEST, stored=[0, 1, 2, 3])
    assert len(set(of(answers, "chose"))) == 1 and of(answers, "searches") == [0] * SIZE


def test_one_cache_for_all_ranks(group, tmp_path):
    answers = group.play(tmp_path / "shared", best=BEST)
    assert len(set(of(answers, "chose"))) == 1 and sum(of(answers, "searches")) == 1


def test_strict_refuses_on_all_ranks_alike(group, own):
    answers = group.play(own, mode="strict")
    assert of(answers, "error") == ["NotTunedError"] * SIZE  # who waited in vain would raise a SyncError


def test_serve_takes_the_default_on_all_ranks(group, own):
    assert of(group.play(own, mode="serve", default=True), "chose") == [5] * SIZE


@pytest.mark.parametrize("rank", [0, 3])
def test_b74_what_fails_on_the_rank_that_decides_is_raised_on_all(group, own, rank):
    late = [1.0] * SIZE
    late[rank] = 0
    answers = group.play(own, fails=rank, late=late)
    kinds = of(answers, "error")
    assert kinds.pop(rank) == "ValueError"  # the user's own error where it was raised
    assert kinds == ["SyncError"] * 3
    others = [answer["text"] for number, answer in enumerate(answers) if number != rank]
    # They were told: who waited in vain would say for how long.
    assert all(f"fails on rank {rank}" in text and f"said by rank {rank}" in text for text in others)


def test_a_rank_that_does_not_end_is_not_waited_for_for_ever(group, own):
    answers = group.play(own, slow=[1.0] * SIZE, timeout_s=2.0, late=[0, 0.2, 0.2, 0.2])
    assert answers[0]["chose"] == 3
    for answer in answers[1:]:
        assert answer["error"] == "SyncError"
        assert "rank 0, which searches, did not finish within 2 s" in answer["text"]


def test_b75_kernels_that_communicate_are_launched_as_often_on_every_rank(group, own):
    answers = group.play(own, best=BEST, communicates=True)
    launches = of(answers, "launched")
    assert launches == [launches[0]] * SIZE
    # Once to try it and then 2 + 4 times, for each config; then the call, and a hit.
    assert len(launches[0]) == 6 * (1 + 2 + 4) + 2
    assert of(answers, "searches") == [1] * SIZE
    # The fastest on its slowest rank is neither that of rank 0 nor that of rank 3.
    assert of(answers, "chose") == [3] * SIZE
    assert of(answers, "stored") == [[answers[0]["chose"]]] * SIZE


def test_kernels_that_communicate_need_the_same_configs_everywhere(group, own):
    answers = group.play(own, communicates=True, own_configs=True)
    assert of(answers, "error") == ["SyncError"] * SIZE
    assert of(answers, "launched") == [[]] * SIZE
    assert "expected the same configs on every rank" in answers[0]["text"]


def test_kernels_that_communicate_are_not_measured_with_a_rank_missing(group, own):
    answers = group.play(own, communicates=True, timeout_s=1.0, late=[0, 0, 0, 4])
    assert of(answers, "error") == ["SyncError"] * SIZE
    assert of(answers, "launched") == [[]] * SIZE


# -- one process --------------------------------------------------------------------------------------------------


@pytest.fixture
def store():
    return dist.HashStore()


def test_the_first_to_publish_wins(store):
    one, two = (ranks.Ranks(store, rank, 2, 1.0, "p") for rank in range(2))
    assert one.read("k") is None
    assert one.publish("k", "mine") == "mine"
    assert two.publish("k", "yours") == "mine" == two.read("k")
    assert (one.count("n"), two.count("n"), one.count("n", 0)) == (1, 2, 2)


def test_a_wait_ends_in_time_and_says_what_for(store, monkeypatch, caplog):
    monkeypatch.setattr(ranks, "MESSAGE_AFTER_S", 0.0)
    rank = ranks.Ranks(store, 1, 2, 1.0, "p")
    assert rank.wait("k", 0.05, "rank 0") is None
    assert caplog.messages == ["rank 1 waits for rank 0."]
    assert rank.wait("k", 60.0, "", enough=lambda: True) is None


def test_sync_without_a_group_says_so():
    with pytest.raises(SyncError, match="init_process_group first"):
        autotuned.sync()
    with pytest.raises(SyncError, match="seconds above 0"):
        autotuned.sync(timeout_s=0)
    assert not active.agreements


def test_sync_with_a_group_that_is_none_or_none_any_more_says_so():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        gone = dist.new_group([0])
        dist.destroy_process_group(gone)
        for group in (gone, "tensor-parallel"):
            with pytest.raises(SyncError, match="expected a process group that is in use, got"):
                autotuned.sync(group)
    finally:
        dist.destroy_process_group()
    assert not active.agreements


def test_a_store_whose_rank_has_ended_is_an_error_of_ours():
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    rank = ranks.Ranks(dist.TCPStore("127.0.0.1", server.port, is_master=False), 1, 2, 1.0, "p")
    assert rank.read("k") is None
    del server
    for ask in (lambda: rank.read("k"), lambda: rank.publish("k", "mine"), lambda: rank.count("n")):
        with pytest.raises(SyncError, match="rank 1 expected an answer from its process group's store, got "):
            ask()


def test_what_is_forked_off_a_rank_is_none(store, monkeypatch):
    """Two processes that talk through one connection read each other's answers, and wait for ever for their own."""
    monkeypatch.setattr(active, "agreements", [agree.Agreement(ranks.Ranks(store, 0, 1, 1.0, "p"))])
    pid = os.fork()
    if pid == 0:
        os._exit(len(active.agreements))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(active.agreements) == 1


class Measures:
    """A rank by itself, which measures, or fails after it has."""

    def __init__(self, fails):
        self.fails = fails

    def known(self, question):
        return None

    def keeps(self, key):
        return False

    def decide(self, question):
        if self.fails:
            raise ValueError("no room on this rank")
        return Choice("config", Origin.SEARCH, TuningRecord(question.key, None, None, "ok", (timing(0, 1.0),)))


def test_a_rank_that_fails_as_all_measure_together_keeps_none_waiting(store):
    question = SimpleNamespace(key=make_key(), mode="auto", live={timing(0).identity: "config"}, needed=Conditions())
    question.replace = lambda **changes: question
    raised = [None, None]

    def play(rank):
        agreement = agree.Agreement(ranks.Ranks(store, rank, 2, 30.0, "p"))
        try:
            agreement.choose(question, Measures(fails=rank == 1), autotuned.FixedLaunches(rep=1, warmup=0))
        except Exception as error:
            raised[rank] = error

    threads = [threading.Thread(target=play, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert isinstance(raised[1], ValueError)
    assert isinstance(raised[0], SyncError)
    assert "ValueError: no room on this rank (said by rank 1, which decides for all)" in str(raised[0])


class Chooses:
    """A rank by itself, which takes the last of a call's candidates."""

    def __init__(self):
        self.decided = []

    def known(self, question):
        return None

    def keeps(self, key):
        return False

    def decide(self, question):
        self.decided.append(sorted(question.live))
        return Choice(list(question.live.values())[-1], Origin.SEARCH)


def test_calls_of_one_key_with_other_candidates_agree_among_these(store, monkeypatch):
    monkeypatch.setattr(agree, "VOTE_S", 0.01)
    made = [agree.Agreement(ranks.Ranks(store, rank, 2, 30.0, "narrowed")) for rank in range(2)]
    alone = [Chooses(), Chooses()]

    def ask(rank, *names, narrowed=True):
        question = Question(None, make_key(), dict(zip(names, names)), "auto", narrowed=narrowed)
        return made[rank].choose(question, alone[rank], None).config

    assert ask(0, "a", "b") == "b"
    assert ask(1, "a", "b", "c") == "b"  # as agreed, and allowed
    assert ask(1, "a", "c") == "c"  # what is agreed on is none of these
    assert ask(0, "a", "c") == "c"
    assert ask(0, "a", "b") == ask(1, "b", "c") == "b"
    assert [len(rank.decided) for rank in alone] == [1, 1]
    with pytest.raises(SyncError, match="rank 0 chose b, which is not a config of this call on this rank"):
        ask(1, "a", "c", narrowed=False)


def timing(step, us=None, **more):
    return Timing(form(FakeConfig({"step": step})), us, us, us, 3 if us else 0, **more)


def test_a_config_counts_as_slow_as_its_slowest_rank_and_failed_where_it_failed_once():
    live = {timing(step).identity: step for step in range(3)}
    first = TuningRecord(make_key(), None, None, "ok", (timing(0, 1.0), timing(1, 2.0), timing(2, 3.0)))
    other = TuningRecord(
        make_key(), None, None, "ok", (timing(0, status="failed", error="no room"), timing(1, 9.0), timing(2, 4.0))
    )
    merged = agree.slowest([first, other], live)
    assert [t.median_us for t in merged.timings] == [None, 9.0, 4.0]
    assert merged.winner["kwargs"] == {"step": 2} and merged.provenance["ranks"] == 2
    alone = TuningRecord(make_key(), None, None, "ok", (timing(0, 1.0),))
    with pytest.raises(errors.AllConfigsFailedError, match="not measured on every rank"):
        agree.slowest([first, alone], {timing(1).identity: 1})


def test_the_script_for_several_gpus_can_be_rehearsed_on_the_cpu(tmp_path):
    pytest.importorskip("triton")
    script = Path(__file__).parents[1] / "gpu" / "nccl_ranks.py"
    command = [sys.executable, str(script), "--backend", "gloo", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=320)
    assert done.returncode == 0 and done.stdout.startswith("2 ranks agree (gloo)"), done.stdout + done.stderr
