import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from fakes import FakeConfig, drop, form, make_key, put

from autotuned import typed_json
from autotuned.errors import RecordError
from autotuned.store import record
from autotuned.store.record import Timing, TuningRecord

FAST, SLOW, BROKEN = form(FakeConfig({"BLOCK": 64})), form(FakeConfig({"BLOCK": 32})), form(FakeConfig({"BLOCK": 16}))
TIMINGS = (
    Timing(FAST, 10.5, 10.0, 11.0, 40),
    Timing(SLOW, 20, 19, 21, 3),
    Timing(BROKEN, status="failed", error="OutOfResources: out of resource: shared memory"),
)
FULL = TuningRecord(make_key(), FAST, 10.5, "ok", TIMINGS, {"date": "2026-01-01T00:00:00+00:00", "seconds": 0.5})


def through_json(data: Any) -> Any:
    return json.loads(json.dumps(data, allow_nan=False))


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(FULL, id="full"),
        pytest.param(TuningRecord(make_key(), None, None, "unresolved", (), {}), id="search not finished"),
        pytest.param(TuningRecord(make_key(True), FAST, 0.0, "tied", TIMINGS[:1], {}), id="bool in the key"),
        *(pytest.param(TuningRecord(make_key(), FAST, 1.0, quality, ()), id=quality) for quality in record.QUALITIES),
        pytest.param(TuningRecord(make_key(), FAST, 1.0, None, ()), id="of unknown quality"),
        pytest.param(TuningRecord(make_key(), form(FakeConfig({"T": (1.5, "é\ud800")}, maxnreg=96, ir_override="x.ttir",
                                                        pre_hook=print)), 1.0, "ok", ()), id="every field of a config"),
        pytest.param(TuningRecord(make_key(), form(FakeConfig({}, num_warps=None, num_stages=None, num_ctas=None)), 1.0,
                                  "ok", ()), id="options left to the back end"),
    ],
)  # fmt: skip
def test_a_record_survives_json(kept: TuningRecord) -> None:
    assert record.load(through_json(record.dump(kept))) == kept


def test_the_small_fields_come_first() -> None:
    assert list(record.dump(FULL)) == [
        "schema", "kernel", "winner", "median_us", "quality", "conditions", "key", "timings", "provenance",
    ]  # fmt: skip
    assert record.dump(FULL)["schema"] == 2


def test_a_timing_is_found_by_its_config() -> None:
    assert FULL.timing_of(SLOW) is TIMINGS[1]
    assert FULL.timing_of(dict(reversed(SLOW.items()))) is TIMINGS[1]
    assert FULL.timing_of(form(FakeConfig({"BLOCK": 65}))) is None


