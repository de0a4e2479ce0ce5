"""The rows of the questions in ``sql/``, named, and the words in them that pages sort by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import NamedTuple, Protocol

from harness.diagnosis.cause import Cause
from harness.lanes import LANES
from harness.model import outcome

WORKS, BROKEN, BAD = outcome.WORKS, outcome.BROKEN, outcome.UNEXPECTED


class Placed(Protocol):
    """Object with a stack, a lane and a topology."""

    @property
    def stack(self) -> str:
        """Name of the stack."""

    @property
    def lane(self) -> str:
        """Name of the lane."""

    @property
    def topology(self) -> str:
        """Name of the topology."""


class StackLine(NamedTuple):
    """Configuration whose runs follow each other: one stack on one lane and topology."""

    stack: str
    lane: str
    topology: str

    def __str__(self) -> str:
        return " ".join(filter(None, self))

    @classmethod
    def of(cls, placed: Placed) -> StackLine:
        """Return the configuration on which something ran."""
        return cls(placed.stack, placed.lane, placed.topology)


class Start(NamedTuple):
    """The run with which something began for a case on a line."""

    name: str
    stack: str
    lane: str
    topology: str
    run: str


@dataclass(frozen=True)
class ShownRun:
    """Run in the nights shown. ``versions`` are those that it reported."""

    run: str
    time: datetime
    night: date
    stack: str
    revision: str
    machine: str
    versions: Mapping[str, str]
    size: int
    reused: int  # of its results that an earlier run measured


class Latest(NamedTuple):
    """A case as of the last night of its line."""

    name: str
    area: str
    lane: str
    topology: str
    stack: str
    run: str
    time: datetime
    night: date
    outcome: str
    duration: float
    message: str
    signature: str
    layer: str
    upstream: Sequence[str]
    expectation: str | None
    framework: str  # that it asks, of a case that several are asked; else ""
    reused: str  # when it was measured and on which stack, if not in this run

    @property
    def cause(self) -> Cause:
        """Cause of the failure; false for a case that did not fail."""
        return Cause(self.layer, self.signature)

    @property
    def line(self) -> StackLine:
        """Configuration on which the case ran."""
        return StackLine.of(self)

    @property
    def id(self) -> str:
        """The name that a row of ``upstream.toml`` asks for."""
        return self.name


class Point(NamedTuple):
    """A case in one run."""

    name: str
    stack: str
    lane: str
    topology: str
    time: datetime
    night: date
    run: str
    outcome: str
    duration: float
    signature: str


class Failure(NamedTuple):
    """A distinct failure of a case on a line; ``first`` and ``last`` are when it was seen."""

    name: str
    stack: str
    lane: str
    topology: str
    signature: str
    outcome: str
    message: str
    layer: str
    first: datetime
    last: datetime
    first_run: str
    last_run: str
    times: int

    @property
    def cause(self) -> Cause:
        """Cause of the failure."""
        return Cause(self.layer, self.signature)

    @property
    def start(self) -> Start:
        """The run with which it began."""
        return Start(self.name, *StackLine.of(self), self.first_run)


class Number(NamedTuple):
    """A recorded number of a case on a line: its range within the nights, and its last value."""

    name: str
    stack: str
    lane: str
    topology: str
    property: str
    low: float
    high: float
    last: float
    times: int


class Moved(NamedTuple):
    """Value, in one run, of a number that is not always the same."""

    name: str
    stack: str
    lane: str
    topology: str
    property: str
    time: datetime
    night: date
    value: float


class Changed(NamedTuple):
    """A case whose outcome in a run is new or unexpected; ``before`` is None in its first run."""

    run: str
    name: str
    area: str
    lane: str
    topology: str
    before: str | None
    outcome: str
    duration: float
    signature: str


class OutcomeCount(NamedTuple):
    """Number of a run's cases in an area, lane and topology that have the same outcome."""

    run: str
    area: str
    lane: str
    topology: str
    outcome: str
    size: int
    seconds: float


class RunOutcome(NamedTuple):
    """A case's outcome in a run."""

    run: str
    name: str
    lane: str
    topology: str
    outcome: str
    area: str
    framework: str


class PluginAnswer(NamedTuple):
    """What a PJRT plugin answered to one check of conformance, the case ``name``."""

    plugin: str
    api: str  # the plugin's version of PJRT
    level: str
    name: str
    conformity: str
    message: str


@dataclass
class Trend:
    """An area on a stack and lane, night by night: how many cases ran, how many did well."""

    nights: list[tuple[date, int, int]] = field(default_factory=list)  # night, works, measured


def cost(lane: str) -> tuple[int, str]:
    """Sorts lanes by what a case costs there; lanes that are not installed here come last."""
    known = list(LANES)
    return known.index(lane) if lane in known else len(known), lane
