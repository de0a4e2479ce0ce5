"""The cause of a failure. Failures of one cause are one thing to a reader, wherever they are shown.

A cause is computed once, when a case's record is made, and recorded in reports and histories as
its two parts. The failure of another runner's test gets one when its report is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol, TypeVar

from harness.diagnosis.signature import generalised
from harness.model.case_id import function_of

_BARE = ("assert ", "AssertionError: assert ")


class Cause(NamedTuple):
    """The layer at which a case failed, and the signature of its failure."""

    layer: str  # one of harness.diagnosis.layers; "" for a test whose runner does not say it
    signature: str  # "" for a case that did not fail

    def __bool__(self) -> bool:
        return bool(self.signature)


class Failing(Protocol):
    """Object that has a cause: a record, a result, a finding."""

    @property
    def cause(self) -> Cause:
        """Cause of the failure."""


T = TypeVar("T", bound=Failing)


def signature_of(case: str, failure: str) -> str:
    """Return a failure's first line without what differs from run to run.

    Unrelated tests make the same bare assertion, as ``assert x == y``, and a failure may say
    nothing: such a signature begins with the function of the ``case`` that failed.
    """
    text = generalised(failure)
    if not text:
        return function_of(case)
    return f"{function_of(case)}: {text}" if text.startswith(_BARE) else text


def by_cause(failures: Iterable[T]) -> list[tuple[T, ...]]:
    """Return the failures of each cause together, in their order, the largest cause first."""
    causes: dict[Cause, list[T]] = {}
    for failure in failures:
        causes.setdefault(failure.cause, []).append(failure)
    return sorted(map(tuple, causes.values()), key=len, reverse=True)
