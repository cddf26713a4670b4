"""`--store URL`: runs commands on the records of a shared store instead of the user's."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Use this shared store (- for that of AUTOTUNED_STORE), not the user's, and no config files.",
    ),
]


def of_store(command: Callable[..., None], heads: bool = False) -> Callable[..., None]:
    """Add `--store` to a command; with `heads` it needs only sizes and times of records."""

    @functools.wraps(command)
    def run(*args: Any, store: str | None, **kwargs: Any) -> None:
        with contextlib.ExitStack() as stack:
            if store is not None:
                from autotuned.offline.release import shared

                stack.enter_context(shared.in_place(store, heads))
            command(*args, **kwargs)

    return with_options(run, command, {"store": (Store, None)})


def with_options(
    run: Callable[..., None], command: Callable[..., None], more: dict[str, tuple[Any, Any]]
) -> Callable[..., None]:
    """Give a wrapper the options of the command it wraps, and more: name -> (type, default)."""
    signature, kinds = inspect.signature(command), get_type_hints(command, include_extras=True)
    own = [parameter.replace(annotation=kinds[name]) for name, parameter in signature.parameters.items()]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in more.items()
    ]
    run.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {**kinds, **{name: kind for name, (kind, _) in more.items()}}
    return run
