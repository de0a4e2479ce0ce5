"""A case's id, such as ``suites/spmd/test_mesh.py::test_axes[cpu-4-jax]``, and its parts."""

from __future__ import annotations


def file_of(case: str) -> str:
    """Return the file of an id, or of an argument of pytest, which may be a file alone."""
    return case.partition("::")[0]


def test_of(case: str) -> str:
    """Return the name of a function in an id, without its file, class and parameters; or ""."""
    return case.rpartition("::")[2].partition("[")[0]


def function_of(case: str) -> str:
    """Return an id without its parameters, which all cases of one function share.

    A bracket in the file's name, as in an id that is a file's, begins no parameters.
    """
    file, separator, rest = case.partition("::")
    return f"{file}{separator}{rest.partition('[')[0]}"


def key_of(case: str, lane: str, topology: str) -> str:
    """Return an id with where its case ran, unless it names its lane or ran on none."""
    if not lane or f"[{lane}-" in case:
        return case
    return f"{case} @{lane}-{topology}"
