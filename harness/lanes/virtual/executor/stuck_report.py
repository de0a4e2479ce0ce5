"""The report of a job that can't go on: the reason, and where each rank is, in few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.lanes.virtual.executor.connected_ranks import Rank
from harness.lanes.virtual.executor.diagnosis import Diagnosis
from harness.lanes.virtual.executor.folding import grouped, listed, ranks_named
from harness.lanes.virtual.executor.meeting_history import MeetingHistory

MOST_LINES = 40
_REASON = 16  # lines, of which the first ones are kept
_WIDEST = 400  # characters of a line
_STACK = 8  # lines of one stack, of which the last ones are kept


def report(
    diagnosis: Diagnosis, ranks: Mapping[int, Rank], history: MeetingHistory, waiting: Sequence[int]
) -> str:
    """Return the whole report: ranks that are alike are said once, the culprits' first.

    Args:
        diagnosis: why the job can't go on.
        ranks: those that are there, with the stacks that they have answered.
        history: how many programs each has come to.
        waiting: the ranks that wait in a program.
    """
    lines = _cut(diagnosis.reason.splitlines(), _REASON)
    counts = {number: _programs(history.come(number), waits=number in waiting) for number in ranks}
    lines += [f"  {ranks_named(of)}: {text}" for text, of in grouped(counts).items()]
    stacks = {n: (rank.stacks or "").rstrip() for n, rank in ranks.items()}
    groups = sorted(
        grouped(stacks).items(),
        key=lambda group: (not set(group[1]) & set(diagnosis.culprits), len(group[1])),
    )
    for stack, numbers in groups:
        pids = listed(ranks[number].pid for number in numbers)
        text = stack or "  it did not say where it is"
        entry = [f"{ranks_named(numbers)} (process {pids}):", *text.splitlines()]
        if len(lines) + len(entry) > MOST_LINES - 1:
            entry = [entry[0], *_last(entry[1:], _STACK)]
        if len(lines) + len(entry) > MOST_LINES - 1:
            rest = [n for _, of in groups[groups.index((stack, numbers)) :] for n in of]
            lines.append(f"{ranks_named(rest)}: stacks left out")
            break
        lines += entry
    return "\n".join(line[:_WIDEST] for line in lines)


def _programs(come: int, *, waits: bool) -> str:
    programs = f"{come} program{'s' * (come != 1)} over several ranks"
    return f"{programs}, of which the last one waits" if waits else programs


def _cut(lines: Sequence[str], most: int) -> list[str]:
    """Return the first lines, and how many there are more."""
    if len(lines) <= most:
        return list(lines)
    return [*lines[: most - 1], f"  ... and {len(lines) - most + 1} lines more"]


def _last(lines: Sequence[str], most: int) -> list[str]:
    """Return the last lines of a stack, which are the innermost calls."""
    return list(lines) if len(lines) <= most else ["    ...", *lines[-most + 1 :]]
