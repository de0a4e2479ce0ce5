"""The verdicts on a night on GitHub: Markdown for a job's summary, and annotations."""

from __future__ import annotations

from collections.abc import Iterator

from harness.diagnosis.signature import headline
from harness.render import nightly_text as words
from harness.render.github_markup import ANNOTATIONS, annotation, code, link, plain, table
from harness.verdicts.groups import Group, night_groups
from harness.verdicts.nightly import Verdicts
from harness.verdicts.words import Verdict

_ROWS = 30  # of a table; a summary may have 1 MiB
_HEAD = ("verdict", "cases", "what", "first case", "failure", "since")


def summary(verdicts: Verdicts) -> str:
    """Return the answer, the verdicts in at most 30 rows, the failures by cause, the versions."""
    runs = ", ".join(map(code, verdicts.runs))
    lines = [
        f"**{plain(words.answer(verdicts))}** {runs}: {plain(words.counts(verdicts))}.",
        "",
        f"{plain(words.outcomes(verdicts))}.",
        "",
        *_verdicts(verdicts),
        *_causes(verdicts),
        *_versions(verdicts),
    ]
    return "\n".join(lines) + "\n"


def annotation_lines(verdicts: Verdicts) -> Iterator[str]:
    """Yield an error for each group that refuses the run, a warning for other new failures."""
    refusals = verdicts.refusals
    for group in night_groups((*refusals, *verdicts.of(Verdict.NEW_FAILURE)))[:ANNOTATIONS]:
        first = group.first
        more = f" (and {len(group) - 1} more)" if len(group) > 1 else ""
        parts = (words.head(first), words.failure(first), words.since(first, verdicts))
        title = f"{first.verdict}: {first.key}{more}"
        text = "; ".join(part for part in parts if part)
        level = "warning" if first.verdict == Verdict.NEW_FAILURE else "error"
        yield annotation(level, first.case, title, text)


def _verdicts(verdicts: Verdicts) -> Iterator[str]:
    every = night_groups(verdicts.findings)
    if not every:
        return
    shown = words.listed(every, _ROWS)
    rows = [
        (
            plain(group.name),
            str(len(group)),
            ", ".join((plain(words.head(group.first).partition(",")[0]), *_links(group))),
            code(group.first.key),
            code(words.failure(group.first)),
            plain(words.since(group.first, verdicts)),
        )
        for group in shown
    ]
    yield from table(_HEAD, rows)
    if len(every) > len(shown):
        cases = sum(map(len, every)) - sum(map(len, shown))
        yield from (f"... and {len(every) - len(shown)} more groups with {cases} cases.", "")


def _links(group: Group) -> Iterator[str]:
    if group.first.verdict not in (Verdict.SLOWER, Verdict.MISSING):
        yield from map(link, group.first.issues)


def _causes(verdicts: Verdicts) -> Iterator[str]:
    rows = [
        (
            str(each.results),
            str(each.cases),
            code(each.first),
            code(headline(each.message)),
        )
        for each in verdicts.causes[:_ROWS]
    ]
    if rows:
        yield from table(("failures", "cases", "first in", "of one cause"), rows)


def _versions(verdicts: Verdicts) -> Iterator[str]:
    names = dict.fromkeys(n for run in verdicts.runs for n in verdicts.versions[run])
    rows = [
        (plain(name), *(plain(verdicts.versions[run].get(name, "")) for run in verdicts.runs))
        for name in names
    ]
    yield from table(("", *map(code, verdicts.runs)), rows)
