"""The start of every test: an empty store, no options in the environment, and the interpreter if there is no GPU."""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import itertools
import logging
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest


def _gpu_is_there() -> bool:
    # From the driver: importing torch takes a second, and triton must not be imported before the interpreter is
    # chosen below.
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


GPU = _gpu_is_there()
# Kernels for a pretended GPU are compiled in a separate process: see `tests/project/test_compiled.py`.
if not GPU and os.environ.get("AUTOTUNED_TESTS") != "compiled":
    os.environ.setdefault("TRITON_INTERPRET", "1")
# On small tensors more threads of torch and NumPy gain nothing: they spin while they wait, on cores that other workers
# need.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tests rewrite modules within a second, at equal size, and Python would use stale bytecode. That of collected files is
# kept: rewriting the assertions of all tests takes longer than importing them.
sys.dont_write_bytecode = False
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
os.environ.pop("PYTHONUNBUFFERED", None)  # output must arrive without it
gc.disable()  # until the first test: nearly all imported and collected objects stay alive


def _end_at_once() -> None:
    """End a worker, whose exit status nobody reads: taking down all that was imported and collected takes seconds."""
    if _worker == os.getpid():  # not in its forked children
        os._exit(0)


_worker = 0
atexit.register(_end_at_once)  # before any other, to run last
# A shell's background jobs ignore Ctrl-C, but children of tests must not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _hide_config_files_of_other_packages() -> None:
    """Shadow distributions that have config files by empty ones of the same name, for child processes too.

    Other installed packages must not change what a test sees; of two distributions of a name, Python uses the first.
    """
    named = [one for one in metadata.distributions() if one.entry_points.select(group="autotuned.configs")]
    if not named:
        return
    shadows = tempfile.mkdtemp(prefix="autotuned-tests-")
    atexit.register(shutil.rmtree, shadows, ignore_errors=True)
    for one in named:
        folder = Path(shadows, f"{one.metadata['Name'].replace('-', '_')}-{one.version}.dist-info")
        folder.mkdir()
        folder.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {one.metadata['Name']}\nVersion: 0\n")
    sys.path.insert(0, shadows)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [shadows, os.environ.get("PYTHONPATH")]))


_hide_config_files_of_other_packages()


def _scan_distributions_once() -> None:
    """Read the entry points once for each `sys.path`: each test's first miss would, in 5 to 10 ms."""
    scan = metadata.entry_points
    once = functools.cache(lambda path, wanted: scan(**dict(wanted)))
    metadata.entry_points = lambda **wanted: once(tuple(sys.path), tuple(sorted(wanted.items())))


_scan_distributions_once()

# State to clear between tests, by module, if it was imported.
_STATE = {
    "autotuned.configfiles.lookup": ("_registered", "_files", "_packages", "_looked_at", "_devices"),
    "autotuned.configfiles.writer": ("_ends",),
    "autotuned.store.records": ("_done",),
    "autotuned.disk": ("_cache_dirs",),
    "autotuned.api.decorator": ("_explicit_names",),
    "autotuned.search.exclusions": ("process",),
    "autotuned.key.opaque": ("_kept",),
    "autotuned.env": ("_pushed", "_said", "connected"),
    "autotuned.remote.connection": ("_of_environment",),
}
_numbers = itertools.count()
_launches: list[object] = []

