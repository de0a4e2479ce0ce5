"""A page for each run, and the list of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise

from harness import __version__
from harness.dashboard.began import steps, unchanged
from harness.dashboard.page_maker import Build
from harness.dashboard.rows import BAD, WORKS, Changed, OutcomeCount, ShownRun
from harness.dashboard.site_facts import Facts
from harness.dashboard.units import urgency
from harness.render.page_names import run_page, slug

_LISTED = 500  # cases on a page; a run that breaks everything needs no more


@dataclass(frozen=True)
class Summary:
    """A run in the list."""

    run: ShownRun
    lanes: Sequence[str]
    counts: Mapping[str, int]
    seconds: float

    @property
    def works(self) -> int:
        """Number of cases that work, without those that are unexpected."""
        return sum(self.counts.get(outcome, 0) for outcome in WORKS if outcome not in BAD)

    @property
    def expected(self) -> int:
        """Number of cases that fail as expected."""
        return self.counts.get("expected failure", 0)

    @property
    def skipped(self) -> int:
        """Number of cases that neither work, nor fail as expected, nor are unexpected."""
        return self.run.size - self.works - self.expected - self.unexpected

    @property
    def unexpected(self) -> int:
        """Cases that make a run red."""
        return sum(self.counts.get(outcome, 0) for outcome in BAD)


def publish(build: Build) -> None:
    """Write the list and every page, except pages that are the same as last night."""
    facts = build.facts
    tallies = by_run(facts)
    every = summaries(facts)
    outcomes = sorted({o for each in every for o in each.counts}, key=urgency)
    build.page(
        "runs.html",
        "runs.html",
        runs=every,
        stacks=facts.stacks,
        lanes=facts.lanes,
        outcomes=outcomes,
    )
    changed = facts.changed()
    before = previous(facts)
    for each in every:
        _page(build, each, tallies[each.run.run], changed.get(each.run.run, []), before)


def summaries(facts: Facts) -> list[Summary]:
    """Return the counts of every run, the newest first."""
    tallies = by_run(facts)
    return [summary(run, tallies[run.run]) for run in facts.runs]


def by_run(facts: Facts) -> Mapping[str, list[OutcomeCount]]:
    """Return the tallies of each run."""
    by_name: dict[str, list[OutcomeCount]] = defaultdict(list)
    for tally in facts.tallies:
        by_name[tally.run].append(tally)
    return by_name


def summary(run: ShownRun, tallies: Sequence[OutcomeCount]) -> Summary:
    """Return a run's counts."""
    counts: Counter[str] = Counter()
    for tally in tallies:
        counts[tally.outcome] += tally.size
    lanes = list(dict.fromkeys(f"{t.lane} {t.topology}".strip() for t in tallies))
    return Summary(run, lanes, counts, sum(tally.seconds or 0 for tally in tallies))


def previous(facts: Facts) -> Mapping[str, ShownRun]:
    """Return the run before each run, on the line that they share."""
    earlier: dict[str, ShownRun] = {}
    for runs in facts.lines.values():
        for before, after in pairwise(runs):
            earlier.setdefault(after.run, before)
    return earlier


def _page(
    build: Build,
    each: Summary,
    tallies: Sequence[OutcomeCount],
    changed: Sequence[Changed],
    before: Mapping[str, ShownRun],
) -> None:
    run = each.run
    path = run_page(run.run)
    older = before.get(run.run)
    rows = sorted(changed, key=lambda c: (urgency(c.outcome), c.name))
    # A run never changes, but how its lines led to it may: an older run can be recorded later.
    # Its cases may move between pages of their own and shared ones.
    addresses = [build.case_page(row.name) for row in rows[:_LISTED]]
    parts = (__version__, build.example, older and older.run, changed, addresses)
    content = "\n".join(map(repr, parts))
    key = sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
    if build.site.is_made_from(path, key):
        return
    areas: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for tally in tallies:
        areas[tally.area, tally.lane, tally.topology][tally.outcome] += tally.size
    build.page(
        "run.html",
        path,
        key,
        each=each,
        areas=sorted(areas.items()),
        outcomes=sorted(each.counts, key=urgency),
        older=older,
        components=steps(older, run) if older else [],
        unchanged=unchanged(older, run) if older else "",
        rows=rows[:_LISTED],
        more=max(len(rows) - _LISTED, 0),
        data=f"data/run/{slug(run.run)}.js",
    )
