"""Bad input of every kind: an error that says what was expected, what came, and what to do."""

import logging
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from fakes import FakeConfig
from paths import quick
from triton import Config

import autotuned
from autotuned import autotune, disk, store
from autotuned.errors import (
    ArgumentNameError,
    AutotunedError,
    CallError,
    ConfigError,
    DecorationError,
    PruningError,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]


@triton.jit
def double(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr, FACTOR: tl.constexpr = 2):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n_cols) * FACTOR, mask=i < n_cols)


def halve(x, n, *, step=1, mode="fast"):
    x *= 0.5


STEPS = [FakeConfig({"step": 1}), FakeConfig({"step": 2})]


@pytest.fixture
def xy():
    return torch.ones(50, device=DEVICE), torch.zeros(50, device=DEVICE)


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, "autotuned")
    return lambda: [record.getMessage() for record in caplog.records]


def says(caught, *parts):
    for part in parts:
        assert part in str(caught.value), part
    return True


# -- names at decoration ---------------------------------------------------------------------------------------------

ARGUMENTS = "Arguments are: x_ptr, y_ptr, n_cols, BLOCK, FACTOR."


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"key": ["n_col"]}, ["key names no argument: 'n_col'. Did you mean 'n_cols'?", ARGUMENTS]),
        ({"key": ["zzz"]}, ["key names no argument: 'zzz'. Arguments are:"]),
        ({"key": [3]}, ["key names no argument: 3"]),
        ({"restore_value": ["y_pt"]}, ["restore_value names no argument: 'y_pt'. Did you mean 'y_ptr'?", ARGUMENTS]),
        ({"reset_to_zero": ["y"]}, ["reset_to_zero names no argument: 'y'", ARGUMENTS]),
        (
            {"restore_value": ["y_ptr"], "reset_to_zero": ["y_ptr"]},
            ["'y_ptr' is in both restore_value and reset_to_zero", "name it in one"],
        ),
    ],
    ids=["key", "key-far", "key-number", "restore", "zero", "both"],
)
def test_names_at_decoration(options, parts):
    with pytest.raises(ArgumentNameError) as caught:
        autotune(CONFIGS, **options)(double)
    says(caught, "test_bad_input.double`: ", *parts)
    assert isinstance(caught.value, ValueError)
    assert caught.value.kernel.endswith("test_bad_input.double")


@pytest.mark.parametrize("label", ["key", "restore_value", "reset_to_zero"])
@pytest.mark.parametrize("value", ["n_cols", 5], ids=["text", "number"])
def test_a_list_of_names_given_as_something_else(label, value):
    with pytest.raises(DecorationError) as caught:
        autotune(CONFIGS, **{label: value})(double)
    says(caught, f"{label}: expected a list of argument names, got {value!r}", f"Write {label}=[{value!r}]")
    assert isinstance(caught.value, TypeError)


def test_a_bucket_of_what_is_not_in_the_key():
    for key in (None, ["x_ptr"]):
        with pytest.raises(DecorationError) as caught:
            autotune(CONFIGS, key=key, bucket={"n_cols": autotuned.pow2})(double)
        says(caught, "bucket: 'n_cols' must be listed in key=[...]")


def test_a_toolchain_of_a_kernel():
    """It would be left out of account."""
    with pytest.raises(DecorationError) as caught:
        autotune(CONFIGS, toolchain=["numpy"])(double)
    says(caught, "toolchain: expected none for a kernel", "got ['numpy']", "goes into version=")


# -- configs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("configs", "parts"),
    [
        ([Config({"BLOK": 16})], ["a config sets 'BLOK', which is no parameter of the kernel. Did you mean 'BLOCK'?"]),
        ([{"BLOCK": 16}], ["configs: expected triton.Config objects, got dict", "Write Config({'BLOCK': 64}"]),
        ([None], ["configs: expected triton.Config objects, got NoneType"]),
        (5, ["configs: expected a list of triton.Config, or a callable returning one, got int"]),
        (Config({"BLOCK": 16}), ["configs: expected a list of triton.Config", "got Config"]),
        (
            [Config({"BLOCK": 16}, pre_hook=print), Config({"BLOCK": 16}, pre_hook=repr)],
            ["two configs have the same values", "different pre_hooks", "Remove one, or give them different values"],
        ),
    ],
    ids=["unknown-parameter", "dict", "none", "number", "one-config", "same-values-other-hook"],
)
def test_configs(configs, parts):
    with pytest.raises(ConfigError) as caught:
        autotune(configs)(double)
    says(caught, "test_bad_input.double`: ", *parts)


