"""A comparison for the terminal, in lines of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from harness.diagnosis.signature import headline
from harness.model.versions import ABSENT, present
from harness.platforms.gpu.packages import cuda_of
from harness.printable import printable
from harness.render.terminal_lines import WIDTH, heading, title, wrapped
from harness.verdicts.allow import Allowed
from harness.verdicts.compare import decide, undecided_of
from harness.verdicts.comparison import DIFFERS, Comparison, Open, Side
from harness.verdicts.effects import Effect, by_area, of_all
from harness.verdicts.groups import Group, basis, groups
from harness.verdicts.words import VERDICTS, Verdict

_SHOWN = 10  # groups of a verdict


def lines(comparison: Comparison, allowed: Allowed | None = None) -> Iterator[str]:
    """Yield what differs first, then the stacks, then the answer."""
    yield from map(printable, _lines(comparison, allowed or Allowed({}, ())))


def _lines(comparison: Comparison, allowed: Allowed) -> Iterator[str]:
    for verdict in VERDICTS:
        if verdict != Verdict.UNCHANGED:
            cases = [f for f in comparison.of(verdict) if f.key not in allowed.entries]
            yield from section(groups(cases))
    yield from _allowed(allowed)
    yield from _effects(comparison)
    yield from _versions(comparison)
    yield title(_which(comparison.open))
    yield from wrapped(f"{counts(comparison)}.")
    yield from wrapped(left_out(comparison))
    yield from wrapped(reused(comparison))
    yield from wrapped(rested(comparison))
    yield from wrapped(decide(comparison, allowed.entries).sentence)


def _which(still: Open) -> str:
    if still.cases:
        return "answer of the quick cases"
    return "first answer" if still else "answer"


def section(listed: Sequence[Group], most: int = _SHOWN) -> Iterator[str]:
    """Yield the groups of one verdict: how many cases, where they broke, issue, first case."""
    if not listed:
        return
    yield heading(listed)
    for group in listed[:most]:
        first = group.first
        cause = f"caused by {first.component}" if first.component else ""
        facts = [first.layer, " ".join(first.issues), cause]
        head = ", ".join(fact for fact in facts if fact) or "no issue"
        head += " (expected)" if group.expected else ""
        yield from wrapped(head, 7, f"{len(group):>5}  ")
        yield from wrapped(first.key, 2)
        yield from wrapped(headline(first.message), 9)
        yield from wrapped(first.note, 9)
        yield from wrapped(basis(group.members), 9)
    if len(listed) > most:
        cases = sum(map(len, listed[most:]))
        yield f"       ... and {len(listed) - most} more groups with {cases} cases"


def _allowed(allowed: Allowed) -> Iterator[str]:
    if allowed.entries:
        yield title(f"signed off: {len(allowed.entries)}")
        entries = list(allowed.entries.values())
        for entry in dict.fromkeys(entries):
            text = f"{entry.verdict}: {entry.reason} ({entry.signed_off_by})"
            yield from wrapped(text, 7, f"{entries.count(entry):>5}  ")
    if allowed.stale:
        yield title("allow-list entries that allow nothing here")
        for entry in allowed.stale:
            yield from wrapped(f"{entry.where}: {entry.reason}", 2)


def _effects(comparison: Comparison) -> Iterator[str]:
    if comparison.move is None:
        return
    yield title(f"from {comparison.move}, by area")
    heads = [textwrap.wrap(each, 1, break_long_words=False) for each in Effect]
    widths = [max(map(len, head)) for head in heads]
    for line in zip_longest(*heads, fillvalue=""):
        yield _cells("", line, widths)
    areas = by_area(comparison)
    for area, counts in {**areas, "all": of_all(areas)}.items():
        yield _cells(area, [str(counts[each] or ".") for each in Effect], widths)


def _cells(area: str, cells: Sequence[str], widths: Sequence[int]) -> str:
    room = WIDTH - sum(widths) - len(widths)
    fitted = area if len(area) <= room else f"{area[: room - 1]}~"
    numbers = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    return " ".join((f"{fitted:<{room}}", *numbers)).rstrip()


def _versions(comparison: Comparison) -> Iterator[str]:
    yield title("stacks, * where they differ")
    rows = [("", comparison.base.name, comparison.candidate.name), *versions(comparison)]
    first = max(15, *(len(name) + 1 for name, _, _ in rows))
    other = (WIDTH - 3 - first) // 2
    for name, was, is_ in rows:
        mark = "*" if name and was != is_ else " "
        yield f"{mark} {name:<{first}}{was[: other - 1]:<{other}}{is_[: other - 1]}".rstrip()


def counts(comparison: Comparison) -> str:
    """Say how many cases have each verdict that occurs."""
    named = [text for v in VERDICTS if (text := comparison.counted(v))]
    more = len(undecided_of(comparison))
    return ", ".join(named or ["no case"]) + (f" ({more} undecided)" if more else "")


def left_out(comparison: Comparison) -> str:
    """Say how many unchanged and failing cases were not run on the base; "" if none."""
    counts = {
        verdict: sum(case.key in comparison.not_run_on_base for case in comparison.of(verdict))
        for verdict in (Verdict.UNCHANGED, Verdict.STILL_FAILING)
    }
    named = " and ".join(f"{n} of the {verdict} cases" for verdict, n in counts.items() if n)
    if not named:
        return ""
    base, candidate = comparison.base.name, comparison.candidate.name
    return (
        f"{named} were not run on {base}, where they are expected to do the same as on "
        f"{candidate}; what they compiled and executed is not compared: --every-case runs them."
    )


def reused(comparison: Comparison) -> str:
    """Say how many results of each side an earlier run measured; "" if none."""
    sides = [side for side in (comparison.base, comparison.candidate) if side.reused]
    if not sides:
        return ""
    counts = ((side, len(side.reused)) for side in sides)
    named = " and ".join(f"{n} result{'s' * (n > 1)} of {side.name}" for side, n in counts)
    return f"Reused: {named}, the oldest of {min(side.reused[0] for side in sides)}."


def rested(comparison: Comparison) -> str:
    """Return what is still open, or which reruns the answer rests on; "" if nothing differs."""
    if comparison.open:
        return f"Still open: {comparison.open}."
    differing = comparison.of(*DIFFERS)
    if not differing:
        return ""
    sentences = []
    if any(case.rerun_cases for case in differing):
        known = basis(differing)
        sentences.append(f"Of what differs, {known}." if known else "All that differs was rerun.")
    elif comparison.in_question:
        sentences.append("What differs was not rerun: flaky cases may be among it.")
    declared = set(differing).difference(comparison.in_question)
    if not all(case.rerun_cases for case in declared):
        sentences.append("What expectations declare is not rerun.")
    return " ".join(sentences)


def versions(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    """Yield each component that either has, with both versions and wheels."""
    base, candidate = comparison.base, comparison.candidate
    names = (*base.versions, *candidate.versions, *base.wheels, *candidate.wheels)
    for name in dict.fromkeys(names):
        was, is_ = _version(base, name), _version(candidate, name)
        if {was, is_} != {ABSENT}:
            yield name, was, is_
    was, is_ = map(_cuda, (base, candidate))
    if {was, is_} != {ABSENT}:
        yield "cuda", was, is_


def _cuda(side: Side) -> str:
    return cuda_of(list(present(side.versions))) or ABSENT


def _version(side: Side, name: str) -> str:
    if name not in side.wheels:
        return side.versions.get(name, "unknown")
    return f"{side.versions.get(name, '')} wheel {side.wheels[name][:12]}".strip()
