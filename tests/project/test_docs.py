"""The docs are true: links, the map of files, names and options, and every example runs."""

import ast
import inspect
import json
import os
import pydoc
import re
import runpy
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import triton
import typer.main
from autotuned.cli.main import app
from pages import FENCED, ROOT, follow, read, steps
from typer.testing import CliRunner

import autotuned
from autotuned import env, errors, options
from autotuned.api import function, tuned
from autotuned.gpu import device
from autotuned.resolve import explain
from autotuned.search import race, racing, timers, trial

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
PATHS = [page.relative_to(ROOT).as_posix() for page in PAGES]
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
ROW = re.compile(r"^\| `([^`]+)` \| (.*) \|$", re.MULTILINE)


def prose(text: str) -> str:
    return FENCED.sub("", text)


def section(text: str, heading: str) -> str:
    return text.split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]


def lines_of_prose():
    return [(path, line) for path in PATHS for line in prose(read(path)).splitlines()]


def test_every_fence_belongs_to_a_block():
    """What follows a fence that the site does not know, up to the end of the page, would be shown as code."""
    assert [(path, line) for path, line in lines_of_prose() if line.lstrip().startswith("```")] == []


# -- links --------------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere():
    known = {page.resolve(): anchors(page.read_text()) for page in PAGES}
    links = [(path, link) for path in PATHS for link in LINK.findall(re.sub(r"`[^`\n]+`", "", prose(read(path))))]
    assert len(links) > 100
    for path, link in links:
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = ((ROOT / path).parent / file).resolve() if file else ROOT / path
        assert target.is_file(), f"{path}: {link}"
        assert not anchor or anchor in known[target], f"{path}: {link}"


def test_the_index_has_every_page():
    linked = {link.partition("#")[0] for link in LINK.findall(read("docs/index.md"))}
    linked |= {f"decisions/{link}" for link in LINK.findall(read("docs/decisions/index.md"))}
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert linked & pages == pages - {"index.md"}


def test_pages_hold_no_line_longer_than_the_code_may():
    assert [(path, line) for path, line in lines_of_prose() if len(line) > 120 and not line.startswith("|")] == []


def test_the_site_has_every_page():
    nav = set(re.findall(r"[\w/-]+\.md", read("mkdocs.yml").split("\nnav:\n")[1]))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert nav == {page for page in pages if not page.startswith("decisions/0")}  # which their index lists


def test_the_menu_is_short_and_says_what_its_reader_does():
    lines = [line for line in read("mkdocs.yml").split("\nnav:\n")[1].splitlines() if line.strip()]
    labels = [line[4:].partition(":")[0] for line in lines if line.startswith("  - ")]
    assert labels == [
        "Home", "Start here", "I write kernels", "I run somebody's library", "I ship an application", "I run a fleet",
        "Look it up", "For contributors",
    ]  # fmt: skip
    unfolded = [line for line in lines if re.match("  - .*md$|      - ", line)]
    assert len(unfolded) <= 25 and unfolded[-1] == "      - Inside:"  # the last is folded


PAGE, START = 250, 110  # lines


def test_no_page_is_long():
    lines = {path: len(read(path).splitlines()) for path in PATHS if path not in ("README.md", "CHANGELOG.md")}
    assert {path: count for path, count in lines.items() if count > PAGE} == {}


def test_readme_is_short_and_has_its_parts_in_order():
    text = read("README.md")
    assert len(text.splitlines()) <= START
    promise = text.split("\n\n")[1]
    assert promise.count(". ") == 0 and promise.endswith(".")  # one sentence
    parts = ["![", "## Two commands", "## Somebody's library", "## Your own kernels", "## Ship", "## Limits"]
    places = [text.index(f"\n{part}") for part in parts]
    assert places == sorted(places)


def test_no_code_is_clipped_where_a_window_is_1280_pixels_wide():
    """By docs/site.css: JSON is wrapped, and diagrams and output are in smaller letters."""
    most = {"json": 10_000, "text": 120}
    long = [
        (path, line)
        for path in PATHS
        for _, kind, body in FENCED.findall(read(path))
        for line in body.splitlines()
        if len(line) > most.get(kind, 110)
    ]
    assert long == []


def test_performance_begins_with_a_table():
    assert read("docs/performance.md").splitlines()[2].startswith("| what | ")


