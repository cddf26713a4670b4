"""`list --unused --missing`: what was tuned against what a recording called; and what a process says of its misses."""

import itertools
import os
import re
import sys

import fakes
import forked
import numpy as np
import pytest
from commands import run, run_json
from fakes import FakeConfig as Config
from fakes import form, make_key

import autotuned
from autotuned import autotune
from autotuned.configfiles import writer
from autotuned.configfiles.file import Entry
from autotuned.key.key import Key
from autotuned.recording.file import RecordedCall, Writer
from autotuned.store import records
from autotuned.store.record import Timing, TuningRecord

BEST = form(Config({"BLOCK": 32}))
CONFIGS = [Config({"step": step}) for step in (8, 16)]


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def tuned(key):
    records.keep(TuningRecord(key, BEST, 10.0, "ok", (Timing(BEST, 10.0, 9.0, 11.0, 12),)))
    return key


def of(g="torch.bfloat16", n=768, kernel="app.k", **context):
    """A key with a tensor and an integer."""
    call = {"tensors": {"g": {"dtype": g, "strides": "1"}}, "values": {"n": n}, "none": []}
    return Key(kernel, call, make_key(**context).context)


@pytest.fixture
def called(tmp_path):
    """Writes a recording: keys and how often each was called."""

    def recording(*calls):
        path = tmp_path / "calls.jsonl"
        writer = Writer(path)
        for key, count in calls:
            recorded = RecordedCall(key.kernel, "app:k", key, {"memories": [], "values": {}}, None, count)
            writer.call(recorded)
        writer.close()
        return path

    return recording


def test_b32_tuned_and_not_used_used_and_not_tuned_with_the_field_that_differs(called):
    warmed = tuned(of("torch.bfloat16"))
    both = tuned(of("torch.float32", n=1))
    path = called((of("torch.float32"), 300), (both, 2))
    found = run_json("list", "--unused", "--missing", "--calls", path)
    assert [choice["digest"] for choice in found["unused"]] == [warmed.digest]
    [missing] = found["missing"]
    assert (missing["digest"], missing["count"], missing["nearest"]) == (
        of("torch.float32").digest, 300, warmed.digest,
    )  # fmt: skip
    assert missing["changes"] == [{"path": "call.tensors.g.dtype", "stored": "torch.bfloat16", "now": "torch.float32"}]
    said = run("list", "--unused", "--missing", "--calls", path).stdout
    assert "g.dtype bf16 != fp32" in said
    assert warmed.digest[:12] in said and both.digest[:12] not in said


def test_b96_another_parallel_layout_is_missing_beside_the_nearest_shape(called):
    tuned(of(n=768))
    path = called((of(n=1536), 8000))
    assert "n 768 != 1536" in run("list", "--missing", "--calls", path).stdout


@pytest.mark.parametrize(
    ("stored", "used", "words", "reason"),
    [
        (make_key(), make_key(triton="3.10.0"), "triton 3.9.0 != 3.10.0", "other toolchain"),
        (make_key(source="a" * 64), make_key(source="b" * 64), "source aaaaaaaaaaaa != bbbbbbbbbbbb", "other source"),
        (make_key(), make_key(environment={"TRITON_X": "1"}), "environment.TRITON_X none != 1", "other environment"),
        (make_key(), Key("app.k", {"tensors": {"x": {"dtype": "torch.int8", "strides": "1", "shape": [4]}}, "none": [],
                                   "values": {"n": 1024}}, make_key().context), "x none != i8[4]", "absent"),
        (make_key(), make_key(kernel="app.other"), "nothing of this kernel is tuned", "absent"),
    ],
    ids=["toolchain", "source", "environment", "argument", "kernel"],
)  # fmt: skip
def test_what_differs_is_said_in_few_words(stored, used, words, reason, called):
    tuned(stored)
    path = called((used, 1))
    assert words in run("list", "--missing", "--calls", path).stdout
    [missing] = run_json("list", "--missing", "--calls", path)["missing"]
    assert missing["reason"] == reason


def test_what_config_files_answer_from_another_context_is_tuned_and_used(called, tmp_path, monkeypatch):
    shipped = of(triton="3.9.0")
    writer.ship(shipped, Entry(shipped.call, BEST, 10.0, None), tmp_path / "tuned")
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", str(tmp_path / "tuned"))
    path = called((of(triton="3.9.1", triton_key="cc"), 5))
    found = run_json("list", "--unused", "--missing", "--calls", path)
    assert (found["unused"], found["missing"]) == ([], [])
    said = run("list", "--unused", "--missing", "--calls", path).stdout
    assert said == "everything tuned is used\neverything used is tuned\n"
    coverage = run_json("report", "--calls", path)["coverage"]
    assert (coverage["distinct"], coverage["tuned"], coverage["tuned_calls"]) == (1, 1, 5)


def test_choices_for_other_devices_are_no_concern_of_a_recording(called):
    other = {**make_key().context["device"], "name": "NVIDIA B200", "arch": "sm_100"}
    tuned(of(device=other))
    tuned(of(n=1))
    path = called((tuned(of(n=2)), 1))
    assert [choice["call"]["values"]["n"] for choice in run_json("list", "--unused", "--calls", path)["unused"]] == [1]


