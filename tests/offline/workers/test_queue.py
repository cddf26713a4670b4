"""Tests of `autotuned/offline/workers/queue.py`: one key to one device at a time, and what compiles alike to the same one."""

from autotuned.offline.workers.queue import Queue, QueuedCase


def queue(*cases):
    """Cases given as (digest, group) or (digest, group, count)."""
    made = Queue(listed=True)
    for number, (digest, group, *count) in enumerate(cases):
        assert made.add(QueuedCase(number, {"digest": digest}, group, *count))
    return made


def numbers(made, *devices):
    taken = [made.take(device, {"0", "1", "2"}) for device in devices]
    return [case.number if case else None for case in taken]


def test_without_groups_tasks_go_in_their_order_to_whoever_asks():
    made = queue(("a", ""), ("b", ""), ("c", ""))
    assert numbers(made, "0", "1", "0") == [0, 1, 2]
    assert numbers(made, "1") == [None]


def test_devices_begin_different_groups_and_stay_with_them():
    made = queue(("a", "x"), ("b", "x"), ("c", "y"), ("d", "y"))
    assert numbers(made, "0", "1") == [0, 2]
    made.done("0", {})
    made.done("1", {})
    assert numbers(made, "1", "0") == [3, 1]


def test_nobody_begins_a_group_while_another_device_compiles_it_for_the_first_time():
    made = queue(("a", "x"), ("b", "x"), ("c", "x"))
    assert numbers(made, "0", "1") == [0, None]
    made.done("0", {})
    assert numbers(made, "1", "0") == [1, 2]


def test_once_a_group_is_compiled_another_device_need_not_wait_until_it_is_measured():
    made = queue(("a", "x"), ("b", "x"), ("c", "x"))
    assert numbers(made, "0", "1") == [0, None]
    made.compiled("1")  # has no case: a word that came late says nothing
    assert numbers(made, "1") == [None]
    made.compiled("0")
    assert numbers(made, "1") == [1]


def test_a_device_without_a_group_of_its_own_helps_with_the_largest():
    made = queue(("a", "x"), ("b", "y"), ("c", "x"), ("d", "y"), ("e", "y"))
    numbers(made, "0", "1")
    made.done("0", {})
    made.done("1", {})
    assert numbers(made, "2") == [3]


def test_one_key_is_at_one_device_at_a_time():
    made = queue(("a", ""), ("a", ""), ("b", ""))
    assert numbers(made, "0", "1", "2") == [0, 2, None]
    made.done("0", {})
    assert numbers(made, "2") == [1]


def end(made, device):
    """A process ends in what it does."""
    made._doing[device].ended_on.append(device)
    made.give_back(device)


def test_what_a_process_ended_in_is_the_next_for_another_device():
    made = queue(("a", "x"), ("b", "y"), ("c", "z"))
    numbers(made, "0")
    end(made, "0")
    assert numbers(made, "0", "1") == [1, 0]


def test_it_comes_back_where_it_has_ended_on_all():
    made = queue(("a", "x"))
    for device in ("0", "1", "2"):
        assert numbers(made, device) == [0]
        end(made, device)
    assert numbers(made, "0") == [0]


def test_most_called_first_but_for_those_called_about_as_often():
    made = queue(("a", "x", 100), ("b", "y", 90), ("c", "x", 80), ("d", "x", 5))
    assert numbers(made, "0") == [0]
    made.done("0", {})
    assert numbers(made, "0") == [2]  # of its group, and called about as often as the first
    made.done("0", {})
    assert numbers(made, "0") == [1]
    made.done("0", {})
    assert numbers(made, "0") == [3]


def test_it_is_done_when_all_is_known_and_nothing_is_open_or_begun():
    made = queue(("a", ""))
    assert not made.is_done
    made.take("0", {"0"})
    assert not made.is_done
    made.done("0", {"of": 1})
    assert made.is_done
    assert made.results == {0: {"of": 1}}
    made.listed = False
    assert not made.is_done


def test_a_second_listing_adds_nothing():
    made = queue(("a", ""))
    assert not made.add(QueuedCase(0, {"digest": "a"}))
    assert made.known == 1
