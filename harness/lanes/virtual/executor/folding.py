"""Ranks that are alike said once: ``ranks 0-4, 6, 7``; and the few that differ from most."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
_SHORTEST = 3  # numbers in a row that are said as a range


def listed(numbers: Iterable[int]) -> str:
    """Return numbers in order, as ``0-4, 6, 7``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        f"{run[0]}-{run[-1]}" if len(run) >= _SHORTEST else ", ".join(map(str, run)) for run in runs
    )


def ranks_named(numbers: Collection[int]) -> str:
    """Return ``rank 5`` or ``ranks 0-4, 6, 7``."""
    return f"rank{'s' * (len(set(numbers)) != 1)} {listed(numbers)}"


def devices_named(numbers: Collection[int]) -> str:
    """Return ``device 5`` or ``devices 0-4, 6, 7``."""
    return f"device{'s' * (len(set(numbers)) != 1)} {listed(numbers)}"


def verb(numbers: Collection[int], singular: str, plural: str) -> str:
    """Return the form of the verb that fits so many."""
    return singular if len(set(numbers)) == 1 else plural


def grouped(keys: Mapping[int, Key]) -> dict[Key, list[int]]:
    """Return the numbers that have each key, the smallest group first."""
    groups: dict[Key, list[int]] = {}
    for number, key in sorted(keys.items()):
        groups.setdefault(key, []).append(number)
    return dict(sorted(groups.items(), key=lambda item: len(item[1])))


def odd_ones(keys: Mapping[int, Hashable]) -> list[int]:
    """Return those that differ from what most are; [] if there is no majority, or all agree."""
    *others, most = grouped(keys).values() if keys else [[]]
    return sorted(n for group in others for n in group) if 2 * len(most) > len(keys) else []
