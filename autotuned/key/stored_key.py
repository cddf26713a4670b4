"""The parts of a key as files hold them: of whatever code walks into, the type is checked before anything walks."""

from __future__ import annotations

from autotuned.gpu.device import from_json
from autotuned.key.key import Key
from autotuned.typed_json import INT64_MAX, Json, integers, texts, typed, wrong


def load(kernel: Json, call: Json, context: Json) -> Key:
    """The key that a file holds, if its parts are of the right types.

    Raises:
        RecordError: One is not; `.where` names it.
    """
    check_call(call, "key.call")
    typed(context, dict, "key.context")
    check_device(context.get("device"), "key.context.device")
    return Key(typed(kernel, str, "kernel"), call, context)


def check_device(data: Json, where: str) -> None:
    """Check the device part of a context.

    Raises:
        RecordError: It is none.
    """
    try:
        from_json(typed(data, dict, where))
    except TypeError as error:
        raise wrong(where, f"a device ({error!s:.200})", data) from None


def check_call(call: Json, where: str) -> dict[str, Json]:
    """Check a call's tensors, values, names of absent arguments and options, as far as it has them.

    Raises:
        RecordError: One of them is of another type.
    """
    found: dict[str, Json] = typed(call, dict, where)
    for part in ("tensors", "values", "options"):
        typed(found.get(part, {}), dict, f"{where}.{part}")
    texts(found.get("none", []), f"{where}.none")
    for name, tensor in found.get("tensors", {}).items():
        _check_tensor(tensor, f"{where}.tensors.{name:.60}")
    return found


def _check_tensor(tensor: Json, where: str) -> None:
    typed(tensor, dict, where)
    for name in ("dtype", "strides"):
        typed(tensor.get(name), str, f"{where}.{name}")
    integers(tensor.get("shape", []), f"{where}.shape", -INT64_MAX)  # a bucket may be any number
