"""The migration page: each new line does what the old one did, and the readers of other tuners' files serve."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import FakeConfig
from pages import FENCED, read
from paths import quick, ship

import autotuned
from autotuned import autotune, pow2
from autotuned.errors import NotTunedError
from autotuned.store import listing

PAGE = read("docs/migration.md")
OLD, NEW = "| old line | new line |\n|---|---|\n", r"^\| (.+?) \| (.+) \|$"
ROWS = {
    (heading, old): new
    for heading, text in re.findall(r"^## (.+?)\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    if OLD in text
    for old, new in re.findall(NEW, text.split(OLD)[1].split("\n\n")[0], re.MULTILINE)
}
CONFIGS = [FakeConfig({"step": step}) for step in (1, 2, 4)]
LAST, MIDDLE = CONFIGS[2], CONFIGS[1]


def function(x, n, *, step):
    x += step


def tuned(**options):
    return autotune(CONFIGS, **({"key": ["n"], "do_bench": quick} | options))(function)


def searched(kernel, n=8):
    """How many searches a call made."""
    before = kernel.cache_info().searches
    kernel(np.zeros(4), n)
    return kernel.cache_info().searches - before


# -- what each new line does -----------------------------------------------------------------------------------------


def the_decorator(monkeypatch, tmp_path):
    assert searched(autotune(configs=CONFIGS, key=["n"], do_bench=quick)(function)) == 1


def exact_matches_alone_are_served(monkeypatch, tmp_path):
    assert [searched(kernel := tuned()), searched(kernel), searched(kernel, 9)] == [1, 0, 1]
    assert searched(tuned()) == 0


def serve_with_a_default(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOTUNED_MODE", "serve")
    kernel = tuned(default=LAST)
    assert searched(kernel) == 0
    assert kernel.best_config is LAST


def search_measures_what_is_stored(monkeypatch, tmp_path):
    searched(tuned())
    monkeypatch.setenv("AUTOTUNED_MODE", "search")
    assert searched(tuned()) == 1


def config_files_are_found(monkeypatch, tmp_path):
    searched(tuned())
    ship(tmp_path / "configs", monkeypatch)  # and AUTOTUNED_CONFIG_PATH names them
    assert list(listing.all_records()) == []
    assert searched(tuned()) == 0


def one_config_for_each_of_two(monkeypatch, tmp_path):
    configs = [FakeConfig({"step": step}, num_warps=warps) for warps in (4, 8) for step in (1, 2)]
    kernel = autotune(configs=configs, key=["n"], do_bench=quick)(function)
    searched(kernel)
    assert len(kernel.configs) == 4


def the_default_gets_arguments_by_name(monkeypatch, tmp_path):
    kernel = tuned(default=lambda n, **others: CONFIGS[n])
    searched(kernel, 2)
    assert kernel.best_config is LAST


def the_folder_of_the_store(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "elsewhere"))
    searched(tuned())
    assert list((tmp_path / "elsewhere").rglob("*.json"))


def off_or_serve(monkeypatch, tmp_path):
    searched(tuned())
    for mode, expected in (("off", LAST), ("serve", CONFIGS[0])):
        monkeypatch.setenv("AUTOTUNED_MODE", mode)
        kernel = tuned(default=LAST)
        assert searched(kernel) == 0
        assert kernel.best_config.kwargs == expected.kwargs


def strict_never_measures(monkeypatch, tmp_path):
    searched(tuned())
    monkeypatch.setenv("AUTOTUNED_MODE", "strict")
    assert searched(tuned()) == 0
    with pytest.raises(NotTunedError):
        tuned()(np.zeros(4), 9)


def a_bucket_shares_choices(monkeypatch, tmp_path):
    kernel = tuned(bucket={"n": pow2})
    assert [searched(kernel, n) for n in (5, 7, 8, 9)] == [1, 0, 0, 1]
    kernel = tuned(bucket={"n": pow2}, default=LAST)
    assert searched(kernel, 100) == 0
    assert kernel.best_config is LAST


def tune_takes_what_it_is_told(monkeypatch, tmp_path):
    import typer.main
    from autotuned.cli.main import app

    command = typer.main.get_command(app).commands["tune"]
    context = command.make_context("tune", ["module:kernel", "--out", "tuned"])
    assert (list(context.params["targets"]), str(context.params["out"])) == (["module:kernel"], "tuned")


def a_package_has_config_files(monkeypatch, tmp_path):
    searched(tuned())
    ship(tmp_path / "shipped_by_a_package" / "tuned", monkeypatch)
    monkeypatch.delenv("AUTOTUNED_CONFIG_PATH")
    for folder in (tmp_path / "shipped_by_a_package", tmp_path / "shipped_by_a_package" / "tuned"):
        (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    autotuned.register_configs("shipped_by_a_package.tuned")
    assert searched(tuned()) == 0


CHECKS = {
    "@fla_cache_autotune": the_decorator,
    "FLA_CACHE_MODE=strict": exact_matches_alone_are_served,
    "FLA_CACHE_MODE=full": serve_with_a_default,
    "FLA_CACHE_MODE=disabled": search_measures_what_is_stored,
    "FLA_CONFIG_DIR": config_files_are_found,
    "@triton_dejavu.autotune": the_decorator,
    "config_space=": one_config_for_each_of_two,
    "fallback_heuristic=": the_default_gets_arguments_by_name,
    "TRITON_DEJAVU_STORAGE": the_folder_of_the_store,
    "TRITON_DEJAVU_FORCE_FALLBACK": off_or_serve,
    "TRITON_DEJAVU_USE_ONLY_RESTORED": strict_never_measures,
    "config = get_moe_configs": a_bucket_shares_choices,  # no line: the decorator of the row below looks up
    "kernel[grid](..., **config)": a_bucket_shares_choices,
    "benchmark_moe.py --tune": tune_takes_what_it_is_told,
    "files moved into the package by hand": a_package_has_config_files,
    "@autotune(configs=..., key=..., default=f)": the_default_gets_arguments_by_name,
    "FLYDSL_AUTOTUNE=1": search_measures_what_is_stored,
    "FLYDSL_AUTOTUNE_CONFIG_DIR": config_files_are_found,
    "FLYDSL_AUTOTUNE_CACHE_DIR": the_folder_of_the_store,
}


def test_every_old_line_has_a_check_and_every_check_a_line():
    lines = [old.removeprefix("`") for _, old in ROWS]
    assert sorted(start for start in CHECKS if not any(line.startswith(start) for line in lines)) == []
    assert sorted(line for line in lines if not any(line.startswith(start) for start in CHECKS)) == []
    assert len({heading for heading, _ in ROWS}) == 4


@pytest.mark.parametrize("row", ROWS, ids=lambda row: re.sub(r"[^\w=]+", "-", row[1])[:40].strip("-"))
def test_the_new_line_does_what_it_says(row, monkeypatch, tmp_path):
    start = max((start for start in CHECKS if row[1].removeprefix("`").startswith(start)), key=len)
    CHECKS[start](monkeypatch, tmp_path)


def test_new_lines_name_options_that_there_are():
    from autotuned import env, options

    named = set(re.findall(r"AUTOTUNED_\w+", " ".join(ROWS.values())))
    assert named <= {option.name for option in options.OPTIONS}
    assert set(re.findall(r"AUTOTUNED_MODE=(\w+)", " ".join(ROWS.values()))) <= set(env.MODES)


# -- files of others -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    """What the page's code makes, in a folder of its own; Triton's Config is not needed for that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("files"))
        patch.setattr(autotuned, "Config", FakeConfig, raising=False)
        code = PAGE.split("\n## Files that other tuners wrote\n")[1]
        names = {}
        exec("\n".join(body for _, language, body in FENCED.findall(code) if language == "python"), names)
        return SimpleNamespace(**names)


