"""From a recording to tuned and prepared calls: `tune calls.jsonl`, `warmup calls.jsonl`, and what has gone since."""

import importlib
import json
import sys
from types import SimpleNamespace

import pytest
from autotuned.cli.main import app
from typer.testing import CliRunner

pytest.importorskip("triton")

import torch

import autotuned
from autotuned.errors import CallError
from autotuned.offline import cases, replay, results, tuning
from autotuned.offline.measure import Measurer
from autotuned.offline.workers import compile_server
from autotuned.recording import file
from autotuned.resolve import explain

pytestmark = pytest.mark.usefixtures("measured_once")

APP = """
import triton
import triton.language as tl
from autotuned import Config, autotune

CONFIGS = [Config({"BLOCK": block}) for block in BLOCKS]

@autotune(configs=CONFIGS, key=["n"])
@triton.jit
def gather(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(index_ptr + i, mask=i < n)
    tl.store(out_ptr + i, tl.load(x_ptr + index, mask=i < n), mask=i < n)
"""


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def run(*args, code=0):
    result = CliRunner().invoke(app, [*args, "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


@pytest.fixture
def recorded(write, tmp_path):
    """A recording of two shapes, the second called more often, made in a mode that tunes nothing."""
    write("shop.py", APP.replace("BLOCKS", "(16, 32)"))
    sys.path.insert(0, str(tmp_path))  # `write` puts the path back
    importlib.invalidate_caches()
    import shop

    with autotuned.record(tmp_path / "calls.jsonl"), autotuned.mode("off"):
        for n, count in ((40, 1), (70, 3)):
            for _ in range(count):
                x, index, out = torch.randn(8), torch.randint(0, 8, (n,)), torch.empty(n)
                shop.gather[lambda meta, n=n: (triton_cdiv(n, meta["BLOCK"]),)](x, index, out, n)
    return tmp_path / "calls.jsonl"


@pytest.mark.parametrize("grid", [3, ([3],)], ids=repr)
def test_an_invalid_grid_of_a_bound_call_is_refused_as_without_a_recording(recorded, tmp_path, grid):
    import shop

    arguments = torch.randn(8), torch.randint(0, 8, (40,)), torch.empty(40), 40
    with autotuned.record(tmp_path / "more.jsonl"), autotuned.mode("off"):
        for _ in range(2):
            shop.gather[(3,)](*arguments)
        with pytest.raises(CallError, match="expected a tuple of 1 to 3 integers"):
            shop.gather[grid](*arguments)
    assert [call.count for call in file.read(tmp_path / "more.jsonl")] == [2]


def triton_cdiv(a, b):
    return -(-a // b)


def test_a_recording_is_tuned_most_called_first_and_serves_in_strict_mode(recorded, tmp_path):
    assert [call.count for call in file.read(recorded)] == [3, 1]
    rows = run("tune", str(recorded), "--out", str(tmp_path / "tuned"))["cases"]
    assert [(row["status"], row["call"]["values"]["n"], row["configs"]) for row in rows] == [
        ("done", 70, 2),
        ("done", 40, 2),
    ]
    import shop

    with autotuned.mode("strict"):
        index, out = torch.arange(8).repeat(5), torch.empty(40)
        shop.gather[(3,)](x := torch.randn(8), index, out, 40)
    assert torch.equal(out, x[index]) and shop.gather.cache_info().searches == 2
    again = run("tune", str(recorded))["cases"]
    assert [row["source"] for row in again] == ["stored", "stored"]


def test_configs_that_came_later_are_said_and_skipped(recorded, write):
    forget("shop")
    write("shop.py", APP.replace("BLOCKS", "(16, 32, 64)"))
    result = CliRunner().invoke(app, ["tune", str(recorded), "--json"])
    assert [row["configs"] for row in json.loads(result.stdout)["cases"]] == [2, 2]
    assert result.stderr.count("1 config is newer than the recording and skipped") == 1  # and not for each call


def forget(module):
    sys.modules.pop(module)
    importlib.invalidate_caches()


def test_b106_a_kernel_that_is_gone_is_said_with_the_nearest_and_the_others_go_on(recorded, write):
    with open(recorded, "a") as file:
        for line in recorded.read_text().splitlines()[:1]:
            file.write(
                line.replace('"shop:gather"', '"shop:gathr"')
                .replace('"shop.gather"', '"shop.gathr"')
                .replace('"id": "', '"id": "x')
                + "\n"
            )
            file.write(
                line.replace('"shop:gather"', '"shopp:gather"')
                .replace('"shop.gather"', '"shopp.gather"')
                .replace('"id": "', '"id": "y')
                + "\n"
            )
    rows = run("tune", str(recorded), code=3)["cases"]
    reasons = {row["kernel"]: row["reason"] for row in rows if row["status"] == "failed"}
    assert "Did you mean 'gather'?" in reasons["shop.gathr"]
    assert "no module named 'shopp'" in reasons["shopp.gather"] and "PYTHONPATH" in reasons["shopp.gather"]
    assert sum(row["status"] == "done" for row in rows) == 2


def test_warmup_prepares_what_is_tuned_and_names_what_is_not(recorded):
    rows = run("warmup", str(recorded), code=1)["calls"]
    assert [row["config"] for row in rows] == [None, None] and "NotTunedError" in rows[0]["reason"]
    run("tune", str(recorded))
    rows = run("warmup", str(recorded))["calls"]
    assert [row["count"] for row in rows] == [3, 1]
    [stored, *_] = run("list")["choices"]
    assert all(row["config"].keys() == stored["config"].keys() for row in rows)  # one form in all commands
    words = CliRunner().invoke(app, ["warmup", str(recorded)]).stdout
    assert "BLOCK=" in words and "maxnreg" not in words


def test_a_budget_is_shared_by_count(recorded, monkeypatch):
    """Of what is left each call gets its part of the calls that are open; what one does not need is for the others."""
    now, shares, measure = [0.0], [], Measurer.measure
    for module in (tuning, results):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def in_ten_seconds(self, case, budget_s):
        shares.append((case.count, budget_s))
        now[0] += 10
        return measure(self, case, None)

    monkeypatch.setattr(Measurer, "measure", in_ten_seconds)
    run("tune", str(recorded), "--budget", "100")
    assert shares == [(3, 75), (1, 90)]


def test_what_a_budget_left_open_is_done_by_the_same_command(recorded):
    rows = run("tune", str(recorded), "--budget", "0.0001", code=3)["cases"]
    assert "skipped" in {row["status"] for row in rows} <= {"done", "skipped"}
    rows = run("tune", str(recorded))["cases"]
    assert [(row["status"], row["measured_configs"]) for row in rows] == [("done", 2)] * 2


def test_a_module_that_raises_is_said_with_the_line_and_the_others_go_on(recorded, write):
    write("broken.py", "import autotuned\nraise RuntimeError('no licence')\n")
    with open(recorded, "a") as file:
        [line, *_] = recorded.read_text().splitlines()
        line = line.replace('"shop:gather"', '"broken:gather"').replace('"shop.gather"', '"broken.gather"')
        file.write(line.replace('"id": "', '"id": "z') + "\n")
    rows = run("tune", str(recorded), code=3)["cases"]
    [reason] = [row["reason"] for row in rows if row["kernel"] == "broken.gather"]
    assert "RuntimeError: no licence" in reason and "broken.py" in reason
    assert [row["status"] for row in rows].count("done") == 2


def test_a_recording_that_is_not_there_is_one_line(tmp_path):
    result = CliRunner().invoke(app, ["tune", str(tmp_path / "none.jsonl")])
    assert result.exit_code == 1 and "it cannot be read: No such file" in result.stderr


def test_what_a_budget_leaves_out_is_counted_and_its_arguments_are_not_made(recorded, monkeypatch):
    """Of 20,000 recorded calls each had its tensors made, and two lines of its own, to say that it was left out."""
    left_s = iter([100.0])
    monkeypatch.setattr(results.TuneOptions, "left_s", lambda self, start: next(left_s, 0.0))
    made, call_of = [], replay.call_of
    monkeypatch.setattr(replay, "call_of", lambda *args: made.append(args) or call_of(*args))
    arguments = ["tune", str(recorded), "--budget", "100"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 3 and len(made) == 1
    assert "not begun: 1 of 2 cases" in result.stdout and "skipped" not in result.output
    made.clear()
    rows = run(*arguments, code=3)["cases"]
    assert (
        [row["status"] for row in rows] == ["skipped"] * 2 and not made and all(row["call"]["values"] for row in rows)
    )


def test_warmup_reads_once_what_is_stored_however_many_calls_are_not_tuned(recorded, monkeypatch):
    """Each of 20,000 that were not read all records again, to name the nearest: more than eight minutes."""
    read, stored_keys = [], explain.stored_keys
    monkeypatch.setattr(explain, "stored_keys", lambda kernel: read.append(kernel) or stored_keys(kernel))
    rows = run("warmup", str(recorded), code=1)["calls"]
    assert len(rows) == 2 and all("NotTunedError" in row["reason"] for row in rows)
    assert read == ["shop.gather"]


def test_a_file_that_a_recording_names_is_run_only_if_it_is_given_too(recorded, write, tmp_path):
    """Whoever wrote a recording could have any file run by `tune` and `warmup`."""
    write("script.py", "open('was run', 'a').close()\n" + APP.replace("BLOCKS", "(16, 32)"))
    text = recorded.read_text().replace('"shop:gather"', json.dumps(f"{tmp_path}/script.py:gather"))
    recorded.write_text(text.replace('"shop.gather"', '"script.gather"'))
    for command in ("tune", "warmup"):
        rows = run(command, str(recorded), code=1)
        reasons = {row["reason"] for row in rows["cases" if command == "tune" else "calls"]}
        [reason] = reasons
        assert f"expected the file {tmp_path}/script.py among the targets" in reason
        assert not (tmp_path / "was run").exists()
    for other in (".", "./", "../" + tmp_path.name + "/"):
        done = run("tune", str(recorded), f"{other.rstrip('.')}script.py" if other == "." else f"{other}script.py")
        assert [row["status"] for row in done["cases"]] == ["done"] * 2
        assert done["skipped"] == []
    assert (tmp_path / "was run").exists()
    assert all(row["config"] for row in run("warmup", str(recorded), "script.py")["calls"])
    write("other.py", APP.replace("BLOCKS", "(16, 32)"))
    assert [row["reason"] is None for row in run("warmup", str(recorded), "other.py", code=1)["calls"]] == [False] * 2


@pytest.mark.parametrize("target", ["shop", "shop:gather"])
def test_of_a_module_with_several_kernels_the_recorded_one_is_tuned(recorded, write, target):
    """It said "too many values to unpack"."""
    text = APP.replace("BLOCKS", "(16, 32)")
    write("shop.py", text.replace("def gather", "def other") + text)
    sys.modules.pop("shop")
    recorded.write_text(recorded.read_text().replace('"shop:gather"', json.dumps(target)))
    done = run("tune", str(recorded))
    assert [(row["kernel"], row["status"]) for row in done["cases"]] == [("shop.gather", "done")] * 2
    recorded.write_text(recorded.read_text().replace('"kernel": "shop.gather"', '"kernel": "shop.gone"'))
    [reason] = {row["reason"] for row in run("tune", str(recorded), code=1)["cases"]}
    assert "recorded kernel 'shop.gone': " in reason and "Record again" in reason


@pytest.mark.parametrize("context", [{}, {"device": None}, {"device": {}}, {"device": {"kind": "cpu"}}, None, []])
def test_a_recorded_call_without_a_device_is_no_call(recorded, context):
    """`report --calls` ended with KeyError: 'device'."""
    lines = [json.loads(line) for line in recorded.read_text().splitlines() if line.strip()]
    first = next(line for line in lines if "key" in line)
    first["key"]["context"] = context
    recorded.write_text("\n".join(map(json.dumps, lines)))
    done = CliRunner().invoke(app, ["report", "--calls", str(recorded)])
    assert done.exit_code == 1 and "nothing is tuned" in done.output and "KeyError" not in done.output
    assert len(run("list", "--missing", "--calls", str(recorded))["missing"]) == 1


def test_compile_workers_know_the_other_kernels_of_a_recording_if_one_is_gone(recorded):
    text = recorded.read_text()
    recorded.write_text(text + text.replace("shop:gather", "gone:gather").replace('"id": "', '"id": "f'))
    assert [found.tuned is None for found in cases.load([str(recorded)])] == [False, True]
    assert compile_server._kernels([str(recorded)]).keys() <= {"shop.gather"}
