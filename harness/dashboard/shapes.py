"""Geometry of the plots: numbers in, coordinates out; the templates make SVG of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby

from harness.dashboard.units import day, kind

WIDTH, HEIGHT = 300, 90  # of a plot's area, in units that are about a pixel on a phone
SPARK = (64, 16)
_NIGHT = 6  # width of a night in a strip
_MANY = 200  # nights, between which a strip has no gaps
_LEAST = 0.05  # of a small line's height, as a rate


@dataclass(frozen=True)
class Block:
    """Neighbouring nights of a strip that came out alike."""

    kind: str
    x: int
    y: int
    width: int
    height: int
    about: str


@dataclass(frozen=True)
class Strip:
    """Outcomes over nights."""

    about: str
    width: int
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Plot:
    """Values over nights: SVG paths, with a gap where a night has no value, and labels."""

    place: str  # where the values come from
    about: str
    path: str
    dots: str  # values without a neighbour, which a path can't show
    high: str
    base: str
    first: str
    last: str
    latest: str


def strip(nights: Sequence[date], outcomes: dict[date, str], about: str) -> Strip:
    """Return the outcome of each of the ``nights``, in as few blocks as there are changes."""
    blocks = []
    at = 0
    gap = 1 if len(nights) < _MANY else 0
    for outcome, members in groupby(nights, lambda night: outcomes.get(night, "")):
        each = list(members)
        if outcome:
            until = f" to {day(each[-1])}" if len(each) > 1 else ""
            y, height = (6, 4) if outcome == "skipped" else (0, 16)
            width = len(each) * _NIGHT - gap
            label = f"{outcome}, {day(each[0])}{until}"
            blocks.append(Block(kind(outcome), at * _NIGHT, y, width, height, label))
        at += len(each)
    return Strip(about, at * _NIGHT, blocks)


def plot(
    nights: Sequence[date],
    values: dict[date, float],
    show: Callable[[float], str],
    name: str,
    place: str,
) -> Plot | None:
    """Return a line through the values on a scale from 0 to the highest; None without a value."""
    if not values:
        return None
    low, high = min(values.values()), max(values.values())
    scale = high if high > 0 else 1.0
    base = min(low, 0.0)
    step = WIDTH / max(len(nights) - 1, 1)
    path: list[str] = []
    dots = []
    for has, members in groupby(enumerate(nights), lambda each: each[1] in values):
        if not has:
            continue
        at = [
            (round(i * step, 1), round(HEIGHT - (values[n] - base) / (scale - base) * HEIGHT, 1))
            for i, n in members
        ]
        if len(at) == 1:
            dots.append("M{:g} {:g}h0".format(*at[0]))
        path.append("M" + "L".join(f"{x:g} {y:g}" for x, y in at))
    return Plot(
        place,
        f"{name} on {place} between {show(low)} and {show(high)}",
        "".join(path),
        "".join(dots),
        show(high),
        show(base),
        day(nights[0]),
        day(nights[-1]),
        show(values[max(values)]),
    )


def spark(rates: Sequence[float]) -> str:
    """Return the points of a ``<polyline>`` of rates from 0 to 1; "" for fewer than 2."""
    if len(rates) < 2:
        return ""
    width, height = SPARK
    low, high = min(rates), max(rates)
    low = max(min(low, high - _LEAST), 0.0)  # so that a flicker does not look like a cliff
    scale = max(high - low, _LEAST)
    step = (width - 2) / (len(rates) - 1)
    places = (
        f"{1 + i * step:.0f},{1 + (high - rate) / scale * (height - 2):.0f}"
        for i, rate in enumerate(rates)
    )
    return " ".join(places)