def test_a_default_that_sets_no_parameter():
    with pytest.raises(ConfigError, match="a config sets 'BLOK', which is no parameter of the kernel"):
        autotune(CONFIGS, default=Config({"BLOK": 16}))(double)


@pytest.mark.parametrize(
    "default", [5, lambda **arguments: 5, lambda **arguments: [CONFIGS[0]]], ids=["5", "of", "list"]
)
def test_a_default_that_is_no_config(default, xy):
    with pytest.raises(ConfigError) as caught:
        autotune(CONFIGS, default=default)(double)[(4,)](*xy, 50)
    says(caught, "default: expected a triton.Config, or a callable of the arguments returning one, got ")


def test_an_empty_list_means_one_default_config(xy):
    tuned = autotune([])(double)
    (config,) = tuned.configs
    assert (config.kwargs, config.num_warps, config.num_stages, config.num_ctas) == ({}, 4, 3, 1)
    tuned[(4,)](*xy, 50, BLOCK=16)
    assert torch.equal(xy[1], 2 * xy[0])
    assert tuned.cache_info().searches == 0


def test_configs_may_be_a_generator(xy):
    tuned = autotune((Config({"BLOCK": block}) for block in (16, 32)), do_bench=quick)(double)
    assert [config.kwargs["BLOCK"] for config in tuned.configs] == [16, 32]
    for n in (50, 40):
        tuned[(4,)](*xy, n)
    assert tuned.cache_info().searches == 2


def test_a_config_listed_twice_counts_once():
    assert len(autotune([Config({"BLOCK": 16}), Config({"BLOCK": 16}), Config({"BLOCK": 32})])(double).configs) == 2


def test_a_callable_list_that_is_empty(xy):
    with pytest.raises(ConfigError) as caught:
        autotune(lambda **arguments: [])(double)[(4,)](*xy, 50)
    says(caught, "configs: the callable returned none for this call; return at least one")


def test_a_callable_list_that_sets_no_parameter(xy):
    with pytest.raises(ConfigError, match="a config sets 'BLOK', which is no parameter of the kernel"):
        autotune(lambda **arguments: [Config({"BLOK": 16})])(double)[(4,)](*xy, 50)


# -- pruners ---------------------------------------------------------------------------------------------------------


def broken(configs, named, **kwargs):
    raise ZeroDivisionError("in the pruner")


@pytest.mark.parametrize(
    ("pruner", "error", "parts"),
    [
        (lambda *a, **k: [], PruningError, ["left none of 2 configs for this call", "Keep at least one"]),
        (lambda *a, **k: iter(()), PruningError, ["left none of 2 configs"]),
        (lambda *a, **k: None, PruningError, ["expected a list of configs, got None. Return the configs to keep"]),
        (lambda *a, **k: [5], PruningError, ["expected triton.Config objects, got int: 5"]),
        (lambda *a, **k: 5, PruningError, ["expected a list of triton.Config", "got int"]),
        (broken, ZeroDivisionError, ["in the pruner"]),
    ],
    ids=["nothing", "empty-generator", "none", "strangers", "number", "raising"],
)
def test_pruners(pruner, error, parts, xy):
    tuned = autotune(CONFIGS, prune_configs_by={"early_config_prune": pruner})(double)
    for _ in range(2):
        with pytest.raises(error) as caught:
            tuned[(4,)](*xy, 50)
        says(caught, *parts)
    assert tuned.cache_info().searches == 0


