"""Corrupt documents: unexpected values, and values replaced by others."""

import copy
import random
from typing import Any

HUGE: list[Any] = [10**30, -(10**30), 10**400, 1 << 31, 1 << 63, -1, 0, 1, True, 1e308, 0.5]
STRANGE: list[Any] = ["", "\x00", "\ud800", "\x1b[31m", "x" * 5000, "../../etc/passwd", "9" * 400, [], {}, None]
DEEP: list[Any] = [[[[]]], {"a": {"a": {}}}, [None], {"": None}, [10**30], ["x"], {"device": 1}, {"float": "x"}]


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [found for name, child in children for found in [(*path, name), *places(child, (*path, name))]]


def changed(data: Any, chance: random.Random) -> Any:
    """A document with one to three of its parts replaced, removed, or duplicated."""
    data = copy.deepcopy(data)
    for _ in range(chance.randint(1, 3)):
        if not (found := places(data)):
            return data
        *above, name = chance.choice(found)
        parent = data
        for step in above:
            parent = parent[step]
        if chance.random() < 0.1:
            del parent[name]
        else:
            parent[name] = copy.deepcopy(chance.choice([*HUGE, *STRANGE, *DEEP]))
    return data
