"""Results of planted faults, and the share of those that can be seen that were."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from harness.sensitivity.fault import Fault


class FaultVerdict(StrEnum):
    """Verdict on a fault; only those in ``_COUNTED`` count."""

    SEEN = "seen"  # the case passes without it, and fails with it
    UNSEEN = "not seen"
    EQUIVALENT = "equivalent"  # the program computes the same on random inputs
    NOT_EXECUTED = "not executed"  # by any case, so it counts as not seen
    REFUSED = "refused"  # the compiler rejects the program, so no test could miss the fault
    ABSENT = "not applied"  # this time the case did not compile or execute that program
    DISTURBED = "disturbed"  # the case failed before the fault was planted
    NOT_RUN = "not run"


@dataclass(frozen=True)
class FaultResult:
    """Result of one fault.

    Attributes:
        fault: the fault.
        area: the area of its case.
        verdict: whether it was seen, or why that is not known.
        seconds: how long the case took with the fault.
        explanation: the case's failure, or how the two programs differ.
        difference: diff of the programs without and with the fault, if it was not seen.
        name: the name of the program.
        unknown: whether the two programs could not be compared.
        cases: those that were asked, if there may be several.
    """

    fault: Fault
    area: str
    verdict: FaultVerdict
    seconds: float = 0.0
    explanation: str = ""
    difference: tuple[str, ...] = ()
    name: str = ""
    unknown: bool = False
    cases: tuple[str, ...] = ()

    @property
    def kind(self) -> tuple[str, str, str]:
        """Return what identifies the defect within all areas."""
        return self.area, *self.fault.kind


@dataclass(frozen=True)
class Share:
    """Numbers of faults seen and not seen, among those that count."""

    seen: int
    unseen: int

    @property
    def counted(self) -> int:
        """Return how many faults count."""
        return self.seen + self.unseen

    @property
    def percent(self) -> float | None:
        """Return the percentage of faults seen among those that count, or None if none counts."""
        return 100 * self.seen / self.counted if self.counted else None


@dataclass(frozen=True)
class Score:
    """Results of all faults, and the cases that could not be measured.

    Attributes:
        results: one for each planned fault.
        red: cases that do not pass without a fault, each with its outcome.
        idle: cases that compile no program.
        cost: how long each case takes without a fault, in seconds.
        unit: what a result's area is.
    """

    results: Sequence[FaultResult]
    red: Mapping[str, str] = field(default_factory=dict)
    idle: Sequence[str] = ()
    cost: Mapping[str, float] = field(default_factory=dict)
    unit: str = "area"

    def by_area(self) -> dict[str, Counter[FaultVerdict]]:
        """Count the faults of each area by verdict."""
        return _counted((result.area, result.verdict) for result in self.results)

    def in_all(self) -> dict[str, Counter[FaultVerdict]]:
        """Count the faults of all modules together by verdict; nothing if these are areas."""
        counts = Counter(result.verdict for result in self.results)
        return {"all modules": counts} if self.unit == "module" else {}

    def by_operator(self, area: str | None = None) -> dict[str, Counter[FaultVerdict]]:
        """Count the faults of each operator by verdict, in one area or in all."""
        chosen = (result for result in self.results if area in (None, result.area))
        return _counted((result.fault.operator, result.verdict) for result in chosen)

    def by_case(self) -> dict[str, Counter[FaultVerdict]]:
        """Count the faults of each case by verdict; those that miss most come first.

        Cases without a fault that counts are left out. A slip in a module is of no one case.
        """
        of_cases = self.results if self.unit == "area" else ()
        counts_by_case = _counted((result.fault.case, result.verdict) for result in of_cases)
        counted = {case: counts for case, counts in counts_by_case.items() if share(counts).counted}
        return dict(sorted(counted.items(), key=lambda item: -item[1][FaultVerdict.UNSEEN]))

    def of(self, verdict: FaultVerdict) -> list[FaultResult]:
        """Return the results with that verdict."""
        return [result for result in self.results if result.verdict == verdict]

    def smallest(self, part: float = 1.0, given: Collection[str] = ()) -> list[str]:
        """Choose cases that see that part of all kinds of fault that are seen.

        The ``given`` cases come first; then the case is added that sees most new kinds for its
        cost. A case sees a kind if it has seen a fault of that kind and missed none.
        """
        by_case: dict[str, set[tuple[str, str, str]]] = defaultdict(set)
        for result in self.of(FaultVerdict.SEEN):
            by_case[result.fault.case].add(result.kind)
        for result in self.of(FaultVerdict.UNSEEN):
            by_case[result.fault.case].discard(result.kind)
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
        """Return the measured cases that see only kinds of fault that cheaper cases see."""
        return sorted(self.by_case().keys() - set(self.smallest()))


_COUNTED = (FaultVerdict.SEEN, FaultVerdict.UNSEEN, FaultVerdict.NOT_EXECUTED)


def share(counts: Mapping[FaultVerdict, int]) -> Share:
    """Return the share of faults seen, from the counts by verdict."""
    seen, *unseen = (counts.get(verdict, 0) for verdict in _COUNTED)
    return Share(seen, sum(unseen))


def _counted(pairs: Iterable[tuple[str, FaultVerdict]]) -> dict[str, Counter[FaultVerdict]]:
    counts: dict[str, Counter[FaultVerdict]] = defaultdict(Counter)
    for name, verdict in pairs:
        counts[name][verdict] += 1
    return dict(sorted(counts.items()))
