"""Several stacks side by side: what each gets right, and what changed from one to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.junit.report import Report
from harness.junit.result import Result
from harness.render import github_markup as github
from harness.render.comparison_github import group_table
from harness.render.comparison_text import section
from harness.render.terminal_lines import WIDTH, title, wrapped
from harness.verdicts.compare import compare
from harness.verdicts.comparison import Comparison, Side, side
from harness.verdicts.groups import groups
from harness.verdicts.upstream import Row
from harness.verdicts.words import Verdict

Columns = Sequence[tuple[str, Sequence[Report]]]  # stacks in order, by name
_CHANGES = (
    Verdict.REGRESSED,
    Verdict.MISSING,
    Verdict.NEW_FAILURE,
    Verdict.FLAKY,
    Verdict.FIXED,
)
_SHOWN = 5  # groups of one kind of change
_INDENT = 2


@dataclass(frozen=True)
class OverviewLine:
    """Line of a table: a title, issues, and a cell for each stack."""

    title: str
    issues: tuple[str, ...]
    cells: tuple[str, ...]


def text(columns: Columns, rows: Sequence[Row] = ()) -> Iterator[str]:
    """Yield the overview for the terminal, in lines of 80 columns."""
    names = [name for name, _ in columns]
    sides = [side(reports) for _, reports in columns]
    yield title("what each stack gets right")
    yield from _grid(names, _upstream(sides, rows))
    yield title("cases by area: working/broken/skipped/not run")
    yield from _grid(names, _areas(sides))
    for name, step in _steps(columns):
        yield title(f"{name}: {_counted(step)}")
        for verdict in _CHANGES:
            yield from section(groups(step.of(verdict)), _SHOWN)


def markdown(columns: Columns, rows: Sequence[Row] = (), most: int = 30) -> str:
    """Return the same as Markdown; each step's groups in at most ``most`` rows."""
    names = [github.plain(name) for name, _ in columns]
    sides = [side(reports) for _, reports in columns]
    lines = ["## What each stack gets right", ""]
    lines += github.table(("", "upstream", *names), _cells(_upstream(sides, rows), issues=True))
    lines += ["## Cases by area: working/broken/skipped/not run", ""]
    lines += github.table(("area", *names), _cells(_areas(sides), issues=False))
    for name, step in _steps(columns):
        changed = groups(step.of(*_CHANGES))
        lines += [f"## {github.plain(f'{name}: {_counted(step)}')}", ""]
        lines += group_table(changed, most)
    return "\n".join(lines)


def _upstream(sides: Sequence[Side], rows: Sequence[Row]) -> Iterator[OverviewLine]:
    for row in rows:
        answers = [row.answer(row.select(_firsts(side))) for side in sides]
        cells = (f"{_short(a.verdict)} {a.count}" for a in answers)
        yield OverviewLine(row.title, row.issues, tuple(cells))


def _short(verdict: str) -> str:
    return "-" if verdict == "unmeasured" else verdict


def _areas(sides: Sequence[Side]) -> Iterator[OverviewLine]:
    keys: dict[str, set[str]] = {}
    for each in sides:
        for result in _firsts(each):
            keys.setdefault(result.area, set()).add(result.key)
    for area in sorted(keys):
        yield OverviewLine(area, (), tuple(_area(each.runs, keys[area]) for each in sides))


def _area(runs: Mapping[str, Sequence[Result]], keys: set[str]) -> str:
    results = [runs[key][0] for key in keys if key in runs]
    works, skipped = sum(r.works for r in results), sum(not r.measured for r in results)
    broken = len(results) - works - skipped
    return f"{works}/{broken}/{skipped}/{len(keys) - len(results)}"


def _firsts(each: Side) -> list[Result]:
    return [runs[0] for runs in each.runs.values()]


def _steps(columns: Columns) -> Iterator[tuple[str, Comparison]]:
    for (old, before), (new, after) in pairwise(columns):
        yield f"{old} to {new}", compare(before, after)


def _counted(step: Comparison) -> str:
    named = [text for v in _CHANGES if (text := step.counted(v))]
    return ", ".join(named) or "no change"


def _grid(names: Sequence[str], table: Iterator[OverviewLine]) -> Iterator[str]:
    """Yield each line's title, then its cells; as many stacks side by side as fit."""
    lines = list(table)
    width = max(map(len, [*names, *(cell for line in lines for cell in line.cells)]), default=0) + 2
    width = min(width, WIDTH - _INDENT)
    fit = max((WIDTH - _INDENT) // width, 1)
    for start in range(0, len(names), fit):
        band = slice(start, start + fit)
        yield _row(names[band], width)
        for line in lines:
            yield from wrapped(" ".join((line.title, *line.issues)))
            yield _row(line.cells[band], width)


def _row(cells: Sequence[str], width: int) -> str:
    fitted = (cell if len(cell) < width else f"{cell[: width - 2]}~" for cell in cells)
    return (" " * _INDENT + "".join(f"{cell:<{width}}" for cell in fitted)).rstrip()


def _cells(lines: Iterator[OverviewLine], *, issues: bool) -> Iterator[tuple[str, ...]]:
    for line in lines:
        links = (", ".join(map(github.link, line.issues)),) if issues else ()
        yield (github.plain(line.title), *links, *map(github.plain, line.cells))
