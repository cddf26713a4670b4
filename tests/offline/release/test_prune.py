"""`autotuned.prune`, and the command: entries of config files that no recorded call uses."""

import threading
from pathlib import Path

import pytest
from commands import error, run, run_json
from fakes import FakeConfig, form, make_key
from made_binaries import variant

import autotuned
from autotuned.binaries import writer as binaries
from autotuned.binaries.file import BinaryFile
from autotuned.configfiles import exchange, writer
from autotuned.configfiles.file import Entry
from autotuned.errors import ConfigFileError, RecordingError
from autotuned.key.key import Key
from autotuned.recording.file import RecordedCall, Writer

CONFIG = form(FakeConfig({"BLOCK": 32}))
OTHER = {**make_key().context["device"], "name": "NVIDIA B200"}


def of(n=1024, dtype="torch.float16", kernel="app.k", **context):
    call = {"tensors": {"x": {"dtype": dtype, "shape": [n], "strides": "1"}}, "values": {"n": n}, "none": []}
    return Key(kernel, call, make_key(**context).context)


def recorded(*keys):
    """A recording of calls with these keys."""
    made = Writer(Path("calls.jsonl"))
    for key in keys:
        call = RecordedCall(key.kernel, "app:k", key, {"memories": [], "values": {}}, None, 2)
        made.call(call)
    made.close()
    return "calls.jsonl"


def shipped(*keys, with_binaries=False):
    """Config files below `tuned` with an entry for each key; of each, if asked, a binary, and one of all together."""
    made = [variant(b"\x7fELF all", block=1), *(variant(b"\x7fELF %d" % n, block=n + 2) for n, _ in enumerate(keys))]
    made = [(one.replace(kernel="app.k"), machine) for one, machine in made]
    entries = [Entry(key.call, CONFIG, 10.0, 1.5) for key in keys]
    if with_binaries:
        entries = [e.with_binaries([made[0][0].digest, made[n + 1][0].digest]) for n, e in enumerate(entries)]
    paths = writer.ship_all(zip(keys, entries), Path("tuned"))
    if with_binaries:
        [path] = paths
        file = BinaryFile("app.k")
        for one in made:
            file.add(*one)
        binaries.binaries_path(path, "app.k").write_bytes(file.dump())
    return paths


def left():
    """The keys of the entries that are there."""
    return {key for path in exchange.files_in("tuned") for key, _ in exchange.read(path)[0].entries()}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def test_what_no_call_uses_goes_and_the_rest_stays():
    used, unused, elsewhere = of(1), of(2), of(3, device=OTHER)
    shipped(used, unused, elsewhere)
    found = autotuned.prune("tuned", calls=recorded(used))
    assert [one.key for one in found.entries] == [unused] and found.kept == 2 and not found.faults
    assert left() == {used, elsewhere}  # nobody recorded anything on the other device
    assert autotuned.prune("tuned", calls="calls.jsonl").entries == []


def test_a_dry_run_changes_nothing():
    keys = of(1), of(2)
    [path] = shipped(*keys)
    before = path.read_bytes()
    found = autotuned.prune(path, calls=recorded(keys[0]), dry_run=True)
    assert [one.key for one in found.entries] == [keys[1]] and path.read_bytes() == before


def test_a_kernel_that_was_not_called_goes_with_its_file():
    shipped(of(1), of(1, kernel="app.other"))
    found = autotuned.prune("tuned", calls=recorded(of(1)))
    assert [one.key.kernel for one in found.entries] == ["app.other"]
    assert [path.name for path in Path("tuned").glob("*/*.json")] == ["app.k.json"]


def test_the_same_call_in_another_context_is_used():
    """A policy may let it serve there."""
    older = of(1, triton="3.6.0", source="old")
    shipped(older, of(1))
    assert autotuned.prune("tuned", calls=recorded(of(1))).entries == []
    assert older in left()


OTHERS = {
    "another Triton": {"triton": "3.6.0", "triton_key": "cc"},
    "another build of Triton": {"triton_key": "cc"},
    "another ptxas": {"ptxas": "12.9.86"},
    "another environment": {"environment": {"TRITON_X": "1"}},
    "another source": {"source": "older"},
    "another version of the kernel": {"version": 2},
    "another device": {"device": OTHER},
}


