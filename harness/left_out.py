"""Reasons why a run leaves a case out, in the words of a report."""

from __future__ import annotations

from typing import NamedTuple

_AXES = ("lane", "topology", "framework")


class LeftOut(NamedTuple):
    """Reason for leaving out all cases of a lane, a topology or a framework."""

    axis: str  # "" for a cause that can concern any case
    name: str  # of that lane, topology or framework
    reason: str

    @classmethod
    def parse(cls, text: str) -> LeftOut:
        """Read what ``str`` writes."""
        head, _, reason = text.partition(": ")
        axis, _, name = head.partition(" ")
        return cls(axis, name, reason) if axis in _AXES else cls("", "", text)

    def __str__(self) -> str:
        return f"{self.axis} {self.name}: {self.reason}" if self.axis else self.reason