def test_a_pruner_may_yield_duplicates_and_new_configs(xy):
    def prune(configs, named, **kwargs):
        yield configs[0]
        yield configs[0]
        yield Config({"BLOCK": 64})

    tuned = autotune(CONFIGS, do_bench=quick, prune_configs_by={"early_config_prune": prune})(double)
    tuned[(4,)](*xy, 50)
    assert torch.equal(xy[1], 2 * xy[0])
    ((_, record),) = store.all_records()
    assert [timing.config["kwargs"]["BLOCK"] for timing in record.timings] == [16, 64]


@pytest.mark.parametrize("top_k", [0, -1, 1.5, "2", None, True], ids=repr)
def test_top_k(top_k, xy):
    prune = {"perf_model": lambda **arguments: 1.0, "top_k": top_k}
    with pytest.raises(PruningError, match="top_k: expected an int of 1 or more, or a float above 0 and at most 1"):
        autotune(CONFIGS, prune_configs_by=prune)(double)[(4,)](*xy, 50)


# -- what is decorated -----------------------------------------------------------------------------------------------


def plain(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr, FACTOR: tl.constexpr = 2):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n_cols) * FACTOR, mask=i < n_cols)


TUNE = autotune(CONFIGS, do_bench=quick)
HEURISTICS = triton.heuristics({"FACTOR": lambda arguments: 2})


@pytest.mark.parametrize(
    "stack",
    [
        lambda f: TUNE(triton.jit(f)),
        lambda f: TUNE(HEURISTICS(triton.jit(f))),
        lambda f: HEURISTICS(TUNE(triton.jit(f))),
        lambda f: HEURISTICS(HEURISTICS(TUNE(HEURISTICS(triton.jit(f))))),
    ],
    ids=["tune-jit", "tune-heuristics-jit", "heuristics-tune-jit", "four-layers"],
)
def test_orders_of_decorators_that_work(stack, xy):
    kernel = stack(plain)
    for _ in range(2):
        kernel[(4,)](*xy, 50)
        assert torch.equal(xy[1], 2 * xy[0])
        xy[1].zero_()


@pytest.mark.parametrize(
    "stack",
    [lambda f: TUNE(TUNE(f)), lambda f: TUNE(triton.autotune(CONFIGS, key=[])(f)), lambda f: TUNE(HEURISTICS(TUNE(f)))],
    ids=["twice", "over-tritons", "with-heuristics-between"],
)
def test_a_tuner_over_a_tuner(stack):
    with pytest.raises(DecorationError) as caught:
        stack(double)
    says(caught, "expected a kernel that is not tuned yet, got one under another autotune", "Keep one of the two")


def test_tritons_tuner_over_ours(xy):
    """Triton asks nobody before it decorates; its first call meets the conflict."""
    kernel = triton.autotune(CONFIGS[:1], key=[])(TUNE(double))
    with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
        kernel[(4,)](*xy, 50)


def test_a_tuned_callable_tuned_again():
    with pytest.raises(DecorationError, match="this callable is tuned already. Keep one of the two decorators"):
        autotune(STEPS)(autotune(STEPS)(halve))


@pytest.mark.parametrize(
    ("stack", "error"),
    [
        (lambda f: triton.jit(TUNE(triton.jit(f))), (AssertionError, TypeError)),  # Triton's own, at decoration
        (lambda f: TUNE(HEURISTICS(f)), AttributeError),  # Triton's: heuristics over a plain function
        (lambda f: HEURISTICS(TUNE(f))[(4,)], None),
        (lambda f: TUNE(f)[(4,)], None),
        (lambda f: HEURISTICS(HEURISTICS(TUNE(f))).run, None),
        (lambda f: TUNE(f).run, None),
        (lambda f: triton.autotune(CONFIGS[:1], key=[])(TUNE(f))[(4,)], None),
    ],
    ids=[
        "jit-on-top",
        "heuristics-without-jit",
        "heuristics-tune",
        "tune-alone",
        "two-heuristics",
        "run",
        "under-tritons-autotune",
    ],
)
def test_orders_of_decorators_that_do_not(stack, error, xy):
    if error is not None:
        with pytest.raises(error):
            stack(plain)
        return
    with pytest.raises(DecorationError) as caught:
        launch = stack(plain)
        launch(*xy, 50)
    says(caught, "this is a plain callable and takes no grid", "put @triton.jit between @autotune and the function")


