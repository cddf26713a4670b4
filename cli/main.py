"""The entry point: commands, `--version`, and errors as one line."""

from __future__ import annotations

from typing import Annotated, Any

import typer
import typer.core

import autotuned
from autotuned.errors import AutotunedError, OutputError

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
from .commands.record import record
from .commands.report import report
from .commands.run import run
from .commands.show import show
from .commands.tune import tune
from .commands.warmup import warmup
from .verbosity import with_levels

DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"  # what word processors make of "-" and "--"


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


for command in (
    tune, list_, show, explain_, export, import_, merge, diff, check, run, clear, gc, record, warmup, report, doctor
):  # fmt: skip
    app.command(command.__name__.rstrip("_"))(with_levels(command))
