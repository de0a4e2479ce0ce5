"""Messages as dataclasses: written as JSON objects, and read back only if they are well formed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from functools import cached_property
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

_TYPE = "type"


class MessageError(ValueError):
    """Error for data that is no message; its text says what was expected."""


@dataclass(frozen=True)
class Message:
    """Base of all messages. A subclass's fields are plain data, an enumeration or ``Any``."""


def as_data(message: Message) -> dict[str, Any]:
    """Return the JSON object for the message."""
    values = {field.name: getattr(message, field.name) for field in fields(message)}
    return {_TYPE: type(message).__name__, **values}


class Vocabulary:
    """The messages that one side of a conversation may send."""

    def __init__(self, *kinds: type[Message]) -> None:
        self._kinds = {kind.__name__: kind for kind in kinds}

    def read(self, data: Any) -> Message:
        """Return the message that ``as_data`` converted.

        Raises MessageError for another type, for missing and unknown fields, and for a value that
        is not of its field's type; True is no int.
        """
        if not isinstance(data, dict):
            raise MessageError("expected a JSON object")
        values = dict(data)
        name = values.pop(_TYPE, None)
        kind = self._kinds.get(name) if isinstance(name, str) else None
        if kind is None:
            raise MessageError(f"expected one of {', '.join(self._kinds)}, not {name!r:.50}")
        hints = self._hints[kind.__name__]
        if values.keys() != hints.keys():
            raise MessageError(f"{name}: expected {', '.join(hints) or 'no field'}")
        return kind(**{key: _read(f"{name}.{key}", values[key], hints[key]) for key in hints})

    @cached_property
    def _hints(self) -> dict[str, dict[str, Any]]:
        return {name: get_type_hints(kind) for name, kind in self._kinds.items()}


def _read(where: str, value: Any, hint: Any) -> Any:
    """``value`` as the field's type has it."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for option in options:
        if isinstance(option, type) and issubclass(option, Enum):
            if value in [each.value for each in option]:
                return option(value)
        elif _is(value, option):
            return value
    raise MessageError(f"{where}: expected {hint}, not {value!r:.50}")


def _is(value: Any, option: Any) -> bool:
    if option is Any:
        return True
    if option is None:
        option = NoneType
    wanted = get_origin(option) or option
    return type(value) is wanted or (wanted is float and type(value) is int)
