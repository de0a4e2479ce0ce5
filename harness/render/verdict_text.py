"""Verdicts for the terminal, in lines of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from harness.diagnosis.signature import first_line
from harness.printable import printable
from harness.render.text import title, wrapped
from harness.verdicts import verdict_groups as said
from harness.verdicts.verdicts import KINDS, Verdicts

_SHOWN = 10  # groups of a verdict


def lines(verdicts: Verdicts) -> Iterator[str]:
    """The runs, each kind of verdict, the failures by signature, the answer."""
    yield from map(printable, _lines(verdicts))


def _lines(verdicts: Verdicts) -> Iterator[str]:
    for run in verdicts.runs:
        facts = (f"{name} {value}" for name, value in verdicts.versions[run].items() if value)
        yield from wrapped(f"{run}: {', '.join(facts)}", 2)
    yield from wrapped(f"{said.outcomes(verdicts)}.", 2, "  ")
    for kind in KINDS:
        yield from _section(verdicts, said.groups(verdicts.of(kind)))
    yield from _clusters(verdicts)
    yield title("answer")
    yield from wrapped(f"{said.counts(verdicts)}.")
    yield from wrapped(said.answer(verdicts))


def _section(verdicts: Verdicts, found: tuple[said.Group, ...]) -> Iterator[str]:
    if not found:
        return
    yield title(f"{found[0].first.kind}: {sum(map(len, found))}")
    for group in found[:_SHOWN]:
        yield from wrapped(said.head(group.first), 7, f"{len(group):>5}  ")
        yield from wrapped(group.first.key, 2)
        yield from wrapped(said.failure(group.first), 9)
        yield from wrapped(said.since(group.first, verdicts), 9)
    if len(found) > _SHOWN:
        cases = sum(map(len, found[_SHOWN:]))
        yield f"       ... and {len(found) - _SHOWN} more groups with {cases} cases"


def _clusters(verdicts: Verdicts) -> Iterator[str]:
    if not verdicts.clusters:
        return
    yield title(f"failures by signature: {len(verdicts.clusters)}")
    for cluster in verdicts.clusters[:_SHOWN]:
        where = f"{cluster.cases} cases, first in {cluster.first}"
        yield from wrapped(where, 7, f"{cluster.results:>5}  ")
        yield from wrapped(first_line(cluster.message), 9)
    if len(verdicts.clusters) > _SHOWN:
        yield f"       ... and {len(verdicts.clusters) - _SHOWN} more"