class Kernel:
    def __init__(self, step):
        self.step = step


@pytest.mark.parametrize("thing", [Kernel, 5, None, "double", [halve]], ids=["class", "number", "none", "text", "list"])
def test_what_cannot_be_decorated(thing):
    with pytest.raises(DecorationError) as caught:
        autotune(CONFIGS)(thing)
    says(
        caught, "expected a @triton.jit kernel or a function, got ", "The order is @autotune(...) on top, then @triton"
    )


def test_a_builtin_has_no_python_inside():
    with pytest.raises(
        DecorationError, match="expected something with a Python function inside, got <built-in function"
    ):
        autotune(CONFIGS)(len)


@pytest.mark.parametrize("function", [lambda *args, step: None, lambda x, **kwargs: None], ids=["args", "kwargs"])
def test_parameters_without_names(function):
    with pytest.raises(DecorationError) as caught:
        autotune(STEPS)(function)
    says(caught, "expected named parameters only, got *", "Name every argument")


def one(x, *, step):
    return x


def other(x, *, step):
    return -x


def test_one_explicit_name_for_two_kernels():
    autotune(STEPS, name="app.kernel")(one)
    autotune(STEPS, name="app.kernel")(one)  # the same source: as when a module is loaded again
    with pytest.raises(DecorationError) as caught:
        autotune(STEPS, name="app.kernel")(other)
    says(caught, "name='app.kernel' is taken by a kernel with different source", "Names must be unique")


# -- calls -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["cold", "bound"])
def kernel(request, xy):
    """Errors are the same before and after something was bound."""
    tuned = autotune(CONFIGS, do_bench=quick)(double)
    if request.param == "bound":
        tuned[(4,)](*xy, 50)
    return tuned


@pytest.mark.parametrize(
    ("args", "kwargs", "parts"),
    [
        (2, {}, ["argument 'n_cols' is missing. Expected: x_ptr, y_ptr, n_cols, FACTOR."]),
        (0, {"n_cols": 50}, ["argument 'x_ptr' is missing"]),
        (2, {"n_cols": 50, "y_ptr": None}, ["argument 'y_ptr' came twice, by position and by name"]),
        (
            2,
            {"n_cols": 50, "n_rows": 5},
            ["got an unexpected argument 'n_rows' by name. Did you mean 'n_cols'?", ARGUMENTS],
        ),
    ],
    ids=["missing", "first-missing", "twice", "unexpected"],
)
def test_arguments(kernel, xy, args, kwargs, parts):
    with pytest.raises(CallError) as caught:
        kernel[(4,)](*xy[:args], **kwargs)
    says(caught, "test_bad_input.double`: ", *parts)
    assert isinstance(caught.value, TypeError)


def test_too_many_arguments():
    function = autotune(STEPS, do_bench=quick)(halve)
    for _ in range(2):
        with pytest.raises(CallError) as caught:
            function(np.ones(3), 3, 5)
        says(caught, "expected at most 2 positional arguments, got 3")
        function(np.ones(3), 3)


def test_too_many_arguments_of_a_kernel(kernel, xy):
    with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
        kernel[(4,)](*xy, 50, 16, 2, 7)


@pytest.mark.parametrize("value", [16, None], ids=repr)
def test_a_tuned_name_at_the_call(kernel, xy, value):
    with pytest.raises(ValueError) as caught:
        kernel[(4,)](*xy, 50, BLOCK=value)
    says(
        caught,
        "Conflicting meta-parameters: BLOCK. Make sure that you don't re-define auto-tuned symbols.",
        "test_bad_input.double`: its configs set them",
    )


def test_a_tuned_name_at_the_call_of_a_function():
    function = autotune(STEPS, do_bench=quick)(halve)
    for _ in range(2):
        with pytest.raises(ValueError, match="Conflicting meta-parameters: step"):
            function(np.ones(3), 3, step=1)
        function(np.ones(3), 3)


