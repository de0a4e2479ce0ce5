"""Shardings and specs as values of Python: compared, hashed, copied and pickled."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import jax


class _WithDevices(pickle.Pickler):
    """Pickles a device as its number, as JAX leaves it to those who pickle shardings."""

    def persistent_id(self, value: Any) -> int | None:
        return value.id if isinstance(value, jax.Device) else None


class _OnTheseDevices(pickle.Unpickler):
    def persistent_load(self, number: int) -> jax.Device:
        return jax.devices()[number]


def _pickled(value: Any) -> Any:
    _WithDevices(file := io.BytesIO()).dump(value)
    file.seek(0)
    return _OnTheseDevices(file).load()


def check_values(make: Callable[[Any], Any], arguments: list[Any]) -> None:
    """Check that values of different arguments differ, and that copies are the same value."""
    values = [make(argument) for argument in arguments]
    for number, value in enumerate(values):
        for same in (make(arguments[number]), copy.copy(value), _pickled(value)):
            assert same == value, f"{same} is not {value}"
            assert type(same) is type(value)
            assert hash(same) == hash(value)
            assert {value: number}[same] == number
        assert [other for other in values if other == value] == [value], "no other is equal"
        assert value != number