def test_charts_are_drawn_from_the_numbers_that_are_kept():
    drawn = dict(runpy.run_path(str(DOCS / "draw.py"))["charts"]())
    assert {path: path.read_text() for path in drawn} == drawn
    assert set(drawn) == set((DOCS / "images").glob("*.svg"))


def test_the_table_of_tuning_has_the_numbers_that_are_drawn():
    rows = json.loads((DOCS / "data" / "tuning-h200-triton-3.6.0.json").read_text())["rows"]
    table = section(read("docs/measured-searches.md"), "## Tuning")
    for name, label in (("ours", "ours"), ("strong", "strong"), ("stock", "`triton.autotune`")):
        row = rows[name]
        assert f"| {label} | {row['runs']} | {row['cold_s']:.2f} | " in table
        assert f" | {row['further_s']:.2f} | " in table


def test_the_numbers_that_stand_first_are_those_that_are_drawn():
    """README and the first screen of the page on performance, beside the data behind their charts."""
    launch = json.loads((DOCS / "data" / "launch-h200-triton-3.9.0.json").read_text())["rows"]
    first = json.loads((DOCS / "data" / "tuning-h200-triton-3.6.0.json").read_text())["rows"]
    ours, stock = (f"{launch[f'3 tensors: {name}, lambda grid']['us']:.1f}" for name in ("ours", "triton.autotune"))
    summary = read("docs/performance.md").split("\n## ", 1)[0]
    assert f"| {ours} us | {stock} us |" in summary
    assert f"| {first['ours']['cold_s']:.1f} s | {first['stock']['cold_s']:.1f} s |" in summary
    assert f"| {first['ours']['further_s']:.2f} s | {first['stock']['further_s']:.2f} s |" in summary
    readme = " ".join(read("README.md").split())
    assert f"costs {ours} us of host time with a callable as grid, where `triton.autotune` takes {stock}" in readme
    assert f"took {first['ours']['cold_s']:.1f} s instead of {first['stock']['cold_s']:.0f}" in readme


# -- packages -----------------------------------------------------------------------------------------------------


def test_design_has_every_package_with_its_docstring_and_the_file_to_open_first():
    listed = {name: (purpose, first) for name, purpose, first, _ in table("docs/design.md", "## Packages")}
    files = [*(ROOT / "autotuned").glob("*/**/__init__.py"), *(ROOT / "cli").rglob("__init__.py")]
    packages = {f"{file.parent.relative_to(ROOT).as_posix()}/".removeprefix("autotuned/"): file for file in files}
    assert listed.keys() == packages.keys()
    for name, file in packages.items():
        purpose, first = listed[name]
        assert ast.get_docstring(ast.parse(file.read_text())).split("\n\n")[0] == f"{purpose}; {first} first.", name
        assert (file.parent / first.strip("`")).is_file(), name


# -- names and options --------------------------------------------------------------------------------------------


def test_reference_has_every_option():
    rows = {name: (default, text) for name, default, text in table("docs/reference.md", "## Environment")}
    assert rows.keys() == {option.name for option in options.OPTIONS}
    for option in options.OPTIONS:
        assert rows[option.name][0].replace("`", "") == option.default


def table(path: str, heading: str) -> list[tuple[str, ...]]:
    """The rows of a section's table whose first cell is a name."""
    rows = []
    for line in section(read(path), heading).splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
        if line.startswith("| `"):
            rows.append((cells[0].strip("`"), *cells[1:]))
    return rows


def test_reference_and_docstring_have_the_parameters_of_the_decorator():
    parameters = inspect.signature(autotuned.autotune).parameters
    rows = table("docs/reference.md", "## `autotuned.autotune`")
    assert [row[0] for row in rows] == list(parameters)
    for name, default, _ in rows:
        value = parameters[name].default
        assert default == ("" if value is inspect.Parameter.empty else f"`{value!r}`"), name
    arguments = inspect.getdoc(autotuned.autotune).split("Args:")[1].split("Returns:")[0]
    described = re.findall(r"^    (\w[\w, ]*):", arguments, re.MULTILINE)
    assert [name for names in described for name in names.split(", ")] == list(parameters)


def test_reference_has_every_public_name():
    text = section(read("docs/reference.md"), "## `autotuned`")
    assert set(autotuned.__all__) <= set(re.findall(r"`(\w+)[`(]", text))