def config(kwargs, num_warps, num_stages=3):
    return {"kwargs": kwargs, "num_warps": num_warps, "num_stages": num_stages}


class Half:
    """A tensor as far as a reader looks at one."""

    dtype = "torch.float16"


@pytest.mark.parametrize(
    ("reader", "arguments", "expected"),
    [
        ("nearest", {"M": 1}, config({"BLOCK": 16}, 4)),
        ("nearest", {"M": 500, "N": 2}, config({"BLOCK": 16}, 4)),
        ("of_fla", {"H": 4, "K": 64, "q": None}, config({"BK": 32}, 2)),
        ("of_fla", {"H": 8, "K": 64}, config({"BK": 64}, 4)),
        ("of_dejavu", {"x": Half, "n": 4096}, config({"BLOCK": 64}, 8, 2)),
        ("of_dejavu", {"x": Half, "n": 4097}, config({"BLOCK": 128}, 4)),
        ("of_flydsl", {"n": 4096, "x": None}, config({"BLOCK_THREADS": 64, "VEC_WIDTH": 8, "num_warps": 4}, 4)),
        ("of_flydsl", {"n": 1}, config({"BLOCK_THREADS": 256, "VEC_WIDTH": 4, "num_warps": 4}, 4)),
    ],
)
def test_a_file_of_another_tuner_gives_configs(readers, reader, arguments, expected):
    found = getattr(readers, reader)(**arguments)
    assert {name: getattr(found, name) for name in expected} == expected


def test_what_a_file_of_another_tuner_says_is_launched_and_not_stored(readers):
    """FlyDSL's, over a host function: what its artifact has, for as long as nothing was measured here."""

    def norm(x, n, *, BLOCK_THREADS, VEC_WIDTH, num_warps):
        x += BLOCK_THREADS

    def ran(n):
        kernel(x := np.zeros(4), n)
        return x[0]

    configs = [FakeConfig({"BLOCK_THREADS": 32, "VEC_WIDTH": 2, "num_warps": 1}), readers.of_flydsl(1)]

    def make():
        return autotune(configs, key=["n"], default=readers.of_flydsl, do_bench=quick)(norm)

    kernel = make()
    assert [ran(4096), ran(8)] == [64, 256]
    assert list(listing.all_records()) == []
    with autotuned.mode("search"):
        assert ran(4096) == 64  # a tie goes to what runs untuned
    kernel = make()
    assert [ran(4096), ran(8)] == [64, 256]  # what was measured comes before the default
