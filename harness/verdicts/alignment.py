"""Match the cases of a comparison's two sides when these ask two different frameworks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import product
from typing import Protocol

from harness.verdicts.comparison import Move, Side


class Asked(Protocol):
    """Place where a case ran, and the framework that it asked; "" if only one can be asked."""

    @property
    def lane(self) -> str: ...
    @property
    def topology(self) -> str: ...
    @property
    def framework(self) -> str: ...


def move_between(base: Mapping[str, Asked], candidate: Mapping[str, Asked]) -> Move | None:
    """Return the move that both sides' cases, by their ids, are about; None if there is none.

    A move is from a framework that only the base has to one that only the candidate has. If there
    are several such pairs, as when the candidate has no JAX either, it is the pair with the most
    cases in common.
    """
    frameworks = [{each.framework for each in side.values()} - {""} for side in (base, candidate)]
    moves = [
        Move(*each)
        for each in product(frameworks[0] - frameworks[1], frameworks[1] - frameworks[0])
    ]
    if len(moves) <= 1:
        return next(iter(moves), None)
    common = {each: len(pairs(base, candidate, each)) for each in moves}
    most = [each for each in moves if common[each] == max(common.values())]
    return most[0] if len(most) == 1 else None


def pairs(
    base: Mapping[str, Asked], candidate: Mapping[str, Asked], move: Move
) -> Mapping[str, str]:
    """Return the candidate's id of each case of the base that both frameworks have.

    Both have the same function and parameters, and the same devices. They may be divided among
    processes differently, since a process of TorchTPU has one chip: a case without one of the same
    division is paired with the first one of another.
    """
    matched: dict[str, str] = {}
    for name_of in (without_framework, without_processes):
        left, right = (
            _named(side, framework, name_of, paired)
            for side, framework, paired in (
                (base, move.base, matched.keys()),
                (candidate, move.candidate, set(matched.values())),
            )
        )
        matched |= {left[name]: right[name] for name in left.keys() & right.keys()}
    return matched


def without_framework(id_: str, each: Asked) -> str:
    """Return the id of a case without the name of its framework."""
    return _renamed(id_, each, f"{_target(each)}-")


def without_processes(id_: str, each: Asked) -> str:
    """Return the id of a case without its framework, and without how its devices are divided."""
    return _renamed(id_, each, f"{each.lane}-{each.topology.partition('@')[0]}-")


def aligned(before: Side, after: Side) -> tuple[Side, Side, Move | None]:
    """Both sides with one key, ``test_x[cpu-4-torch_xla..torch_tpu]``, for each pair of cases."""
    base, candidate = (
        {key: runs[0] for key, runs in side.runs.items()} for side in (before, after)
    )
    move = move_between(base, candidate)
    if move is None:
        return before, after, None
    paired = pairs(base, candidate, move)
    both = {
        theirs: _renamed(theirs, each := candidate[theirs], f"{_target(each)}-{'..'.join(move)}")
        for theirs in paired.values()
    }
    ours = {ours: both[theirs] for ours, theirs in paired.items()}
    return _with_keys(before, ours), _with_keys(after, both), move


def _with_keys(side: Side, keys: Mapping[str, str]) -> Side:
    return replace(side, runs={keys.get(key, key): runs for key, runs in side.runs.items()})


def _named(
    side: Mapping[str, Asked],
    framework: str,
    name_of: Callable[[str, Asked], str],
    paired: Collection[str],
) -> Mapping[str, str]:
    """Map each name to its first id, among the framework's cases that have no pair yet."""
    ids = [id_ for id_, each in side.items() if each.framework == framework]
    return {name_of(id_, side[id_]): id_ for id_ in sorted(ids, reverse=True) if id_ not in paired}


def _renamed(id_: str, each: Asked, target: str) -> str:
    return id_.replace(f"[{_target(each)}-{each.framework}", f"[{target}", 1)


def _target(each: Asked) -> str:
    return f"{each.lane}-{each.topology}"
