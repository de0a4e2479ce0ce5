"""Geometry of the plots: numbers in, coordinates out; the templates make SVG of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby

WIDTH, HEIGHT = 300, 90  # of a plot's area, in units that are about a pixel on a phone
SPARK = (64, 16)
_LEAST = 0.05  # of a small line's height, as a rate


@dataclass(frozen=True)
class Block:
    """Neighbouring nights of a strip that came out alike; ``at`` counts nights."""

    at: int
    nights: int
    outcome: str  # "" for nights without a run
    first: date
    last: date


@dataclass(frozen=True)
class Plot:
    """Values over nights. ``lines`` are SVG paths, a gap where a night has no value."""

    path: str
    dots: tuple[tuple[float, float], ...]  # values without a neighbour, which a path can't show
    low: float
    high: float
    first: date
    last: date
    latest: float


def strip(nights: Sequence[date], outcomes: dict[date, str]) -> list[Block]:
    """A strip over ``nights``: the outcome of each, as few blocks as there are changes."""
    blocks = []
    at = 0
    for outcome, members in groupby(nights, lambda night: outcomes.get(night, "")):
        each = list(members)
        blocks.append(Block(at, len(each), outcome, each[0], each[-1]))
        at += len(each)
    return blocks


def plot(nights: Sequence[date], values: dict[date, float]) -> Plot | None:
    """A line through the values on a scale from 0 to the highest; None without any value."""
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
            dots.append(at[0])
        path.append("M" + "L".join(f"{x:g} {y:g}" for x, y in at))
    known = [night for night in nights if night in values]
    return Plot("".join(path), tuple(dots), low, high, nights[0], nights[-1], values[known[-1]])


def spark(rates: Sequence[float]) -> str:
    """The points of a small line of rates from 0 to 1, for ``<polyline>``; "" for fewer than 2."""
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