def test_a_kernel_can_be_picked_and_the_most_called_come_first(called, monkeypatch):
    tuned(of(kernel="app.other"))
    path = called((of(n=1), 1), (of(n=2), 20), (of(n=3, kernel="app.third"), 300))
    found = run_json("list", "app.k", "--unused", "--missing", "--calls", path)
    assert found["unused"] == []
    assert [missing["count"] for missing in found["missing"]] == [20, 1]
    monkeypatch.setenv("AUTOTUNED_RECORD", str(path))
    found = run_json("list", "--unused", "--missing")
    assert [choice["kernel"] for choice in found["unused"]] == ["app.other"]
    assert [missing["count"] for missing in found["missing"]] == [300, 20, 1]
    assert run_json("list", "--missing")["unused"] is None
    assert "Did you mean 'app.third'" in run("list", "app.thrd", "--missing", code=1).stderr


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--missing"], 2, "expected a recording: give --calls CALLS.jsonl"),
        (["--calls", "calls.jsonl"], 2, "expected --unused, --missing or both"),
        (["--missing", "--calls", "none.jsonl"], 1, "none.jsonl"),
    ],
    ids=["no recording", "nothing asked", "no file"],
)
def test_what_cannot_be_compared_is_refused(args, code, words):
    assert words in " ".join(run("list", *args, code=code).stderr.replace("│", " ").split())


# -- what a process says of its misses ----------------------------------------------------------------------------


def scale(x, n, *, step):
    return step


HAIRS = itertools.count(0.0, 1e-12)


def bench(call, quantiles):
    call()
    return [1.0 + next(HAIRS), 1.0, 1.0]  # a benchmark that gives one time for all is warned of


def make(**options):
    return autotune(CONFIGS, name="app.scale", key=["n"], do_bench=bench, **options)(scale)


def levels(caplog):
    return [record.levelname for record in caplog.records]


def test_b97_fifty_missing_keys_are_one_warning_lines_of_information_and_a_summary(caplog):
    caplog.set_level("INFO", "autotuned")
    function, x = make(), np.ones(4)
    with autotuned.mode("serve"):
        for n in range(50):
            function(x, n)
    assert function.cache_info().searches == 0
    assert levels(caplog).count("WARNING") == 1
    assert sum("runs it untuned" in line for line in caplog.messages) == 50
    caplog.clear()
    autotuned.resolve.tuner.advice.say_untuned([function.tuner.chooser.untuned])
    assert caplog.messages == [
        "50 keys of 1 kernel ran untuned. `autotuned record` and `autotuned list --missing` name them."
    ]


def test_more_keys_than_are_counted_are_said_to_be_more(caplog, monkeypatch):
    """Of 20,000 keys that ran untuned it said that they were 4096."""
    monkeypatch.setattr("autotuned.resolve.advice.LIMIT", 4)
    function, x = make(), np.ones(4)
    with autotuned.mode("serve"):
        for n in range(50):
            function(x, n)
    caplog.clear()
    autotuned.resolve.tuner.advice.say_untuned([function.tuner.chooser.untuned])
    assert caplog.messages[0].startswith("at least 4 keys of 1 kernel ran untuned")


def test_b97_fifty_searches_are_at_most_one_warning(caplog):
    caplog.set_level("INFO", "autotuned")
    function, x = make(), np.ones(4)
    for n in range(50):
        function(x, n)
    assert function.cache_info().searches == 50
    assert levels(caplog).count("WARNING") <= 1  # the storm of keys
    caplog.clear()
    autotuned.resolve.tuner._summary()
    (searches,) = re.findall(r"(\d+) searches; seconds: look-up", "\n".join(caplog.messages))
    assert int(searches) >= 50  # of all tuned functions that live: other tests left theirs


def test_b32_b96_the_warning_names_the_nearest_key_and_the_fields(caplog):
    function = make()
    function(np.ones(4), 768)
    with autotuned.mode("serve"):
        function(np.ones(4), 1536)
        assert "differs in call.values.n: 1536 here, 768 there." in caplog.messages[-1]
        other = make()
        other(np.ones(4, np.float32), 768)
        assert "differs in call.tensors.x.dtype: 'float32' here, 'float64' there." in caplog.messages[-1]


SERVE = """
import numpy as np
from autotuned import autotune
from fakes import FakeConfig as Config

@autotune([Config({"step": 8}), Config({"step": 16})], name="app.scale", key=["n"], version="1")
def scale(x, n, *, step):
    return step

for _ in range(1000):
    scale(np.ones(4), 1536)
"""


def test_b96_eight_workers_of_a_thousand_calls_write_at_most_eight_lines(tmp_path):
    (tmp_path / "serve.py").write_text(SERVE)
    environment = {**os.environ, "AUTOTUNED_MODE": "serve", "PYTHONPATH": os.path.dirname(fakes.__file__)}
    command = [sys.executable, str(tmp_path / "serve.py")]
    workers = [forked.run(command, environment) for _ in range(8)]
    assert [worker.returncode for worker in workers] == [0] * 8
    said = [worker.stderr.splitlines() for worker in workers]
    assert [len(lines) for lines in said] == [1] * 8
    assert all("nothing is stored for key" in lines[0] for lines in said)
