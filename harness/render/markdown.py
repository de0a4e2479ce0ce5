"""A comparison as Markdown, for a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from harness.model.issues import page
from harness.printable import escaped
from harness.verdicts.allow import Allowed
from harness.verdicts.decision import decide, undecided_of
from harness.verdicts.findings import DIFFERS, VERDICTS, Comparison, Verdict
from harness.verdicts.groups import Group, basis, groups

_MOST_TEXT = 200  # characters of a failure
_COLUMNS = ("verdict", "cases", "layer", "upstream", "component", "first case", "failure")
_SPECIAL = re.compile(r"([\\`*\[\]<>#|~&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
# GitHub looks for mentions, issues and addresses in the text that it shows, however that is spelled
# in the source. What must not be one is parted by a space of no width, as Renovate does it.
_ACTING = re.compile(
    r"(?<=[@\uff20\ufe6b])|(?<=#)(?=\d)|(?<=\bGH-)(?=\d)|(?<=www)(?=\.)|(?<=:)(?=//)", re.IGNORECASE
)
_PARTED = "&#8203;"
_LONGEST_RUN = re.compile(r"`+")


def summary(comparison: Comparison, allowed: Allowed | None = None, most: int = 30) -> str:
    """The answer, the groups of findings in at most ``most`` rows, and both stacks' versions."""
    allowed = allowed or Allowed({}, ())
    base, candidate = plain(comparison.base.name), plain(comparison.candidate.name)
    answer = plain(decide(comparison, allowed.entries).sentence)
    lines = [
        f"**{answer}** {candidate} held against {base}: {plain(counts(comparison))}. "
        f"{plain(rested(comparison))}".rstrip(),
        "",
        *_findings(comparison, allowed, most),
        *_allowed(comparison, allowed),
        *table(("", base, candidate), _versions(comparison)),
    ]
    return "\n".join(lines) + "\n"


def counts(comparison: Comparison) -> str:
    """How many cases have each verdict that occurs."""
    named = [f"{comparison.counts[v]} {v}" for v in VERDICTS if comparison.counts.get(v)]
    more = len(undecided_of(comparison))
    return ", ".join(named or ["no case"]) + (f" ({more} undecided)" if more else "")


def rested(comparison: Comparison) -> str:
    """What of the answer is still open, or which reruns it rests on; "" where nothing differs."""
    if comparison.open:
        return f"Still open: {comparison.open}."
    differing = comparison.of(*DIFFERS)
    if not differing:
        return ""
    if not any(finding.rerun_cases for finding in differing):
        return "What differs was not rerun: flaky cases may be among it."
    known = basis(differing)
    return f"Of what differs, {known}." if known else "All that differs was rerun."


def plain(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no link, no mention, on one line."""
    parted = _ACTING.sub("\0", escaped(" ".join(text.split())))
    return _SPECIAL.sub(r"\\\1", parted).replace("@", "&#64;").replace("\0", _PARTED)


def code(text: str) -> str:
    """A code span of any text, as a table's cell: backticks, pipes and line breaks included."""
    one = escaped(" ".join(text.split()))
    if len(one) > _MOST_TEXT:
        one = one[: _MOST_TEXT - 1] + "…"
    if not one:
        return ""
    fence = "`" * (max(map(len, _LONGEST_RUN.findall(one)), default=0) + 1)
    pad = " " if one.startswith("`") or one.endswith("`") else ""
    return f"{fence}{pad}{one}{pad}{fence}".replace("|", "\\|")


def link(issue: str) -> str:
    """The issue, linked; a finding of ours as text."""
    address = page(issue)
    return f"[{issue}]({address})" if address else plain(issue)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table of Markdown cells without a bare pipe, and the empty one after it."""
    yield f"| {' | '.join(head)} |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _rows(found: Sequence[Group]) -> Iterator[tuple[str, ...]]:
    """A row of cells for each group, under _COLUMNS."""
    for group in found:
        first = group.first
        known = (code(first.failure), plain(first.note), plain(basis(group.findings)))
        yield (
            plain(first.verdict),
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


def versions(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    """Each component's version on the base and on the candidate."""
    base, candidate = comparison.base.versions, comparison.candidate.versions
    for name in dict.fromkeys((*base, *candidate)):
        yield name, base.get(name, "unknown"), candidate.get(name, "unknown")
