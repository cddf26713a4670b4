"""Rules of config files where they serve: within what is allowed, in their context, and in no other case."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeConfig, form
from ruled import ALIGNED, LIVE, RAGGED, TUNED, key, ruled_files
from stored import lines

import autotuned
from autotuned import errors
from autotuned.configfiles import exchange, lookup, writer
from autotuned.configfiles import file as configfile
from autotuned.resolve import explain, sources
from autotuned.store.choice import Origin
from autotuned.store.conditions import Checked, Conditions

FIVE = autotuned.within("5%")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Config files with a rule for the kernel, and an empty store."""
    return ruled_files(tmp_path)


def find(asked: Any, within: Any = FIVE, strict: bool = False, live: Any = LIVE, needed: Any = Conditions()) -> Any:
    return sources.find(asked, live, list(sources.places(strict, False, {}, needed, None, within)), (), strict)


def test_a_call_that_nobody_tuned_takes_the_rules_config(folder: Path, caplog: Any) -> None:
    lookup.register_configs(folder)
    for m, config in ((640 + 1, RAGGED), (1280 - 33, RAGGED), (1 << 9, ALIGNED)):
        found = find(key(m))
        assert found.config is config
        assert found.origin is (Origin.FILE if m == 512 else Origin.RULE)
    assert "rule M % 64 != 0: at most 5.0% of loss in 95 of 100 calls" in find(key(641)).note
    assert lines(caplog) == []


def predicted(path: Path) -> None:
    """Let the rule ask its formulas where M is no multiple of 64: they say that the other config is faster."""
    data = json.loads(path.read_text())
    [rule] = data["rules"]
    del rule["digest"]
    aligned = rule["configs"].index(form(ALIGNED))
    rule["times"] = [{"config": 1 - aligned, "tiles": {}, "us": "9 + 0.001 * M"},
                     {"config": aligned, "tiles": {"M": 64}, "us": "1.5 + 0.25 * waves(132)"}]  # fmt: skip
    rule["tree"]["else"]["config"] = "fastest"
    path.write_text(json.dumps(data))


def test_where_formulas_choose_the_fastest_serves_and_is_explained(folder: Path) -> None:
    [path] = folder.rglob("*/app.k.json")
    predicted(path)
    lookup.register_configs(folder)
    found = find(key(641))
    assert found.config is ALIGNED and found.origin is Origin.RULE
    assert "rule M % 64 != 0, the fastest by its formulas (1.75 us): at most" in found.note


def test_nobody_is_served_who_did_not_ask(folder: Path) -> None:
    lookup.register_configs(folder)
    assert find(key(641), within=None) is None


def test_a_policy_lets_rules_serve_every_kernel(folder: Path) -> None:
    lookup.register_configs(folder, policy={"rules": "5%"})
    assert find(key(641), within=None).config is RAGGED
    assert find(key(641), within=None, strict=True) is None
    lookup.register_configs(folder, policy={"rules": autotuned.within(0.05, strict=True)})
    assert find(key(641), within=None, strict=True).config is RAGGED


def test_a_policy_allows_no_more_than_the_kernel_does(folder: Path) -> None:
    lookup.register_configs(folder, policy={"rules": autotuned.within(0.05, strict=True)})
    assert find(key(641), strict=True) is None  # the kernel's own `within` is not for this mode


def test_mode_strict_takes_no_rule_unless_it_is_told_to(folder: Path) -> None:
    lookup.register_configs(folder)
    assert find(key(641), strict=True) is None
    assert find(key(641), within=autotuned.within("5%", strict=True), strict=True).origin is Origin.RULE


@pytest.mark.parametrize("m", [1, 15, 1281, 100_000])
def test_outside_of_what_was_tuned_a_rule_abstains(folder: Path, m: int) -> None:
    lookup.register_configs(folder)
    assert find(key(m)) is None
    [*_, step] = explain.ask(list(sources.places(False, False, {}, within=FIVE)), key(m), LIVE)[1]
    assert f"M={m} is outside the tuned range 16 to 1280" in step.why


