"""Verdicts for a CI job: Markdown for its summary, and annotations, as GitHub reads them."""

from __future__ import annotations

from collections.abc import Iterator

from harness.diagnosis.signature import first_line
from harness.render.annotation import ANNOTATIONS, annotation
from harness.render.markdown import code, link, plain, table
from harness.verdicts import verdict_groups as said
from harness.verdicts.verdicts import Kind, Verdicts

_ROWS = 30  # of a table; a summary may have 1 MiB
_HEAD = ("verdict", "cases", "what", "first case", "failure", "since")


def summary(verdicts: Verdicts) -> str:
    """The answer, the verdicts in at most 30 rows, the failures by signature, the versions."""
    runs = ", ".join(map(code, verdicts.runs))
    lines = [
        f"**{plain(said.answer(verdicts))}** {runs}: {plain(said.counts(verdicts))}.",
        "",
        f"{plain(said.outcomes(verdicts))}.",
        "",
        *_verdicts(verdicts),
        *_clusters(verdicts),
        *_versions(verdicts),
    ]
    return "\n".join(lines) + "\n"


def annotation_lines(verdicts: Verdicts) -> Iterator[str]:
    """An error for each group of what refuses the run, a warning for other new failures."""
    levels = {Kind.REGRESSED: "error", Kind.MISSING: "error", Kind.NEW_FAILURE: "warning"}
    for group in said.groups(verdicts.of(*levels))[:ANNOTATIONS]:
        first = group.first
        more = f" (and {len(group) - 1} more)" if len(group) > 1 else ""
        parts = (said.head(first), said.failure(first), said.since(first, verdicts))
        title = f"{first.kind}: {first.key}{more}"
        text = "; ".join(part for part in parts if part)
        yield annotation(levels[first.kind], first.case, title, text)


def _verdicts(verdicts: Verdicts) -> Iterator[str]:
    found = said.groups(verdicts.found)
    if not found:
        return
    rows = [
        (
            plain(group.first.kind),
            str(len(group)),
            ", ".join((plain(said.head(group.first).partition(",")[0]), *_links(group))),
            code(group.first.key),
            code(said.failure(group.first)),
            plain(said.since(group.first, verdicts)),
        )
        for group in found[:_ROWS]
    ]
    yield from table(_HEAD, rows)
    if len(found) > _ROWS:
        cases = sum(map(len, found[_ROWS:]))
        yield from (f"... and {len(found) - _ROWS} more groups with {cases} cases.", "")


def _links(group: said.Group) -> Iterator[str]:
    if group.first.kind not in (Kind.SLOWER, Kind.MISSING):
        yield from map(link, group.first.upstream)


def _clusters(verdicts: Verdicts) -> Iterator[str]:
    rows = [
        (
            str(each.results),
            str(each.cases),
            code(each.first),
            code(first_line(each.message)),
        )
        for each in verdicts.clusters[:_ROWS]
    ]
    if rows:
        yield from table(("failures", "cases", "first in", "of one signature"), rows)


def _versions(verdicts: Verdicts) -> Iterator[str]:
    names = dict.fromkeys(n for run in verdicts.runs for n in verdicts.versions[run])
    rows = [
        (plain(name), *(plain(verdicts.versions[run].get(name, "")) for run in verdicts.runs))
        for name in names
    ]
    yield from table(("", *map(code, verdicts.runs)), rows)
