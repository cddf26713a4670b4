"""`tune --devices`: real processes for pretended GPUs, in the interpreter; killed, interrupted, of several kinds."""

import importlib.util
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import fake_gpus
import forked
import pytest
from fake_gpus import MEET, command, environment, interrupted, log

from autotuned.store import listing


@pytest.fixture(scope="module")
def nvml(tmp_path_factory):
    """The folder with the library that knows of pretended GPUs."""
    folder = tmp_path_factory.mktemp("nvml")
    fake_gpus.library(folder)
    return str(folder)


@pytest.fixture
def fake(nvml):
    """The environment of a host with GPUs that are not there."""
    return lambda table: {"LD_LIBRARY_PATH": nvml, "FAKE_GPUS": table, "TRITON_INTERPRET": "1"}


def run(args: list[str], tmp_path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return forked.run(args, cwd=tmp_path, env=environment(**more), timeout=280)


def tune(tmp_path: Path, variables: dict[str, str], *options: str, code: int = 0, **made) -> dict:
    done = run(command(tmp_path, *options, "--json", **made), tmp_path, **variables)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_two_devices_share_the_cases_and_each_key_is_measured_on_one(tmp_path, fake):
    found = tune(tmp_path, fake(fake_gpus.TWO), "--devices", "0,1", "--out", "tuned", count=12)
    assert [case["call"]["values"]["n"] for case in found["cases"]] == list(range(12))
    assert {case["status"] for case in found["cases"]} == {"done"}
    assert [(gpu["name"], gpu["uuid"], gpu["restarts"]) for gpu in found["devices"]] == [
        ("GPU 0", "GPU-aaaa0000-1", 0),
        ("GPU 1", "GPU-aaab0000-2", 0),
    ]
    assert sum(gpu["cases"] for gpu in found["devices"]) == 12
    assert min(gpu["cases"] for gpu in found["devices"]) >= 2
    assert {line[0] for line in log(tmp_path)} == {"GPU-aaaa0000-1", "GPU-aaab0000-2"}
    by_key: dict[str, set[str]] = {}
    for gpu, _, n, _ in log(tmp_path):
        by_key.setdefault(n, set()).add(gpu)
    assert by_key.keys() == {str(n) for n in range(12)}
    assert all(len(gpus) == 1 for gpus in by_key.values())
    [file] = found["files"]
    assert len(re.findall(r'"median_us"', Path(file).read_text())) == 12


def test_they_run_at_the_same_time(tmp_path, fake):
    # Each waits, within its first launch, for a launch on the other device: alone it would wait for ever.
    found = tune(tmp_path, fake(fake_gpus.TWO), "--devices", "all", count=4, wait=MEET)
    assert {case["status"] for case in found["cases"]} == {"done"}


@pytest.mark.parametrize(
    ("devices", "visible", "expected"),
    [
        ("all", "1", ["GPU-aaab0000-2"]),
        ("0", "1,0", ["GPU-aaab0000-2"]),
        ("GPU-aaab", None, ["GPU-aaab0000-2"]),
    ],
)
def test_a_process_sees_its_own_device_by_uuid(tmp_path, fake, devices, visible, expected):
    variables = fake(fake_gpus.TWO) | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    found = tune(tmp_path, variables, "--devices", devices, count=2, before="note(str(n) + ' made')")
    assert [gpu["uuid"] for gpu in found["devices"]] == expected
    assert {line[0] for line in log(tmp_path)} <= set(expected)


def test_a_slice_is_a_device(tmp_path, fake):
    found = tune(tmp_path, fake(fake_gpus.SLICES), "--devices", "MIG-1112", count=1)
    assert [(gpu["name"], gpu["uuid"]) for gpu in found["devices"]] == [("GPU 1", "MIG-1112-b")]
    assert {line[0] for line in log(tmp_path)} == {"MIG-1112-b"}


def test_every_kind_of_device_tunes_every_case_into_files_of_its_own(tmp_path, fake):
    (tmp_path / "kinds").touch()
    found = tune(tmp_path, fake(fake_gpus.MIXED), "--devices", "all", "--out", "tuned", count=3)
    slugs = ("cpu-nvidia-h100-sm_90-100", "cpu-nvidia-a100-sm_80-100")
    assert [(case["device"], case["call"]["values"]["n"]) for case in found["cases"]] == [
        (slug, n) for slug in slugs for n in range(3)
    ]
    assert [gpu["cases"] for gpu in found["devices"]] == [3, 3]
    assert {Path(file).parent.name for file in found["files"]} == set(slugs)
    for file in found["files"]:
        text = Path(file).read_text()
        assert len(re.findall(r'"median_us"', text)) == 3
        assert ("A100" in text) != ("H100" in text)


def test_a_killed_process_is_replaced_and_its_key_is_finished_by_another(tmp_path, fake):
    # The process dies between two cases, where no config can be blamed; the listing has been through it before.
    died = "if n == 3 and 'listing' != os.environ.get('X') and (HERE / 'log').exists(): end_once(n)"
    found = tune(tmp_path, fake(fake_gpus.TWO), "--devices", "all", count=6, before=died)
    assert [case["status"] for case in found["cases"]] == ["done"] * 6
    assert sum(gpu["restarts"] for gpu in found["devices"]) == 1
    assert (tmp_path / "died-3").exists()
    assert [gpu["given_up"] for gpu in found["devices"]] == [None, None]


def test_a_process_that_ends_is_replaced_although_what_it_forked_lives_on(tmp_path, fake):
    """A process forked by a generator holds all that the first one had open: the end of its pipe does not come."""
    forked = (
        "if n == 2 and (HERE / 'log').exists() and not (HERE / 'died-2').exists():\n"
        "            if os.fork() == 0:\n"
        "                os.setsid(); os.closerange(0, 3); time.sleep(60); os._exit(0)\n"
        "            end_once(2)"
    )
    found = tune(tmp_path, fake(fake_gpus.TWO), "--devices", "0", count=4, before=forked)
    assert [case["status"] for case in found["cases"]] == ["done"] * 4
    assert (tmp_path / "died-2").exists() and found["devices"][0]["restarts"] == 1


def test_kernels_read_nothing_of_what_their_process_is_told(tmp_path, fake):
    reads = "if n == 1: import subprocess; note(f'read {len(subprocess.run([\"cat\"], capture_output=True).stdout)}')"
    found = tune(tmp_path, fake(fake_gpus.TWO), "--devices", "0", "--timeout", "20", count=3, wait=reads)
    assert [case["status"] for case in found["cases"]] == ["done"] * 3
    assert [line[3] for line in log(tmp_path) if line[2] == "read"][0] == "0"


def test_a_process_may_end_by_a_signal_without_a_name(tmp_path, fake):
    found = tune(
        tmp_path, fake(fake_gpus.TWO), "--devices", "0", count=2, wait="if n: os.kill(os.getpid(), 36)", code=3
    )
    assert [case["status"] for case in found["cases"]] == ["done", "failed"]
    assert "Crashed: the process ended by signal 36 while it was launched" in found["cases"][1]["reason"]


def test_a_device_that_ends_every_process_is_given_up_and_the_other_does_its_share(tmp_path, fake):
    bad = "note('here -'); gpu().startswith('GPU-aaab') and os.kill(os.getpid(), signal.SIGKILL)"
    # The good one waits, within its first launch, until the other has ended three times.
    wait = "while sum(line.startswith('GPU-aaab') for line in open(HERE / 'log')) < 3: time.sleep(0.01)"
    found = tune(tmp_path, fake(fake_gpus.TWO), "--devices", "all", count=4, before=bad, wait=wait)
    assert [case["status"] for case in found["cases"]] == ["done"] * 4
    assert [gpu["cases"] for gpu in found["devices"]] == [4, 0]
    assert found["devices"][1]["given_up"] == "the process ended by SIGKILL"


def test_a_case_that_ends_every_process_fails_alone(tmp_path, fake):
    ends = "if n == 1: os.kill(os.getpid(), signal.SIGKILL)"
    found = tune(tmp_path, fake(fake_gpus.TWO), "--devices", "0", count=4, wait=ends, code=3)
    assert [case["status"] for case in found["cases"]] == ["done", "failed", "done", "done"]
    assert "Crashed: the process ended by SIGKILL while it was launched" in found["cases"][1]["reason"]


def test_what_lies_behind_a_case_that_no_process_survives_making_fails_too(tmp_path, fake):
    """Whoever is to measure a later case must let the generator make this one first."""
    listed = "if n == 1 and (HERE / 'listed').exists(): os.kill(os.getpid(), signal.SIGKILL)"
    listed += "\n        if n == 2: (HERE / 'listed').touch()"
    found = tune(tmp_path, fake(fake_gpus.TWO), "--devices", "0", count=3, before=listed, code=3)
    assert [case["status"] for case in found["cases"]] == ["done", "failed", "failed"]
    for case in found["cases"][1:]:
        assert case["reason"].startswith("the measuring process ended 3 times with it, and no config can be blamed")


def test_ctrl_c_ends_all_processes_and_keeps_what_was_measured(tmp_path, fake):
    args = command(tmp_path, "--devices", "all", "--json", "--out", "tuned", count=2000)
    variables = fake(fake_gpus.TWO)
    process = subprocess.Popen(
        args, cwd=tmp_path, env=environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, err = interrupted(process, tmp_path)
    assert process.returncode == 130, err
    found = json.loads(out)
    assert found["interrupted"]
    done = [case for case in found["cases"] if case["status"] == "done"]
    cut_off = [case for case in found["cases"] if case not in done]
    assert 0 < len(done) < 2000 and {case["reason"] for case in cut_off} <= {"interrupted"} and len(cut_off) <= 2
    assert len(list(listing.all_records())) >= len(done)
    [file] = found["files"]
    assert len(re.findall(r'"median_us"', Path(file).read_text())) == len(done)
    assert not [pid for pid in {line[1] for line in log(tmp_path)} if Path(f"/proc/{pid}").exists()]
    again = tune(tmp_path, variables, "--devices", "all", count=len(done))
    assert {case["source"] for case in again["cases"]} <= {"stored", "measured"}
    assert [case["source"] for case in again["cases"]].count("stored") >= len(done) - 2


def test_processes_end_with_the_command_that_started_them(tmp_path, fake):
    args = command(tmp_path, "--devices", "all", count=2000)
    process = subprocess.Popen(args, cwd=tmp_path, env=environment(**fake(fake_gpus.TWO)), stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while len({line[1] for line in log(tmp_path)} if (tmp_path / "log").exists() else ()) < 2:
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.wait()
    pids = {line[1] for line in log(tmp_path)}
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_case_listed_twice_is_measured_once_even_with_force(tmp_path, fake):
    found = tune(tmp_path, fake(fake_gpus.TWO), "--devices", "all", "--force", count=2, before="n = n // 2")
    assert sorted(case["source"] for case in found["cases"]) == ["measured", "stored"]


def test_a_budget_is_for_all_devices_together(tmp_path, fake):
    found = tune(
        tmp_path, fake(fake_gpus.TWO), "--devices", "all", "--budget", "6", count=300, code=3, wait="time.sleep(0.1)"
    )
    assert found["seconds"] < 25  # all of them would take 30 s and more
    assert len(found["cases"]) == 300
    assert {case["reason"] for case in found["cases"] if case["status"] == "skipped"} == {"the budget is used up"}
    assert any(case["status"] == "done" for case in found["cases"])


def test_progress_names_the_devices(tmp_path, fake):
    """In a terminal; elsewhere the results are all that is said."""
    on_terminal = [sys.executable, "-c", "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"]
    tune = command(tmp_path, "--devices", "all", count=6, wait=MEET)
    done = run([*on_terminal, *tune], tmp_path, TERM="xterm", COLUMNS="200", **fake(fake_gpus.TWO))
    assert done.returncode == 0, done.stdout
    for name in ("GPU 0", "GPU 1"):
        assert re.search(rf"{name}  kernels\.work  n=\d", done.stdout), done.stdout


IN_TURN = """
import contextlib, io, json, sys
from autotuned.cli.main import app
for options in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            code = app(["tune", "kernels.py", *options])
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, " ".join(said.getvalue().replace("\u2502", " ").split())]))
"""


def refused(tmp_path, options, **variables) -> list[tuple[int, str]]:
    """What `tune` with each of these options ends with and says, one after the other in one process."""
    command(tmp_path)
    program = [sys.executable, "-c", IN_TURN, json.dumps(options)]
    done = run(program, tmp_path, COLUMNS="400", **variables)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "log").exists()
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_what_cannot_be_had_is_said_before_anything_starts(tmp_path, fake):
    wrong = [
        (["--devices", "2"], "'2' matches none of the visible GPUs (0: NVIDIA H100 80GB HBM3"),
        (["--devices", "0,0"], "expected each GPU once"),
        (["--devices", "GPU-aaa"], "'GPU-aaa' matches 2"),
        (["--devices", "all", "--in-process"], "expected without devices, which needs processes"),
        (["--isolate", "--in-process"], "--isolate, --in-process: expected one of the two, got both"),
        (["--devices", "0", "--executor", "ray"], "with executor ray, which finds the GPUs itself"),
        (["--executor", "slurm"], "expected local or ray, got 'slurm'"),
        (["--executor", "ray", "--in-process"], "expected without executor ray"),
        (["--ray-address", "auto"], "expected with executor ray only"),
    ]
    found = refused(tmp_path, [options for options, _ in wrong], **fake(fake_gpus.TWO))
    for (options, words), (code, said) in zip(wrong, found, strict=True):
        assert code == 2 and words in said, (options, code, said)
    [(code, said)] = refused(tmp_path, [["--devices", "all"]], **fake(""))
    assert code == 1 and "expected GPUs, and there is none" in said


@pytest.mark.parametrize("name", ["AUTOTUNED_COMPILE_WORKERS", "AUTOTUNED_DEVICE"])
def test_an_option_in_the_environment_that_says_nothing_is_wrong_usage(tmp_path, fake, name):
    options = [["--devices=all"], ["--isolate"], ["--in-process"]]
    found = refused(tmp_path, options, **fake(fake_gpus.TWO), **{name: "many"})
    assert len(found) == 3
    for code, said in found:
        assert code == 2 and f"{name}: expected" in said and "got 'many'" in said, said


def test_an_environment_that_hides_all_is_said(tmp_path, fake):
    done = run(command(tmp_path, "--devices", "all"), tmp_path, CUDA_VISIBLE_DEVICES="", **fake(fake_gpus.TWO))
    assert done.returncode == 1
    assert "CUDA_VISIBLE_DEVICES='' leaves none of the 2 here" in done.stderr


@pytest.mark.skipif(bool(importlib.util.find_spec("ray")), reason="Ray is installed")
def test_without_ray_it_is_said_how_to_get_it(tmp_path, fake):
    done = run(command(tmp_path, "--executor", "ray"), tmp_path, **fake(""))
    assert done.returncode == 1
    assert "expected Ray, and it is not installed. Run: pip install 'autotuned[ray]'" in done.stderr
