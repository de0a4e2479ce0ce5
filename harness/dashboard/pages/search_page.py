"""Search page, for the box on every page: stacks, upstream issues, signatures and cases.

The page holds every row, so that it needs no server and no index. The script shows what matches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import attrgetter
from urllib.parse import quote

from harness.dashboard.page_maker import Build
from harness.dashboard.pages.failures_page import FailureCause
from harness.dashboard.pages.issues_page import IssueRow
from harness.dashboard.rows import Failure
from harness.dashboard.site_facts import Facts
from harness.dashboard.units import day, plural, urgency
from harness.diagnosis.signature import first_line
from harness.render.page_names import natural, ordered

KINDS = ("stack", "issue", "signature", "case")
_CASES = 20_000  # a browser reads no larger page
_LONGEST = 500  # characters of a failure that is searched in


@dataclass(frozen=True)
class SearchRow:
    """Something that can be found. ``about`` is searched too."""

    kind: str
    name: str
    page: str  # its address from the site's root
    about: str


def publish(build: Build, issues: Sequence[IssueRow], causes: Sequence[FailureCause]) -> None:
    """Write the page."""
    facts = build.facts
    names = {row.name for row in facts.latest}
    quiet = sum(not build.is_listed(name) for name in names)
    more = max(len(names) - quiet - _CASES, 0)
    cases = islice(_cases(build), _CASES)
    rows = [*_stacks(facts), *_issues(issues), *_signatures(build, causes), *cases]
    build.page("search.html", "search.html", rows=rows, kinds=KINDS, quiet=quiet, more=more)


def _stacks(facts: Facts) -> Iterator[SearchRow]:
    """Yield each stack with the versions of its last run, linked to its runs."""
    for stack in facts.stacks:
        last = next(run for run in facts.runs if run.stack == stack)
        versions = [f"{name} {version}" for name, version in last.versions.items()]
        about = ", ".join((*versions, f"last run {day(last.time)}"))
        yield SearchRow("stack", stack, f"runs.html?stack={quote(stack, safe='')}", about)


def _issues(rows: Sequence[IssueRow]) -> Iterator[SearchRow]:
    """Yield each issue with what is stated about it, linked to those rows of the matrix."""
    stated: dict[str, list[str]] = {}
    for row in rows:
        for issue in row.issues:
            stated.setdefault(issue, []).append(f"{row.history.title}: {row.conclusion}")
    for issue in sorted(stated, key=natural):
        page = f"issues.html?q={quote(issue, safe='')}"
        yield SearchRow("issue", issue, page, "; ".join(stated[issue]))


def _signatures(build: Build, causes: Sequence[FailureCause]) -> Iterator[SearchRow]:
    """Yield each signature of the nights shown, linked to its cause or a case that once had it."""
    facts = build.facts
    broken_now = {cause.signature: cause.anchor for cause in causes}
    every = (f for failures in facts.failures.values() for f in failures)
    shown = [f for f in every if f.signature and f.last_run in facts.run]
    shown.sort(key=attrgetter("signature", "first_run"))
    for signature, members in groupby(shown, attrgetter("signature")):
        failures = list(members)
        last = max(failures, key=attrgetter("last_run"))
        page = build.case_page(last.name)
        page += "" if "#" in page else "#failures"
        if signature in broken_now:
            page = f"failures.html#{broken_now[signature]}"
        yield SearchRow("signature", signature, page, _seen(failures, last))


def _seen(failures: Sequence[Failure], last: Failure) -> str:
    cases = plural(len({failure.name for failure in failures}), "case")
    layers = ordered([failure.layer for failure in failures if failure.layer])
    at = f" at {', '.join(layers)}" if layers else ""
    message = first_line(last.message)
    example = "" if message == last.signature else f": {message[:_LONGEST]}"
    return f"{cases}{at}, first seen {day(failures[0].first)}, last {day(last.last)}{example}"


def _cases(build: Build) -> Iterator[SearchRow]:
    """Yield each case that has a page, with its area, its issues, and its outcomes by stack."""
    for name, members in groupby(build.facts.latest, attrgetter("name")):
        if not build.is_listed(name):
            continue
        rows = list(members)
        stacks: dict[str, dict[str, None]] = {}
        for row in rows:
            stacks.setdefault(row.outcome, {})[row.stack] = None
        issues = dict.fromkeys(issue for row in rows for issue in row.upstream or ())
        issues |= dict.fromkeys(row.expectation for row in rows if row.expectation)
        outcomes = (
            f"{outcome} on {', '.join(stacks[outcome])}" for outcome in sorted(stacks, key=urgency)
        )
        about = filter(None, (rows[0].area, *outcomes, *issues))
        yield SearchRow("case", name, build.case_page(name), "; ".join(about))
