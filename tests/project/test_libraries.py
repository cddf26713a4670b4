"""The script that runs real libraries: what it starts in which order, keeps, goes on with and tells."""

import argparse
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from pids import is_running
from waits import until

import autotuned

FOLDER = Path(__file__).parents[1] / "libraries"
sys.path.insert(0, str(FOLDER))
import meter  # noqa: E402
import operations  # noqa: E402
import plan  # noqa: E402
import report  # noqa: E402
import run as script  # noqa: E402

sys.path.remove(str(FOLDER))
KERNELS = """
import triton, triton.language as tl

def bench(call, quantiles):
    call()
    return [1.0, 1.0, 1.0]

@triton.autotune([triton.Config({"BLOCK": block}) for block in (32, 64, 128)], key=["n"], do_bench=bench)
@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)
"""
OPERATIONS = """
from plan import Operation

def double():
    import torch
    import mykernels
    x = torch.arange(100.0)
    def call():
        y = torch.zeros(100)
        mykernels.double[lambda meta: (-(-100 // meta["BLOCK"]),)](x, y, 100)
        return [y]
    return call

def broken():
    raise ImportError("no such part")

OPERATIONS = (
    Operation("mine double", "mykernels", "mine", double, ("mykernels",)),
    Operation("mine broken", "mykernels", "mine", broken),
    Operation("other", "nonesuch", "none-such", broken),
)
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
    (tmp_path / "mykernels.py").write_text(KERNELS)
    (tmp_path / "own.py").write_text(OPERATIONS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    def command(*arguments):
        fixed = ["--out", str(tmp_path / "out"), "--operations", str(tmp_path / "own.py"), "--seconds", "0"]
        whole = [sys.executable, str(FOLDER / "run.py"), *fixed, *arguments]
        return subprocess.run(whole, capture_output=True, text=True, timeout=300)

    command.lines = lambda: script.Results(tmp_path / "out").all()
    return command


def test_real_processes_measure_in_their_way(command):
    done = command("--ways", "stock,replace")
    assert done.returncode == 0, done.stderr
    assert "other: left out, none-such is not installed" in done.stdout
    about, *lines = command.lines()
    assert about["versions"]["torch"] and about["versions"]["none-such"] is None
    found = {(line["operation"], line["way"], line["phase"]): line for line in lines}
    ways = (("stock", "cold"), ("ahead", "cold"), ("replace", "warm"))
    stock, ahead, replace = (found[("mine double", way, phase)] for way, phase in ways)
    assert stock["bits"] == ahead["bits"] == replace["bits"]
    assert stock["choices"] == replace["choices"] and len(stock["choices"]) == 1
    assert set(stock["spent_s"]) == set(meter.SPENT) and stock["host_us"] > 0
    assert stock["searches"] == [] and [(one["configs"], one["quality"]) for one in ahead["searches"]] == [
        (3, "unresolved")
    ]
    assert found["mine broken", "stock", "cold"]["error"] == "ImportError: no such part"
    assert found["mine broken", "replace", "warm"]["error"] == "the cold process before it failed"
    assert "| mine double |" in command("--table").stdout
    assert command("--ways", "stock,replace", "--list").stdout.splitlines()[1:] == [""]


PRETENDED = """
def pretend():
    import fake_cuda, pytest
    fake_cuda.install(pytest.MonkeyPatch())

OPERATIONS = (Operation("mine double", "mykernels", "mine", double, ("mykernels",), stand_in=pretend),)
"""


def test_in_a_second_container_nothing_is_compiled_and_nothing_that_compiles_is_needed(command, tmp_path, monkeypatch):
    with (tmp_path / "own.py").open("a") as file:
        file.write(PRETENDED)
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(FOLDER.parent / "support")]))
    done = command("--ways", "no-compiler")
    assert done.returncode == 0, done.stderr
    _, cold, there = command.lines()
    assert [(line["phase"], line.get("error")) for line in (cold, there)] == [("cold", None), ("container", None)]
    assert cold["compiles"] == cold["ptxas"] == 3
    assert (there["compiles"], there["ptxas"]) == (0, 0)
    assert cold["bits"] == there["bits"] and cold["choices"] == there["choices"]
    told = report.report([cold, there, {**there, "way": "binaries"}], ["mine double"])
    assert "| mine double | " in told.partition("second container")[2]


def test_what_compiles_is_broken_where_that_is_asked_for():
    code = """
