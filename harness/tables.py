"""TOML tables as pydantic models: types, required and unknown keys are declared.

Importing pydantic takes longer than a whole short command, so modules of models are imported where
a file of that kind is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, ValidationError

from harness.errors import BadInputError
from harness.files import read_toml

M = TypeVar("M", bound="Table")
Text = Annotated[str, StringConstraints(pattern=r"\S")]


def one_of(words: Collection[str]) -> AfterValidator:
    """Return a validator for a text that must be one of the words."""

    def check(text: str) -> str:
        if text not in tuple(words):
            raise ValueError(text)
        return text

    return AfterValidator(check)


class Table(BaseModel):
    """A table of a TOML file: values of exactly these types, and no other keys.

    The description of each field is what an error says was expected.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def read_tables(path: Path, key: str, kind: type[M]) -> Iterator[tuple[str, M]]:
    """Yield the tables ``[[key]]`` of a TOML file that has nothing else, each with its place.

    Raises BadInputError naming the file, the table's number, the key and what was expected.
    """
    data = read_toml(path)
    tables = data.pop(key, [])
    if data or not isinstance(tables, list):
        raise BadInputError(
            f"{path}: key {next(iter(data), key)!r}: expected only [[{key}]] tables"
        )
    for number, table in enumerate(tables, 1):
        yield f"{path}#{number}", checked(f"{path}#{number}", kind, table)


def checked(where: str, kind: type[M], table: object) -> M:
    """Return the table as its model; raise BadInputError naming the key and what was expected."""
    if not isinstance(table, dict):
        raise BadInputError(f"{where}: expected a table")
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        raise BadInputError(f"{where}: {_first(kind, error)}") from error


def _first(kind: type[Table], error: ValidationError) -> str:
    first = error.errors()[0]
    names = [part for part in first["loc"] if isinstance(part, str)]
    known = kind.model_fields.get(names[0])
    expected = known.description if known else ", ".join(sorted(kind.model_fields))
    key = ".".join(names[:2])  # the third would be a type of a union
    if first["type"] == "missing":
        return f"key {key!r} is missing: expected {expected}"
    if first["type"] == "extra_forbidden":
        return f"unknown key {key!r}: expected {expected}"
    return f"key {key!r}: {first['input']!r}: expected {expected}"
