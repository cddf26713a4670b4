import inspect
import pickle

import pytest

from autotuned import errors

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, errors.AutotunedError) and value is not errors.AutotunedError
]
BUILTINS = {
    "DecorationError": TypeError,
    "ArgumentNameError": ValueError,
    "ConfigError": ValueError,
    "PruningError": ValueError,
    "SpaceError": ValueError,
    "CallError": TypeError,
    "VersionError": ImportError,
    "NoDeviceError": RuntimeError,
    "OptionError": ValueError,
    "DeviceChoiceError": ValueError,
    "PlaceError": ValueError,
    "DeviceLostError": RuntimeError,
    "LeftOutError": RuntimeError,
    "EncodingError": TypeError,
    "RecordError": ValueError,
    "ConfigFileError": ValueError,
    "OutputError": OSError,
    "StoreError": OSError,
    "KernelNameError": LookupError,
    "TargetError": ValueError,
    "RecordingError": ValueError,
    "NotTunedError": LookupError,
    "AllConfigsFailedError": RuntimeError,
    "OutOfMemoryError": MemoryError,
    "SyncError": RuntimeError,
    "CheckError": RuntimeError,
    "BinaryError": ValueError,
    "SealedError": RuntimeError,
}


def facts(kind: type) -> dict[str, object]:
    return {name: {"reason": ["config"]} if name == "reasons" else name for name in inspect.get_annotations(kind)}


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_survives_pickling_with_its_text_and_its_facts(kind: type[errors.AutotunedError]) -> None:
    error = pickle.loads(pickle.dumps(kind("`k`: what, got 5.", **facts(kind))))
    assert type(error) is kind
    assert str(error) == "`k`: what, got 5."
    assert vars(error) == facts(kind)


@pytest.mark.parametrize("kind", CLASSES)
def test_each_error_is_also_the_builtin_that_fits_and_says_what_its_facts_are(kind: type) -> None:
    assert kind.__bases__ == (errors.AutotunedError, BUILTINS[kind.__name__])
    for name in facts(kind):
        assert f"`.{name}`" in (kind.__doc__ or "")


def test_the_table_has_every_error_and_no_other() -> None:
    assert BUILTINS.keys() == {kind.__name__ for kind in CLASSES}


def test_the_base_carries_facts_too() -> None:
    error = errors.AutotunedError("text", kernel="k")
    assert (str(error), vars(error)) == ("text", {"kernel": "k"})