def test_another_rest_is_another_call(folder: Path) -> None:
    lookup.register_configs(folder)
    other = key(641)
    other.call["tensors"]["x"] = {**other.call["tensors"]["x"], "dtype": "torch.float16"}
    assert find(other) is None
    wide = key(641)
    wide.call["values"]["N"] = 513
    assert find(wide) is None
    apart = key(641)
    apart.call["tensors"]["x"] = {**apart.call["tensors"]["x"], "shape": [640, 512]}
    assert find(apart) is None


def test_another_context_serves_as_the_policy_says(folder: Path, caplog: Any) -> None:
    lookup.register_configs(folder)
    assert find(key(641, triton="3.9.1")).origin is Origin.RULE
    assert find(key(641, source="cc")) is None
    assert "its loss was measured there" in find(key(641, triton="3.9.1")).note
    assert "measured there" not in find(key(641)).note
    assert find(key(641, triton="3.10.0")).origin is Origin.RULE
    [line] = lines(caplog)
    assert "which was tuned for another" in line


def test_a_config_that_is_gone_is_a_miss(folder: Path) -> None:
    lookup.register_configs(folder)
    left = {name: config for name, config in LIVE.items() if config is not RAGGED}
    assert find(key(641), live=left) is None
    assert (
        "not among those of this call"
        in explain.ask(list(sources.places(False, False, {}, within=FIVE)), key(641), left)[1][-1].why
    )


def test_what_was_measured_under_less_does_not_serve_who_asks_for_more(folder: Path) -> None:
    lookup.register_configs(folder)
    asked = Checked({"function": "aa"}, {"*": 1e-3}, True, False, None)
    assert find(key(641), needed=Conditions(None, (asked,))) is None


def union(base: str, ours: str, theirs: str, folder: Path) -> str:
    """What git makes of two changes under `*.json merge=union`."""
    paths = [folder / name for name in ("ours", "base", "theirs")]
    for path, text in zip(paths, (ours, base, theirs)):
        path.write_text(text)
    return subprocess.run(
        ["git", "merge-file", "-p", "--union", *paths], stdout=subprocess.PIPE, check=False
    ).stdout.decode()


def test_a_rule_that_git_put_together_of_two_serves_nobody_and_merge_takes_it_out(
    folder: Path, tmp_path: Path, caplog: Any
) -> None:
    """Each of two people added a config before the others, and one of them the leaves that count it."""
    [path] = folder.rglob("*/app.k.json")
    base = path.read_text()
    at = base.index('"configs": [\n') + len('"configs": [\n')
    added = [json.dumps(form(FakeConfig({"BLOCK": block}))) for block in (64, 1024)]
    ours, theirs = (f"{base[:at]}    {one},\n{base[at:]}" for one in added)
    merged = union(base, ours, theirs, tmp_path)
    assert len(json.loads(merged)["rules"][0]["configs"]) == 4  # it is JSON, and the leaves are of others
    path.write_text(merged)
    [fault] = [one for one in autotuned.check(folder).faults if "digest" in str(one)]
    assert "The rule is left out; `autotuned compress` rewrites it" in str(fault)
    lookup.register_configs(folder)
    assert find(key(641)) is None and find(key(512)).origin is Origin.FILE
    assert len([line for line in lines(caplog) if "digest" in line]) == 1
    result = exchange.merge(path, tmp_path / "merged")
    [mended] = result.files
    assert '"rules"' not in mended.read_text() and exchange.read(mended)[1] == []


def test_a_rule_edited_into_nonsense_is_named_by_its_line_and_the_rest_serves(folder: Path, caplog: Any) -> None:
    [path] = folder.rglob("*/app.k.json")
    text = path.read_text()
    path.write_text(text.replace("M % 64 == 0", "M is nice", 1))
    lookup.register_configs(folder)
    assert find(key(512)).origin is Origin.FILE and find(key(641)) is None
    [line] = lines(caplog)
    number = next(n for n, one in enumerate(text.splitlines(), 1) if one.startswith('  {"context"'))
    assert f"line {number}: rules[0].tree.if: expected a split such as" in line and "left out" in line


def test_of_a_file_that_git_left_in_pieces_the_entries_serve(folder: Path) -> None:
    [path] = folder.rglob("*/app.k.json")
    path.write_text(path.read_text().replace('   "configs": [', '   "configs": [,', 1))
    file, faults = configfile.read(path.read_text(), str(path))
    assert len(dict(file.entries())) == 80 and file.rules == []
    assert any("rules cannot be read line by line" in fault.text for fault in faults)