import sys, subprocess
sys.path.insert(0, {folder!r})
import meter, triton
from triton import compiler
kept = compiler.compile
meter.break_compilers()
for run in (lambda: kept(None), lambda: subprocess.run(["cc"]), lambda: subprocess.run(["/x/ptxas", "--version"])):
    try:
        run()
    except (AssertionError, OSError) as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code.format(folder=str(FOLDER))], capture_output=True, text=True)
    started = "expected that no compiler is started, got "
    assert done.stdout.splitlines() == ["expected that nothing is compiled", f"{started}cc", f"{started}ptxas"]


def test_where_no_library_is_installed_the_required_ones_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(plan.importlib.machinery.PathFinder, "find_spec", lambda name, path: None)
    with pytest.raises(SystemExit, match="fla-core mamba-ssm liger-kernel not installed; pip install"):
        script.present(operations.OPERATIONS)


def test_the_operations_are_of_nine_libraries_and_import_none():
    packages = {one.package for one in operations.OPERATIONS}
    assert len(packages) == 9
    assert not packages & set(sys.modules)
    assert [one.name for one in operations.OPERATIONS if one.main] == ["fla forgetting_attn", "mamba ssd, forward", "liger DyT"]  # fmt: skip
    assert {one.package for one in operations.OPERATIONS if one.required} == {"fla", "mamba_ssm", "liger_kernel"}


ONE = plan.Operation("main one", "json", "json", list, main=True)
TWO = plan.Operation("two", "json", "json", list, environment={"TWO": "2"})


def test_the_order_is_what_says_most_first():
    made = plan.tasks((ONE, TWO), plan.DEFAULT, None, 2)
    assert [str(task) for task in made[:5]] == [
        "main one: stock, cold, 0", "main one: ahead, cold, 0", "main one: race, cold, 0", "main one: replace, cold, 0",
        "main one: ahead, second, 0",
    ]  # fmt: skip
    two = [task for task in made if task.operation == "two"]
    assert [task[1:] for task in two] == [("stock", "cold", 0), ("ahead", "cold", 0), ("race", "cold", 0), ("replace", "warm", 0), ("ahead", "second", 0)]  # fmt: skip
    assert made.index(two[0]) < made.index(plan.Task("main one", "stock", "cold", 1))
    assert {task.repeat for task in made if task.operation == "main one"} == {0, 1}
    assert plan.tasks((TWO,), ["stock"], ["second"], 1) == []  # stock has no store


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """A runner whose processes are a function: `runner.answer(environment, command)` gives a result, or raises."""
    seen = []

    def started(command, environment, folder, limit_s):
        caches = {name: Path(environment[name]) for name in ("AUTOTUNED_CACHE_DIR", "TRITON_CACHE_DIR")}
        full = tuple(any(folder.iterdir()) for folder in caches.values())
        seen.append(SimpleNamespace(command=command, environment=environment, full=full))
        for folder in caches.values():
            (folder / "something").touch()
        return make.answer()

    monkeypatch.setattr(script, "started", started)
    monkeypatch.setattr(script, "autotuned", lambda: "autotuned")

    def make(state="state"):
        options = argparse.Namespace(
            out=tmp_path,
            state=tmp_path / state,
            budget=100.0,
            timeout=50.0,
            seconds=0.0,
            operations=tmp_path / "own.py",
        )
        return script.Runner(options, (ONE, TWO), script.Results(tmp_path))

    make.seen, make.answer, make.results = seen, lambda: (0, 'noise\n{"first_s": 1.0}\n', ""), script.Results(tmp_path)
    return make


