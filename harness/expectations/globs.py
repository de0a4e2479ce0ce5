"""Few globs for many case ids."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from harness.expectations.entry import glob_pattern
from harness.model.case_id import function_of


def cover(wanted: Collection[str], others: Collection[str]) -> list[str]:
    """Globs that match all of ``wanted`` and none of ``others``, in the order of ``wanted``.

    Those of one test function share globs with at most two stars, the widest first.
    """
    by_function: dict[str, list[str]] = defaultdict(list)
    for id_ in wanted:
        by_function[function_of(id_)].append(id_)
    beside: dict[str, list[str]] = defaultdict(list)
    for id_ in set(others) - set(wanted):
        beside[function_of(id_)].append(id_)
    return [
        glob
        for function, members in by_function.items()
        for glob in _cover_function(members, beside[function])
    ]


def _cover_function(wanted: list[str], others: list[str]) -> Iterator[str]:
    left = dict.fromkeys(wanted)
    matched = {
        glob: shortest
        for glob in dict.fromkeys(glob for id_ in wanted for glob in _candidates(id_))
        if (shortest := _only(glob, wanted, others))
    }
    while matched:
        glob = max(matched, key=lambda g: (len(matched[g] & left.keys()), -g.count("*"), -len(g)))
        if len(matched[glob] & left.keys()) < 2:
            break
        yield glob
        left = {id_: None for id_ in left if id_ not in matched[glob]}
    yield from left


def _only(glob: str, wanted: list[str], others: list[str]) -> set[str]:
    """Return the ids in ``wanted`` that the glob matches; none if it matches any of ``others``."""
    pattern = glob_pattern(glob)
    if any(map(pattern.fullmatch, others)):
        return set()
    return {id_ for id_ in wanted if pattern.fullmatch(id_)}


def _candidates(id_: str) -> Iterator[str]:
    """Globs that match the id: without a run of its parameters, or with nothing but a run."""
    function, bracket, rest = id_.partition("[")
    yield id_
    if not bracket or not rest.endswith("]"):
        return
    tokens = rest[:-1].split("-")
    size = len(tokens)
    for start in range(size):
        for end in range(start + 1, size + 1):
            before, run, after = tokens[:start], tokens[start:end], tokens[end:]
            yield f"{function}[{'-'.join([*before, '*', *after])}]"
            if before and after:
                yield f"{function}[*-{'-'.join(run)}-*]"
