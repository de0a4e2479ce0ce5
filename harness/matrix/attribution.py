"""Whose fault a difference between two stacks is: one component swapped at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from harness.junit.result import Result
from harness.stacks.stack import Stack, together


@dataclass(frozen=True)
class Component:
    """Pins that are swapped together, named by the one that leads: torch_xla brings its torch."""

    name: str
    pins: tuple[str, ...]


PYTHON = Component("python", ())
CUDA = Component("cuda", ())


class Swap(StrEnum):
    """Outcome of a case on a stack with one component swapped for that of the other stack."""

    SAME = "fails the same way"
    OTHER = "fails otherwise"
    WORKS = "works"
    UNKNOWN = "not measured"


def differing(base: Stack, candidate: Stack) -> list[Component]:
    """Return the components in which two stacks differ.

    What only one of them pins belongs to its framework, if that differs: JAX 0.9 imports absl
    without requiring it, so no answer comes from that JAX without absl, or another one with it.
    """
    names = {*base.pins, *candidate.pins}
    pairs = together(base, candidate)
    framework = base.framework
    alone = base.pins.keys() ^ candidate.pins.keys()
    alone -= {name for pair in pairs for name in pair}
    if base.pins.get(framework) == candidate.pins.get(framework):
        alone = set()
    groups = [
        Component(
            pair[-1] if "torch" in pair else pair[0],
            (*pair, *sorted(alone)) if framework in pair else pair,
        )
        for pair in pairs
    ]
    grouped = {name for group in groups for name in group.pins}
    groups += [Component(name, (name,)) for name in sorted(names - grouped)]
    components = [
        group
        for group in groups
        if any(base.pins.get(pin) != candidate.pins.get(pin) for pin in group.pins)
    ]
    components += [PYTHON] if base.python != candidate.python else []
    return [*components, CUDA] if base.cuda != candidate.cuda else components


def swapped(stack: Stack, other: Stack, component: Component) -> Stack:
    """``stack`` with the other's component."""
    if component == PYTHON:
        return stack.swap({}, python=other.python)
    if component == CUDA:  # the plugin's version stays that of jaxlib
        return stack.swap({}, cuda=other.cuda)
    return stack.swap({pin: other.pins.get(pin) for pin in component.pins})


def judge(result: Result | None, broken: Result, same: Callable[[str, str], bool]) -> Swap:
    """Compare a swapped stack's result with that of the case that the candidate breaks."""
    if result is None or not result.measured:
        return Swap.UNKNOWN
    if result.works:
        return Swap.WORKS
    return Swap.SAME if same(result.failure, broken.failure) else Swap.OTHER


def verdict(into_base: Mapping[str, Swap], into_candidate: Mapping[str, Swap]) -> str:
    """Return the component that is responsible for a regression, from the result of each swap.

    ``into_base`` is the base with one component of the candidate: a component that breaks the case
    alone is responsible. Otherwise ``into_candidate``, the candidate with one component of the
    base, is decisive: those that fix the case are needed, together with others. If neither decides,
    a component that could not be swapped may be responsible, and is named.
    """
    if carriers := _all(into_base, Swap.SAME):
        return carriers[0] if len(carriers) == 1 else f"{' or '.join(carriers)}, each alone"
    if fixers := _all(into_candidate, Swap.WORKS):
        return f"{' and '.join(fixers)}, not alone"
    if unknown := _all(into_base, Swap.UNKNOWN) or _all(into_candidate, Swap.UNKNOWN):
        return f"undecided: nothing was measured with {' or '.join(unknown)} swapped"
    return "undecided: no single component breaks the base or fixes the candidate"


def _all(swaps: Mapping[str, Swap], wanted: Swap) -> list[str]:
    return [name for name, swap in swaps.items() if swap == wanted]


def unsettled(keys: Iterable[str], into_base: Mapping[str, Mapping[str, Swap]]) -> list[str]:
    """Return the cases that no single component breaks, which are then tried the other way."""
    return [key for key in keys if Swap.SAME not in into_base.get(key, {}).values()]