def test_files_with_rules_are_merged_compared_and_written_as_they_were(folder: Path, tmp_path: Path) -> None:
    [path] = folder.rglob("*/app.k.json")
    plain = configfile.parse(path.read_text(), str(path))
    for context, rule in plain.rules:
        plain.set_rule(context, rule.name, None, rule.calls)
    writer.write(plain, tmp_path / "exported")
    merged = autotuned.merge([folder, tmp_path / "exported"], tmp_path / "merged")
    [copy] = merged.files
    assert copy.read_text() == path.read_text()
    assert exchange.diff(tmp_path / "exported", folder).rules[0].kind == "added"
    assert exchange.diff(folder, tmp_path / "exported").to_json()["rules"][0]["kind"] == "removed"
    assert exchange.diff(folder, copy).rules == []
    assert autotuned.check(folder).faults == []
    assert autotuned.import_configs(folder).rules == 1
    autotuned.export(folder)  # adds to the file what the store has
    assert copy.read_text() == path.read_text()


def test_rules_for_other_calls_stand_side_by_side(folder: Path, tmp_path: Path) -> None:
    """Sizes that a rule has fixed tell it from others: neither a merge nor a second rule takes its place."""
    [path] = folder.rglob("*/app.k.json")
    other = tmp_path / "other" / path.relative_to(folder)
    other.parent.mkdir(parents=True)
    other.write_text(re.sub('   "digest": .*\n', "", path.read_text().replace("512", "1024")))
    merged = autotuned.merge([folder, tmp_path / "other"], tmp_path / "merged")
    [copy] = merged.files
    read, faults = configfile.read(copy.read_text(), str(copy))
    assert len(read.rules) == 2 and faults == []
    kinds = [(change.kind) for change in exchange.diff(folder, copy).rules]
    assert kinds == ["added"]
    read.add_rule(*read.rules[0])
    assert len(read.rules) == 2


def test_of_two_rules_for_the_same_calls_a_merge_keeps_the_one_of_more(folder: Path, tmp_path: Path) -> None:
    [path] = folder.rglob("*/app.k.json")
    fewer = tmp_path / "fewer" / path.relative_to(folder)
    fewer.parent.mkdir(parents=True)
    text = re.sub('   "digest": .*\n', "", path.read_text())
    fewer.write_text(re.sub(r'("config": \d+, "calls": )\d+', r"\g<1>1", text))
    for number, paths in enumerate([(folder, tmp_path / "fewer"), (tmp_path / "fewer", folder)]):
        [merged] = autotuned.merge(paths, tmp_path / f"merged-{number}").files
        [(_, rule)] = configfile.parse(merged.read_bytes(), str(merged)).rules
        assert rule.calls == len(TUNED)


@pytest.mark.parametrize("bound", ["5", "x%", -0.1, 0, None, [], float("nan"), True], ids=str)
def test_a_bound_that_is_none_is_refused(bound: Any) -> None:
    with pytest.raises(errors.OptionError, match="within: expected a share above 0"):
        autotuned.within(bound)


def test_a_policy_of_no_such_name_is_refused(folder: Path) -> None:
    with pytest.raises(errors.ConfigFileError, match="expected axes among triton, .*rules"):
        lookup.register_configs(folder, policy={"rule": "5%"})


def test_a_file_with_a_rule_is_what_its_schema_says(folder: Path) -> None:
    import importlib.resources
    import json

    import jsonschema

    schema = json.loads((importlib.resources.files("autotuned.configs") / "schema" / "config-file.json").read_text())
    [path] = folder.rglob("*/app.k.json")
    data = json.loads(path.read_text())
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(data)
    predicted(path)
    validator.validate(json.loads(path.read_text()))
    for change in (
        lambda: data["rules"][0]["times"][0].pop("tiles"),
        lambda: data["rules"][0]["tree"]["else"].update({"config": "slowest"}),
        lambda: data["rules"][0].pop("along"),
        lambda: data["rules"][0]["tree"].update({"maybe": 1}),
        lambda: data["rules"][0]["sizes"].update({"M": [1]}),
    ):
        data = json.loads(path.read_text())
        change()
        assert not validator.is_valid(data) and configfile.read(json.dumps(data), str(path))[1]
