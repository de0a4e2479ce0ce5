"""What became of planted faults, and how many of those that can be seen were."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from harness.sensitivity.fault import Fault


class Verdict(StrEnum):
    """What is said of a fault; only the first two count."""

    SEEN = "seen"  # the case passes without it, and does not with it
    UNSEEN = "not seen"
    EQUIVALENT = "equivalent"  # the program does the same on random inputs, by the same means
    REFUSED = "refused"  # by the compiler: nobody could overlook it
    ABSENT = "not applied"  # the case has not compiled, or not executed, that program this time
    DISTURBED = "disturbed"  # the case failed, and the fault was not in it yet
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Answer:
    """What is known of one fault.

    Attributes:
        fault: which.
        area: of its case.
        verdict: what became of it.
        seconds: how long the case took with it.
        told: what the case's failure says, or why two programs differ.
        difference: of the program with it and the one without, for a fault that was not seen.
        name: of the program.
        unknown: whether nobody can tell if it changes anything.
    """

    fault: Fault
    area: str
    verdict: Verdict
    seconds: float = 0.0
    told: str = ""
    difference: tuple[str, ...] = ()
    name: str = ""
    unknown: bool = False

    @property
    def kind(self) -> tuple[str, str, str]:
        """Faults of one kind are one defect of an area."""
        return self.area, *self.fault.kind


@dataclass(frozen=True)
class Share:
    """How many of the faults that count were seen."""

    seen: int
    unseen: int

    @property
    def counted(self) -> int:
        """How many count."""
        return self.seen + self.unseen

    @property
    def percent(self) -> float | None:
        """Of those that count; None where none does."""
        return 100 * self.seen / self.counted if self.counted else None


@dataclass(frozen=True)
class Score:
    """The answers, and the cases that could not be asked.

    Attributes:
        answers: of each planned fault.
        red: the cases that do not pass without a fault, each with its outcome.
        idle: the cases that compile no program.
        cost: of each case without a fault, in seconds.
    """

    answers: Sequence[Answer]
    red: Mapping[str, str] = field(default_factory=dict)
    idle: Sequence[str] = ()
    cost: Mapping[str, float] = field(default_factory=dict)

    def by_area(self) -> dict[str, Counter[Verdict]]:
        """How many faults of each area came to what."""
        return _counted((one.area, one.verdict) for one in self.answers)

    def by_operator(self, area: str | None = None) -> dict[str, Counter[Verdict]]:
        """The same for each operator, of one area or of all."""
        chosen = (one for one in self.answers if area in (None, one.area))
        return _counted((one.fault.operator, one.verdict) for one in chosen)

    def by_case(self) -> dict[str, Counter[Verdict]]:
        """The same for each case that has a fault that counts; those that miss most come first."""
        found = _counted((one.fault.case, one.verdict) for one in self.answers)
        counted = {case: counts for case, counts in found.items() if share(counts).counted}
        return dict(sorted(counted.items(), key=lambda item: -item[1][Verdict.UNSEEN]))

    def of(self, verdict: Verdict) -> list[Answer]:
        """The faults that came to it."""
        return [one for one in self.answers if one.verdict == verdict]

    def smallest(self, part: float = 1.0, given: Collection[str] = ()) -> list[str]:
        """Cases, cheapest first for what they add, that see that part of all kinds that are seen.

        The ``given`` cases are always among them, and come first. A kind is seen by a case if the
        case has seen a fault of it, and missed none.
        """
        by_case: dict[str, set[tuple[str, str, str]]] = defaultdict(set)
        for one in self.of(Verdict.SEEN):
            by_case[one.fault.case].add(one.kind)
        for one in self.of(Verdict.UNSEEN):
            by_case[one.fault.case].discard(one.kind)
        every = set().union(*by_case.values())
        chosen = sorted(given)
        open_ = every.difference(*(by_case[case] for case in chosen if case in by_case))
        while len(every) - len(open_) < part * len(every):
            best = max(
                sorted(by_case),
                key=lambda case: len(by_case[case] & open_) / max(self.cost.get(case, 0.0), 0.01),
            )
            open_ -= by_case[best]
            chosen.append(best)
        return chosen

    def adds_nothing(self) -> list[str]:
        """Cases that were asked and see only kinds that cheaper ones see."""
        asked = {one.fault.case for one in self.answers if one.verdict in _COUNTED}
        return sorted(asked - set(self.smallest()))


_COUNTED = (Verdict.SEEN, Verdict.UNSEEN)


def share(counts: Mapping[Verdict, int]) -> Share:
    """Of the faults with those verdicts, by verdict."""
    return Share(counts.get(Verdict.SEEN, 0), counts.get(Verdict.UNSEEN, 0))


def _counted(pairs: Iterable[tuple[str, Verdict]]) -> dict[str, Counter[Verdict]]:
    found: dict[str, Counter[Verdict]] = defaultdict(Counter)
    for name, verdict in pairs:
        found[name][verdict] += 1
    return dict(sorted(found.items()))