@pytest.mark.parametrize("context", OTHERS.values(), ids=OTHERS)
def test_what_was_tuned_for_another_context_stays(context, monkeypatch):
    """A program with that Triton may call it, and this recording cannot tell."""
    used, unused, elsewhere = of(1), of(2), of(3, **context)
    shipped(used, unused, elsewhere)
    listed = listed_unused(monkeypatch, recorded(used))
    found = autotuned.prune("tuned", calls="calls.jsonl")
    assert [one.key for one in found.entries] == [unused] and left() == {used, elsewhere}
    assert listed == [unused.digest]


def listed_unused(monkeypatch, calls):
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", "tuned")
    return [choice["digest"] for choice in run_json("list", "--unused", "--calls", calls)["unused"]]


def test_a_kernel_without_calls_goes_only_in_contexts_that_were_recorded(monkeypatch):
    older = {"triton": "3.6.0", "triton_key": "cc"}
    here, there = of(1, kernel="app.other", source="x"), of(2, kernel="app.other", source="y", **older)
    shipped(of(1), here, there)
    listed = listed_unused(monkeypatch, recorded(of(1)))
    assert [one.key for one in autotuned.prune("tuned", calls="calls.jsonl").entries] == [here]
    assert left() == {of(1), there} and listed == [here.digest]


def test_plain_callables_go_if_the_versions_that_they_name_were_recorded():
    def plain(n, **versions):
        key = of(n, kernel="app.plain")
        context = {name: key.context[name] for name in ("device", "environment", "source", "version")}
        return Key(key.kernel, key.call, {**context, "distributions": versions})

    free, same, other = plain(1), plain(2, numpy="2.1"), plain(3, numpy="1.26")
    shipped(of(1), free, same, other)
    calls = recorded(of(1), Key("app.host", plain(9).call, plain(9, numpy="2.1", scipy="1.14").context))
    found = autotuned.prune("tuned", calls=calls)
    assert {one.key for one in found.entries} == {free, same} and left() == {of(1), other}


def test_what_may_serve_as_the_nearest_shape_stays(monkeypatch):
    near, other_type = of(1024), of(1024, "torch.float32")
    shipped(of(1), near, other_type)
    listed = listed_unused(monkeypatch, recorded(of(1), of(1000)))  # for 1000 there is no entry
    found = autotuned.prune("tuned", calls="calls.jsonl")
    assert [one.key for one in found.entries] == [other_type] and listed == [other_type.digest]


def test_binaries_go_with_the_entries_they_belong_to():
    keys = [of(n) for n in (1, 2, 3)]
    [path] = shipped(*keys, with_binaries=True)
    found = autotuned.prune("tuned", calls=recorded(keys[0]))
    assert found.binaries == 2  # one of each; the one that all name stays
    there = binaries.read(binaries.binaries_path(path, "app.k"), "app.k")
    assert {bytes(there.code(one)) for one in there.variants} == {b"\x7fELF all", b"\x7fELF 0"}
    assert not [fault for fault in autotuned.check("tuned").faults if "that no entry names" in fault.text]
    autotuned.prune("tuned", calls=recorded_anew(of(1, kernel="app.other")))
    assert not list(Path("tuned").glob("*/app.k.*"))


def test_what_others_add_meanwhile_stays(monkeypatch):
    """Another writer comes between the two files that pruning writes."""
    shipped(of(1), of(2), with_binaries=True)
    adding = threading.Thread(target=lambda: writer.ship(of(3), Entry(of(3).call, CONFIG, 10.0, 1.5), Path("tuned")))
    take_out = writer.take_out

    def interrupted(*args):
        left = take_out(*args)
        adding.start()
        adding.join(0.2)  # it waits for us
        return left

    monkeypatch.setattr(writer, "take_out", interrupted)
    autotuned.prune("tuned", calls=recorded(of(1)))
    adding.join()
    assert left() == {of(1), of(3)}


