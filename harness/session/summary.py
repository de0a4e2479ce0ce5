"""The summary after a run: what is unexpected first, by cause, with what to type.

Lines are as wide as the terminal. A case's id and a command are never broken, so that they can be
copied.
"""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from harness.diagnosis.cause import by_cause
from harness.diagnosis.signature import generalised
from harness.lanes import DEFAULT_LANE
from harness.model.chosen_plugin import chosen_plugin
from harness.model.outcome import Kind
from harness.model.scriptable import becomes_script
from harness.printable import folded
from harness.session.collection import Collected
from harness.session.record import Record
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
_CAUSES = 10
_CASES = 3  # of a cause


def lines(
    records: Sequence[Record],
    rows: Sequence[Row],
    collected: Collected,
    width: int,
    *,
    full: bool = False,
) -> Iterator[Line]:
    """Yield the summary's lines with their markup; with ``full``, name every unexpected case."""
    yield from _unexpected([r for r in records if r.kind.is_bad], width, full=full)
    yield from _stale(collected.unmatched, width)
    if not records:
        yield from _skipped(records, collected, width)
        return
    yield from _areas(records, width)
    yield from _interpreted(records, width)
    yield from _left_out_options(records, width)
    yield from _compiled(records, width)
    yield from _rows(records, rows, width)
    yield from _expected([r for r in records if r.kind == Kind.EXPECTED_FAILURE], width)
    yield from _skipped(records, collected, width)
    yield from _unproven(records, width)
    yield from _not_executed(records, width)
    if records and all(record.kind == Kind.SKIPPED for record in records):
        text = "No case was measured: if no other test ran, the exit code is 5."
        yield from ((line, {"red": True}) for line, _ in _wrapped(text, width, "", ""))


def _title(text: str, width: int, **style: bool) -> Line:
    return f"{f' {text} ':-^{width}}", style


def _unexpected(bad: Sequence[Record], width: int, *, full: bool) -> Iterator[Line]:
    if not bad:
        return
    causes = by_cause(bad)
    count = f", {len(causes)} cause{'s' * (len(causes) > 1)}" if len(causes) < len(bad) else ""
    yield _title(f"unexpected: {len(bad)}{count}", width, red=True, bold=True)
    shown = causes if full else causes[:_CAUSES]
    for cause in shown:
        yield from _cause(cause, width, full=full)
    if len(shown) < len(causes):
        cases = sum(map(len, causes[len(shown) :]))
        yield f"... and {len(causes) - len(shown)} more causes with {cases} cases: --full", {}
    yield from _again(causes[0][0])


def _cause(records: Sequence[Record], width: int, *, full: bool) -> Iterator[Line]:
    first = records[0]
    layer = f" at {first.layer}" if first.layer else ""
    for line, _ in _counted(len(records), f"{first.kind}{layer}: {first.headline}", width):
        yield line, {"red": True}
    failed = [record for record in records if record.kind != Kind.UNEXPECTED_PASS]
    for declared in sorted({record.expectation for record in failed if record.expectation}):
        yield from _indented(
            f"not the failure that the expectation of {declared} declares", width, 7
        )
    if issues := " ".join(sorted({i for record in records for i in record.upstream.split()})):
        yield from _indented(f"watches {issues}", width, 7)
    named = records if full else records[:_CASES]
    for record in named:
        yield f"  {record.id}", {}
    if len(named) < len(records):
        yield f"  ... and {len(records) - len(named)} more: --full names them", {}


def _again(record: Record) -> Iterator[Line]:
    yield "reproduce the first with:", {"bold": True}
    yield f"  {_command(record)}", {"bold": True}
    if record.kind != Kind.UNEXPECTED_PASS and becomes_script(record.id):
        yield "as a script without the harness:", {"bold": True}
        yield f"  {shlex.join(['xla-harness', 'repro', record.id])}", {"bold": True}


def _command(record: Record) -> str:
    """Return the command that runs the case again where it ran."""
    placed = f"[{record.lane}-{record.topology}" not in record.id  # by the options
    where = ["--lane", record.lane] if placed or record.lane != DEFAULT_LANE else []
    where += ["--topology", record.topology] if placed else []
    plugin = chosen_plugin()
    where += plugin.request if plugin else ()
    module = sys.orig_argv[1:3] == ["-m", "pytest"]  # imports from the current folder, too
    return shlex.join([*(["python", "-m"] if module else []), "pytest", *where, record.id])


def _stale(unmatched: Sequence[str], width: int) -> Iterator[Line]:
    if unmatched:
        yield _title("expectations without a case", width, red=True, bold=True)
        for text in unmatched:
            yield text, {"red": True}


