"""Named things of one kind: those of the harness, and those that installed packages add."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from harness.errors import BadInputError

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Maps a name to its object, which is made when it is first asked for.

    Every entry has the form of an entry point: a name and ``module:Class``, where ``Class()`` is
    the object, or ``module:OBJECT`` for data. The harness's own entries come first, in their order;
    those of installed packages follow in the order of their names. Iterating over the names imports
    no entry's module.
    """

    def __init__(
        self,
        noun: str,
        interface: type[Any],
        own: Mapping[str, str],
        derived: Callable[[], Mapping[str, Callable[[], T]]] = dict,
    ) -> None:
        """``noun`` names one object in messages, and, in the plural, the entry point group.

        ``derived`` names further objects, which follow from entries of another registry.
        """
        self.group = f"xla_harness.{noun}s"
        self._noun, self._interface = noun, interface
        self._own = [EntryPoint(name, value, self.group) for name, value in own.items()]
        self._made: dict[str, T] = {}
        self._derive = derived

    def __iter__(self) -> Iterator[str]:
        return iter({**self._entries, **self._derived})

    def __len__(self) -> int:
        return len({**self._entries, **self._derived})

    def __getitem__(self, name: str) -> T:
        """Return the entry of that name.

        Raises KeyError for an unknown name and BadInputError for an entry that can't be used.
        """
        if name not in self._made:
            entry = self._entries.get(name)
            self._made[name] = self._make(entry) if entry else self._derived[name]()
        return self._made[name]

    def own(self) -> list[T]:
        """Return the harness's own entries, which are the same on every machine."""
        return [self[entry.name] for entry in self._own]

    @cached_property
    def _derived(self) -> Mapping[str, Callable[[], T]]:
        return self._derive()

    @cached_property
    def _entries(self) -> dict[str, EntryPoint]:
        entries: dict[str, EntryPoint] = {}
        others = sorted(entry_points(group=self.group), key=lambda entry: entry.name)
        for entry in (*self._own, *others):
            if entry.name in entries:
                both = f"{_package(entries[entry.name])} and {_package(entry)}"
                raise BadInputError(
                    f"{self._noun} {entry.name!r}: expected one package with it, not {both}"
                )
            entries[entry.name] = entry
        return entries

    def _make(self, entry: EntryPoint) -> T:
        where = f"{self._noun} {entry.name!r} of {_package(entry)}: {entry.value}"
        try:
            made: T = entry.load()
            made = made() if callable(made) else made
        except Exception as error:  # whatever a foreign module raises
            raise BadInputError(f"{where} can't be loaded: {error!r}") from error
        members = {*vars(self._interface), *self._interface.__annotations__}
        is_whole = is_dataclass(self._interface) and isinstance(made, self._interface)
        missing = sorted(
            name
            for name in (() if is_whole else members)
            if not name.startswith("_") and not self._has(made, name)
        )
        if missing:
            raise BadInputError(f"{where}: expected it to have {', '.join(missing)}")
        name = getattr(made, "name", None)
        if name != entry.name:
            raise BadInputError(f"{where}: expected the name {entry.name!r}, found {name!r}")
        return made

    def _has(self, made: object, name: str) -> bool:
        """Return whether the object has a member of its own.

        One that it inherits from the interface will do only where nobody reads what it returns: a
        protocol's methods return None.
        """
        if not hasattr(made, name):
            return False
        member = vars(self._interface).get(name)
        if member is None or inspect.getattr_static(type(made), name, None) is not member:
            return True
        function = member.fget if isinstance(member, property) else member
        return getattr(function, "__annotations__", {}).get("return") in (None, "None")


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "xla-harness"