def test_no_grid(kernel, xy):
    with pytest.raises(CallError) as caught:
        kernel.run(*xy, 50)
    says(caught, "expected a grid, got none. Write kernel[grid](...), or .run(..., grid=grid)")


@pytest.mark.parametrize("grid", [5, None], ids=repr)
def test_a_grid_that_is_none(kernel, xy, grid):
    """The type of error is Triton's, whatever was bound."""
    with pytest.raises((TypeError, AssertionError, RuntimeError, ValueError, AutotunedError)):
        kernel[grid](*xy, 50)


# -- modes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Auto", "tune", "", None], ids=repr)
def test_a_mode_that_is_none(name):
    with pytest.raises(ValueError) as caught, autotuned.mode(name):
        pass
    says(caught, f"autotuned.mode: expected one of auto, serve, strict, search, off, got {name!r}")


def test_a_mode_in_the_environment_that_is_none(monkeypatch, xy):
    monkeypatch.setenv("AUTOTUNED_MODE", "fast")
    with pytest.raises(ValueError) as caught:
        autotune(CONFIGS)(double)[(4,)](*xy, 50)
    says(caught, "AUTOTUNED_MODE: expected one of auto, serve, strict, search, off, got 'fast'", "Unset it for 'auto'")


# -- aliases ---------------------------------------------------------------------------------------------------------


def test_an_accumulator_that_is_an_input(xy):
    x, _ = xy
    tuned = autotune(CONFIGS, reset_to_zero=["y_ptr"], do_bench=quick)(double)
    with pytest.raises(ValueError) as caught:
        tuned[(4,)](x, x, 50)
    says(caught, "reset_to_zero names 'y_ptr', which shares memory with argument 'x_ptr'", "Pass a separate tensor")
    with pytest.raises(ValueError, match="reset_to_zero names 'y_ptr'"):
        tuned[(4,)](x, x[10:], 50)
    assert torch.equal(x, torch.ones_like(x))


# -- the store -------------------------------------------------------------------------------------------------------

DAMAGE = {
    "empty": b"",
    "half": b'{"schema": 1, "kernel"',
    "list": b"[]",
    "null": b"null",
    "text": b'"x"',
    "zeros": bytes(100),
    "not-utf8": b"\xff\xfe\x00",
    "nan": b'{"schema": 1, "median_us": NaN}',
    "other-fields": b'{"schema": 1, "winner": {}}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_record_is_tuned_again_with_one_warning(content, warnings):
    make = lambda: autotune(STEPS, do_bench=quick)(halve)
    make()(np.ones(3), 3)
    ((path, record),) = store.all_records()
    path.write_bytes(content)
    function, x = make(), np.ones(3)
    function(x, 3)
    assert (x == 0.5).all()
    assert function.cache_info().searches == 1
    (line,) = warnings()
    assert f"record {path} is damaged (" in line
    assert "the kernel is tuned again" in line
    ((_, again),) = store.all_records()
    assert again.winner == record.winner
    healed = make()
    healed(np.ones(3), 3)
    assert healed.cache_info().searches == 0
    assert len(warnings()) == 1


@pytest.mark.parametrize("thing", ["folder", "link-to-nowhere"])
def test_something_else_in_the_place_of_a_record(thing, warnings):
    make = lambda: autotune(STEPS, do_bench=quick)(halve)
    make()(np.ones(3), 3)
    ((path, _),) = store.all_records()
    path.unlink()
    path.mkdir() if thing == "folder" else path.symlink_to(path.parent / "nowhere")
    for searches in (1, 0):
        function = make()
        function(np.ones(3), 3)
        assert function.cache_info().searches == searches
    assert len(warnings()) == 1


def test_a_record_of_another_key_is_not_believed(warnings):
    make = lambda: autotune(STEPS, do_bench=quick)(halve)
    function = make()
    function(np.ones(3), 3)
    function(np.ones(4), 4)
    (one, _), (other, _) = store.all_records()
    other.write_bytes(one.read_bytes())
    fresh = make()
    for n in (3, 4):
        fresh(np.ones(n), n)
    assert fresh.cache_info().searches == 1
    (line,) = warnings()
    assert "it holds the record of another key" in line


def test_a_newer_record_is_left_alone(warnings):
    make = lambda: autotune(STEPS, do_bench=quick)(halve)
    make()(np.ones(3), 3)
    ((path, _),) = store.all_records()
    text = path.read_text().replace('"schema": 1', '"schema": 999')
    path.write_text(text)
    make()(np.ones(3), 3)
    assert path.read_text() == text
    (line,) = warnings()
    assert "has the newer schema 999; it is left alone" in line


@pytest.mark.parametrize("place", ["file", "below-a-file"])
def test_a_cache_folder_that_cannot_be_written(place, monkeypatch, tmp_path, warnings):
    file = tmp_path / "taken"
    file.write_text("mine")
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(file if place == "file" else file / "deeper"))
    function = autotune(STEPS, do_bench=quick)(halve)
    for n in (3, 4, 3):
        x = np.ones(n)
        function(x, n)
        assert (x == 0.5).all()
    assert function.cache_info().searches == 2
    (line,) = warnings()
    assert f"cannot write to the cache folder {os.environ['AUTOTUNED_CACHE_DIR']}" in line
    assert "results are kept in memory only. Set AUTOTUNED_CACHE_DIR to a folder that can be written" in line
    assert file.read_text() == "mine"


