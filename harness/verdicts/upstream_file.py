"""The file ``fixtures/upstream.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from harness.diagnosis.layers import LAYERS
from harness.tables import Table, one_of, read_tables
from harness.verdicts.upstream import Row


class _Row(Table):
    title: str = Field(description="a text")
    issues: tuple[str, ...] = Field(description="a list of texts", strict=False)
    cases: tuple[str, ...] = Field(description="a list of texts", strict=False)
    layer: Annotated[str, one_of(LAYERS)] = Field(default=Row.layer, description=", ".join(LAYERS))


def load(path: Path) -> tuple[Row, ...]:
    """Return the rows of the file; raise BadInputError naming the file and the key."""
    return tuple(Row(**dict(row)) for _, row in read_tables(path, "row", _Row))
