"""Events: told to whoever asks, counted, and harmless."""

import logging
import os
import re
import sys
import threading
from types import ModuleType
from typing import NamedTuple

import pytest
from pages import ROOT

import autotuned
from autotuned import events


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(events, "_counts", {})


def test_each_is_told_to_all_and_counted():
    seen, too = [], []
    with autotuned.on_event(seen.append), autotuned.on_event(too.append):
        events.emit("miss", "app.k", "abc", 0.5, "store")
    events.emit("miss", "app.k", "abc", 0.25)
    assert seen == too == [events.Event("miss", "app.k", "abc", 0.5, "store")]
    assert autotuned.counters() == {("app.k", "miss"): events.Count(2, 0.75)}


def test_closing_twice_is_allowed_and_ends_that_handle_only():
    seen, callback = [], None
    callback = seen.append
    handles = [autotuned.on_event(callback), autotuned.on_event(callback)]
    handles[0].close()
    handles[0].close()
    events.emit("load", "app.k")
    handles[1].close()
    events.emit("load", "app.k")
    assert len(seen) == 1


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="expected a function of one event, got int"):
        autotuned.on_event(7)


def test_a_callback_that_raises_is_said_once_and_the_others_are_told(caplog):
    seen = []
    with autotuned.on_event(lambda event: 1 / 0), autotuned.on_event(seen.append), caplog.at_level(logging.ERROR):
        events.emit("miss", "app.k")
        events.emit("miss", "app.k")
    assert len(seen) == 2 and len(caplog.records) == 1 and "ZeroDivisionError" in caplog.text


def test_what_a_callback_leads_to_is_counted_and_told_to_nobody():
    seen = []

    def callback(event):
        seen.append(event.kind)
        events.emit("compile", "app.k")

    with autotuned.on_event(callback):
        events.emit("miss", "app.k")
    assert seen == ["miss"] and autotuned.counters()["app.k", "compile"].events == 1


def test_a_callback_may_end_itself_and_begin_others():
    seen, handles = [], []

    def callback(event):
        handles[0].close()
        handles.append(autotuned.on_event(seen.append))

    handles.append(autotuned.on_event(callback))
    for _ in range(3):
        events.emit("miss", "app.k")
    assert len(seen) == 2
    handles[1].close()


def test_threads_lose_no_count():
    def many():
        for _ in range(2000):
            events.emit("miss", "app.k", "", 1.0)

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert autotuned.counters() == {("app.k", "miss"): events.Count(8000, 8000.0)}


def test_a_fork_while_another_thread_counts_does_not_hang():
    with events._lock:
        child = os.fork()
        if child == 0:
            events.emit("miss", "app.k")
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_plain_callable_tells_its_misses_and_searches(monkeypatch):
    @autotuned.autotune([autotuned.Config({"STEP": step}) for step in (1, 2)], key=["n"], name="app.plain")
    def work(n, *, STEP):
        return n

    seen = []
    with autotuned.on_event(seen.append):
        work(4)
        work(4)
    assert [event.kind for event in seen] == ["search", "miss"]
    assert seen[0].reason.startswith("2 configs; chosen: STEP=")


class _Family:
    """What `prometheus_client` calls a family of metrics, where it is not installed."""

    def __init__(self, name, documentation, labels):
        self.name, self.labels, self.samples = name, labels, []

    def add_metric(self, labels, value):
        assert len(labels) == len(self.labels)
        self.samples.append(_Sample(dict(zip(self.labels, labels)), value))


class _Sample(NamedTuple):
    labels: dict
    value: float


class _Registry:
    def __init__(self):
        self.collectors = []

    def register(self, collector):
        self.collectors.append(collector)


def test_the_lines_for_prometheus_export_what_was_counted(monkeypatch):
    registry = _Registry()
    if "prometheus_client" not in sys.modules:
        core = ModuleType("prometheus_client.core")
        core.CounterMetricFamily, core.REGISTRY = _Family, registry
        monkeypatch.setitem(sys.modules, "prometheus_client", ModuleType("prometheus_client"))
        monkeypatch.setitem(sys.modules, "prometheus_client.core", core)
    page = (ROOT / "docs" / "modes.md").read_text()
    [block] = [text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "prometheus_client" in text]
    exec(block, {})
    events.emit("miss", "app.k", "", 0.5)
    events.emit("miss", "app.k", "", 0.5)
    [collector] = registry.collectors
    found = {
        family.name: [(sample.labels, sample.value) for sample in family.samples] for family in collector.collect()
    }
    labels = {"kernel": "app.k", "kind": "miss"}
    assert found == {"autotuned_events": [(labels, 2)], "autotuned_seconds": [(labels, 1.0)]}
