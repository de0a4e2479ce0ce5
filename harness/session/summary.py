"""The summary after a run, in lines of at most 80 columns: unexpected first, with what to type."""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from harness.lanes import DEFAULT_LANE
from harness.model.outcome import Kind
from harness.session.record import Record
from harness.session.session import Collected
from harness.verdicts.upstream import Row

Line = tuple[str, dict[str, bool]]
_COLUMNS = {
    Kind.PASSED: "passed",
    Kind.EXPECTED_FAILURE: "expected",
    Kind.FAILED: "failed",
    Kind.CRASHED: "crashed",
    Kind.HUNG: "hung",
    Kind.CONFLICT: "conflict",
    Kind.UNEXPECTED_PASS: "xpass",
    Kind.SKIPPED: "skipped",
}
_SHOWN = 10


def lines(
    records: Sequence[Record], rows: Sequence[Row], collected: Collected, width: int
) -> Iterator[Line]:
    """Each line with its markup."""
    yield from _unexpected([r for r in records if r.kind.is_bad], width)
    yield from _stale(collected.unmatched, width)
    if not records:
        yield from _skipped(records, collected, width)
        return
    yield from _areas(records, width)
    yield from _interpreted(records, width)
    yield from _compiled(records, width)
    yield from _rows(records, rows, width)
    yield from _expected([r for r in records if r.kind == Kind.EXPECTED_FAILURE], width)
    yield from _skipped(records, collected, width)
    yield from _unproven(records, width)


def _title(text: str, width: int, **style: bool) -> Line:
    return f"{f' {text} ':-^{width}}", style


def _unexpected(bad: Sequence[Record], width: int) -> Iterator[Line]:
    if not bad:
        return
    yield _title(f"unexpected: {len(bad)}", width, red=True, bold=True)
    for record in bad[:_SHOWN]:
        yield f"{record.kind}: {record.id}", {"red": True}
        first = (record.outcome_detail.splitlines() or [""])[0]
        yield from _indented(first, width)
        if record.upstream:
            yield from _indented(f"watches {record.upstream}", width)
    if len(bad) > _SHOWN:
        yield f"... and {len(bad) - _SHOWN} more", {}
    yield "reproduce the first with:", {"bold": True}
    yield f"  {_command(bad[0])}", {"bold": True}


def _command(record: Record) -> str:
    """What to type to run the case again, where it ran."""
    placed = f"[{record.lane}-{record.topology}" not in record.id  # by the options
    where = ["--lane", record.lane] if placed or record.lane != DEFAULT_LANE else []
    where += ["--topology", record.topology] if placed else []
    return shlex.join(["pytest", *where, record.id])


def _stale(unmatched: Sequence[str], width: int) -> Iterator[Line]:
    if unmatched:
        yield _title("expectations without a case", width, red=True, bold=True)
        for text in unmatched:
            yield text, {"red": True}


def _areas(records: Sequence[Record], width: int) -> Iterator[Line]:
    yield _title("cases by area", width)
    kinds = [k for k in _COLUMNS if any(r.kind == k for r in records)]
    yield f"{'area':<17}" + "".join(f"{_COLUMNS[k]:>9}" for k in kinds), {"bold": True}
    for area in sorted({r.area for r in records}):
        counts = Counter(r.kind for r in records if r.area == area)
        bad = any(counts[k] for k in Kind if k.is_bad)
        style = {"red": True} if bad else {}
        yield f"{area[:16]:<17}" + "".join(f"{counts[k] or '.':>9}" for k in kinds), style


def _interpreted(records: Sequence[Record], width: int) -> Iterator[Line]:
    """A kernel that was interpreted must not be taken for one that was compiled."""
    kernels = [
        int(r.facts["pallas_interpreted"]) for r in records if "pallas_interpreted" in r.facts
    ]
    if kernels:
        yield _title("interpreted, not compiled", width)
        text = f"Pallas kernels, by JAX on the CPU, in {len(kernels)} cases: no Mosaic, no TPU"
        yield from _counted(sum(kernels), text, width)


def _compiled(records: Sequence[Record], width: int) -> Iterator[Line]:
    """What was compiled and not executed; a program that had to be changed is said to be."""
    found = [r.facts for r in records if "aot_programs" in r.facts]
    if not found:
        return
    yield _title("compiled by libtpu, not executed", width)
    topologies = len({r.topology for r in records if "aot_programs" in r.facts})
    programs = sum(int(facts["aot_programs"]) for facts in found)
    yield from _counted(programs, f"programs of {len(found)} cases, {topologies} topologies", width)
    changed = Counter(facts["aot_changed"] for facts in found if "aot_changed" in facts)
    for text, count in changed.most_common():
        yield from _counted(count, f"cases' programs were changed first: {text}", width)


def _rows(records: Sequence[Record], rows: Sequence[Row], width: int) -> Iterator[Line]:
    found = [(row, chosen) for row in rows if (chosen := row.select(records))]
    if not found:
        return
    yield _title("what this stack gets right", width)
    for row, chosen in found:
        answer = row.answer(chosen)
        style = {"green": True} if answer.verdict == "ok" else {"yellow": True}
        line, issues = f"{answer.verdict:<11}{answer.count:>7}  {row.title}", " ".join(row.issues)
        if len(line) + 2 + len(issues) <= width:
            yield f"{line}{issues:>{width - len(line)}}", style
        else:
            yield line[:width], style
            yield f"{issues:>{width}}", style


def _expected(records: Sequence[Record], width: int) -> Iterator[Line]:
    if not records:
        return
    yield _title("expected failures by upstream issue", width)
    by_cause: dict[str, Counter[str]] = {}
    for record in records:
        by_cause.setdefault(record.expectation, Counter())[record.outcome_detail] += 1
    # Issues before findings, which nobody has reported yet.
    for _, details in sorted(by_cause.items(), key=lambda item: ("#" not in item[0], item[0])):
        (text, _), *others = details.most_common()
        more = f" (and {len(others)} more)" if others else ""
        yield from _counted(details.total(), text + more, width)


def _skipped(records: Sequence[Record], collected: Collected, width: int) -> Iterator[Line]:
    skipped = Counter(r.outcome_detail for r in records if r.kind == Kind.SKIPPED)
    if skipped or collected.left_out:
        yield _title("not run, by cause", width)
    for cause, count in skipped.most_common():
        yield from _counted(count, f"skipped: {cause}", width)
    for cause, count in sorted(collected.left_out.items()):
        yield from _counted(count, f"left out: {cause}", width)


def _unproven(records: Sequence[Record], width: int) -> Iterator[Line]:
    """Tests that passed without evidence; in red when no other test says anything."""
    found = [record for record in records if record.unproven]
    if not found:
        return
    alone = all(record.kind == Kind.SKIPPED for record in records)
    yield _title("passes without evidence", width, red=alone, bold=alone)
    text = f"of {len(records)} tests passed and did nothing on lane {found[0].lane}: not counted"
    yield from _counted(len(found), text, width)
    if alone:
        yield "No test says anything about the lane, so the exit code is 5.", {"red": True}


def _counted(count: int, text: str, width: int) -> Iterator[Line]:
    wrapped = textwrap.wrap(
        " ".join(text.split()), width, initial_indent=f"{count:>5}  ", subsequent_indent=" " * 7
    )
    for line in wrapped:
        yield line, {}


def _indented(text: str, width: int) -> Iterator[Line]:
    for line in textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  "):
        yield line, {}
