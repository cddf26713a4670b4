"""The entry point: commands, their common options, and errors as one line."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
import typer.core

import autotuned
from autotuned import env
from autotuned.errors import AutotunedError, DeviceChoiceError, OptionError, OutputError

from . import terminal
from .commands.check import check
from .commands.clear import clear
from .commands.compress import compress
from .commands.diff import diff
from .commands.doctor import doctor
from .commands.explain import explain_
from .commands.export import export
from .commands.gc import gc
from .commands.import_ import import_
from .commands.list import list_
from .commands.merge import merge
from .commands.prune import prune
from .commands.pull import pull, push
from .commands.record import record
from .commands.report import report
from .commands.run import run
from .commands.show import show
from .commands.tune import tune
from .commands.warmup import warmup
from .shared import of_store, with_options

DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"  # "-" and "--" after a word processor

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors, and JSON with --json.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log decisions on stderr, and errors with a traceback.")]


class Commands(typer.core.TyperGroup):
    """All commands, with their common behaviour."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command line; a usage error ends in one line like any other error."""
        alone, options["standalone_mode"] = options.get("standalone_mode", True), False
        if not alone:
            return super().main(*args, **options)
        try:
            sys.exit(super().main(*args, **options))
        except Exception as error:
            wrong: Any = error
            if not hasattr(wrong, "format_message"):  # not an error of click, or of typer's copy of it
                raise
            if (ctx := getattr(wrong, "ctx", None)) is not None:
                terminal.remark_text(f"{ctx.get_usage()}\nTry '{ctx.command_path} --help' for help.\n\n")
            text = wrong.format_message()
            sys.exit(terminal.fail(text[:1].lower() + text[1:], wrong.exit_code).exit_code)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse typographic dashes: pasted from a web page, such an option would be read as a kernel's name."""
        if not args and not ctx.resilient_parsing:
            terminal.remark_text(f"{ctx.get_help()}\n")
            ctx.exit(2)
        for arg in args:
            if arg[:1] and arg[0] in DASHES:
                ctx.fail(f"{arg!r} begins with a typographic dash; type --{arg.lstrip(DASHES + '-')}")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an expected failure is one line on stderr and exit code 1."""
        terminal.spell_what_stdout_cannot()
        try:
            with terminal.printable_log():
                return super().invoke(ctx)
        except OutputError as error:
            raise terminal.fail(f"--out: {error}") from error
        except AutotunedError as error:
            raise terminal.fail(str(error)) from error
        except OSError as error:  # `str` would begin with the error number
            named = error.filename is not None
            raise terminal.fail(f"{error.strerror}: {error.filename!r}" if named else str(error)) from error
        except KeyboardInterrupt:
            terminal.remark("interrupted.")
            raise typer.Exit(130) from None


class Command(typer.core.TyperCommand):
    """A command."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The parts of the usage line: required parameters as they are typed, optional ones in brackets."""
        params = self.get_params(ctx)
        needed = [f"{param.opts[0]} {param.metavar}" for param in params if param.opts[0][0] == "-" and param.required]
        return [*needed, "[OPTIONS]", *(_usage(param) for param in params if param.opts[0][0] != "-")]


def _usage(argument: Any) -> str:
    name = (argument.metavar or argument.name.upper()).strip("[].") + "..." * (argument.nargs != 1)
    return name if argument.required else f"[{name}]"


app = typer.Typer(
    cls=Commands,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        terminal.say(f"autotuned {autotuned.__version__}")
        raise typer.Exit


@app.callback()
def main(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    as_json: terminal.AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Tune kernels ahead of time and inspect the stored choices.

    --json, --quiet and --verbose may also precede the command.
    """
    given = {"as_json": as_json, "quiet": quiet, "verbose": verbose}
    defaults = {name: True for name, is_given in given.items() if is_given}
    ctx.default_map = dict.fromkeys(ctx.command.list_commands(ctx), defaults)  # type: ignore[attr-defined]


def _with_levels(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--quiet` and `--verbose` to a command, and turn the library's option errors into usage errors."""

    @functools.wraps(command)
    def run(*args: Any, quiet: bool, verbose: bool, **kwargs: Any) -> None:
        if quiet and verbose:
            raise terminal.both_given("--quiet, --verbose")
        with _level(quiet, verbose):
            try:
                command(*args, **kwargs)
            except OptionError as error:
                raise typer.BadParameter(error.problem, param_hint=_hint(error.option)) from error
            except DeviceChoiceError as error:
                raise typer.BadParameter(str(error), param_hint="--devices") from error

    return with_options(run, command, {"quiet": (Quiet, False), "verbose": (Verbose, False)})


def _hint(option: str) -> str | None:
    """The command-line name of an option of the library; None for a variable."""
    words = "in-process" if option == "isolate" else option.removesuffix("_s").replace("_", "-")
    return "URL" if option == "url" else f"--{words}" if option else None


@contextmanager
def _level(quiet: bool, verbose: bool) -> Iterator[None]:
    if not quiet and not verbose:
        yield
        return
    with env.log_level("error" if quiet else "info"), terminal.hushed(quiet):
        try:
            yield
        except Exception as error:
            if verbose and not isinstance(error, typer.Exit):
                terminal.remark_text(traceback.format_exc())
            raise


for command in (
    tune, of_store(list_), show, explain_, export, import_, merge, diff, check, compress, run, clear, prune,
    of_store(gc, heads=True), record, warmup, of_store(report), pull, push, doctor,
):  # fmt: skip
    app.command(command.__name__.rstrip("_"), cls=Command)(_with_levels(command))
