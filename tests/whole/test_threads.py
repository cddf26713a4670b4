"""Threads that miss at the same time: none sees the device, the environment, the source or the call of another."""

import itertools
import sys
import threading
from types import SimpleNamespace

import pytest

from autotuned.gpu.device import Device
from autotuned.key import source
from autotuned.resolve.request import Context

ROUNDS = 3000


@pytest.fixture(autouse=True)
def switching():
    """Threads take turns after a few byte codes."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*actions):
    """Runs each action on a thread of its own, all begun at once; the exceptions that they raised."""
    barrier, raised = threading.Barrier(len(actions)), []

    def run(action):
        barrier.wait()
        try:
            action()
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return raised


def test_each_device_has_a_context_of_its_own():
    local = threading.local()
    target = SimpleNamespace(
        name="app.k",
        source="0" * 64,
        opaque=[],
        device=lambda call: local.device,
        toolchain=lambda where, folder: {"triton": "3.9.0"},
        environment=dict,
        environment_changed=lambda: None,
    )
    context, wrong = Context(target, None), []

    def ask(device):
        local.device = device
        wrong.extend(found for _ in range(ROUNDS) if (found := context.of(None)[0]["device"]) != device.to_json())

    devices = [Device("cuda", f"GPU {n}", "sm_90", 132, None) for n in range(3)]
    assert together(*(lambda device=device: ask(device) for device in devices)) == []
    assert wrong == []


def test_the_environment_is_read_while_another_thread_reads_it_anew(monkeypatch):
    pytest.importorskip("triton")
    from autotuned import env
    from autotuned.triton_compat import kernel

    stamps = itertools.count()
    wanted = kernel.environment()
    monkeypatch.setattr(env, "stamp", lambda: lambda: next(stamps))
    wrong = []

    def ask():
        wrong.extend(found for _ in range(ROUNDS) if (found := kernel.environment()) != wanted)

    assert together(*[ask] * 4) == []
    assert wrong == []


FACTOR = 1


def body(x):
    return x * FACTOR


def test_a_fingerprint_is_that_of_the_value_that_was_seen(monkeypatch):
    fingerprint, of_factor = source.Fingerprint(body), {}
    for factor in (1, 2):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        of_factor[factor] = fingerprint.value()
    assert of_factor[1] != of_factor[2]
    found = []
    assert together(*[lambda: found.extend(fingerprint.value() for _ in range(100))] * 4) == []
    assert set(found) == {of_factor[2]}


def test_pruners_of_two_threads_see_the_arguments_of_their_own_calls():
    torch = pytest.importorskip("torch")
    triton = pytest.importorskip("triton")
    from scaled import CONFIGS, scale

    from autotuned import autotune

    both, seen = threading.Barrier(2, timeout=60), []

    def prune(configs, named, **kwargs):
        both.wait()  # each is in its pruner: the arguments of both have been noted
        seen.append(kernel.nargs["n"] == named["n"] == threading.current_thread().n)
        both.wait()
        return configs[:1]

    kernel = autotune(CONFIGS, key=["n"], prune_configs_by={"early_config_prune": prune}, name="threads.scale")(
        triton.jit(scale)
    )

    kernel.tuner.tunable.launch = lambda call, config: None  # Triton's interpreter is one for all threads

    def call(n):
        threading.current_thread().n = n
        kernel[(1,)](torch.ones(n), n)

    assert together(lambda: call(3), lambda: call(5)) == []
    assert seen == [True, True]
    assert kernel.nargs is None
