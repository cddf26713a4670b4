"""Recorded calls, as lines of a recording and as objects."""

import json

from fakes import make_key

from autotuned.recording.file import RecordedCall, Tail


def recorded(n: int, count: int = 1, kernel: str = "app.k", size: int = 0) -> RecordedCall:
    """A recorded call with this size."""
    memories = {"memories": [{"bytes": size}]}
    return RecordedCall(kernel, "app:k", make_key(n, kernel=kernel), memories, None, count)


def line(call: RecordedCall) -> bytes:
    """The call's line in a recording."""
    return json.dumps({"id": call.identity, **call.to_json(), "count": call.count}).encode() + b"\n"


def more(call: RecordedCall, count: int) -> bytes:
    """A line that adds to the call's count."""
    return json.dumps({"id": call.identity, "more": count}).encode() + b"\n"


def counts(tail: Tail) -> dict[int, int]:
    """How often each call was made, by its size."""
    return {call.key.call["values"]["n"]: call.count for call in tail.calls.values()}
