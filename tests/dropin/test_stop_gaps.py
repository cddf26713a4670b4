"""Untuned configs end with a mode while other threads go on."""

from meanwhile import interrupted

from autotuned.dropin import seeded


def test_stop_gaps_end_while_another_thread_adds_one():
    def add():
        memories.append(seeded.Memory({}, lambda: None))
        memories[-1].note("key", "config")
        memories[-1].stop_gap("key", "config", "")

    memories = []
    for _ in range(3):
        add()
    first = memories[:3]
    interrupted(seeded._end_stop_gaps, add)
    assert not any(memory.has("key") for memory in first)