def test_reference_has_the_parameters_of_public_functions():
    rows = ROW.findall(section(read("docs/reference.md"), "## `autotuned`").replace("`, `", ", "))
    given = dict(call for cell, _ in rows for call in re.findall(r"(\w+)\(((?:[^()]|\(\))*)\)", cell))
    assert "install" in given
    for name, parameters in given.items():
        expected = inspect.signature(getattr(autotuned, name)).parameters.values()
        assert parameters == ", ".join(str(p.replace(annotation=p.empty)) for p in expected), name


def test_api_has_every_public_name():
    """Under the module where it is defined: there its docstring is."""
    shown = set(re.findall(r"^::: autotuned\.(?:\w+\.)*(\w+)$", read("docs/api.md"), re.MULTILINE))
    assert set(autotuned.__all__) - shown == {"Config"}  # which is Triton's


def test_reference_has_what_a_tuned_object_has():
    """Every row's names, on the classes that it says; and of what they define themselves, nothing is left out."""
    kinds = {"Tuned": tuned.Tuned, "TunedFunction": function.TunedFunction}
    listed: dict[str, set[str]] = {name: set() for name in kinds}
    for names, of, _ in table("docs/reference.md", "## A tuned kernel"):
        for kind in kinds if of == "both" else [of.strip("`")]:
            listed[kind] |= set(re.findall(r"\.(\w+)", re.sub(r"\(.*?\)", "", names)))
    for name, kind in kinds.items():
        own = {word for word in vars(kind) if not word.startswith("_")}
        # `freeze` asks for the first, the next two are Triton's, and the last refuses a grid.
        assert own - listed[name] <= {"decided", "nargs", "configs_timings", "run"}, name
        made = autotuned.autotune(configs=[])(kernel if name == "Tuned" else lambda x, *, step=1: x)
        assert [word for word in listed[name] if not hasattr(made, word) and word != "best_config"] == [], name


@triton.jit
def kernel(x):
    pass


def test_what_both_kinds_of_tuned_objects_have_is_alike():
    for name in ("cache_info", "explain"):
        one, other = (getattr(kind, name) for kind in (tuned.Tuned, function.TunedFunction))
        assert inspect.signature(one) == inspect.signature(other), name
        assert inspect.getdoc(one).replace("kernel", "function") == inspect.getdoc(other).replace("kernel", "function")


def test_reference_has_every_error_with_its_bases():
    rows = {name: base for name, base, _ in table("docs/reference.md", "## `autotuned.errors`")}
    kinds = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.AutotunedError) and kind is not errors.AutotunedError
    }
    assert rows == {name: f"`{kind.__bases__[1].__name__}`" for name, kind in kinds.items()}


def test_tuning_has_the_constants_of_the_race():
    text = read("docs/search.md") + read("docs/tuning.md")
    for constant in (
        f"| 1 | {race.FIRST_SAMPLES} | within {race.FAR_OFF} times the leader |",
        f"rounds of {race.FIRST_SAMPLES}, up to {race.GUARD_SAMPLES} | within {race.GUARD_BAND:.0%} of",
        f"rounds of {race.FINAL_ROUND}, up to {race.FINAL_SAMPLES} | at most {race.FINALISTS} finalists, ",
        f"finalists, within {race.FINAL_BAND:.0%} or",
        f"at least {trial.NOISE_FLOOR:.1%}",
        f"Configs within {race.TIE_BAND:.2%} of",
        f"certainly less than {race.ALIKE:.2%} apart",
        f"launched {race.MOST_PARTED:,} times ({race.MOST_PARTED * racing.LEAST_PARTING:.0f} under",
        f"together for {race.PART_BUDGET_S * 1e3:.0f} ms",
        f"error above {race.TOLD:.1%}",
        f"measured for {race.CONFIG_BUDGET_S} s",
        f"samples spread over more than {trial.LOAD:.0%}",
        f"({timers.CudaTimer.resolution_us} us for CUDA events, {timers.HostTimer.resolution_us} us on the CPU)",
    ):
        assert constant in text


def test_modes_has_every_mode():
    rows = {name for name, _ in ROW.findall(read("docs/modes.md").replace("` (default) |", "` |"))}
    assert set(env.MODES) <= rows


def commands() -> dict[str, Any]:
    """The commands of the command line."""
    return typer.main.get_command(app).commands


