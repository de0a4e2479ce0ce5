"""Verdicts with one cause as one, and what is said of each, the same in text and in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.diagnosis.signature import first_line
from harness.verdicts.verdicts import KINDS, Kind, Verdict, Verdicts


@dataclass(frozen=True)
class Group:
    """Verdicts of one kind whose failure, layer, outcome and beginning are the same."""

    members: tuple[Verdict, ...]

    @property
    def first(self) -> Verdict:
        """The one to look at."""
        return self.members[0]

    def __len__(self) -> int:
        return len(self.members)


def groups(found: Iterable[Verdict]) -> tuple[Group, ...]:
    """In the order of Kind, the largest first."""
    together: dict[tuple[str, ...], list[Verdict]] = {}
    for v in found:
        slow = (v.number, v.case, v.topology) if v.kind == Kind.SLOWER else ()
        key = (v.kind, v.lane, v.outcome, v.layer, v.signature, v.since, *slow)
        together.setdefault(key, []).append(v)
    made = [Group(tuple(members)) for members in together.values()]
    made.sort(key=lambda group: (KINDS.index(group.first.kind), -len(group), group.first.key))
    return tuple(made)


def head(verdict: Verdict) -> str:
    """Where it went wrong and whose issue it is, in a few words."""
    if verdict.kind == Kind.SLOWER:
        was, now = _number(verdict, verdict.was), _number(verdict, verdict.now)
        return f"{verdict.number} rose from {was} to {now}"
    if verdict.kind == Kind.MISSING:
        return "skipped" if verdict.outcome else "not collected"
    at = f" at {verdict.layer}" if verdict.layer else ""
    return ", ".join((f"{verdict.outcome}{at}", *verdict.upstream))


def failure(verdict: Verdict) -> str:
    """The first line of its message."""
    return first_line(verdict.message)


def since(verdict: Verdict, verdicts: Verdicts) -> str:
    """With which run it began, and which components changed with that run."""
    if verdict.kind == Kind.MISSING:
        return f"last in {verdict.before}"
    if verdict.kind in (Kind.REGRESSED, Kind.FIXED):
        was = "worked" if verdict.kind == Kind.REGRESSED else "broken"
        said = f"{was} in {verdict.before}"
        return _with(said, changes(verdicts, verdict.before, verdict.run))
    if verdict.kind in (Kind.STILL_FAILING, Kind.SLOWER):
        return f"since {verdict.since}"
    return ""


def changes(verdicts: Verdicts, before: str, after: str) -> list[str]:
    """The components whose versions differ, as ``jax 0.4.33 -> 0.7.1``."""
    return steps(verdicts.versions.get(before, {}), verdicts.versions.get(after, {}))


def steps(was: Mapping[str, str], is_: Mapping[str, str]) -> list[str]:
    """The same of two runs' versions."""
    names = [name for name in is_ if name not in ("stack", "commit") and was.get(name, "")]
    return [f"{n} {was[n]} -> {is_[n]}" for n in names if is_[n] and was[n] != is_[n]]


def counts(verdicts: Verdicts) -> str:
    """How many verdicts of each kind there are."""
    named = [f"{len(verdicts.of(kind))} {kind}" for kind in KINDS if verdicts.of(kind)]
    return ", ".join(named) or "nothing new"


def answer(verdicts: Verdicts) -> str:
    """The one sentence that goes with the exit code."""
    lost = [f"{len(verdicts.of(k))} {k}" for k in (Kind.REGRESSED, Kind.MISSING) if verdicts.of(k)]
    return f"Refused: {', '.join(lost)}." if lost else "Nothing regressed, nothing is missing."


def outcomes(verdicts: Verdicts) -> str:
    """The runs' outcomes, counted."""
    return ", ".join(f"{count} {name}" for name, count in verdicts.outcomes.items())


def _number(verdict: Verdict, value: float | None) -> str:
    unit = " s" if verdict.number.startswith("duration") else ""
    return f"{value or 0:.4g}{unit}"


def _with(said: str, changed: Sequence[str]) -> str:
    return f"{said}; {', '.join(changed)}" if changed else said
