"""Numbers and digests of values without a JSON form, while other threads ask for those of other values."""

from collections import OrderedDict
from functools import partial

import pytest
from anywhere import interrupt

from autotuned.key import opaque


class Slotted:
    __slots__ = ()


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(opaque, "LIMIT", 2)
    monkeypatch.setattr(opaque, "_kept", OrderedDict())
    monkeypatch.setattr(opaque, "_hooks", OrderedDict())


@pytest.mark.parametrize("function", [opaque._number_of_kept, opaque._drop_unused])
@pytest.mark.parametrize("is_known", [True, False])
def test_threads_may_number_objects_at_once(function, is_known):
    """A call ended in a `KeyError` if another thread's object was numbered at the wrong moment."""

    def begin():
        opaque._kept.clear()
        objects = [Slotted() for _ in range(4)]
        for one in objects[not is_known : 3]:
            opaque.this_very(one)
        return partial(opaque.this_very, objects[0]), lambda: [*map(opaque.this_very, objects[1:])]

    interrupt(function, begin)


def test_threads_that_number_one_object_at_once_get_one_number():
    def begin():
        one, found = Slotted(), []
        number = lambda: found.append(opaque.this_very(one)[opaque.OBJECT])
        return lambda: (number(), found.count(found[0]) == len(found) or pytest.fail(str(found))), number

    interrupt(opaque._number_of_kept, begin)


def test_threads_may_digest_hooks_at_once():
    """A call ended in a `KeyError` if another thread's hook was digested at the wrong moment."""

    def begin():
        opaque._hooks.clear()
        hooks = [partial(print, number) for number in range(4)]
        opaque.hook(hooks[0])
        return partial(opaque.hook, hooks[0]), lambda: [*map(opaque.hook, hooks[1:])]

    interrupt(opaque.hook, begin)
