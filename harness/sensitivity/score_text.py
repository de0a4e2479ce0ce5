"""Text of a score, for the terminal: how many planted faults were seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from harness.render.terminal_lines import title, wrapped
from harness.sensitivity.score import FaultResult, FaultVerdict, Score, share

_SHOWN = 10  # faults that were not seen, and cases; --json has all
_WIDEST = 76
_LINES = 6  # of the difference of two programs
_COLUMNS = (FaultVerdict.SEEN, FaultVerdict.UNSEEN, FaultVerdict.EQUIVALENT, FaultVerdict.REFUSED)
_MODULE_COLUMNS = (*_COLUMNS[:2], FaultVerdict.NOT_EXECUTED, FaultVerdict.REFUSED)


def lines(score: Score) -> Iterator[str]:
    """Yield the score by area, operator and case, the unseen faults, and cases that add nothing."""
    columns = _MODULE_COLUMNS if score.unit == "module" else _COLUMNS
    yield title(f"faults seen, by {score.unit}")
    yield from _table(score.unit, score.by_area() | score.in_all(), columns)
    yield title("faults seen, by operator")
    yield from _table("operator", score.by_operator(), columns)
    yield from _cases(score)
    yield from _left_out(score)
    unseen = score.of(FaultVerdict.UNSEEN)
    if unseen:
        yield title("not seen")
    for result in unseen[:_SHOWN]:
        yield from survivor(result)
    if len(unseen) > _SHOWN:
        yield f"... and {len(unseen) - _SHOWN} more: --json FILE has all"
    yield from _not_executed(score)
    if nothing := score.adds_nothing():
        cases = len({result.fault.case for result in score.results})
        yield from wrapped(
            f"{len(nothing)} of {cases} cases see no kind of fault that a cheaper one does not: "
            "--json FILE names them."
        )


def _table(
    head: str, rows: Mapping[str, Mapping[FaultVerdict, int]], columns: Sequence[FaultVerdict]
) -> Iterator[str]:
    width = max(len(head), *map(len, rows)) if rows else len(head)
    yield f"{head:<{width}} {'share':>6}" + "".join(f"  {name}" for name in columns)
    for name, counts in rows.items():
        numbers = (f"  {counts.get(name, 0) or '.':>{len(name)}}" for name in columns)
        yield f"{name:<{width}} {_percent(counts):>6}{''.join(numbers)}"


def _cases(score: Score) -> Iterator[str]:
    """Yield the cases that miss most. An id has its own line, since it may be longer than one."""
    missing = {c: n for c, n in score.by_case().items() if n[FaultVerdict.UNSEEN]}
    if missing:
        yield title("cases that do not see all of their faults")
    for case, counts in list(missing.items())[:_SHOWN]:
        shares = share(counts)
        yield f"{_percent(counts):>6}  {shares.unseen} of {shares.counted} not seen"
        yield f"        {case}"
    if len(missing) > _SHOWN:
        yield f"... and {len(missing) - _SHOWN} more: --json FILE has all"


def not_executed(results: Iterable[FaultResult]) -> Iterator[str]:
    """Yield the functions with faults in lines that no case executes, each with these lines."""
    by_function: dict[str, set[int]] = {}
    for result in results:
        if result.verdict == FaultVerdict.NOT_EXECUTED:
            function = result.fault.program.rpartition(":")[0]
            line = int(result.fault.opcode.removeprefix("line "))
            by_function.setdefault(function, set()).add(line)
    for function in sorted(by_function):
        yield f"{function} {', '.join(map(str, sorted(by_function[function])))}"


def _not_executed(score: Score) -> Iterator[str]:
    functions = list(not_executed(score.results))
    if functions:
        yield title("lines that no case executes, by function")
    yield from functions[:_SHOWN]
    if len(functions) > _SHOWN:
        yield f"... and {len(functions) - _SHOWN} more: --json FILE has all"


def _percent(counts: Mapping[FaultVerdict, int]) -> str:
    percent = share(counts).percent
    return "." if percent is None else f"{percent:.0f} %"


def _left_out(score: Score) -> Iterator[str]:
    reasons = {
        "cases that fail without a fault: nothing is planted in them": score.red,
        "cases that compile no program, or were skipped": score.idle,
        "faults whose program the case did not compile or execute again": score.of(
            FaultVerdict.ABSENT
        ),
        "faults whose case failed before it compiled their program": score.of(
            FaultVerdict.DISTURBED
        ),
        "faults left when the budget ended": score.of(FaultVerdict.NOT_RUN),
    }
    if any(reasons.values()):
        yield title("not counted")
    for reason, faults in reasons.items():
        if faults:
            yield f"{len(faults):5}  {reason}"


def survivor(result: FaultResult) -> Iterator[str]:
    """Yield a fault that was not seen: its place, the cases that missed it, the difference."""
    yield f"{result.fault.operator} at {result.fault.opcode} of {result.name}: {result.explanation}"
    yield from (f"  {case}" for case in result.cases or (result.fault.case,))
    for line in result.difference[:_LINES]:
        yield f"    {line[:_WIDEST]}"
    if len(result.difference) > _LINES:
        yield f"    ... {len(result.difference) - _LINES} more lines"