@pytest.mark.parametrize(
    ("phase", "full"), [("cold", (False, False)), ("second", (True, False)), ("warm", (True, True))]
)
def test_each_phase_finds_the_caches_that_it_is_about(runner, phase, full):
    one = runner()
    assert one.run(plan.Task("two", "race", phase, 0))
    assert runner.seen[-1].full == full
    assert one.run(plan.Task("two", "race", phase, 1))
    assert runner.seen[-1].full == full
    assert [line["phase"] for line in runner.results.all()] == (["cold"] if phase != "cold" else []) + [phase] * 2


def test_another_container_has_what_was_kept_elsewhere_and_nothing_else(runner, tmp_path, monkeypatch):
    (tmp_path / "libs").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "libs"))
    kept = tmp_path / "state" / "two-binaries" / "kept"

    def answer():
        seen, asked = runner.seen[-1], runner.seen[-1].command
        folder = Path(asked[asked.index("--binaries") + 1])
        seen.found = folder, sorted(one.name for one in folder.glob("*"))
        seen.libraries = Path(seen.environment["PYTHONPATH"])
        assert seen.libraries.samefile(tmp_path / "libs")
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "one.bin").touch()
        return 0, '{"first_s": 1.0}', ""

    runner.answer = answer
    assert runner().run(plan.Task("two", "no-compiler", "container", 0))
    cold, broken = runner.seen
    assert cold.full == broken.full == (False, False)
    assert cold.found == (kept, []) and cold.libraries == tmp_path / "libs"
    assert broken.found[0] != kept and broken.found[1] == ["one.bin"] and broken.libraries != tmp_path / "libs"
    assert broken.environment["PATH"] == "/nonexistent" and "TRITON_PTXAS_PATH" not in broken.environment
    assert cold.environment["TRITON_PTXAS_PATH"] and "LIBRARIES_BROKEN" not in cold.environment


def of_a_rank(seconds, bits="a"):
    return {"imports_s": 1.0, "inputs_s": 0.0, "first_s": seconds, "bits": bits, "compiles": 2, "compile_s": 1.5,
            "cache_hits": 1, "memory_mb": {"self": 100.0, "child": 10.0}}  # fmt: skip


def test_ranks_of_one_host_begin_at_once_and_make_one_line(runner):
    left = iter([4.0, 9.0, *[5.0] * 6])
    runner.answer = lambda: (0, json.dumps(of_a_rank(next(left))), "")
    assert runner().run(plan.Task("two", "ahead-8", "cold", 0))
    ranks = sorted(int(one.environment["LOCAL_RANK"]) for one in runner.seen)
    assert ranks == [*range(8)] and {one.environment["LOCAL_WORLD_SIZE"] for one in runner.seen} == {"8"}
    (line,) = runner.results.all()
    assert (line["first_s"], line["compiles"], line["memory_mb"]["self"], line["ranks_same"]) == (9.0, 16, 800.0, True)
    assert "| two | -, -, - | 9.0, 0, 800 |" in report._ranks(report.Lines([line]), ["two"])


@pytest.mark.parametrize("faulty", [{"error": "no"}, of_a_rank(1.0, "b")])
def test_a_rank_that_fails_or_differs_is_told(faulty):
    found = script.together([of_a_rank(1.0), faulty])
    assert found == faulty if "error" in faulty else found["ranks_same"] is False


def test_a_process_is_started_as_a_user_would_start_it(runner):
    runner().run(plan.Task("two", "race", "cold", 0))
    runner().run(plan.Task("two", "stock", "cold", 0))
    race, stock = runner.seen
    assert race.command[:4] == ["autotuned", "run", "--race", "--"]
    assert stock.command == race.command[4:] and stock.command[-1] == "two"
    assert race.environment["TWO"] == "2"
    assert Path(race.environment["TRITON_PTXAS_PATH"]).stat().st_mode & 0o111


def test_replaced_processes_use_what_those_that_compile_ahead_have_left(runner):
    one = runner()
    one.run(plan.Task("two", "ahead", "cold", 0))
    one.run(plan.Task("two", "replace", "warm", 0))
    assert [line["way"] for line in runner.results.all()] == ["ahead", "replace"]
    runner("elsewhere").run(plan.Task("two", "replace", "second", 0))  # another machine: its caches are not there
    assert [(line["way"], line["repeat"]) for line in runner.results.all()[2:]] == [("ahead", 1), ("replace", 0)]


