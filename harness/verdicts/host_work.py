"""What costs the host more calls than on the base. Two stacks with one Python can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.junit.names import HOST_CALLS
from harness.junit.report import Result

_MORE = 0.1  # of what it was: the counts themselves vary by less than a hundredth
_FEWEST = 20  # calls: a step of five that takes six is no slower


@dataclass(frozen=True)
class SlowerStep:
    """A step of a case that calls more functions than it did."""

    step: str
    was: int
    now: int

    def __str__(self) -> str:
        more = f" (+{self.now / self.was - 1:.0%})" if self.was else ""
        return f"{self.step}: {self.was:,} calls -> {self.now:,}{more}"


def slower_steps(base: Sequence[Result], candidate: Sequence[Result]) -> tuple[SlowerStep, ...]:
    """The steps that both sides counted and that rose by more than a tenth and 20 calls.

    Of several runs the least counts. Another minor version of Python calls other functions for the
    same program, so nothing is compared across one.
    """
    if _python(base) != _python(candidate):
        return ()
    was, now = _least(base), _least(candidate)
    return tuple(
        SlowerStep(step, was[step], now[step])
        for step in was
        if step in now and now[step] > was[step] * (1 + _MORE) and now[step] >= was[step] + _FEWEST
    )


def _least(runs: Sequence[Result]) -> dict[str, int]:
    least: dict[str, int] = {}
    for run in runs:
        for name, value in run.properties.items():
            if run.works and name.startswith(HOST_CALLS) and value.isascii() and value.isdigit():
                step = name.removeprefix(HOST_CALLS)
                least[step] = min(least.get(step, int(value)), int(value))
    return least


def _python(runs: Sequence[Result]) -> list[str]:
    found = next((run.properties.get("python", "") for run in runs), "")
    return found.split(".")[:2]
