import enum
import json
import math
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
from fakes import TorchDtype, named_type
from hypothesis import given, settings
from hypothesis import strategies as st

from autotuned import disk
from autotuned.errors import EncodingError
from autotuned.typed_json import canonical, digest, encode, has_names_once, is_numpy_scalar, unencodable


class Color(enum.Enum):
    RED = 1
    CRIMSON = RED  # an alias: the same member
    GREEN = 2


class Level(enum.IntEnum):
    LOW = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


Pair = namedtuple("Pair", "a b")
TorchDevice = named_type("torch", "device", __str__=lambda self: "cuda:1")
TritonDtype = named_type("triton.language.core", "dtype", __str__=lambda self: "fp16")
Constexpr = named_type("triton.language.core", "constexpr", __init__=lambda self, value: setattr(self, "value", value))
HERE = "argument 'a' of 'app.k'"


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        pytest.param(None, None, id="none"),
        pytest.param(True, True, id="bool"),
        pytest.param(1, 1, id="int"),
        pytest.param(2**100, 2**100, id="big int"),
        pytest.param(-(2**63) - 1, -(2**63) - 1, id="int below 64 bits"),
        pytest.param("1", "1", id="str"),
        pytest.param("", "", id="empty str"),
        pytest.param("größe \U0001f600 \x00", "größe \U0001f600 \x00", id="any text"),
        pytest.param("\ud800", {"text": "eda080"}, id="lone surrogate"),
        pytest.param(1.0, {"float": "0x1.0000000000000p+0"}, id="float"),
        pytest.param(0.1, {"float": "0x1.999999999999ap-4"}, id="float without a short decimal"),
        pytest.param(-0.0, {"float": "0x0.0p+0"}, id="minus zero"),
        pytest.param(math.inf, {"float": "inf"}, id="infinity"),
        pytest.param(-math.inf, {"float": "-inf"}, id="minus infinity"),
        pytest.param(math.nan, {"float": "nan"}, id="nan"),
        pytest.param(-math.nan, {"float": "nan"}, id="nan with a sign"),
        pytest.param(1 - 0.5j, {"complex": [{"float": "0x1.0000000000000p+0"}, {"float": "-0x1.0000000000000p-1"}]},
                     id="complex"),
        pytest.param(b"\x00\xff", {"bytes": "00ff"}, id="bytes"),
        pytest.param((), {"tuple": []}, id="empty tuple"),
        pytest.param([1, [2, (3,)]], [1, [2, {"tuple": [3]}]], id="tuple in lists"),
        pytest.param(Pair(1, 2), {"tuple": [1, 2]}, id="named tuple"),
        pytest.param({}, {"dict": []}, id="empty dict"),
        pytest.param({"b": 1, "a": 2}, {"dict": [["a", 2], ["b", 1]]}, id="dict"),
        pytest.param({(1,): 0, 1: 2}, {"dict": [[1, 2], [{"tuple": [1]}, 0]]}, id="dict with odd keys"),
        pytest.param(Color.RED, {"enum": ["Color.RED", 1]}, id="enum"),
        pytest.param(Color.CRIMSON, {"enum": ["Color.RED", 1]}, id="enum alias"),
        pytest.param(Level.LOW, {"enum": ["Level.LOW", 1]}, id="enum that is an int"),
        pytest.param(Access.READ | Access.WRITE, {"enum": ["Access.3", 3]}, id="flags without a name"),
        pytest.param(TorchDtype("float16"), {"dtype": "torch.float16"}, id="torch dtype"),
        pytest.param(TorchDevice(), {"device": "cuda:1"}, id="torch device"),
        pytest.param(TritonDtype(), {"dtype": "triton.fp16"}, id="triton dtype"),
        pytest.param(Constexpr(4), 4, id="constexpr is what it holds"),
        pytest.param(Constexpr((1.0,)), {"tuple": [{"float": "0x1.0000000000000p+0"}]}, id="constexpr of a tuple"),
        pytest.param(np.int64(1), {"numpy": ["int64", 1]}, id="numpy int64"),
        pytest.param(np.uint8(1), {"numpy": ["uint8", 1]}, id="numpy uint8"),
        pytest.param(np.bool_(True), {"numpy": ["bool", True]}, id="numpy bool"),
        pytest.param(np.float32(-0.0), {"numpy": ["float32", {"float": "0x0.0p+0"}]}, id="numpy float32"),
        pytest.param(np.float64(1), {"float": "0x1.0000000000000p+0"}, id="numpy float64 is a Python float"),
        pytest.param(np.str_("x"), "x", id="numpy str is a Python str"),
    ],
)  # fmt: skip
def test_each_value_has_one_spelling_that_json_can_carry(value: Any, spelled: Any) -> None:
    written = encode(value, HERE)
    assert canonical(written) == canonical(spelled)
    assert json.loads(canonical(written)) == spelled


FIVE = [1, True, 1.0, "1", Color.RED]
MORE = [0, False, None, "", (), [], {}, b"1", 1 + 0j, (1,), [1], [[1]], ((1,),), {1: 1}, {"float": "0x1p+0"},
        Level.LOW, np.int64(1), np.int32(1), np.float32(1), math.nan, math.inf, -math.inf, -1, 2**64,
        "\ud83d\ude00", "\U0001f600", "eda080", TorchDtype("int8"), "torch.int8", Access.READ, Access.RUN,
        Access.READ | Access.WRITE, Access.READ | Access.RUN]  # fmt: skip


@pytest.mark.parametrize("values", [pytest.param(FIVE, id="five kinds of one"), pytest.param(FIVE + MORE, id="all")])
def test_values_of_different_types_have_different_digests(values: list[Any]) -> None:
    assert len({digest(encode(value, HERE)) for value in values}) == len(values)