# Files and single tests that take most of the time of a run: `pytest -m "not slow"` leaves them out.
QUICK = "not slow"
# Begun first, each on another worker: begun late, they would be the last to end.
_LONGEST = ["project/test_compiled", "project/test_workflow", "project/test_app", "distributed/test_agreement"]
_SLOW_FILES = {
    "acceptance/test_acceptance", "api/test_static", "api/test_tuned", "cli/test_at_a_terminal", "cli/test_clear", "cli/test_commands",
    "cli/test_device", "cli/test_doctor", "cli/test_main", "cli/test_stored", "cli/test_tune", "cli/test_tune_out",
    "configfiles/test_git_merge", "configfiles/test_packaged", "distributed/test_agreement", "dropin/test_import_hook",
    "kernels/test_kernels", "offline/test_devices", "offline/workers/test_process", "offline/workers/test_ray_cluster",
    "project/test_app", "project/test_compiled", "project/test_core_alone", "project/test_libraries",
    "project/test_packaging", "project/test_surroundings", "project/test_workflow", "offline/release/test_shared",
    "offline/test_covering",
    "remote/test_client", "remote/test_faults", "remote/test_fleet", "resolve/test_single_flight",
    "search/test_race_on_samples", "stress/test_stress", "upstream/test_interpreted_autotuner",
    "whole/test_environments", "whole/test_paths", "whole/test_processes", "whole/test_start",
}  # fmt: skip
_SLOW_TESTS = {
    "test_a_case_becomes_a_call", "test_a_kernel", "test_a_kernel_has_one_name_and_key_however_it_is_reached",
    "test_a_neighbour_among_10_000_entries_is_found_by_looking_at_a_few",
    "test_a_recording_is_tuned_most_called_first_and_serves_in_strict_mode",
    "test_a_tensor_without_memory_has_no_words_in_either_way",
    "test_another_gpu_of_the_architecture_takes_none_of_them",
    "test_b14_b34_processes_that_differ_in_nothing_that_matters_share_a_choice",
    "test_b20_b21_what_is_edited_between_processes", "test_b33_a_tuned_function_is_pickled_by_its_name",
    "test_b34_the_folder_is_ones_own_variable_read_at_first_use",
    "test_b47_a_mutated_record_is_served_right_or_moved_aside_with_one_warning_and_healed",
    "test_b62_a_run_that_died_is_not_repeated",
    "test_b62_b42_what_a_killed_job_had_skipped_is_measured_when_it_is_tuned",
    "test_b62_what_ended_two_processes_has_failed_for_good",
    "test_b96_eight_workers_of_a_thousand_calls_write_at_most_eight_lines",
    "test_digests_agree_between_versions_of_python", "test_doctor_names_what_is_too_old", "test_examples_run",
    "test_import_and_decoration_look_for_no_folder_and_never_initialise_cuda",
    "test_it_is_the_best_over_all_members_that_loses_to_no_default", "test_lists_are_read_as_torch_reads_them",
    "test_neighbours_among_10_000_entries_are_found_by_an_index_that_is_made_once", "test_no_gpu_and_no_interpreter",
    "test_no_more_than_40_and_only_where_something_changes",
    "test_a_rehearsal_without_a_gpu", "test_of_pretended_kernels_it_knows_more_than_a_grid_of_as_many",
    "test_promised_bounds_hold_for_calls_nobody_measured",
    "test_the_example_is_tuned_while_it_serves",
    "test_the_exit_code_is_the_commands_and_a_second_run_is_added",
    "test_the_files_pass_check_with_the_kernels_as_they_are", "test_the_nearest_of_10_000_sizes_on_one_axis_is_found",
    "test_the_page_of_many_calls_stays_small_and_says_what_it_left_out",
    "test_without_the_extension_everything_works_and_says_so",
}  # fmt: skip


# Tests that build wheels and environments, run all pages of the documentation or parts of the suite, or rehearse a
# benchmark take too long for a run of everything. `pytest -m apart`, their file's name and `.ci/run` run them.
_APART_FILES = {"project/test_app", "project/test_packaging", "project/test_workflow"}
_APART_TESTS = {
    "test_a_part_of_the_tests_passes_beside_other_packages", "test_a_rehearsal_without_a_gpu", "test_examples_run",
    "test_in_a_second_container_nothing_is_compiled_and_nothing_that_compiles_is_needed",
    "test_real_processes_measure_in_their_way", "test_the_core_needs_neither_torch_nor_triton",
    "test_the_example_is_tuned_while_it_serves",
    "test_the_script_for_several_gpus_can_be_rehearsed_on_the_cpu",
}  # fmt: skip
_WHOLE = "PYTEST_WHOLE_SUITE"  # set for the workers too


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist starts its workers
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the whole suite on all cores; a few files, or with a GPU everything, stay in one process."""
    option = config.option
    is_decided = getattr(option, "numprocesses", 0) is not None  # by `-n`, or without pytest-xdist
    is_part = config.args_source is config.ArgsSource.ARGS or option.collectonly or option.usepdb
    if not is_part and not option.markexpr:
        os.environ[_WHOLE] = "1"
    os.environ.setdefault("PYTEST_FORKED_RUN", uuid.uuid4().hex)  # see `support/forked.py`
    # A worker comes by here too, and so do the suites that tests start: none of them starts workers of its own.
    if GPU or is_decided or is_part or "PYTEST_XDIST_WORKER" in os.environ:
        return
    # One more than cores for the slow tests: a tenth of their time is waiting for time limits, signals and locks.
    wanted = (os.cpu_count() or 1) + (option.markexpr != QUICK)
    option.numprocesses, option.dist = min(wanted, 8), "worksteal"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Make warnings errors from here on: plugins may warn during their setup."""
    global _worker
    _worker = os.getpid() * hasattr(session.config, "workerinput")
    session.config.addinivalue_line("filterwarnings", "error")
    from hypothesis import HealthCheck, settings

    # A busy machine is not a failure: examples and their generation have no time limit.
    settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("suite")


