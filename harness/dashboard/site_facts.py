"""Facts behind the pages: a history's rows of the nights shown, queried once, as plain values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import cached_property
from importlib import resources
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from harness.dashboard.rows import (
    Changed,
    Failure,
    Latest,
    Moved,
    Number,
    OutcomeCount,
    PluginAnswer,
    Point,
    RunOutcome,
    ShownRun,
    StackLine,
    Start,
    Trend,
    cost,
)
from harness.model.versions import COMPONENTS
from harness.render.page_names import natural
from harness.verdicts.nightly import flaky_lines

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_MANY = 10_000  # rows fetched at once
_MEMORY = "1GB"  # more goes to a temporary file


class Facts:
    """The history behind one site; every question to it is a statement in ``sql/``."""

    def __init__(self, connection: DuckDBPyConnection, nights: int) -> None:
        """Read the last ``nights`` calendar days before the newest run."""
        self._connection = connection
        connection.execute(f"SET TimeZone = 'UTC'; SET memory_limit = '{_MEMORY}'")
        newest = connection.execute("SELECT max(CAST(date AS DATE)) FROM cases").fetchone()
        self.night: date | None = newest[0] if newest else None
        self.start = (self.night or date.min + timedelta(nights)) - timedelta(nights)
        self._table("recent", start=self.start)
        self._table("newest")
        self._table("recorded", start=self.start)

    @cached_property
    def nights(self) -> list[date]:
        """The nights that had a run, the oldest first."""
        rows = self._connection.execute("SELECT DISTINCT night FROM recent ORDER BY night")
        return [row[0] for row in rows.fetchall()]

    @cached_property
    def runs(self) -> list[ShownRun]:
        """The runs of those nights, the newest first."""
        shown = []
        for row in self._rows("runs_shown", start=self.start):
            run, time, night, stack, revision, machine, *versions, size, reused = row
            texts = zip(("python", *COMPONENTS), versions, strict=True)
            named = {name: text for name, text in texts if text}
            shown.append(ShownRun(run, time, night, stack, revision, machine, named, size, reused))
        return shown

    @cached_property
    def run(self) -> Mapping[str, ShownRun]:
        """A run by its name."""
        return {run.run: run for run in self.runs}

    @cached_property
    def latest(self) -> list[Latest]:
        """Latest row of every case on every configuration, ordered by the case's name."""
        first = self._connection.execute("SELECT min(night) FROM newest").fetchone()
        if self.night is None or first is None:
            return []
        return [Latest(*row) for row in self._rows("latest", first=first[0])]

    @cached_property
    def stacks(self) -> list[str]:
        """The stacks of those nights by torch_xla's version, those without it last; by name."""
        versions = {run.stack: run.versions.get("torch_xla", "") for run in reversed(self.runs)}
        return sorted(versions, key=lambda s: (not versions[s], natural(versions[s]), natural(s)))

    @cached_property
    def lanes(self) -> list[str]:
        """The lanes, the cheapest first."""
        return sorted({row.lane for row in self.latest}, key=cost)

    @cached_property
    def lines(self) -> Mapping[StackLine, list[ShownRun]]:
        """The runs of each line, the oldest first."""
        by_line: dict[StackLine, dict[str, ShownRun]] = defaultdict(dict)
        for tally in sorted(self.tallies, key=attrgetter("run")):
            run = self.run[tally.run]
            by_line[StackLine(run.stack, tally.lane, tally.topology)][run.run] = run
        return {line: list(runs.values()) for line, runs in by_line.items()}

    @cached_property
    def is_placed(self) -> bool:
        """Return whether any case names a lane or a topology; tests of other projects may not."""
        return any(line.lane or line.topology for line in self.lines)

    @cached_property
    def eventful(self) -> set[str]:
        """The cases that were broken, turned or passed unexpectedly in the nights shown."""
        return {name for (name,) in self._rows("eventful")}

    @cached_property
    def flaky(self) -> set[tuple[str, str, str, str]]:
        """The cases that were flaky on one of those nights, with stack, lane and topology."""
        return flaky_lines(self._connection, [run.run for run in self.runs])

    @cached_property
    def areas(self) -> Mapping[str, str]:
        """Area of each case."""
        rows = self._connection.execute("SELECT name, max(area) FROM recent GROUP BY name")
        return dict(rows.fetchall())

    @cached_property
    def tallies(self) -> list[OutcomeCount]:
        """The counts of each run."""
        return [OutcomeCount(*row) for row in self._rows("tallies")]

    @cached_property
    def trends(self) -> Mapping[tuple[str, str, str], Trend]:
        """Trends by area, stack and lane."""
        by_place: dict[tuple[str, str, str], Trend] = defaultdict(Trend)
        for area, stack, lane, night, works, measured in self._rows("trend"):
            by_place[area, stack, lane].nights.append((night, int(works), int(measured)))
        return by_place

    @cached_property
    def failures(self) -> Mapping[str, list[Failure]]:
        """Failures of each case, over the whole history, by when they began."""
        by_case: dict[str, list[Failure]] = defaultdict(list)
        for row in self._rows("failures"):
            by_case[row[0]].append(Failure(*row))
        return by_case

    @cached_property
    def before_failures(self) -> Mapping[Start, str]:
        """Run that measured the case before, for each start of a failure."""
        every = (failure.start for failures in self.failures.values() for failure in failures)
        return self.measured_before([start for start in every if start.run in self.run])

    def measured_before(self, starts: Sequence[Start]) -> Mapping[Start, str]:
        """Return the last run before each start that measured the case, within the nights shown."""
        values = {
            "names": [start.name for start in starts],
            "stacks": [start.stack for start in starts],
            "lanes": [start.lane for start in starts],
            "topologies": [start.topology for start in starts],
            "runs": [start.run for start in starts],
        }
        rows = self._rows("measured_before", **values)
        return {Start(*row[:5]): row[5] for row in rows}

    @cached_property
    def numbers(self) -> Mapping[str, list[Number]]:
        """Recorded numbers of each case."""
        by_case: dict[str, list[Number]] = defaultdict(list)
        rows = self._connection.execute("SELECT * FROM recorded ORDER BY ALL").fetchall()
        for row in rows:
            by_case[row[0]].append(Number(*row))
        return by_case

    @cached_property
    def moved(self) -> Mapping[str, list[Moved]]:
        """Values of each case's numbers, except numbers that are always the same."""
        by_case: dict[str, list[Moved]] = defaultdict(list)
        for row in self._rows("moved", start=self.start):
            by_case[row[0]].append(Moved(*row))
        return by_case

    @cached_property
    def plugin_answers(self) -> list[PluginAnswer]:
        """What plugins answered to conformance's checks, by plugin and level."""
        return [PluginAnswer(*row) for row in self._rows("conformity")]

    def points(self) -> Iterator[tuple[str, list[Point]]]:
        """Yield each case with all its results, by configuration, the oldest first."""
        rows = (Point(*row) for row in self._stream("points"))
        for name, points in groupby(rows, attrgetter("name")):
            yield name, list(points)

    def changed(self) -> Mapping[str, list[Changed]]:
        """Return what is worth saying about each run."""
        by_run: dict[str, list[Changed]] = defaultdict(list)
        for row in self._rows("changed"):
            by_run[row[0]].append(Changed(*row))
        return by_run

    def said(self) -> Iterator[tuple[str, list[RunOutcome]]]:
        """Yield each run with the outcomes of all its cases."""
        rows = (RunOutcome(*row) for row in self._stream("said"))
        for run, outcomes in groupby(rows, attrgetter("run")):
            yield run, list(outcomes)

    def _table(self, name: str, **values: object) -> None:
        self._connection.execute(f"CREATE OR REPLACE TABLE {name} AS {_sql(name)}", values)

    def _rows(self, name: str, **values: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(_sql(name), values or None).fetchall()

    def _stream(self, name: str) -> Iterator[tuple[Any, ...]]:
        """Yield rows of our own tables, a part at a time, while other queries run."""
        result = self._connection.cursor().execute(_sql(name))
        while rows := result.fetchmany(_MANY):
            yield from rows


def _sql(name: str) -> str:
    return resources.files("harness.dashboard").joinpath("sql", f"{name}.sql").read_text("utf-8")
