"""Which case of one side is which of the other when the two sides ask two frameworks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Protocol

from harness.verdicts.comparison import Move, Side


class Asked(Protocol):
    """Where a case ran, and the framework that it asked; "" if only one can be asked."""

    @property
    def lane(self) -> str: ...
    @property
    def topology(self) -> str: ...
    @property
    def framework(self) -> str: ...


def move_between(base: Mapping[str, Asked], candidate: Mapping[str, Asked]) -> Move | None:
    """The move that both sides' cases, by their ids, are about; None if they are about none.

    A move is from a framework that only the base asks to one that only the candidate asks. Of
    several such pairs, as when the candidate has no JAX either, it is the one with the most cases
    in common.
    """
    asked = [{each.framework for each in side.values()} - {""} for side in (base, candidate)]
    moves = [Move(*each) for each in product(asked[0] - asked[1], asked[1] - asked[0])]
    if len(moves) <= 1:
        return next(iter(moves), None)
    common = {each: len(pairs(base, candidate, each)) for each in moves}
    most = [each for each in moves if common[each] == max(common.values())]
    return most[0] if len(most) == 1 else None


def pairs(
    base: Mapping[str, Asked], candidate: Mapping[str, Asked], move: Move
) -> Mapping[str, str]:
    """The candidate's id of each case of the base that both frameworks are asked.

    Both have the same function and parameters, and the same devices. They may be divided among
    processes differently, since a process of TorchTPU has one chip: where no case of the other
    framework has the same division, the one with the fewest processes is its pair.
    """
    ours, theirs = _asking(base, move.base), _asking(candidate, move.candidate)
    same = {ours[name]: theirs[name] for name in ours.keys() & theirs.keys()}
    left, right = (
        _undivided(side, {id_: name for name, id_ in ids.items() if id_ not in taken})
        for side, ids, taken in (
            (base, ours, same.keys()),
            (candidate, theirs, set(same.values())),
        )
    )
    return same | {left[name]: right[name] for name in left.keys() & right.keys()}


def aligned(before: Side, after: Side) -> tuple[Side, Side, Move | None]:
    """Both sides with one key, ``test_x[cpu-4-torch_xla..torch_tpu]``, for each pair of cases."""
    base, candidate = (
        {key: runs[0] for key, runs in side.runs.items()} for side in (before, after)
    )
    move = move_between(base, candidate)
    if move is None:
        return before, after, None
    found = pairs(base, candidate, move)
    both = {
        theirs: _with_framework(theirs, candidate[theirs], "..".join(move))
        for theirs in found.values()
    }
    return (
        _renamed(before, {ours: both[theirs] for ours, theirs in found.items()}),
        _renamed(after, both),
        move,
    )


def _renamed(side: Side, names: Mapping[str, str]) -> Side:
    return replace(side, runs={names.get(key, key): runs for key, runs in side.runs.items()})


def _asking(side: Mapping[str, Asked], framework: str) -> dict[str, str]:
    """The ids of the cases that ask the framework, by those ids without its name."""
    return {
        _with_framework(id_, each, ""): id_
        for id_, each in side.items()
        if each.framework == framework
    }


def _with_framework(id_: str, each: Asked, name: str) -> str:
    target = _target(each)
    return id_.replace(f"[{target}-{each.framework}", f"[{target}-{name}", 1)


def _undivided(side: Mapping[str, Asked], names: Mapping[str, str]) -> dict[str, str]:
    """Of ids with their names: the ids by the names without the division in processes."""
    found = defaultdict[str, list[str]](list)
    for id_, name in names.items():
        devices = side[id_].topology.partition("@")[0]
        whole = name.replace(f"[{_target(side[id_])}-", f"[{side[id_].lane}-{devices}-", 1)
        found[whole].append(id_)
    return {whole: min(ids, key=lambda id_: _division(side[id_])) for whole, ids in found.items()}


def _division(each: Asked) -> int:
    """Sorts the divisions of one topology by how many processes they make."""
    return ("", "slice", "host", "chip").index(each.topology.partition("@")[2])


def _target(each: Asked) -> str:
    return f"{each.lane}-{each.topology}"
