import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotuned.errors import CallError, TargetError
from autotuned.offline import targets
from autotuned.tunable.call import Call

TUNED = """
from autotuned import Config, autotune

@autotune(configs=[Config({"step": 1}), Config({"step": 2})])
def work(n, step):
    return n * step

@autotune(configs=[Config({"step": 1})])
def other(n, step):
    return n

again = work

def plain(n):
    return n
"""
Write = Callable[[str, str], Path]


def _names(target: str) -> list[str]:
    return [found.name for found in targets.load(target)]


# -- targets that can be had ----------------------------------------------------------------------------------------


def test_a_module_gives_each_tuned_object_once_and_in_order(write: Write) -> None:
    write("mod_order.py", TUNED)
    assert _names("mod_order") == ["mod_order.work", "mod_order.other"]


def test_a_colon_names_one_kernel(write: Write) -> None:
    write("mod_one.py", TUNED)
    assert _names("mod_one:other") == _names("mod_one.py:other") == ["mod_one.other"]


def test_a_kernel_inside_a_class_is_named_with_it(write: Write) -> None:
    write("mod_class.py", TUNED + "class Ops:\n    inner = other\n")
    assert _names("mod_class:Ops.inner") == ["mod_class.other"]


def test_the_current_folder_can_be_imported_from(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("mod_cwd.py", TUNED)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(Path.cwd()))])
    assert _names("mod_cwd") == ["mod_cwd.work", "mod_cwd.other"]


def test_a_file_in_a_package_is_the_module_of_that_package(write: Write) -> None:
    write("pkg_a/__init__.py", "")
    write("pkg_a/sub/__init__.py", "")
    path = write("pkg_a/sub/kernels.py", "from . import helper\n" + TUNED)
    write("pkg_a/sub/helper.py", "")
    by_path, by_name = targets.load(str(path)), targets.load("pkg_a.sub.kernels")
    assert [found.tuned for found in by_path] == [found.tuned for found in by_name]
    assert by_path[0].name == "pkg_a.sub.kernels.work"


def test_a_package_can_be_given_by_its_init_file(write: Write) -> None:
    path = write("pkg_init/__init__.py", TUNED)
    assert targets.load(str(path))[0].tuned is targets.load("pkg_init")[0].tuned
    assert _names(str(path))[0] == "pkg_init.work"


@pytest.mark.parametrize("stem", ["math", "statistics", "two.words", "my-kernels"])
def test_a_file_whose_name_cannot_be_imported_is_loaded_all_the_same(write: Write, stem: str) -> None:
    path = write(f"odd/{stem}.py", TUNED)
    assert _names(str(path)) == [f"{stem}.work", f"{stem}.other"]
    assert targets.load(str(path))[0].tuned is targets.load(str(path))[0].tuned
    assert "prod" in vars(sys.modules["math"]) and "mean" in vars(sys.modules["statistics"])


def test_two_files_of_one_name_are_two_modules(write: Write) -> None:
    paths = [write(f"{folder}/same_stem.py", TUNED) for folder in ("one", "two", "three")]
    assert len({id(targets.load(str(path))[0].tuned) for path in paths}) == 3


WHO = """
if __name__ == "__main__":
    print(work.tuner.tunable.name, work.tuner.chooser.key(work.tuner.call((3,), {}, None)).digest)
"""