def pytest_collection_finish() -> None:
    """Write no bytecode of modules that tests write."""
    sys.dont_write_bytecode = True


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Let plugins warn again after the last test, and exclude collected tests from garbage collection.

    It visits all objects, millions for thousands of tests: most of the time of Python's own collections, of tests that
    collect, and of the end of the process.
    """
    gc.enable()
    gc.set_threshold(20_000)  # tests make many objects, and few of them are rings
    gc.freeze()
    atexit.register(gc.unfreeze)  # not before, since pytest collects several times when a run ends
    if testing := sys.modules.get("typer.testing"):  # reads the hints of all commands at each call of one
        testing._get_command = functools.cache(testing._get_command)
    if interpreter := sys.modules.get("triton.runtime.interpreter"):
        import interpreted

        interpreted.faster(interpreter)
    try:
        return (yield)
    finally:
        session.config.getini("filterwarnings").remove("error")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Exclude a file's leftover objects from later collections, as above: a hundred files leave a lot."""
    if nextitem is None or nextitem.path != item.path:
        _take_spare_launches()
        gc.collect()
        gc.freeze()


def _take_spare_launches() -> None:
    """Hold the spare launch objects of `kernel[grid]`: once frozen, a later test's cycle through one is never found."""
    if launch := sys.modules.get("autotuned._launch"):
        kernel = launch.Base.__new__(type("Any", (launch.Base,), {}))
        _launches.extend(kernel[(1,)] for _ in range(64))


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, object, object]:
    """Escape lone surrogates: pytest-xdist would abort the run at a report with one."""
    return _escaped((yield))


def _escaped(data: object) -> object:
    if isinstance(data, str):
        return data.encode("utf-8", "backslashreplace").decode()
    if isinstance(data, dict):
        return {_escaped(name): _escaped(value) for name, value in data.items()}
    return type(data)(map(_escaped, data)) if isinstance(data, list | tuple) else data


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files whose tests are all deselected."""
    return True if config.option.markexpr == QUICK and _name(collection_path) in _SLOW_FILES else None


@functools.cache
def _name(path: Path) -> str:
    # As in the lists above.
    folder = Path(__file__).parent
    return path.relative_to(folder).with_suffix("").as_posix() if path.is_relative_to(folder) else path.stem


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, object]:
    """Let each worker begin with a different part of a folder.

    In a new checkout they rewrite the assertions of all tests, which takes most of the time of collection: each finds
    on disk what others have rewritten.
    """
    report = yield
    if isinstance(collector, pytest.Directory) and os.environ.get(_WHOLE) and "PYTEST_XDIST_WORKER" in os.environ:
        count, number = int(os.environ["PYTEST_XDIST_WORKER_COUNT"]), int(os.environ["PYTEST_XDIST_WORKER"][2:])
        first = len(report.result) * number // count
        report.result = [*report.result[first:], *report.result[:first]]
    return report


def _dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Order the tests so that each worker's share, a part of the list, begins with some of the longest."""
    longest = [item for name in _LONGEST for item in items if _name(item.path) == name]
    others, dealt = iter([item for item in items if _name(item.path) not in _LONGEST]), []
    for number in range(workers):
        size, first = (len(items) - len(dealt)) // (workers - number), longest[number::workers]
        dealt += [*first, *itertools.islice(others, max(0, size - len(first)))]
    return dealt


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests without a GPU, mark slow and apart ones, and begin with the longest."""
    if os.environ.get(_WHOLE):
        items.sort(key=lambda item: item.path.parts)  # the same in each worker
    if changing := [item.nodeid for item in items if " at 0x" in item.nodeid]:  # different in each worker
        raise pytest.UsageError(f"expected names that are the same in each process, got {changing[:3]}; give ids=")
    items[:] = _dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)))
    for item in items:
        if _name(item.path) in _SLOW_FILES or getattr(item, "originalname", item.name) in _SLOW_TESTS:
            item.add_marker("slow")
        if _name(item.path) in _APART_FILES or getattr(item, "originalname", item.name) in _APART_TESTS:
            item.add_marker("apart")
            if os.environ.get(_WHOLE):
                item.add_marker(pytest.mark.skip(reason="apart: `pytest -m apart` runs it"))
        if not GPU and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture
def knobs_as_before() -> Iterator[None]:
    """Undo changes to Triton's knobs: `monkeypatch` does so by setting them, and then their variables count no more."""
    knobs = sys.modules.get("triton.knobs")
    with contextlib.ExitStack() as stack:
        for group in vars(knobs).values() if knobs else ():
            if isinstance(group, knobs.base_knobs):
                stack.enter_context(group.scope())
        yield


