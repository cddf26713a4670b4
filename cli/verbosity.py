"""What every command has: `--quiet`, `--verbose`, and the usage behind an option that the library refuses."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, get_type_hints

import typer

from autotuned import env
from autotuned.errors import DeviceChoiceError, OptionError

from . import terminal

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only, and with --json the document.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log on stderr what is decided; errors with a trace.")]


def with_levels(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the two options behind its own."""

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

    signature, kinds = inspect.signature(command), get_type_hints(command, include_extras=True)
    own = [parameter.replace(annotation=kinds[name]) for name, parameter in signature.parameters.items()]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in (("quiet", Quiet), ("verbose", Verbose))
    ]
    run.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    run.__annotations__ = {**kinds, "quiet": Quiet, "verbose": Verbose}
    return run


def _hint(option: str) -> str | None:
    """How the command line spells an option of a function of the library; None for a variable."""
    return (
        f"--{'in-process' if option == 'isolate' else option.removesuffix('_s').replace('_', '-')}" if option else None
    )


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