def test_a_kernel_has_one_name_and_key_however_it_is_reached(write: Write) -> None:
    write("pkg_way/__init__.py", "")
    write("pkg_way/helper.py", "def twice(n):\n    return 2 * n\n")
    body = TUNED.replace("n * step", "twice(n) * step").replace("\nfrom", "\nfrom pkg_way.helper import twice\nfrom", 1)
    path = write("pkg_way/kernels.py", body + WHO)
    [found, _] = targets.load(str(path))
    key = found.tuner.chooser.key(found.tuner.call((3,), {}, None))
    for command in (["-m", "pkg_way.kernels"], [str(path)]):
        run = subprocess.run(
            [sys.executable, "-c", f"import sys, runpy; sys.path.insert(0, '.'); {_as_main(command)}"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert run.stdout.split() == ["pkg_way.kernels.work", key.digest]


SPAWNING = """
if __name__ == "__main__":
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(work.tuner.tunable.name, pool.apply(name))


def name():
    return work.tuner.tunable.name
"""


def test_a_script_has_one_name_in_the_processes_that_it_spawns_too(write: Write) -> None:
    """Its kernels were those of `__mp_main__` there: nothing that was tuned served, and no recording could be tuned."""
    text = SPAWNING.split("\n\n\n")
    path = write("spawning_app.py", TUNED + "\n\n" + "\n\n".join(reversed(text)))
    run = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60)
    assert run.stdout.split() == ["spawning_app.work"] * 2, run.stderr


def _as_main(command: list[str]) -> str:
    # Not `python file.py`: the folder with the package must be on the path in both ways, for its helper.
    if command[0] == "-m":
        return f"runpy.run_module({command[1]!r}, run_name='__main__')"
    return f"runpy.run_path({command[0]!r}, run_name='__main__')"


# -- targets that cannot -------------------------------------------------------------------------------------------


def _refusal(target: str) -> str:
    with pytest.raises(TargetError) as caught:
        targets.load(target)
    assert caught.value.target == target
    text = str(caught.value)
    assert text.startswith(f"target {target!r}: ") and "\n" not in text
    return text


@pytest.mark.parametrize("target", ["a..b", ".a", "", ":kernel", "some/folder", "a\\b"])
def test_what_is_neither_module_nor_file_is_refused(target: str) -> None:
    assert targets.FORMS in _refusal(target)


def test_a_recording_of_another_suffix_is_no_module(write: Write) -> None:
    """It was said that there is no module named 'calls'."""
    write("calls.json", "{}")
    assert "name that ends in .jsonl" in _refusal("calls.json")
    write("calls.jsonl", "{}")
    assert "give its file alone" in _refusal("calls.jsonl:work")


def test_a_folder_and_a_forgotten_suffix_are_recognised(write: Write) -> None:
    write("dir/kernels_x.py", TUNED)
    assert "This is a folder" in _refusal("./dir")
    assert "Did you mean 'dir/kernels_x.py'?" in _refusal("dir/kernels_x")


def test_a_missing_module_says_where_it_was_looked_for_and_what_is_near(write: Write) -> None:
    write("pkg_near/__init__.py", "")
    write("pkg_near/kernels.py", TUNED)
    top = _refusal("pkg_naer")
    assert "no module named 'pkg_naer'" in top and "PYTHONPATH" in top and "Did you mean 'pkg_near'?" in top
    assert "Did you mean 'pkg_near.kernels'?" in _refusal("pkg_near.kernel")


def test_a_dot_in_place_of_the_colon_is_recognised(write: Write) -> None:
    write("mod_dot.py", TUNED)
    assert "is written 'mod_dot:work'" in _refusal("mod_dot.work")


def test_a_kernel_of_another_programs_main_cannot_be_imported() -> None:
    """Here `__main__` is the command line; the error must not speak of that module."""
    text = _refusal("__main__:work")
    assert (
        "expected a kernel that can be imported, got one of another program's `__main__`. Put it into a module" in text
    )


def test_a_missing_file_names_the_nearest(write: Write) -> None:
    path = write("kernels_y.py", TUNED)
    assert f"there is no file {path.with_name('kernel_y.py')}. Did you mean {str(path)!r}?" in _refusal("kernel_y.py")
    (folder := path.with_name("kernels_z.py")).mkdir()
    assert f"expected a file, got the folder {folder}." in _refusal("kernels_z.py")


FAILING = {
    "syntax": ("x = 1\ndef f(:\n", "syntax error at {path}:2: "),
    "exception": ("def f():\n    raise RuntimeError('two\\nlines')\nf()\n", "{path}:2: RuntimeError: two lines."),
    "without text": ("x = 1\nassert not x\n", "{path}:2: AssertionError."),
    "missing import": (
        "import no_such_module_x\n",
        "{path}:1: ModuleNotFoundError: No module named 'no_such_module_x'.",
    ),
    "exit": ("import sys\nsys.exit(3)\n", "{path}:2: SystemExit: 3. Put the script part under"),
    "decoration": (
        "from autotuned import Config, autotune\n@autotune(configs=[Config({'s': 1})], key=['m'])\ndef f(n, s): ...\n",
        "{path}:2: ArgumentNameError: `{stem}.f`: key names no argument: 'm'.",
    ),
}


@pytest.mark.parametrize("how", ["module", "file", "taken name"])
@pytest.mark.parametrize(("text", "message"), FAILING.values(), ids=FAILING)
def test_a_module_that_cannot_be_imported_says_where_and_why(write: Write, how: str, text: str, message: str) -> None:
    stem = "math" if how == "taken name" else "mod_failing"
    path = write(f"{stem}.py", text)
    assert message.format(path=path, stem=stem) in _refusal(stem if how == "module" else str(path))
    assert targets.naming.BY_PATH_PREFIX + "math" not in sys.modules


def test_a_package_that_fails_is_told_from_a_file_that_does(write: Write) -> None:
    init = write("pkg_broken/__init__.py", "import no_such_module_y\n")
    path = write("pkg_broken/kernels.py", TUNED)
    assert f"{init}:1: ModuleNotFoundError" in _refusal(str(path))


def test_an_unknown_kernel_names_the_nearest(write: Write) -> None:
    write("mod_typo.py", TUNED)
    text = _refusal("mod_typo:wrok")
    assert "no kernel 'wrok'. Did you mean 'work'? Tuned in it: work, other, again." in text
    assert "'plain' is not tuned: put @autotune on it." in _refusal("mod_typo:plain")


def test_a_module_without_tuned_kernels_says_so(write: Write) -> None:
    write("mod_empty.py", "x = 1\n")
    assert "nothing in it is tuned" in _refusal("mod_empty")
    assert "name modules of it: autotuned.kernels.layernorm_bwd, " in _refusal("autotuned.kernels")


def test_ctrl_c_while_importing_is_not_taken_for_a_failing_module(write: Write) -> None:
    write("mod_stop.py", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        targets.load("mod_stop")


# -- cases ---------------------------------------------------------------------------------------------------------


def _kernel() -> targets.TunedObject:
    from autotuned.kernels import rmsnorm

    return next(targets.tuned_objects(rmsnorm))


def test_a_case_becomes_a_call() -> None:
    from autotuned.kernels import rmsnorm

    found = _kernel()
    case = next(rmsnorm.cases("cpu"))
    call = targets.bind(found, case)
    assert isinstance(call, Call) and call.grid == case["grid"] and call.arguments["N_COLS"] == 100


def test_heuristics_around_a_tuned_kernel_add_their_arguments(write: Write) -> None:
    write(
        "mod_heuristics.py",
        """
import triton, triton.language as tl
from autotuned import Config, autotune

@triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0, "TWICE": lambda args: 2 * args["n"] + args["EVEN"]})
@autotune(configs=[Config({"B": 16}), Config({"B": 32})])
@triton.jit
def kernel(x, n, EVEN: tl.constexpr, TWICE: tl.constexpr, B: tl.constexpr):
    pass
""",
    )
    [found] = targets.load("mod_heuristics")
    assert found.name == "mod_heuristics.kernel" and len(found.outer) == 1
    call = targets.bind(found, {"args": (None,), "kwargs": {"n": 4}, "grid": (1,)})
    assert call.arguments["EVEN"] is True and call.arguments["TWICE"] == 9


ODD_CASES = {
    "a tuple": ((1, 2), r"expected dict\(args=.* got tuple"),
    "a typo": ({"arg": (1,)}, r"got the fields arg"),
    "no grid": ({"args": ()}, r"needs a grid"),
    "a missing argument": ({"args": (), "grid": (1,)}, r"'x_ptr' is missing"),
}


@pytest.mark.parametrize(("case", "message"), ODD_CASES.values(), ids=ODD_CASES)
def test_a_case_that_is_no_call_is_refused(case: object, message: str) -> None:
    with pytest.raises(CallError, match=message):
        targets.bind(_kernel(), case)


def test_a_plain_callable_takes_no_grid(write: Write) -> None:
    write("mod_grid.py", TUNED)
    with pytest.raises(CallError, match="takes no grid"):
        targets.bind(targets.load("mod_grid:work")[0], {"args": (1,), "grid": (1,)})


@pytest.mark.parametrize("name", ["nowhere.at_all.kernel", "json.dumps", "single"])
def test_a_name_that_leads_nowhere_is_an_error(name: str) -> None:
    with pytest.raises(TargetError, match="cannot be imported"):
        targets.find_kernel(name)


def test_a_module_that_fails_says_so(write: Write) -> None:
    write("mod_broken.py", "1 / 0")
    with pytest.raises(TargetError, match="ZeroDivisionError"):
        targets.find_kernel("mod_broken.kernel")