@pytest.fixture(autouse=True)
def fresh_state(
    knobs_as_before: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A cache folder for each test, and nothing left over from earlier tests."""
    for name in [name for name in os.environ if name.startswith("AUTOTUNED_")]:
        monkeypatch.delenv(name)
    # Hypothesis times the garbage collector, in Python: there threads take over while another one parses, which Python
    # 3.11 before 3.11.8 does not bear, and a KeyboardInterrupt is lost.
    gc.callbacks[:] = [one for one in gc.callbacks if not str(one.__module__).startswith("hypothesis.")]
    # Not `tmp_path`: most tests never use the folder, and creating a thousand takes a second.
    folder = tmp_path_factory.getbasetemp() / f"cache-{next(_numbers)}"
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(folder))
    # Outside the checkout: a process started with -c or -m has its folder first on the path, and the sources there
    # would shadow the installed package.
    monkeypatch.chdir(tmp_path_factory.getbasetemp())
    _forget()
    # Most tests must not find the config files of this package.
    from autotuned.configfiles import lookup

    monkeypatch.setitem(lookup._packages, "own", [])
    yield
    _forget()
    _refuse_installed()


@pytest.fixture
def measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launch each config once in the interpreter, where a launch takes a tenth of a second, and repeat that sample."""
    from autotuned.search import timers

    def sample(timer: timers.HostTimer, trial: timers.Trial, count: int) -> list[float]:
        return [trial.samples_us[0] if trial.samples_us else timer._once(trial)] * count

    monkeypatch.setattr(timers.HostTimer, "sample", sample)


@pytest.fixture
def wide_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal wide enough for long lines."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Writes files into a new folder and imports one of them."""
    numbers = itertools.count()
    imported: set[str] = set()

    def write_and_import(module: str, **files: str) -> ModuleType:
        folder = tmp_path / f"version-{next(numbers)}"
        for name, text in files.items():
            path = folder / (name.replace("__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            for parent in path.relative_to(folder).parents[:-1]:
                (folder / parent / "__init__.py").touch()
            path.write_text(text, encoding="utf-8")
        before = set(sys.modules)
        top = module.partition(".")[0]
        with monkeypatch.context() as patch:
            for name in [name for name in sys.modules if name == top or name.startswith(f"{top}.")]:
                patch.delitem(sys.modules, name)  # of another test
            patch.syspath_prepend(str(folder))
            found = importlib.import_module(module)
        for name in set(sys.modules) - before:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
                imported.add(name)
        return found

    yield write_and_import
    assert not imported & set(sys.modules)


def _forget() -> None:
    for module, names in _STATE.items():
        loaded = sys.modules.get(module)
        for name in names if loaded else ():
            getattr(loaded, name).clear()
    log = logging.getLogger("autotuned")
    log.handlers.clear()
    log.setLevel(logging.NOTSET)
    log.propagate = True


def _refuse_installed() -> None:
    """Name the test that leaves `install()` on: others would fail in its place."""
    module = sys.modules.get("autotuned.dropin.install")
    if module is not None and getattr(module._installed.run, "active", False):
        module.uninstall()
        pytest.fail("expected that the test undoes install(), got a process in which it is on")


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Path]]:
    """Writes a file into a fresh current folder; modules imported from there are removed afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)

    def into_folder(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    yield into_folder
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
