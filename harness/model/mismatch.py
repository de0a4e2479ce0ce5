"""Errors of checks; each carries as data the layer at which the check failed.

A plain ``assert`` is about a program's form, or about values where its statement compares some
(``harness.diagnosis.layers``). A check that knows better raises one of these.
"""

from __future__ import annotations


class MismatchError(AssertionError):
    """Something is not what it should be, at ``layer``, one of harness.diagnosis.layers.LAYERS."""

    layer = "verification"


class NumbersError(MismatchError):
    """Error for a program that ran and gave wrong values."""

    layer = "numbers"


class CompilationError(MismatchError):
    """The compiler made another program of it than before."""

    layer = "compile"


class DiscoveryError(MismatchError):
    """There were not as many MegaScale discoveries as the job needs."""

    layer = "discovery count"


def layer_of_mismatch(error: BaseException | None) -> str:
    """Return the layer of the error, or of the error that it was raised from; "" without one."""
    layer = ""
    while error is not None:
        if isinstance(error, MismatchError):
            layer = error.layer
        error = error.__cause__
    return layer
