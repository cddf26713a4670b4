import itertools
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from autotuned import _native, env, options


@pytest.mark.parametrize("mode", ["auto", "serve", "strict", "search", "off"])
def test_the_mode_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    assert env.current_mode() == "auto"
    monkeypatch.setenv("AUTOTUNED_MODE", f" {mode.upper()} ")
    assert env.current_mode() == mode
    monkeypatch.setenv("AUTOTUNED_MODE", "")
    assert env.current_mode() == "auto"


CHOICES = {
    "AUTOTUNED_MODE": (env.current_mode, "auto, serve, strict, search, off", "auto"),
    "AUTOTUNED_LAUNCHER": (env.launcher, "c, python, triton, verify", ""),
    "AUTOTUNED_DEVICE": (env.command_line_device, "cuda, interpreter", ""),
}


@pytest.mark.parametrize("name", CHOICES)
def test_each_choice_has_its_values_its_default_and_an_error_that_names_both(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    read, allowed, default = CHOICES[name]
    assert read() == default
    for value in allowed.split(", "):
        monkeypatch.setenv(name, value)
        assert read() == value
    monkeypatch.setenv(name, "Bogus")
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        read()
    assert (
        str(caught.value)
        == f"{name}: expected one of {allowed}, got 'bogus'. Unset it for {repr(default) if default else 'the default'}."
    )


def test_the_innermost_mode_is_in_force_and_hides_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNED_MODE", "off")
    with env.mode("serve"):
        assert env.current_mode() == "serve"
        with env.mode("search"):
            assert env.current_mode() == "search"
        assert env.current_mode() == "serve"
    assert env.current_mode() == "off"


def test_an_exception_ends_a_mode() -> None:
    with pytest.raises(ZeroDivisionError), env.mode("off"):
        1 // 0
    assert env.current_mode() == "auto"


def test_an_unknown_mode_is_refused_before_it_is_in_force() -> None:
    with (
        pytest.raises(ValueError, match=r"^autotuned\.mode: expected one of auto, .*, got 'fast'\.$"),
        env.mode("fast"),
    ):
        pass
    assert env.current_mode() == "auto"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_blocks_of_tasks_end_in_any_order(order: tuple[int, ...]) -> None:
    """Of the blocks that are open, the latest is in force, also where several have the same mode."""
    modes: list[env.Mode] = ["serve", "off", "serve"]
    blocks = [env.mode(mode) for mode in modes]
    for block in blocks:
        block.__enter__()
    left = [0, 1, 2]
    for place in order:
        assert env.current_mode() == modes[left[-1]]
        blocks[place].__exit__(None, None, None)
        left.remove(place)
    assert env.current_mode() == "auto"


def test_a_block_that_ends_shows_other_threads_no_other_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the list of blocks holds between two steps of an end, other threads read."""

    class Watched(list[object]):
        def __getattribute__(self, name: str) -> object:
            seen.append(env.current_mode())
            return super().__getattribute__(name)

    seen: list[str] = []
    monkeypatch.setattr(env, "_pushed", Watched())
    outer, inner, ending = env.mode("strict"), env.mode("search"), env.mode("serve")
    outer.__enter__()
    ending.__enter__()
    inner.__enter__()
    seen.clear()
    ending.__exit__(None, None, None)
    assert set(seen) == {"search"} and env.current_mode() == "search"


def test_a_mode_holds_on_every_thread() -> None:
    seen = []
    with env.mode("strict"):
        thread = threading.Thread(target=lambda: seen.append(env.current_mode()))
        thread.start()
        thread.join()
    assert seen == ["strict"]


@pytest.mark.parametrize(("first_out", "left"), [("serve", "off"), ("off", "serve")])
def test_two_threads_may_leave_their_modes_in_either_order(first_out: str, left: str) -> None:
    blocks = {name: env.mode(name) for name in ("serve", "off")}
    for block in blocks.values():
        block.__enter__()
    blocks.pop(first_out).__exit__(None, None, None)
    assert env.current_mode() == left
    blocks.pop(left).__exit__(None, None, None)
    assert env.current_mode() == "auto"


def test_leaving_a_mode_that_was_entered_twice_leaves_the_inner_one() -> None:
    with env.mode("off"), env.mode("serve"):
        with env.mode("off"):
            pass
        assert env.current_mode() == "serve"


def test_who_asked_is_told_when_a_mode_begins_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env, "_on_mode_change", [])
    seen: list[str] = []
    env.on_mode_change(lambda: seen.append(env.current_mode()))
    with env.mode("serve"):
        pass
    assert seen == ["serve", "auto"]


@pytest.mark.parametrize(
    ("setting", "folders"),
    [
        ("", []),
        (os.pathsep, []),
        ("/a", [Path("/a")]),
        (f"/a{os.pathsep}{os.pathsep}b", [Path("/a"), Path("b")]),
        (f"~/x{os.pathsep}/y", [Path("/users/me/x"), Path("/y")]),
    ],
    ids=["unset", "only separators", "one", "empty part", "home"],
)
def test_the_config_path_is_a_list_of_folders(
    monkeypatch: pytest.MonkeyPatch, setting: str, folders: list[Path]
) -> None:
    monkeypatch.setenv("HOME", "/users/me")
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", setting)
    assert env.config_path() == folders


def test_the_cache_folder_is_read_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", " ~/x ")
    assert env.cache_dir_setting() == "~/x"
    monkeypatch.delenv("AUTOTUNED_CACHE_DIR")
    assert env.cache_dir_setting() == ""


def test_every_option_has_help_and_its_value_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOTUNED_CACHE_DIR")
    monkeypatch.setenv("AUTOTUNED_LOG", "debug")
    names = [option.name for option in options.OPTIONS]
    assert len(set(names)) == len(names)
    assert all(name.startswith("AUTOTUNED_") for name in names)
    assert all(option.help.endswith(".") and option.default for option in options.OPTIONS)
    assert options.values() == {**dict.fromkeys(names, ""), "AUTOTUNED_LOG": "debug"}


@pytest.mark.parametrize("value", ["1", "true", "ON", "yes", "y"])
def test_the_interpreter_is_asked_for_as_triton_reads_it(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", value)
    assert env.interpreter_requested()


@pytest.mark.parametrize("value", ["", "0", "false", "off", "no"])
def test_anything_else_asks_for_no_interpreter(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", value)
    assert not env.interpreter_requested()


def test_the_interpreter_can_be_chosen_until_triton_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(env, "_chose_interpreter", False)
    monkeypatch.setitem(sys.modules, "triton", sys)
    with pytest.raises(RuntimeError, match="Triton was imported before TRITON_INTERPRET=1 was set"):
        env.use_interpreter()
    monkeypatch.delitem(sys.modules, "triton")
    env.use_interpreter()
    assert env.interpreter_requested()
    monkeypatch.setitem(sys.modules, "triton", sys)
    env.use_interpreter()  # asked for before the import: nothing to change


@pytest.mark.parametrize("before", [None, "0"])
def test_the_interpreter_is_chosen_for_a_block_and_again(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.setattr(env, "_chose_interpreter", False)
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if before is not None:
        monkeypatch.setenv("TRITON_INTERPRET", before)
    for _ in range(2):  # the second time Triton is imported, and for the interpreter
        with env.interpreter_put_back():
            env.use_interpreter()
            assert env.interpreter_requested()
        assert os.environ.get("TRITON_INTERPRET") == before
        monkeypatch.setitem(sys.modules, "triton", sys)


def test_tools_of_triton_are_read_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/opt/ptxas ")
    assert env.triton_tool("TRITON_PTXAS_PATH") == "/opt/ptxas"
    assert env.triton_tool("TRITON_PTXAS_NONE") == ""


# -- the log ---------------------------------------------------------------------------------------------------------


def test_without_the_variable_the_log_is_left_to_the_application() -> None:
    env.configure_logging()
    assert env.log.handlers == []
    assert env.log.propagate


def test_the_log_goes_to_stderr_at_the_level_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTOTUNED_LOG", "info")
    env.configure_logging()
    logging.getLogger("autotuned").info("said %d", 1)
    logging.getLogger("autotuned").debug("not said")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "autotuned: said 1\n")


def test_an_unknown_level_is_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("AUTOTUNED_LOG", "loud")
    env.configure_logging()
    assert [record.getMessage() for record in caplog.records] == [
        "AUTOTUNED_LOG: expected debug, info, warning or error, got 'loud'; ignored."
    ]
    assert env.log.handlers == []


def test_a_thing_is_said_once_in_a_process_or_for_whoever_keeps_what_was_said(caplog, monkeypatch):
    monkeypatch.setattr(env, "SAID", 2)
    mine: set[str] = set()
    for about in ("a", "a", "b", "b"):
        env.warn_once(about, "about %s", about)
        env.warn_once(about, "mine about %s", about, said=mine)
    assert caplog.messages == ["about a", "mine about a", "about b", "mine about b"]
    env.warn_once("c", "about c")  # no more are kept: one of before is said again
    env.warn_once("a", "about %s", "a")
    assert caplog.messages[4:] == ["about c", "about a"]


HEARS = """
import os, sys
from autotuned import _native, env
if sys.argv[1] == "python":
    _native.extension = None
heard = []
env.on_code_change(lambda: heard.append(1))
env.on_code_change(lambda: heard.append(2))
for name in ("TRITON_A", "DISABLE_B", "HOME_C", "triton_d", "TRITON_\\udce4"):
    os.environ[name] = "1"
    os.environ[name] = "1"
    del os.environ[name]
    os.putenv(name, "2")
    os.putenv(os.fsencode(name), b"2")
    os.unsetenv(name)
    os.environb[os.fsencode(name)] = b"3"
    print(name.encode("ascii", "replace"), heard)
    heard.clear()
open(os.devnull).close()
print(id(heard) > 0, heard)


def refuse():
    raise RuntimeError("refused")


env.on_code_change(refuse)
try:
    os.environ["TRITON_A"] = "4"
except RuntimeError as error:
    print(error)
os.environ["HOME_C"] = "5"
print(os.environ.get("HOME_C"), os.environ["TRITON_A"])
"""


@pytest.mark.skipif(_native.extension is None, reason="one of the two is missing")
def test_changes_of_the_environment_are_heard_alike_in_c_and_in_python() -> None:
    def said(how: str) -> list[str]:
        done = subprocess.run([sys.executable, "-c", HEARS, how], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    heard = said("c")
    assert heard == said("python")
    assert heard[0] == f"b'TRITON_A' {[1, 2] * 7}" and heard[2] == "b'HOME_C' []"
    assert heard[-3:] == ["True []", "refused", "5 3"]
