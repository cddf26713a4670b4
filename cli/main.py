"""The entry point: commands, the options that all of them have, and errors as one line."""

from __future__ import annotations

import functools
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
from .commands.diff import diff
from .commands.doctor import doctor
from .commands.explain import explain_
from .commands.export import export
from .commands.gc import gc
from .commands.import_ import import_
from .commands.list import list_
from .commands.merge import merge
from .commands.pull import pull, push
from .commands.record import record
from .commands.report import report
from .commands.run import run
from .commands.show import show
from .commands.tune import tune
from .commands.warmup import warmup
from .shared import of_store, with_options

DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"  # what word processors make of "-" and "--"
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only, and with --json the document.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log on stderr what is decided; errors with a trace.")]


class Commands(typer.core.TyperGroup):
    """All commands, with what holds for each of them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse arguments that begin with a typographic dash: copied from a web page, they would name a kernel."""
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
        except BrokenPipeError:
            raise  # `autotuned list | head`: typer ends it quietly
        except OutputError as error:
            raise terminal.fail(f"--out: {error}") from error
        except (AutotunedError, OSError) as error:
            raise terminal.fail(str(error)) from error
        except KeyboardInterrupt:
            terminal.remark("interrupted.")
            raise typer.Exit(130) from None


app = typer.Typer(cls=Commands, pretty_exceptions_enable=False, no_args_is_help=True, rich_markup_mode=None)


def _version(asked: bool) -> None:
    if asked:
        terminal.say(f"autotuned {autotuned.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = (
        False
    ),
) -> None:
    """Tune kernels ahead of time and look at what is stored."""


def _with_levels(command: Callable[..., None]) -> Callable[..., None]:
    """A command with `--quiet` and `--verbose` behind its own options, which the library may refuse."""

    @functools.wraps(command)
    def run(*args: Any, quiet: bool, verbose: bool, **kwargs: Any) -> None:
        if quiet and verbose:
            raise typer.BadParameter("expected one of the two, got both", param_hint="--quiet, --verbose")
        with _level(quiet, verbose):
            try:
                command(*args, **kwargs)
            except OptionError as error:
                raise typer.BadParameter(error.problem, param_hint=_hint(error.option)) from error
            except DeviceChoiceError as error:
                raise typer.BadParameter(str(error), param_hint="--devices") from error

    return with_options(run, command, {"quiet": (Quiet, False), "verbose": (Verbose, False)})


def _hint(option: str) -> str | None:
    """How the command line spells an option of a function of the library; None for a variable."""
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
    tune, of_store(list_), show, explain_, export, import_, merge, diff, check, run, clear, of_store(gc, heads=True),
    record, warmup, of_store(report), pull, push, doctor,
):  # fmt: skip
    app.command(command.__name__.rstrip("_"))(_with_levels(command))
