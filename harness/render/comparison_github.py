"""A comparison on GitHub: Markdown for a pull request, and annotations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.diagnosis.signature import headline
from harness.render.comparison_text import counts, left_out, rested, reused, versions
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
    """Return the answer, at most ``most`` groups of cases, and both stacks' versions."""
    allowed = allowed or Allowed({}, ())
    base, candidate = plain(comparison.base.name), plain(comparison.candidate.name)
    answer = plain(decide(comparison, allowed.entries).sentence)
    parts = (
        f"**{answer}** {candidate} compared with {base}: {plain(counts(comparison))}.",
        plain(left_out(comparison)),
        plain(reused(comparison)),
        plain(rested(comparison)),
    )
    lines = [
        " ".join(filter(None, parts)),
        "",
        *effects(comparison),
        *_findings(comparison, allowed, most),
        *_allowed(comparison, allowed),
        *table(("", base, candidate), _versions(comparison)),
    ]
    return "\n".join(lines) + "\n"


def effects(comparison: Comparison) -> Iterator[str]:
    """Yield the effects of a move to another framework by area; nothing if there is no move."""
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


def _rows(shown: Sequence[Group]) -> Iterator[tuple[str, ...]]:
    """Yield a row of cells for each group, under _COLUMNS."""
    for group in shown:
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


def group_table(shown: Sequence[Group], most: int) -> Iterator[str]:
    """Yield the groups in at most ``most`` rows; nothing for none."""
    if shown:
        yield from table(_COLUMNS, _rows(shown[:most]))
    if len(shown) > most:
        cases = sum(map(len, shown[most:]))
        yield from (f"... and {len(shown) - most} more groups with {cases} cases.", "")


def _findings(comparison: Comparison, allowed: Allowed, most: int) -> Iterator[str]:
    changed = [v for v in VERDICTS if v != Verdict.UNCHANGED]
    shown = groups(f for f in comparison.of(*changed) if f.key not in allowed.entries)
    yield from group_table(shown, most)


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
    """Yield an error for each group that refuses the candidate, and warnings for others."""
    entries = allowed.entries if allowed else {}
    refused = groups(f for f in comparison.of(*_LEVELS) if f.key not in entries)
    for group in refused[:ANNOTATIONS]:
        first = group.first
        more = f" (and {len(group) - 1} more)" if len(group) > 1 else ""
        parts = (first.layer, *first.issues, headline(first.message), first.note)
        text = "; ".join(part for part in parts if part) or group.name
        title = f"{group.name}: {first.key}{more}"
        yield annotation(_LEVELS[first.verdict], first.key, title, text)
