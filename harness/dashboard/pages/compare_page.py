"""Two stacks side by side on a page each; any two runs by script, from data beside the pages."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise

from harness.dashboard.page_maker import Build
from harness.dashboard.pages.runs_page import summaries
from harness.dashboard.rows import WORKS, Latest, RunOutcome
from harness.dashboard.units import urgency
from harness.model.outcome import Kind
from harness.render.page_names import pair_page, slug
from harness.verdicts.alignment import (
    move_between,
    pairs,
    without_framework,
    without_processes,
)
from harness.verdicts.comparison import Move
from harness.verdicts.effects import Effect, effect

# One letter a case keeps the data of a run at a kilobyte or two.
LETTERS = {
    "passed": "p",
    "failed": "f",
    "crashed": "c",
    "hung": "h",
    "conflict": "b",  # both
    "skipped": "s",
    "expected failure": "x",
    "unexpected pass": "u",
}
Place = tuple[str, str, str]  # case, lane, topology
# One run of each case is shown, so none is flaky here.
EFFECTS = [each for each in Effect if each != Effect.FLAKY]
Areas = Mapping[str, Mapping[Effect, int]]


@dataclass(frozen=True)
class DifferingCase:
    """A case that is not on one stack what it is on the other; "" is not run."""

    place: Place
    before: str
    after: str

    @property
    def verdict(self) -> str:
        """Verdict on the case, with ``before`` as the baseline."""
        if not self.before or not self.after:
            return "only on one"
        works = (self.before in WORKS, self.after in WORKS)
        if "skipped" in (self.before, self.after):
            return "skipped on one"
        verdicts = {(True, False): "regressed", (False, True): "fixed"}
        return verdicts.get(works, "broken otherwise")

    @property
    def effect(self) -> Effect | None:
        """Effect of a move from ``before`` to ``after``; None if neither has an answer."""
        answers = [Kind(kind).answer if kind else None for kind in (self.before, self.after)]
        return effect(*answers, skipped=self.after == "skipped")


def publish(build: Build) -> None:
    """Write a page for each two stacks, the page that leads to them, and the data of every run."""
    facts = build.facts
    by_stack: dict[str, dict[Place, str]] = {stack: {} for stack in facts.stacks}
    by_name: dict[str, dict[str, Latest]] = {stack: {} for stack in facts.stacks}
    areas: dict[str, str] = {}
    for row in facts.latest:
        by_stack[row.stack][_place(row)] = row.outcome
        by_name[row.stack][row.name] = row
        areas[row.name] = row.area
    pairs = []
    for at, earlier in enumerate(facts.stacks):
        for later in facts.stacks[at + 1 :]:
            move = move_between(by_name[earlier], by_name[later])
            before, after = by_stack[earlier], by_stack[later]
            if move:
                before = _moved(before, by_name[earlier], by_name[later], move)
            rows = differences(before, after)
            counts = Counter(each.verdict for each in rows)
            pairs.append((earlier, later, pair_page(earlier, later), counts))
            build.page(
                "pair.html",
                pair_page(earlier, later),
                earlier=earlier,
                later=later,
                rows=rows,
                areas=areas,
                counts=counts,
                move=move,
                effects=effects(before, after, areas) if move else {},
                every_effect=EFFECTS,
                versions=_versions(build, earlier, later),
                same=len(before.keys() & after.keys())
                - sum(bool(d.before and d.after) for d in rows),
            )
    neighbours = {(a, b) for a, b in pairwise(facts.stacks)}
    build.page(
        "compare.html",
        "compare.html",
        stacks=facts.stacks,
        runs=summaries(build.facts),
        pairs={(earlier, later): (page, counts) for earlier, later, page, counts in pairs},
        neighbours=neighbours,
        every_effect=EFFECTS,
    )
    for run, outcomes in facts.said():
        _data(build, run, outcomes)


def differences(before: Mapping[Place, str], after: Mapping[Place, str]) -> list[DifferingCase]:
    """Return what differs between two, the worst first."""
    differing = [
        DifferingCase(place, before.get(place, ""), after.get(place, ""))
        for place in before.keys() | after.keys()
        if before.get(place) != after.get(place)
    ]
    order = ("regressed", "fixed", "broken otherwise", "skipped on one", "only on one")
    differing.sort(key=lambda d: (order.index(d.verdict), urgency(d.after or d.before), d.place))
    return differing


def effects(
    before: Mapping[Place, str], after: Mapping[Place, str], areas: Mapping[str, str]
) -> Areas:
    """Count, for each area and for "all", the cases on which a move has each effect."""
    counts: dict[str, Counter[Effect]] = defaultdict(Counter)
    for place in sorted(before.keys() | after.keys()):
        if has := DifferingCase(place, before.get(place, ""), after.get(place, "")).effect:
            counts[areas[place[0]]][has] += 1
    return {**dict(sorted(counts.items())), "all": sum(counts.values(), Counter[Effect]())}


def _moved(
    before: Mapping[Place, str],
    base: Mapping[str, Latest],
    other: Mapping[str, Latest],
    move: Move,
) -> dict[Place, str]:
    """Return the first stack's outcomes, those of cases of both frameworks at the other's place."""
    places = {_place(base[a]): _place(other[b]) for a, b in pairs(base, other, move).items()}
    return {places.get(place, place): outcome for place, outcome in before.items()}


def _place(row: Latest) -> Place:
    return row.name, row.lane, row.topology


def _versions(build: Build, earlier: str, later: str) -> list[tuple[str, str, str]]:
    """Return each component with its versions on both stacks, as of their last runs."""
    versions: list[Mapping[str, str]] = [
        next((run.versions for run in build.facts.runs if run.stack == stack), {})
        for stack in (earlier, later)
    ]
    names = dict.fromkeys([*versions[0], *versions[1]])
    return [(name, versions[0].get(name, ""), versions[1].get(name, "")) for name in names]


def _data(build: Build, run: str, outcomes: Sequence[RunOutcome]) -> None:
    """Write a run's outcomes as letters, and once for all runs of the same cases what these are."""
    places = json.dumps([[s.name, s.lane, s.topology, s.area, *_asked(s)] for s in outcomes])
    digest = sha256(places.encode()).hexdigest()[:16]
    if not build.site.has(f"data/places/{digest}.js"):
        build.data(f"places/{digest}", places)
    letters = "".join(LETTERS.get(s.outcome, "?") for s in outcomes)
    data = {"format": 3, "run": run, "places": digest, "outcomes": letters}
    build.data(f"run/{slug(run)}", json.dumps(data))


def _asked(outcome: RunOutcome) -> tuple[str, ...]:
    """Return the framework of a case, and the names under which another's case is compared."""
    if not outcome.framework:
        return ()
    names = (without_framework(outcome.name, outcome), without_processes(outcome.name, outcome))
    return outcome.framework, *names