def test_order_of_a_dict_does_not_count() -> None:
    one, other = {"a": 1, 2: (3,), None: 4}, OrderedDict({None: 4, 2: (3,), "a": 1})
    assert digest(encode(one, HERE)) == digest(encode(dict(other), HERE))


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, 2**63, -1])
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=3)
    | st.binary(max_size=2)
    | st.sampled_from([Color.RED, Color.GREEN, Level.LOW, np.int64(1), np.float32(1)])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(SCALARS, inner, max_size=2)
    ),
    max_leaves=4,
)


def typed(value: Any) -> Any:
    """A value with its types, such that == means "the same typed value": one zero, one NaN."""
    if isinstance(value, enum.Enum):
        return type(value), value.name
    if isinstance(value, float):
        return float, "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(typed, value))
    if isinstance(value, dict):
        return dict, frozenset((typed(key), typed(item)) for key, item in value.items())
    return type(value), value


@settings(max_examples=40, deadline=None, database=None, derandomize=True)
@given(VALUES, VALUES)
def test_digests_are_equal_exactly_when_the_typed_values_are(one: Any, other: Any) -> None:
    assert (digest(encode(one, HERE)) == digest(encode(other, HERE))) == (typed(one) == typed(other))
    assert digest(encode(one, HERE)) == digest(json.loads(json.dumps(encode(one, HERE))))


@pytest.mark.parametrize(
    ("value", "where", "kind"),
    [
        pytest.param(object(), HERE, "builtins.object", id="object"),
        pytest.param({1, 2}, HERE, "builtins.set", id="set"),
        pytest.param([1, object()], f"{HERE}[1]", "builtins.object", id="in a list"),
        pytest.param({"k": (0, object())}, f"{HERE}['k'][1]", "builtins.object", id="in a tuple in a dict"),
        pytest.param(OrderedDict(), HERE, "collections.OrderedDict", id="subclass of dict"),
        pytest.param(np.zeros(1), HERE, "numpy.ndarray", id="array of one element"),
        pytest.param(np.zeros(2), HERE, "numpy.ndarray", id="array of two elements"),
        pytest.param(np.longdouble(1), HERE, "numpy.longdouble", id="long double, which Python cannot hold"),
    ],
)
def test_a_value_without_a_spelling_is_refused_with_its_place_and_type(value: Any, where: str, kind: str) -> None:
    with pytest.raises(EncodingError) as caught:
        encode(value, HERE)
    assert caught.value.where == where
    assert str(caught.value).startswith(f"{where}: expected None, bool, int, ")
    assert f"got {kind}. " in str(caught.value)


def test_the_fallback_is_asked_about_unknown_types_at_any_depth() -> None:
    asked = []

    def fallback(value: Any, where: str) -> Any:
        asked.append(where)
        return {"mine": type(value).__name__}

    written = encode([1, {"a": object()}, ({2},)], HERE, fallback)
    assert written == [1, {"dict": [["a", {"mine": "object"}]]}, {"tuple": [{"mine": "set"}]}]
    assert asked == [f"{HERE}[1]['a']", f"{HERE}[2][0]"]


def test_a_fallback_may_refuse() -> None:
    with pytest.raises(EncodingError, match="got builtins.object"):
        encode(object(), HERE, unencodable)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_canonical_text_refuses_what_json_has_not(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical({"a": number})


def test_canonical_text_is_sorted_dense_and_ascii() -> None:
    assert canonical({"b": [1, {"d": None, "c": True}], "a": "ö"}) == '{"a":"\\u00f6","b":[1,{"c":true,"d":null}]}'


@pytest.mark.parametrize(
    ("value", "scalar"),
    [(np.int64(1), True), (np.float64(1), True), (np.zeros(()), False), (np.zeros(1), False), (1, False), (1.0, False)],
    ids=str,
)
def test_numpy_scalars_are_told_from_arrays(value: Any, scalar: bool) -> None:
    assert is_numpy_scalar(value) is scalar


NAMES = st.sampled_from(["a", "b", "a:b", '":'])
WRITTEN = st.recursive(  # objects as text, with names that may be there twice
    st.sampled_from(["1", '"x"', '"x: y"', '"\\":"', "[]"]),
    lambda inner: st.lists(st.tuples(NAMES, inner), max_size=3).map(
        lambda pairs: "{" + ", ".join(f"{json.dumps(name)} : {text}" for name, text in pairs) + "}"
    ),
    max_leaves=8,
)


def objects_in(data: Any) -> list[Any]:
    inner = [found for value in data.values() for found in objects_in(value)] if isinstance(data, dict) else []
    return [data, *inner] if isinstance(data, dict) else []


@settings(max_examples=300)
@given(WRITTEN)
def test_no_text_that_gives_a_name_twice_is_taken_for_one_without(text: str) -> None:
    try:
        disk.parse_json(text)
        once = True
    except ValueError:
        once = False
    objects = objects_in(disk.parse_trusting(text))
    assert once or not has_names_once(text, objects)
    assert not has_names_once(text, objects[1:]) or ":" not in text  # what is not looked at counts as another name
    if objects and once:
        assert has_names_once(text, objects) == (text.count(":") == sum(map(len, objects)))


def test_a_text_without_colons_in_strings_is_known_to_give_each_name_once() -> None:
    text = '{"a": 1, "b": {"c": [2]}}'
    data = json.loads(text)
    assert has_names_once(text, [data, data["b"]]) and not has_names_once(text, [data, "ab"])
    assert not has_names_once('{"a": 1, "a": 2}', [{"a": 2}])
