"""The file of a stack."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import Field

from harness.errors import BadInputError
from harness.files import read_toml
from harness.stacks.stack import DISK, PYTHON, Stack
from harness.tables import Table, Text, checked


class _Wheels(Table):
    folder: str | None = None
    index: bool | str | None = None


class _File(Table):
    note: str = Field("", description="a text")
    extends: str | None = Field(None, description="the name of a stack")
    python: str | None = Field(
        None, description="a version, as '3.11'", pattern=f"^(?:{PYTHON.pattern})$"
    )
    pins: dict[str, Text | Literal[False]] = Field(
        {}, description="a version, a specifier, the path of a wheel, or false for none, by name"
    )
    wheels: _Wheels = Field(_Wheels(), description="'folder', a text, and 'index', false or a text")
    cuda: Literal["12", "13", False] | None = Field(
        None, description="'12' or '13', or false for none"
    )
    disk: float | None = Field(None, description="a number of GB, as 8", ge=0, allow_inf_nan=False)


def read(path: Path, base_of: Callable[[str], Stack | None], *, shipped: bool = False) -> Stack:
    """Read one stack's file; ``base_of`` gives the stack that it extends, by its name there.

    ``shipped`` says that the file came with xla-harness.

    Raises BadInputError naming the file, the key and what was expected.
    """
    file = checked(str(path), _File, read_toml(path))
    base = None if file.extends is None else base_of(file.extends)
    folder, index = file.wheels.folder, file.wheels.index
    python = file.python or (base.python if base else None)
    if python is None:
        raise BadInputError(f"{path}: key 'python' is missing: expected a version, as '3.11'")
    pins: dict[str, str | bool] = {**(base.pins if base else {}), **file.pins}
    for name, pin in file.pins.items():
        if isinstance(pin, str):
            pins[name] = str(_beside(path, pin)) if pin.endswith(".whl") else pin.strip()
    stack = Stack(
        name=path.stem,
        python=python,
        pins={name: pin for name, pin in pins.items() if isinstance(pin, str)},
        cuda=file.cuda or "" if file.cuda is not None else base.cuda if base else "",
        note=file.note,
        folder=_beside(path, folder) if folder else base.folder if base else None,
        index=index if index is not None else base.index if base else True,
        disk=file.disk if file.disk is not None else base.disk if base else DISK,
        where=path,
        extends=file.extends,
        shipped=shipped,
    )
    if not stack.pins:
        raise BadInputError(f"{path}: key 'pins' is missing: expected a table of versions")
    stack.check()  # a bad pin is said now, not in the middle of a run
    return stack


def _beside(path: Path, name: str) -> Path:
    """Return the path that is named from the file's folder, short enough for a table."""
    return Path(os.path.normpath(path.parent / name))