def test_every_command_has_a_section_with_an_example_that_is_run_and_its_options():
    text = read("docs/cli.md")
    run = {step.text.split()[1] for step in steps("docs/cli.md") if step.kind == "command"}
    assert commands().keys() == run
    of_all = {
        "--help",
        *re.findall(r"--\w+", "".join(re.findall(r"^\| (`--.*?) \|", text.split("\n## ")[0], re.MULTILINE))),
    }
    for name, command in commands().items():
        part = section(text, f"## {name}")
        assert any(f"autotuned {name}" in body for _, _, body in FENCED.findall(part)), name
        for parameter in command.params:
            for option in [option for option in parameter.opts if option.startswith("--")]:
                assert option in part or option in of_all, f"docs/cli.md: {name} {option}"
    documented = set(re.findall(r"^## (\w+)$", text, re.MULTILINE))
    assert documented == commands().keys()


def test_the_list_of_commands_has_whole_sentences_on_a_narrow_terminal():
    shown = CliRunner().invoke(app, ["--help"], terminal_width=80).stdout
    lines = shown.split("Commands:\n")[1].splitlines()
    assert len(lines) == len(commands()) and [line for line in lines if not line.endswith(".") or "..." in line] == []


def test_readme_has_exactly_two_commands():
    blocks = [body for _, language, body in FENCED.findall(read("README.md")) if language != "python"]
    assert blocks == [
        "pip install . && autotuned tune autotuned.kernels.rmsnorm --out tuned/\n",
        "pip install '.[test]' && pytest\n",
    ]


# -- examples -----------------------------------------------------------------------------------------------------


WITH_STEPS = [path for path in PATHS if steps(path)]


@pytest.fixture(scope="module")
def followed(request, tmp_path_factory) -> Iterator[dict[str, Future[str]]]:
    """All selected pages at once: each waits mostly for torch and triton to be imported."""
    items = [item for item in request.session.items if item.nodeid.startswith(request.node.nodeid)]
    pages = [item.callspec.params["path"] for item in items if item.originalname == "test_examples_run"]
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        yield {path: pool.submit(follow, path, tmp_path_factory.mktemp("page")) for path in pages}


@pytest.mark.parametrize("path", WITH_STEPS)
def test_examples_run(path, request, tmp_path):
    if "PYTEST_XDIST_WORKER" in os.environ:  # other tests run beside this one, some pages in another process
        assert follow(path, tmp_path) == ""
    else:
        assert request.getfixturevalue("followed")[path].result() == ""


def test_examples_of_files_on_disk_have_the_fields_of_the_schema():
    for page, name in (("docs/config-files.md", "config-file"), ("docs/store.md", "record")):
        [text] = [body for _, language, body in FENCED.findall(read(page)) if language == "json"]
        example = json.loads(text.replace("{...}", "{}"))
        schema = json.loads(read(f"configs/schema/{name}.json"))
        assert list(example) == list(schema["properties"])


# -- tables of keys.md --------------------------------------------------------------------------------------------


def test_keys_has_the_table_of_product_names():
    rows = dict(
        re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", section(read("docs/keys.md"), "### Devices"), re.MULTILINE)
    )
    assert rows == device.PRODUCTS


def test_keys_has_every_reason_that_explain_gives():
    rows = re.findall(r"^\| `([^`]+)` \|", section(read("docs/keys.md"), "## Why did it miss?"), re.MULTILINE)
    assert sorted(rows) == sorted(explain.REASONS)


def test_docstrings_on_the_api_page_describe_parameters_one_by_one():
    """As the site wants them: it takes `a, b:` for the name of one parameter, and is not built."""
    for name in re.findall(r"(?m)^::: ([\w.]+)$", read("docs/api.md")):
        value = pydoc.locate(name)
        if inspect.isfunction(value) and "Args:" in (text := inspect.getdoc(value) or ""):
            part = text.split("Args:")[1].split("\n\n")[0]
            described = re.findall(r"^    \**(\w[\w, ]*):", part, re.MULTILINE)
            assert set(described) <= set(inspect.signature(value).parameters), name


def test_the_api_page_names_what_there_is():
    """Also without mkdocs, which says so only where the site is built."""
    names = re.findall(r"(?m)^::: ([\w.]+)$", read("docs/api.md"))
    assert len(names) > 20
    for name in names:
        assert pydoc.locate(name) is not None, name
