"""The verdicts on a night in words, and for the terminal in lines of 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from harness.diagnosis.signature import headline
from harness.printable import printable
from harness.render.terminal_lines import heading, title, wrapped
from harness.verdicts.finding import Finding
from harness.verdicts.groups import Group, night_groups
from harness.verdicts.nightly import Verdicts, changed_components
from harness.verdicts.words import NIGHTLY, REFUSALS, Verdict

_SHOWN = 10  # groups of a verdict


def lines(verdicts: Verdicts) -> Iterator[str]:
    """Yield the runs, each kind of verdict, the failures by cause, the answer."""
    yield from map(printable, _lines(verdicts))


def _lines(verdicts: Verdicts) -> Iterator[str]:
    for run in verdicts.runs:
        facts = (f"{name} {value}" for name, value in verdicts.versions[run].items() if value)
        yield from wrapped(f"{run}: {', '.join(facts)}", 2)
    yield from wrapped(f"{outcomes(verdicts)}.", 2, "  ")
    for verdict in NIGHTLY:
        yield from _section(verdicts, night_groups(verdicts.of(verdict)))
    yield from _causes(verdicts)
    yield title("answer")
    yield from wrapped(f"{counts(verdicts)}.")
    yield from wrapped(answer(verdicts))


def _section(verdicts: Verdicts, members: Sequence[Group]) -> Iterator[str]:
    if not members:
        return
    yield heading(members)
    shown = listed(members, _SHOWN)
    for group in shown:
        yield from wrapped(head(group.first), 7, f"{len(group):>5}  ")
        yield from wrapped(group.first.key, 2)
        yield from wrapped(failure(group.first), 9)
        yield from wrapped(since(group.first, verdicts), 9)
    if len(members) > len(shown):
        cases = sum(map(len, members)) - sum(map(len, shown))
        yield f"       ... and {len(members) - len(shown)} more groups with {cases} cases"


def listed(members: Sequence[Group], most: int) -> Sequence[Group]:
    """Return the groups to list; failures that are expected and not new are only counted."""
    news = [g for g in members if not (g.expected and g.verdict == Verdict.STILL_FAILING)]
    return news[:most]


def _causes(verdicts: Verdicts) -> Iterator[str]:
    if not verdicts.causes:
        return
    yield title(f"failures by cause: {len(verdicts.causes)}")
    for each in verdicts.causes[:_SHOWN]:
        where = f"{each.cases} cases, first in {each.first}"
        yield from wrapped(where, 7, f"{each.results:>5}  ")
        yield from wrapped(headline(each.message), 9)
    if len(verdicts.causes) > _SHOWN:
        yield f"       ... and {len(verdicts.causes) - _SHOWN} more"


def head(verdict: Finding) -> str:
    """Say in a few words where the case went wrong, and which issues cover it."""
    if verdict.verdict == Verdict.SLOWER:
        (rise,) = verdict.costs
        was, now = (f"{value:.4g} {rise.unit}".strip() for value in (rise.was, rise.now))
        return f"{rise.what} rose from {was} to {now}"
    if verdict.verdict == Verdict.MISSING:
        return "skipped" if verdict.outcome else "not collected"
    at = f" at {verdict.layer}" if verdict.layer else ""
    return ", ".join((f"{verdict.outcome}{at}", *verdict.issues))


def failure(verdict: Finding) -> str:
    """Return what went wrong, in one line."""
    return headline(verdict.message)


def since(verdict: Finding, verdicts: Verdicts) -> str:
    """Say with which run the finding began, and which components changed with that run."""
    if verdict.verdict == Verdict.MISSING:
        return f"last in {verdict.before}"
    if verdict.verdict in (Verdict.REGRESSED, Verdict.FIXED):
        was = "worked" if verdict.verdict == Verdict.REGRESSED else "broken"
        text = f"{was} in {verdict.before}"
        return _with(text, _changes(verdicts, verdict.before, verdict.run))
    if verdict.verdict in (Verdict.STILL_FAILING, Verdict.SLOWER):
        return f"since {verdict.since}"
    return ""


def counts(verdicts: Verdicts) -> str:
    """Say how many cases have each verdict that occurs."""
    named = [text for verdict in NIGHTLY if (text := verdicts.counted(verdict))]
    return ", ".join(named) or "nothing new"


def answer(verdicts: Verdicts) -> str:
    """Return the one sentence that goes with the exit code."""
    lost = Counter(each.verdict for each in verdicts.refusals)
    if lost:
        return f"Refused: {', '.join(f'{lost[v]} {v}' for v in REFUSALS if lost[v])}."
    if verdicts.unread:
        named = verdicts.unread[0].name
        more = f" and {len(verdicts.unread) - 1} more" if len(verdicts.unread) > 1 else ""
        return (
            f"Can't tell: {named}{more} can't be read, and may say what worked before: "
            "record it again, or remove it."
        )
    expected = len(verdicts.of(Verdict.REGRESSED))
    but = f" but for {expected} expected" if expected else ""
    return f"Nothing regressed{but}, nothing is missing."


def outcomes(verdicts: Verdicts) -> str:
    """Return the runs' outcomes, counted."""
    return ", ".join(f"{count} {name}" for name, count in verdicts.outcomes.items())


def _changes(verdicts: Verdicts, before: str, after: str) -> list[str]:
    versions = verdicts.versions
    return changed_components(versions.get(before, {}), versions.get(after, {}))


def _with(text: str, changed: Sequence[str]) -> str:
    return f"{text}; {', '.join(changed)}" if changed else text
