"""A comparison on GitHub: Markdown for a pull request, and annotations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.diagnosis.signature import headline
from harness.render.comparison_text import counts, left_out, rested, versions
from harness.render.github_markup import ANNOTATIONS, annotation, code, link, plain, table
from harness.verdicts.allow import Allowed
from harness.verdicts.compare import decide
from harness.verdicts.comparison import Comparison
from harness.verdicts.effects import Effect, by_area, of_all
from harness.verdicts.groups import Group, basis, groups
from harness.verdicts.words import VERDICTS, Verdict

_COLUMNS = ("verdict", "cases", "layer", "upstream", "component", "first case", "failure")
_LEVELS = {
    Verdict.REGRESSED: "error",
    Verdict.MISSING: "error",
    Verdict.NEW_FAILURE: "warning",
    Verdict.FLAKY: "warning",
    Verdict.LARGER: "warning",
    Verdict.SLOWER: "warning",
    Verdict.CHANGED: "warning",
}


def summary(comparison: Comparison, allowed: Allowed | None = None, most: int = 30) -> str:
    """The answer, the groups of cases in at most ``most`` rows, and both stacks' versions."""
    allowed = allowed or Allowed({}, ())
    base, candidate = plain(comparison.base.name), plain(comparison.candidate.name)
    answer = plain(decide(comparison, allowed.entries).sentence)
    said = (
        f"**{answer}** {candidate} compared with {base}: {plain(counts(comparison))}.",
        plain(left_out(comparison)),
        plain(rested(comparison)),
    )
    lines = [
        " ".join(filter(None, said)),
        "",
        *effects(comparison),
        *_findings(comparison, allowed, most),
        *_allowed(comparison, allowed),
        *table(("", base, candidate), _versions(comparison)),
    ]
    return "\n".join(lines) + "\n"


def effects(comparison: Comparison) -> Iterator[str]:
    """What moving to another framework does to the cases of each area; nothing for no move."""
    if comparison.move:
        areas = by_area(comparison)
        rows = {**areas, "all": of_all(areas)}
        yield from table(
            (f"{plain(str(comparison.move))}, by area", *Effect),
            (
                (plain(area), *(str(counts[each] or "") for each in Effect))
                for area, counts in rows.items()
            ),
        )


def _rows(found: Sequence[Group]) -> Iterator[tuple[str, ...]]:
    """A row of cells for each group, under _COLUMNS."""
    for group in found:
        first = group.first
        known = (code(headline(first.message)), plain(first.note), plain(basis(group.members)))
        yield (
            plain(group.name),
            str(len(group)),
            plain(first.layer),
            ", ".join(map(link, first.issues)),
            plain(first.component or ""),
            code(first.key),
            "<br>".join(filter(None, known)),
        )


def group_table(found: Sequence[Group], most: int) -> Iterator[str]:
    """The groups in at most ``most`` rows; nothing for none."""
    if found:
        yield from table(_COLUMNS, _rows(found[:most]))
    if len(found) > most:
        cases = sum(map(len, found[most:]))
        yield from (f"... and {len(found) - most} more groups with {cases} cases.", "")


def _findings(comparison: Comparison, allowed: Allowed, most: int) -> Iterator[str]:
    shown = [v for v in VERDICTS if v != Verdict.UNCHANGED]
    found = groups(f for f in comparison.of(*shown) if f.key not in allowed.entries)
    yield from group_table(found, most)


def _allowed(comparison: Comparison, allowed: Allowed) -> Iterator[str]:
    if allowed.entries:
        yield from ("Signed off:", "")
        keys = [f.key for f in comparison.findings if f.key in allowed.entries]
        entries = {allowed.entries[key].where: allowed.entries[key] for key in keys}
        for entry in entries.values():
            cases = sum(allowed.entries[key] == entry for key in keys)
            issue = f", {link(entry.issue)}" if entry.issue else ""
            until = f", until {entry.until}" if entry.until else ""
            yield (
                f"- {cases} {plain(entry.verdict)}: {plain(entry.reason)}{issue} "
                f"({plain(entry.signed_off_by)}{until})"
            )
        yield ""
    if allowed.stale:
        yield from ("Entries of the allow-list that allow nothing here:", "")
        yield from (f"- {plain(entry.where)}: {plain(entry.reason)}" for entry in allowed.stale)
        yield ""


def _versions(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    for name, was, is_ in versions(comparison):
        mark = "**" if was != is_ else ""
        yield (plain(name), plain(was), f"{mark}{plain(is_)}{mark}")


def annotation_lines(comparison: Comparison, allowed: Allowed | None) -> Iterator[str]:
    """An error for each group of what refuses the candidate, else a warning."""
    entries = allowed.entries if allowed else {}
    found = groups(f for f in comparison.of(*_LEVELS) if f.key not in entries)
    for group in found[:ANNOTATIONS]:
        first = group.first
        more = f" (and {len(group) - 1} more)" if len(group) > 1 else ""
        parts = (first.layer, *first.issues, headline(first.message), first.note)
        text = "; ".join(part for part in parts if part) or group.name
        title = f"{group.name}: {first.key}{more}"
        yield annotation(_LEVELS[first.verdict], first.key, title, text)
