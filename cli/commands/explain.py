"""`autotuned explain`: shows which place would answer stored calls here and now, or why none does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Annotated

import typer

from autotuned._startup import later
from autotuned.errors import KernelNameError, NoDeviceError
from autotuned.gpu import device
from autotuned.key.key import Key
from autotuned.store import layout, listing
from autotuned.store.choice import Origin
from autotuned.typed_json import Json

from .. import terminal
from ..views.names import complete, no_key

if TYPE_CHECKING:
    from autotuned.offline.report import stored
    from autotuned.resolve import explain
    from autotuned.resolve.explain import Explanation
else:
    stored, explain = map(later, ("offline.report.stored", "resolve.explain"))


def explain_(
    kernel: Annotated[
        str,
        typer.Argument(
            metavar="KERNEL",
            autocompletion=complete,
            help="A kernel's name or a dotted suffix, or a target: app.kernels:matmul, app.kernels:, kernels.py.",
        ),
    ],
    digest: Annotated[str | None, typer.Argument(metavar="KEY", help="Only keys that begin with this.")] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Say where a kernel's calls get their choice here and now.

    For a miss it says how the nearest stored key differs.

    Given a kernel's name, it compares the stored keys with this machine's device, toolchain and environment, and does
    not import your program. Given a target (`app.kernels:matmul`, `kernels.py`), it imports the kernel and explains
    every registered case. Nothing is measured, launched or moved.
    """
    is_target = ":" in kernel or kernel.endswith(".py")
    name, found = _of_target(kernel, as_json) if is_target else _of_name(kernel)
    chosen = [one for one in found if (one.key.digest if one.key else "").startswith(digest or "")]
    if not chosen:
        raise no_key(name, digest, (one.key.digest for one in found if one.key))
    if as_json:
        terminal.print_json({"kernel": name, "keys": [one.to_json() for one in chosen]})
        return
    for explanation in chosen:
        terminal.say(f"{explanation}\n")


def _of_name(wanted: str) -> tuple[str, list[Explanation]]:
    try:
        name = listing.one_named(stored.kernels(quietly=True), wanted)
    except KernelNameError as error:
        raise _may_be_module(error, wanted) from None
    found: dict[str, Explanation] = {}
    with explain.reading_once():
        for one in stored.of_kernel(name, heads=True, quietly=True):
            explanation = _of_stored(one.key)
            assert explanation.key is not None
            found.setdefault(explanation.key.digest, explanation)  # keys of the same call are equal in this context
    return name, [*found.values(), *_damaged(name)]


def _may_be_module(error: KernelNameError, wanted: str) -> KernelNameError:
    """The error with what to write for a module, which is not imported to find out."""
    is_name = bool(wanted) and all(map(str.isidentifier, wanted.split(".")))
    hint = f" To explain the cases of a module, add a colon: `autotuned explain {wanted}:`." if is_name else ""
    return KernelNameError(f"{error}{hint}", name=wanted)


def _damaged(kernel: str) -> Iterator[Explanation]:
    """Explanations of unreadable records."""
    for path, seen in listing.unreadable(kernel):
        step = explain.Step(explain.WORDS[Origin.STORE], False, f"{seen.problem}: {seen.detail}")
        notes = (f"the record {path} cannot be used",)
        yield explain.Explanation(kernel, None, "auto", seen.problem, "search", None, (step,), remarks=notes)


def _of_stored(key: Key) -> Explanation:
    try:
        return explain.of_stored(key, _present(key.context))
    except NoDeviceError as error:
        remarks = (" ".join(str(error).split()),)
        return explain.Explanation(key.kernel, key, "auto", "other device", "error", None, (), remarks=remarks)


def _present(context: Mapping[str, Json]) -> dict[str, Json]:
    """The current values of the parts of a context that can be found without the program."""
    kind, name = context["device"]["kind"], context["device"]["name"]
    where = device.INTERPRETER if name == "interpreter" else device.cuda() if kind == "cuda" else device.cpu()
    now: dict[str, Json] = {"device": where.to_json()}
    if "triton" in context:
        from autotuned.triton_compat import fingerprint, kernel

        now |= {**fingerprint.of(where.arch, layout.root()), "environment": kernel.environment()}
    for distribution in context.get("distributions", {}):
        now.setdefault("distributions", {})[distribution] = _installed(distribution)
    return now


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _of_target(target: str, as_json: bool) -> tuple[str, list[Explanation]]:
    from autotuned.offline import targets
    from autotuned.offline.cases import HINT
    from autotuned.offline.device import tensors_on, use_device

    with terminal.users_output(as_json):
        where = tensors_on(use_device())
        found = targets.load(target)
        explanations = [
            one.tuner.explain(targets.bind(one, case))
            for one in found
            for generator in one.tuned.cases
            for case in generator(where)
        ]
    names = ", ".join(one.name for one in found)
    if not explanations:
        raise terminal.fail(f"there is nothing to explain: no cases for {names}. {HINT}")
    return names, explanations