def test_a_binary_of_several_entries_that_go_is_counted_once():
    [path] = shipped(of(1), of(2), with_binaries=True)
    found = autotuned.prune("tuned", calls=recorded(of(1, kernel="app.other")))
    assert [one.binaries for one in found.entries] == [2, 1]  # the one of both goes with the first
    assert not path.exists()


def recorded_anew(*keys):
    Path("calls.jsonl").unlink()
    return recorded(*keys)


def test_a_file_with_a_fault_is_named_and_stays_as_it_is():
    [path] = shipped(of(1), of(2))
    path.write_text(path.read_text().replace('"n":2', '"n":{"float":"no number"}').replace('"kernel"', '"kernal"', 1))
    before = path.read_text()
    found = autotuned.prune("tuned", calls=recorded(of(1)))
    assert found.faults and not found.entries and path.read_text() == before


def test_binaries_that_cannot_be_changed_keep_their_entries():
    [path] = shipped(of(1), of(2), with_binaries=True)
    beside = binaries.binaries_path(path, "app.k")
    newer = beside.read_bytes().replace(b" 1 ", b" 2 ", 1)  # the schema, in the first line
    beside.write_bytes(newer)
    found = autotuned.prune("tuned", calls=recorded(of(1)))
    assert "a newer one" in str(found.faults[0]) and not found.entries and found.kept == 2
    assert left() == {of(1), of(2)} and beside.read_bytes() == newer


def test_what_is_not_there_is_an_error():
    with pytest.raises(ConfigFileError):
        autotuned.prune("tuned", calls="calls.jsonl")
    shipped(of(1))
    with pytest.raises(RecordingError):
        autotuned.prune("tuned", calls="calls.jsonl")


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_command_asks_and_says_what_goes(monkeypatch):
    from autotuned.cli import terminal

    shipped(of(1), of(2))
    command = ["prune", "tuned", "--unused", "--calls", recorded(of(1))]
    assert "pass --yes" in run(*command, code=2).stderr
    monkeypatch.setattr(terminal, "has_terminal", lambda: True)
    asked = run(*command, code=1, input="n\n")
    assert "Remove 1 entry from 1 file?" in asked.stderr and "nothing was deleted" in asked.stderr
    assert "n=2" in asked.stdout and "n=1" not in asked.stdout and len(left()) == 2
    assert run(*command, input="y\n").stdout.splitlines()[-1] == "1 entry removed, 1 kept"
    assert run(*command).stdout == "nothing to remove, 1 kept\n"


def test_the_command_without_a_terminal():
    shipped(of(1), of(2), with_binaries=True)
    command = ["prune", "tuned", "--unused", "--calls", recorded(of(1))]
    said = run(*command, "--dry-run").stdout.splitlines()[-1]
    assert said == "1 entry and 1 compiled kernel would be removed, 1 kept" and len(left()) == 2
    found = run_json(*command, "--yes")
    assert (len(found["entries"]), found["kept"], found["binaries"], found["faults"]) == (1, 1, 1, [])
    assert found["entries"][0]["digest"] == of(2).digest and left() == {of(1)}


def test_wrong_usage_of_the_command(monkeypatch):
    shipped(of(1))
    monkeypatch.delenv("AUTOTUNED_RECORD", raising=False)
    assert "expected --unused" in run("prune", "tuned", code=2).stderr
    assert "give --calls" in run("prune", "tuned", "--unused", code=2).stderr
    assert "calls.jsonl" in error("prune", "tuned", "--unused", "--calls", "calls.jsonl")


def test_a_renamed_file_is_left_as_it_is_and_said_once_by_its_name():
    [path] = shipped(of(1), of(2))
    renamed = path.rename(path.with_name("app.other.json"))
    found = autotuned.prune(["tuned"], calls=recorded(of(1)))
    assert [str(fault) for fault in found.faults] == [
        f"config file {renamed}: expected the kernel of its name, got 'app.k': files keep the names they are written "
        "under. It is left as it is: repair it, or move it away."
    ]
    assert left() == {of(1), of(2)}
