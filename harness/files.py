"""Files: read with clear errors, and written so that nobody finds half of one."""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, ValidationError

from harness.errors import BadInputError

M = TypeVar("M", bound="Table")
Text = Annotated[str, StringConstraints(pattern=r"\S")]


def one_of(words: Collection[str]) -> AfterValidator:
    """Marks a text that is one of the words."""

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


def read_text(path: Path) -> str:
    """The text of a UTF-8 file; raises BadInputError naming it."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadInputError(f"{path}: {error}") from error


def read_toml(path: Path) -> dict[str, Any]:
    """The data of a TOML file; raises BadInputError naming it."""
    return parse_toml(path, read_text(path))


def parse_toml(path: Path, text: str) -> dict[str, Any]:
    """The data of ``text``, which is that of the file ``path``; raises BadInputError naming it."""
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, and numbers of too many digits
        raise BadInputError(f"{path}: expected TOML: {error}") from error
    except RecursionError as error:
        raise BadInputError(f"{path}: expected TOML: nested too deeply") from error


def read_tables(path: Path, key: str, kind: type[M]) -> Iterator[tuple[str, M]]:
    """The tables ``[[key]]`` of a TOML file that has nothing else, each with its place.

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
    """The table as its model; raises BadInputError naming the key and what was expected."""
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


def write(texts: Mapping[Path, str]) -> None:
    """Write all files, each at once: a reader or a kill finds the old text or the new one.

    A link, a device or a pipe, as /dev/stdout, is written to, not replaced. Raises BadInputError.
    """
    through = [p for p in texts if p.is_symlink() or (p.exists() and not p.is_file())]
    temporary = {
        path: path.with_name(f".{path.name}.{os.getpid()}") for path in texts if path not in through
    }
    path = Path()
    try:
        for path in through:
            path.write_text(texts[path], encoding="utf-8", newline="")
        for path, other in temporary.items():
            text = texts[path]
            with other.open("w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                shutil.copymode(path, other)
        for path, other in temporary.items():
            other.replace(path)
    except OSError as error:
        raise BadInputError(f"{path}: can't be written: {error.strerror}") from error
    finally:
        for other in temporary.values():
            other.unlink(missing_ok=True)