def test_a_process_that_fails_leaves_a_line_and_what_needs_it_too(runner):
    runner.answer = lambda: (1, "", "Traceback\nValueError: no\n")
    assert runner().run(plan.Task("two", "ahead", "second", 0))
    assert runner().run(plan.Task("two", "replace", "warm", 0))
    cold, second, warm = runner.results.all()
    assert (cold["phase"], cold["error"], cold["exit"]) == ("cold", "ValueError: no", 1)
    assert second["error"] == warm["error"] == "the cold process before it failed"
    assert len(runner.seen) == 1
    assert len(runner.results.done(again=False)) == 3 and runner.results.done(again=True) == set()


@pytest.mark.parametrize(("budget_s", "kept"), [(100.0, True), (20.0, False)])
def test_a_process_past_its_time_is_an_error_and_past_the_budget_is_run_again(runner, budget_s, kept):
    def answer():
        raise subprocess.TimeoutExpired("child", 1.0)

    runner.answer, one = answer, runner()
    one._deadline = script.time.monotonic() + budget_s
    assert one.run(plan.Task("two", "stock", "cold", 0)) is kept
    assert [line["error"] for line in runner.results.all()] == ["not done after 50 s"] * kept


def test_a_line_that_was_cut_off_is_run_again(runner):
    runner().run(plan.Task("two", "stock", "cold", 0))
    runner.results.add({"operation": "two"} | dict(way="stock", phase="warm", repeat=0))
    file = runner.results._file
    file.write_text(file.read_text()[:-5])
    assert runner.results.done(False) == {plan.Task("two", "stock", "cold", 0)}


def line(way, phase="cold", first_s=10.0, host_us=100.0, **more):
    spent = {"tuned compile": 6.0, "tuned measure": 2.0, "tuned other": 0.0, "other compile": 1.5, "rest": 0.5}
    fixed = {"operation": "one", "repeat": 0, "bits": "a", "repeats": True, "choices": {"k": "1"}, "launches": 2,
             "ptxas": 7, "memory_mb": {"self": 500.0}, "spent_s": spent}  # fmt: skip
    return {**fixed, "way": way, "phase": phase, "first_s": first_s, "host_us": host_us, **more}


def test_the_tables_have_medians_ratios_and_what_failed():
    half = {"tuned compile": 1.5, "tuned measure": 2.0, "tuned other": 0.0, "other compile": 1.5, "rest": 0.0}
    lines = [line("stock", first_s=s) for s in (9.0, 30.0, 10.0)]
    lines += [line("ahead", spent_s=half, first_s=4.0), line("ahead", "second", first_s=1.0), line("replace", "warm", host_us=50.0)]  # fmt: skip
    lines += [{"operation": "one", "way": "race", "phase": "cold", "repeat": 0, "error": "out of memory"}]
    told = report.report(lines, ["one", "never run"])
    assert "| one | 10.0 | 4.0 (2.5) | 1.5 | 7, 7 |" in told
    assert "| one | 4.00 | 1.00 | 10.00 |" in told
    assert "| one | 2 | 100, 100, 50 | 50.0, 50.0, 25.0 | 0.50 |" in told
    assert "| compiling configs of tuned kernels, summed, ahead; operations: 1 | 6.0 s | 1.5 s | 4.0 |" in told
    assert "| most host memory of a cold process, ahead | 500 MB | 500 MB | 1.0 |" in told
    assert "| host time, replace / stock: geometric mean, most |  |  | 0.50, 0.50 |" in told
    assert "- one, race, cold: out of memory" in told
    assert "never run" not in told


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ({}, "equal"),
        ({"bits": "b", "choices": {"k": "2"}}, "other configs"),
        ({"bits": "b"}, "DIFFER"),
        ({"bits": "b", "repeats": False}, "differ from call to call"),
    ],
)
def test_bits_are_compared_where_the_same_configs_were_chosen(ours, said):
    told = report.report([line("stock"), line("ahead", **ours)], ["one"])
    assert f"| one | {said} | - | - |" in told