def _areas(records: Sequence[Record], width: int) -> Iterator[Line]:
    yield _title("cases by area", width)
    kinds = [k for k in _COLUMNS if any(r.kind == k for r in records)]
    areas = sorted({r.area for r in records})
    wide = max(16, min(max(map(len, areas)), width - 9 * len(kinds) - 1))
    yield f"{'area':<{wide + 1}}" + "".join(f"{_COLUMNS[k]:>9}" for k in kinds), {"bold": True}
    for area in areas:
        counts = Counter(r.kind for r in records if r.area == area)
        bad = any(counts[k] for k in Kind if k.is_bad)
        style = {"red": True} if bad else {}
        cells = "".join(f"{counts[k] or '.':>9}" for k in kinds)
        yield f"{area[:wide]:<{wide + 1}}{cells}", style


def _interpreted(records: Sequence[Record], width: int) -> Iterator[Line]:
    """Say which kernels were interpreted, lest they be taken for compiled ones."""
    interpreted = [r.facts for r in records if "pallas_interpreted" in r.facts]
    if not interpreted:
        return
    yield _title("interpreted, not compiled", width)
    text = f"Pallas kernels, by JAX on the CPU, in {len(interpreted)} cases: not by a device"
    yield from _counted(sum(int(facts["pallas_interpreted"]) for facts in interpreted), text, width)
    simulated = sum(int(facts.get("pallas_tpu_interpreted", 0)) for facts in interpreted)
    if simulated:
        text = "of them with a TPU's memories, copies and semaphores simulated"
        yield from _counted(simulated, text, width)


def _left_out_options(records: Sequence[Record], width: int) -> Iterator[Line]:
    """Yield the options that had no effect on the virtual TPU, and in how many cases."""
    options = Counter(
        option
        for record in records
        for option in record.facts.get("options_left_out", "").split(", ")
        if option
    )
    if options:
        yield _title("options without effect on virtual devices", width)
    for option, count in options.most_common():
        yield from _counted(count, option, width)


def _compiled(records: Sequence[Record], width: int) -> Iterator[Line]:
    """Say what was compiled and not executed, and which programs had to be changed."""
    compiled = [r.facts for r in records if "aot_programs" in r.facts]
    if not compiled:
        return
    yield _title("compiled, not executed", width)
    topologies = len({r.topology for r in records if "aot_programs" in r.facts})
    programs = sum(int(facts["aot_programs"]) for facts in compiled)
    yield from _counted(
        programs, f"programs of {len(compiled)} cases, {topologies} topologies", width
    )
    if zeros := sum(bool(facts.get("aot_not_computed")) for facts in compiled):
        yield from _counted(zeros, "cases got zeros: their programs can't be computed here", width)
    changed = Counter(facts["aot_changed"] for facts in compiled if "aot_changed" in facts)
    for text, count in changed.most_common():
        yield from _counted(count, f"cases' programs were changed first: {text}", width)


def _rows(records: Sequence[Record], rows: Sequence[Row], width: int) -> Iterator[Line]:
    chosen_rows = [(row, chosen) for row in rows if (chosen := row.select(records))]
    if not chosen_rows:
        return
    yield _title("what this stack gets right", width)
    for row, chosen in chosen_rows:
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
    """Name tests that passed without evidence; in red when no other test measured anything."""
    unproven = [record for record in records if record.unproven]
    if not unproven:
        return
    alone = all(record.kind == Kind.SKIPPED for record in records)
    yield _title("passes without evidence", width, red=alone, bold=alone)
    text = f"of {len(records)} tests passed and did nothing on lane {unproven[0].lane}: not counted"
    yield from _counted(len(unproven), text, width)


def _not_executed(records: Sequence[Record], width: int) -> Iterator[Line]:
    """Name passes that show less than they seem to; JUnit has all, in a property."""
    by_cause: dict[str, list[str]] = {}
    for record in records:
        if record.not_executed:
            by_cause.setdefault(generalised(record.not_executed), []).append(record.id)
    if not by_cause:
        return
    yield _title("passes that executed nothing on their lane", width)
    for ids in by_cause.values():
        first = next(record for record in records if record.id == ids[0])
        yield from _counted(len(ids), first.not_executed, width)
        for id_ in ids[:_CASES]:
            yield f"  {id_}", {}
        if len(ids) > _CASES:
            yield f"  ... and {len(ids) - _CASES} more: property not_executed in JUnit", {}


def _counted(count: int, text: str, width: int) -> Iterator[Line]:
    yield from _wrapped(text, width, f"{count:>5}  ", " " * 7)


def _indented(text: str, width: int, indent: int) -> Iterator[Line]:
    yield from _wrapped(text, width, " " * indent, " " * indent)


def _wrapped(text: str, width: int, first: str, rest: str) -> Iterator[Line]:
    for line in folded(" ".join(text.split()), width, first, rest):
        yield line, {}