def test_a_full_disk(monkeypatch, warnings):
    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "write_text", full)
    function = autotune(STEPS, do_bench=quick)(halve)
    for n in (3, 4, 3):
        function(np.ones(n), n)
    assert function.cache_info().searches == 2
    (line,) = warnings()
    assert "No space left on device" in line


# -- surroundings: in processes of their own -------------------------------------------------------------------------


def run(tmp_path, text, **environment):
    """Runs a script; a variable that is None is unset."""
    script = tmp_path / "script.py"
    script.write_text(text)
    kept = {name: value for name, value in (os.environ | environment).items() if value is not None}
    return subprocess.run([sys.executable, str(script)], env=kept, capture_output=True, text=True, timeout=120)


NO_GPU = """
import torch, triton, triton.language as tl
from autotuned import Config, autotune, errors
@autotune([Config({"BLOCK": 16}), Config({"BLOCK": 32})])
@triton.jit
def double(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), 1.0)
for call in (lambda: double[(1,)](torch.ones(4), 4), lambda: double.run(torch.ones(4), 4, grid=(1,), warmup=True)):
    try:
        call()
    except errors.NoDeviceError as error:
        print(error)
"""


def test_no_gpu_and_no_interpreter(tmp_path):
    done = run(tmp_path, NO_GPU, TRITON_INTERPRET=None, CUDA_VISIBLE_DEVICES="", TRITON_DEFAULT_FP_FUSION="1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("Expected a GPU to launch a compiled Triton kernel on, and torch.cuda sees none.")
        assert "set TRITON_INTERPRET=1 before triton is first imported" in line


NO_HOME = """
import os, pwd
from fakes import FakeConfig as Config
from autotuned import autotune, store
def unknown(*args):
    raise KeyError("getpwuid(): uid not found")
pwd.getpwuid = unknown
runs = []
@autotune([Config({"step": 1}), Config({"step": 2})])
def add(x, *, step):
    return x + 1
assert add(1) == 2
print(store.root())
"""


@pytest.mark.parametrize("home", [None, "", "/nonexistent/home", "/dev/null"], ids=repr)
def test_no_home(tmp_path, home):
    surroundings = {"HOME": home, "XDG_CACHE_HOME": None, "USER": None, "LOGNAME": None, "AUTOTUNED_CACHE_DIR": None}
    tests = os.path.dirname(os.path.abspath(__file__))
    (tmp_path / "temporary").mkdir()
    done = run(tmp_path, NO_HOME, TMPDIR=str(tmp_path / "temporary"), PYTHONPATH=tests, **surroundings)
    assert done.returncode == 0, done.stderr
    root = done.stdout.strip()
    assert os.path.isabs(root)
    if not home:
        assert root.startswith(str(tmp_path / "temporary"))
        assert oct(os.stat(root).st_mode & 0o777) == "0o700"