@pytest.mark.parametrize(
    ("frames", "spent"),
    [
        ([("app.py", "main")], "rest"),
        ([("triton/runtime/autotuner.py", "run"), ("triton/compiler/compiler.py", "compile")], "other compile"),
        ([("triton/runtime/autotuner.py", "_bench"), ("triton/testing.py", "do_bench"), ("triton/compiler/compiler.py", "compile")], "tuned compile"),
        ([("triton/runtime/autotuner.py", "benchmark"), ("triton/testing.py", "do_bench")], "tuned measure"),
        ([("/x/autotuned/dropin/ahead.py", "wait")], "tuned compile"),
        ([("/x/autotuned/search/search.py", "run"), ("/x/autotuned/search/race.py", "go")], "tuned measure"),
        ([("/x/autotuned/search/search.py", "run"), ("/x/autotuned/search/compiling/compile.py", "go")], "tuned compile"),
        ([("triton/runtime/autotuner.py", "benchmark"), ("/x/autotuned/dropin/ahead.py", "all"), ("/x/autotuned/search/compiling/crew.py", "wait")], "tuned compile"),
        ([("/x/autotuned/dropin/raced.py", "times")], "tuned other"),
        ([("/x/autotuned/dropin/raced.py", "times"), ("<frozen importlib._bootstrap>", "_load")], "imports"),
    ],
)  # fmt: skip
def test_time_is_told_apart_by_what_is_on_the_stack(frames, spent):
    frame = None
    for path, name in frames:
        frame = frame_of(path, name, frame)
    assert meter.spent_on(frame) == spent


def frame_of(path, name="function", back=None):
    return SimpleNamespace(f_code=SimpleNamespace(co_filename=path, co_name=name), f_back=back)


def test_the_files_by_which_it_is_told_are_there():
    """A file that moved would count as something else."""
    files = [f"/{path}" for path in Path(autotuned.__file__).parent.rglob("*.py")]
    parts = [part for part, _ in meter._DOES if "/autotuned/" in part] + list(meter._SEARCHES)
    assert [part for part in parts if not any(part in file for file in files)] == []
    assert {what for file in files if "/search/compiling/" in file for what in [meter.spent_on(frame_of(file))]} == {
        "tuned compile"
    }


def test_the_sampler_does_not_count_threads_of_a_pool():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert thread.ident in meter._pools() and threading.main_thread().ident not in meter._pools()
    stop.set()
    thread.join()
    with meter.Sampler() as sampler:
        threading.Event().wait(0.05)
    assert sampler.seconds["rest"] > 0 and sum(sampler.seconds.values()) == sampler.seconds["rest"]


def test_json_is_found_behind_what_libraries_print():
    assert script.last_json('{"a": 1}\n{not json}\nbye\n') == {"a": 1}
    assert script.last_json("nothing") is None
    assert json.loads(json.dumps(script.about([ONE])))["versions"]["torch"]


def test_whole_programs_have_tokens_a_second_and_the_time_to_the_first_step():
    whole = {"tokens": 64, "whole_us": 2e6, "imports_s": 2.0, "inputs_s": 1.0}
    told = report.report([line("stock", **whole), line("replace", "warm", first_s=4.0, **whole)], ["one"])
    assert "| one | 13.0, 7.0 (warm) | 32, 32 |" in told
    assert "Whole programs" not in report.report([line("stock")], ["one"])


def test_the_programs_are_of_one_library_and_do_not_import_it():
    programs = plan.load(FOLDER / "programs.py")
    assert all(one.tokens > 0 and not one.required for one in programs)
    assert "fla" not in sys.modules


def test_a_process_past_its_time_is_ended_with_what_it_has_started(tmp_path):
    grandchild = f"import os, time; open({str(tmp_path / 'id')!r}, 'w').write(str(os.getpid())); time.sleep(100)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    with pytest.raises(subprocess.TimeoutExpired):
        script.started([sys.executable, "-c", code], os.environ, tmp_path, 5.0)
    until(lambda: not is_running(int((tmp_path / "id").read_text())), limit_s=10.0)
