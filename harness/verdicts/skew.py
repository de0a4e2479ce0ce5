"""What each libtpu makes of what each JAX lowers, as a grid with its reasons."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.junit.report import Result
from harness.model.outcome import Kind

_WIDTH = 80
_LONGEST = 300  # characters of a reason


@dataclass(frozen=True)
class Grid:
    """The results of each libtpu's and JAX's cell; one that has none had no answer."""

    cells: Mapping[tuple[str, str], Sequence[Result]]

    def answer(self, libtpu: str, jax: str) -> str:
        """In a few words, the worst first."""
        results = self.cells.get((libtpu, jax))
        if results is None:
            return "no answer"
        counts = Counter(_answer(result) for result in results)
        bad = [f"{text} {counts[text]}" for text in sorted(counts) if text != _WORKS]
        works = f"{_WORKS} {counts[_WORKS]} of {len(results)}"
        return ", ".join([*bad, works]) if counts[_WORKS] else ", ".join(bad) or "no program"

    def data(self) -> list[dict[str, object]]:
        """Each cell as plain values: its versions, its answer in words, each program's outcome."""
        return [
            {
                "libtpu": libtpu,
                "jax": jax,
                "answer": self.answer(libtpu, jax),
                "outcomes": {result.id: str(result.outcome) for result in results},
            }
            for (libtpu, jax), results in self.cells.items()
        ]

    def reasons(self) -> Iterator[tuple[str, int]]:
        """Each different reason, with how many programs gave it."""
        found = Counter(
            _reason(result)
            for results in self.cells.values()
            for result in results
            if _answer(result) != _WORKS
        )
        yield from found.most_common()


_WORKS = "works"


def _answer(result: Result) -> str:
    if result.works:
        return _WORKS
    if result.outcome == Kind.SKIPPED:
        return "skipped"
    if signal := result.properties.get("signal"):
        return f"crashed {signal}"
    return str(result.outcome) if result.outcome in (Kind.HUNG, Kind.CONFLICT) else "refused"


def _reason(result: Result) -> str:
    text = " ".join((result.failure or result.text).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def text(grid: Grid, rows: Sequence[str], columns: Sequence[str]) -> Iterator[str]:
    """The grid for a terminal: a row for each libtpu, a column for each JAX."""
    width = max((len(grid.answer(row, jax)) for row in rows for jax in columns), default=0) + 2
    yield f"{'libtpu':<12}" + "".join(f"{f'jax {jax}':<{width}}" for jax in columns).rstrip()
    for row in rows:
        yield f"{row:<12}" + "".join(f"{grid.answer(row, j):<{width}}" for j in columns).rstrip()
    reasons = list(grid.reasons())
    if reasons:
        yield "because:"
    for reason, count in reasons:
        yield from textwrap.wrap(
            reason, _WIDTH, initial_indent=f"{count:>4}  ", subsequent_indent=" " * 6
        )


def markdown(grid: Grid, rows: Sequence[str], columns: Sequence[str]) -> str:
    """The same as a Markdown table with its reasons."""
    lines = [
        f"| libtpu | {' | '.join(f'jax {jax}' for jax in columns)} |",
        f"| --- |{' --- |' * len(columns)}",
        *(f"| {row} | {' | '.join(grid.answer(row, jax) for jax in columns)} |" for row in rows),
        "",
        *(f"- {count}: `{reason.replace('`', chr(39))}`" for reason, count in grid.reasons()),
    ]
    return "\n".join(lines) + "\n"
