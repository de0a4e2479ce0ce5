"""Page of sensitivity: how many planted faults cases see, by area and by module, over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.dashboard import shapes
from harness.dashboard.case_facts import recorded
from harness.dashboard.page_maker import Build
from harness.dashboard.rows import StackLine
from harness.dashboard.site_facts import Facts
from harness.model.faults_seen import NOT_EXECUTED, PERCENT, SEEN, UNSEEN


@dataclass(frozen=True)
class Sensitivity:
    """An area or a module on a line: its last score, and all of them if it moved.

    ``not_executed`` is None for faults in programs. ``missed`` has the operators some of whose
    faults were not seen, each with how many.
    """

    name: str  # of the case that stands for the area in a report
    area: str
    line: StackLine
    percent: float
    seen: int
    unseen: int
    not_executed: int | None
    missed: list[tuple[str, int]]
    trend: shapes.Plot | None


def publish(build: Build) -> None:
    """Write the page."""
    rows = sorted(_rows(build.facts), key=lambda row: (row.percent, row.area))
    build.page("sensitivity.html", "sensitivity.html", rows=rows)


def _rows(facts: Facts) -> Iterator[Sensitivity]:
    for name, numbers in facts.numbers.items():
        shares = [number for number in numbers if number.property == PERCENT]
        if not shares:
            continue
        shown = recorded(facts, shares, facts.moved.get(name, []))
        trends = {plot.place: plot for each in shown for plot in each.plots}
        counts = {(StackLine.of(number), number.property): int(number.last) for number in numbers}
        for share in shares:
            line = StackLine.of(share)
            yield Sensitivity(
                name,
                facts.areas.get(name, ""),
                line,
                share.last,
                counts.get((line, SEEN), 0),
                counts.get((line, UNSEEN), 0),
                counts.get((line, NOT_EXECUTED)),
                _missed({name: n for (of, name), n in counts.items() if of == line}),
                trends.get(str(line)),
            )


def _missed(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the operators whose faults were not seen, those with most such faults first."""
    prefix = f"{UNSEEN}_"
    missed = [
        (name.removeprefix(prefix), n) for name, n in counts.items() if name.startswith(prefix)
    ]
    return sorted(((name, n) for name, n in missed if n), key=lambda pair: (-pair[1], pair[0]))