HUGE = 10**400  # an int that no float can hold
MALFORMED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a list": (lambda data: [data], "record"),
    "null": (lambda data: None, "record"),
    "text": (lambda data: "x", "record"),
    **{f"no {name}": (drop(name), f"record.{name}") for name in record.dump(FULL)},
    "an unknown field": (put("extra", value=1), "record.extra"),
    "newer schema": (put("schema", value=3), "schema"),
    "schema 0": (put("schema", value=0), "schema"),
    "schema true": (put("schema", value=True), "schema"),
    "schema 2.0": (put("schema", value=2.0), "schema"),
    "schema as text": (put("schema", value="1"), "schema"),
    "kernel null": (put("kernel", value=None), "kernel"),
    "key a list": (put("key", value=[]), "key"),
    "key without context": (drop("key", "context"), "key.context"),
    "key with more": (put("key", "more", value={}), "key.more"),
    "call text": (put("key", "call", value="n"), "key.call"),
    "context null": (put("key", "context", value=None), "key.context"),
    "quality unknown": (put("quality", value="good"), "quality"),
    "quality a number": (put("quality", value=0), "quality"),
    "quality a list": (put("quality", value=["ok"]), "quality"),
    "median text": (put("median_us", value="10"), "median_us"),
    "median bool": (put("median_us", value=True), "median_us"),
    "median negative": (put("median_us", value=-0.1), "median_us"),
    "median nan": (put("median_us", value=float("nan")), "median_us"),
    "median infinite": (put("median_us", value=float("inf")), "median_us"),
    "median too large for a float": (put("median_us", value=HUGE), "median_us"),
    "winner text": (put("winner", value="BLOCK=64"), "winner"),
    "winner without kwargs": (drop("winner", "kwargs"), "winner.kwargs"),
    "winner with more": (put("winner", "cluster_dims", value=[1]), "winner.cluster_dims"),
    "winner kwargs a list": (put("winner", "kwargs", value=[]), "winner.kwargs"),
    "winner pre_hook 1": (put("winner", "pre_hook", value=1), "winner.pre_hook"),
    "winner num_warps text": (put("winner", "num_warps", value="4"), "winner.num_warps"),
    "winner num_warps bool": (put("winner", "num_warps", value=True), "winner.num_warps"),
    "winner num_warps float": (put("winner", "num_warps", value=4.0), "winner.num_warps"),
    "winner num_stages negative": (put("winner", "num_stages", value=-1), "winner.num_stages"),
    "winner num_ctas text": (put("winner", "num_ctas", value="1"), "winner.num_ctas"),
    "winner maxnreg bool": (put("winner", "maxnreg", value=False), "winner.maxnreg"),
    "winner ir_override a number": (put("winner", "ir_override", value=5), "winner.ir_override"),
    "timings null": (put("timings", value=None), "timings"),
    "timings an object": (put("timings", value={}), "timings"),
    "timing a number": (put("timings", 1, value=3.5), "timings[1]"),
    "timing without status": (drop("timings", 0, "status"), "timings[0].status"),
    "timing with more": (put("timings", 0, "note", value=""), "timings[0].note"),
    "timing config null": (put("timings", 2, "config", value=None), "timings[2].config"),
    "timing median nan": (put("timings", 0, "median_us", value=float("nan")), "timings[0].median_us"),
    "timing low negative": (put("timings", 0, "low_us", value=-1), "timings[0].low_us"),
    "timing high bool": (put("timings", 0, "high_us", value=False), "timings[0].high_us"),
    "timing samples negative": (put("timings", 0, "samples", value=-1), "timings[0].samples"),
    "timing samples bool": (put("timings", 0, "samples", value=True), "timings[0].samples"),
    "timing samples float": (put("timings", 0, "samples", value=3.0), "timings[0].samples"),
    "timing status unknown": (put("timings", 0, "status", value="asleep"), "timings[0].status"),
    "timing error a list": (put("timings", 2, "error", value=[]), "timings[2].error"),
    "provenance null": (put("provenance", value=None), "provenance"),
}


@pytest.mark.parametrize("form", MALFORMED)
def test_a_malformed_record_is_refused_with_the_place(form: str) -> None:
    change, where = MALFORMED[form]
    with pytest.raises(RecordError) as caught:
        record.load(change(copy.deepcopy(record.dump(FULL))))
    assert caught.value.where == where
    assert str(caught.value).startswith(f"{where}: expected ")


def test_the_error_says_expected_and_got() -> None:
    with pytest.raises(RecordError) as caught:
        record.load({**record.dump(FULL), "median_us": "fast" * 50})
    assert (
        str(caught.value) == f"median_us: expected microseconds, finite and not negative, got str {'fast' * 50!r:.60}."
    )


@pytest.mark.parametrize(
    ("number", "answer"),
    [(0, True), (1.5, True), (-2, True), (True, False), ("1", False), (None, False), (float("nan"), False),
     (float("-inf"), False), (HUGE, False)],
    ids=["0", "1.5", "-2", "true", "text", "null", "nan", "-inf", "huge int"],
)  # fmt: skip
def test_what_is_a_finite_number(number: Any, answer: bool) -> None:
    assert typed_json.is_finite(number) is answer
