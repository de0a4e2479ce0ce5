"""Select which of the collected cases run: those of a file, or one shard of several."""

from __future__ import annotations

import heapq
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from harness.errors import BadInputError
from harness.files import read_text
from harness.model.case_id import function_of

_SHARD = re.compile(r"([0-9]{1,4})/([0-9]{1,4})")
Durations = Mapping[str, Mapping[str, float]]  # lane to test function to seconds of one case
DEFAULT_SECONDS = 0.1
QUICK_LANE = "virtual-tpu"  # where it is measured what cases see


@dataclass(frozen=True)
class Shard:
    """The ``number``-th of ``count`` parts, from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """``2/5``; raises BadInputError for anything else."""
        match = _SHARD.fullmatch(text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise BadInputError(f"--shard {text!r}: expected NUMBER/COUNT, as 2/5")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def shards(
    cases: Iterable[tuple[str, str]], durations: Durations, count: int
) -> list[dict[str, float]]:
    """Divide the cases into shards; return each shard's case ids with their expected seconds.

    ``cases`` are pairs of id and lane. The longest goes first, always to the shard with the least
    to do, so that all end together; the order in which the cases come does not matter. A case
    without a record takes as long as the median one of its lane.
    """
    usual = {lane: median(known.values()) for lane, known in durations.items() if known}
    seconds = {
        case: durations.get(lane, {}).get(function_of(case), usual.get(lane, DEFAULT_SECONDS))
        for case, lane in cases
    }
    loads = [(0.0, index) for index in range(count)]
    parts: list[dict[str, float]] = [{} for _ in loads]
    for case in sorted(seconds, key=lambda case: (-seconds[case], case)):
        load, index = loads[0]
        parts[index][case] = seconds[case]
        heapq.heapreplace(loads, (load + seconds[case], index))
    return parts


def recorded(results: Iterable[tuple[str, str, float]]) -> dict[str, dict[str, float]]:
    """Return the durations to write from (id, lane, seconds) of cases: means by function."""
    times: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case, lane, seconds in results:
        times[lane][function_of(case)].append(seconds)
    return {
        lane: {
            function: round(fmean(durations), 3)
            for function, durations in sorted(functions.items())
        }
        for lane, functions in sorted(times.items())
    }


def read_durations(path: Path | None) -> Durations:
    """Return the recorded durations, or none without a file.

    Raises BadInputError for a file that ``xla-harness ci durations`` did not write.
    """
    if path is None:
        return {}
    try:
        data = json.loads(read_text(path))
        return {
            lane: {name: _seconds(seconds) for name, seconds in functions.items()}
            for lane, functions in data.items()
        }
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadInputError(
            f"{path}: expected seconds for each lane and function, as `xla-harness ci durations` "
            f"writes them: {error}"
        ) from error


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{value!r} is no duration")
    return seconds


def read_cases(path: Path) -> tuple[str, ...]:
    """Return the ids in a file, one a line, in its order; raise BadInputError naming the file."""
    try:
        lines = read_text(path).splitlines()
    except BadInputError as error:
        raise BadInputError(f"file of cases: {error}") from error
    return tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
