"""Tests of `arrange` and of `autotuned run`: processes that know nothing of us."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

APP = """
import sys
assert "triton" not in sys.modules, "imported before the program asked for it"
import triton, triton.runtime.autotuner
run = triton.runtime.autotuner.Autotuner.run
print("wrapped" if hasattr(run, "in_front_of") else "plain", triton.autotune.__module__, type(triton.__loader__).__name__)
"""

FAILED = """
import sys
sys.modules["triton.runtime"] = None  # as a module that cannot be imported
try:
    import triton
except ImportError:
    del sys.modules["triton.runtime"]
else:
    raise AssertionError("imported")
for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
    del sys.modules[name]
"""


def run(*command, path=(), env=None, cwd=None):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **(env or {})}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=cwd)
    return done.returncode, done.stdout, done.stderr


def autotuned_run(*arguments, **options):
    return run(sys.executable, "-c", "from autotuned.cli.main import app; app()", "run", *arguments, **options)


@pytest.fixture
def app(tmp_path):
    file = tmp_path / "app.py"
    file.write_text(APP)
    return str(file)


def test_a_program_is_seeded(app):
    code, out, err = autotuned_run("--", sys.executable, app)
    assert (code, out) == (0, "wrapped triton.runtime.autotuner SourceFileLoader\n"), err


def test_a_program_is_replaced(app):
    code, out, err = autotuned_run("--replace", "--", sys.executable, app)
    assert (code, out) == (0, "wrapped autotuned.dropin.replaced SourceFileLoader\n"), err


@pytest.mark.parametrize(
    "first",
    ["import importlib.util; importlib.util.find_spec('triton'); importlib.util.find_spec('triton')", FAILED],
    ids=["looked up", "failed"],
)
def test_a_program_that_does_not_import_triton_at_its_first_try_is_seeded(tmp_path, first):
    file = tmp_path / "app.py"
    file.write_text(first + APP)
    code, out, err = autotuned_run("--", sys.executable, str(file))
    assert (code, out) == (0, "wrapped triton.runtime.autotuner SourceFileLoader\n"), err


@pytest.mark.parametrize("more", [[], ["--replace"]], ids=["seeded", "replaced"])
def test_a_program_is_raced(tmp_path, more):
    file = tmp_path / "app.py"
    file.write_text("import triton.runtime.autotuner as a\nprint(hasattr(a.Autotuner._bench, 'in_front_of'))")
    code, out, err = autotuned_run(*more, "--race", "--json", "--", sys.executable, str(file))
    assert (code, out) == (0, "True\n"), err
    assert f'"install": "{"replace-race" if more else "race"}"' in err


def test_a_race_gets_the_budget_of_the_command_and_a_nested_command_without_a_race_does_not(tmp_path):
    file = tmp_path / "app.py"
    file.write_text("import triton\nfrom autotuned.dropin import stock_tuner\nprint(stock_tuner.racing.budget_s)")
    inner = [sys.executable, "-c", "from autotuned.cli.main import app; app()", "run", "--", sys.executable, str(file)]
    for command, budget_s in (([sys.executable, str(file)], "2.5"), (inner, "None")):
        code, out, err = autotuned_run("--race", "--budget", "2.5", "--json", "--", *command)
        assert (code, out) == (0, f"{budget_s}\n"), err
        assert '"budget_s": 2.5' in err


def test_an_infinite_budget_is_passed_on(tmp_path):
    file = tmp_path / "app.py"
    file.write_text("import triton\nfrom autotuned.dropin import stock_tuner\nprint(stock_tuner.racing.budget_s)")
    code, out, err = autotuned_run("--race", "--budget", "inf", "--json", "--", sys.executable, str(file))
    assert (code, out) == (0, "inf\n"), err
    assert json.loads(err.splitlines()[0])["budget_s"] == "inf"


@pytest.mark.parametrize("options", [["--budget", "5"], ["--race", "--budget", "0"], ["--race", "--budget", "nan"]])
def test_a_budget_needs_a_race_and_a_number_above_0(options):
    code, _, err = autotuned_run(*options, "--", sys.executable, "-c", "")
    assert code == 2 and "expected seconds above 0, and --race" in " ".join(err.replace("│", " ").split())


def test_processes_that_a_program_starts_are_seeded_too(tmp_path, app):
    parent = tmp_path / "parent.py"
    parent.write_text(f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, {app!r}]).returncode)")
    code, out, err = autotuned_run("--", sys.executable, str(parent))
    assert (code, out) == (0, "wrapped triton.runtime.autotuner SourceFileLoader\n"), err


def test_without_the_command_nothing_is_installed(app):
    code, out, err = run(sys.executable, app)
    assert (code, out) == (0, "plain triton.runtime.autotuner SourceFileLoader\n"), err


def test_exit_code_and_options_are_the_commands_own(tmp_path):
    file = tmp_path / "app.py"
    file.write_text("import sys; print(sys.argv[1:]); sys.exit(7)")
    code, out, _ = autotuned_run("--", sys.executable, str(file), "--replace", "-x", "--help")
    assert (code, out) == (7, "['--replace', '-x', '--help']\n")


def test_a_command_that_is_not_there_is_one_line():
    code, out, err = autotuned_run("--", "no-such-command-here")
    assert (code, out) == (127, "")
    assert err == "error: no-such-command-here: no such command; type what you would type without autotuned.\n"


def test_an_empty_command_is_one_line():
    code, out, err = autotuned_run("--", "")
    assert (code, out) == (126, "") and err.startswith("error: '' cannot be run: ") and err.count("\n") == 1


def test_an_empty_folder_for_binaries_is_refused():
    code, _, err = autotuned_run("--binaries", "", "--", "true")
    assert code == 2 and "expected a folder, got an empty string" in err


def test_the_programs_own_sitecustomize_runs(tmp_path, app):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(
        "import sys; print('mine', __file__ == sys.modules['sitecustomize'].__file__)"
    )
    code, out, err = autotuned_run("--", sys.executable, app, path=[own])
    assert code == 0, err
    assert out == "mine True\n" * 2 + "wrapped triton.runtime.autotuner SourceFileLoader\n"  # the command itself, too


def test_a_program_whose_own_sitecustomize_fails_is_seeded(tmp_path, app):
    (tmp_path / "sitecustomize.py").write_text("1 / 0")
    code, out, err = autotuned_run("--", sys.executable, app, path=[tmp_path])
    assert (code, out) == (0, "wrapped triton.runtime.autotuner SourceFileLoader\n"), err
    assert "ZeroDivisionError" in err


@pytest.mark.parametrize("given", ["", ":", ":here", "here:", "here::there", " here : there "])
def test_the_program_gets_its_own_pythonpath_behind_ours(tmp_path, given):
    show = [sys.executable, "-c", "import sys; print(sys.path)"]
    _, plain, _ = run(*show, env={"PYTHONPATH": given}, cwd=tmp_path)
    code, ours, err = autotuned_run("--", *show, env={"PYTHONPATH": given}, cwd=tmp_path)
    added = [path for path in ast.literal_eval(ours) if path not in ast.literal_eval(plain)]
    assert (code, len(added)) == (0, 1), err
    assert [path for path in ast.literal_eval(ours) if path not in added] == ast.literal_eval(plain)


def test_a_python_without_this_package_runs_as_ever(tmp_path):
    import autotuned

    startup = Path(autotuned.__file__).parent / "dropin" / "startup"
    code = "import sys; sys.path = [p for p in sys.path]; print('fine')"
    done = run(sys.executable, "-S", "-c", code, path=[startup], env={"AUTOTUNED_INSTALL": "seed"})
    assert done == (0, "fine\n", "")
    # With `site`, and this package out of reach: the folder stands alone.
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "sitecustomize.py").write_text(
        (startup / "sitecustomize.py").read_text().replace("autotuned.dropin.import_hook", "autotuned_not_here.arrange")
    )
    assert run(sys.executable, "-c", code, path=[alone])[:2] == (0, "fine\n")


def test_a_wrong_value_is_said_and_the_program_runs(app):
    import autotuned

    startup = Path(autotuned.__file__).parent / "dropin" / "startup"
    code, out, err = run(sys.executable, app, path=[startup], env={"AUTOTUNED_INSTALL": "everything"})
    assert (code, out) == (0, "plain triton.runtime.autotuner SourceFileLoader\n")
    assert "AUTOTUNED_INSTALL: expected one of seed, replace, race, replace-race, got 'everything'" in err
