"""A tuner's `.cache` that notices every removal of a choice, by any method of `dict`."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any


class Choices(dict[Any, Any]):
    """Choices in Triton's layout; `_forget` is called with the removed keys."""

    __slots__ = ()

    def _forget(self, *keys: Any) -> None:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are plain: they belong to no tuner."""
        return dict, (dict(self),)

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        self._forget(key)

    def popitem(self) -> tuple[Any, Any]:
        """Remove the newest choice."""
        key, value = super().popitem()
        self._forget(key)
        return key, value

    def clear(self) -> None:
        """Remove all choices."""
        keys = list(self)
        super().clear()
        self._forget(*keys)

    def pop(self, key: Any, *default: Any) -> Any:
        """Remove a choice and return it, or the default."""
        held, config = super().__contains__(key), super().pop(key, *default)
        if held:
            self._forget(key)
        return config

    # `dict`'s own versions would bypass the methods of subclasses.
    update, setdefault = MutableMapping.update, MutableMapping.setdefault

    def __ior__(self, other: Any) -> Any:  # type: ignore[misc]  # dict accepts the same as `update`
        self.update(other)
        return self
