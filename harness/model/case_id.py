"""A case's id, such as ``suites/spmd/test_mesh.py::test_axes[cpu-4-jax]``, and its parts."""

from __future__ import annotations

from typing import NamedTuple


class CaseId(NamedTuple):
    """The parts of an id. ``str`` puts them together again."""

    file: str
    name: str = ""  # the classes and the function; "" where the id is a file's
    parameters: str = ""  # with their brackets; "" without parameters

    @classmethod
    def parse(cls, text: str) -> CaseId:
        """Split an id. Brackets in the file's name, and ``::`` in parameters, separate nothing.

        An id without ``::`` is a file's.
        """
        file, _, rest = text.partition("::")
        name, bracket, parameters = rest.partition("[")
        return cls(file, name, bracket + parameters)

    @property
    def function(self) -> str:
        """The id without parameters: all cases of one function have it."""
        return f"{self.file}::{self.name}" if self.name else self.file

    @property
    def case(self) -> str:
        """The id without its file."""
        return self.name + self.parameters

    def __str__(self) -> str:
        return self.function + self.parameters


def file_of(text: str) -> str:
    """Return the file of an id, or of an argument of pytest, which may be a file alone."""
    return CaseId.parse(text).file


def function_of(text: str) -> str:
    """Return an id without its parameters."""
    return CaseId.parse(text).function


def names_lane(text: str, lane: str) -> bool:
    """Return whether the parameters of an id begin with the lane, as those of ``suites/`` do."""
    return bool(lane) and CaseId.parse(text).parameters.startswith(f"[{lane}-")


def placed(text: str, lane: str, topology: str) -> str:
    """Return the id with where its case ran, unless it names that itself or ran nowhere special."""
    return text if not lane or names_lane(text, lane) else f"{text} @{lane}-{topology}"
