"""Reads an item's markers into a case and its targets."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import pytest

from harness.errors import BadInputError
from harness.frameworks import FRAMEWORKS, knows
from harness.lanes import LANES, Lane, lane_can, lane_named, lane_refuses, platform_of
from harness.model.case import Case
from harness.model.topology import Target, Topology
from harness.platforms import PLATFORMS

MARKERS = (
    "lanes(*names): the lanes the case can run on, or a pattern of them, as 'virtual-*'",
    "topologies(*sizes): the topologies it can run on, as 4 or '2x4'; needs lanes(...)",
    "processes(*each): a process for each 'chip', 'host' or 'slice', or 'one'; needs lanes(...)",
    "frameworks(*names): the frameworks that are asked the same; each has a case of its own",
    "upstream(*issues): the upstream issues it watches, as 'pytorch/xla#8854'",
    "environment(**variables): variables set before the runtime starts; None unsets one",
    "deadline(seconds): after which it counts as hung",
    "emulated(): it is about the virtual TPU itself, so lane tpu skips it",
    "share(group): may share a process with neighbours of that group, if all else is the same",
)
_ISSUE = re.compile(r"[\w.-]+/[\w.-]+#\d+")


def declared_targets(item: pytest.Item) -> list[Target]:
    """Lane × topology × processes × framework of the closest markers; [] without ``lanes``.

    Raises BadInputError for an unknown lane, framework or word, or a topology that can't be read.
    """
    _refuse_keywords(item, "lanes", "topologies", "processes", "frameworks", "upstream")
    lanes, topologies = item.get_closest_marker("lanes"), item.get_closest_marker("topologies")
    processes, frameworks = (
        item.get_closest_marker("processes"),
        item.get_closest_marker("frameworks"),
    )
    if lanes is None:
        for mark in (topologies, processes, frameworks):
            if mark is not None:
                raise BadInputError(f"{item.nodeid}: {mark.name}(...) needs lanes(...)")
        return []
    if not lanes.args or not all(isinstance(name, str) for name in lanes.args):
        names = ", ".join(map(repr, lanes.args))
        raise BadInputError(
            f"{item.nodeid}: lanes({names}): expected names, as lanes('cpu', 'tpu')"
        )
    try:
        sizes = [Topology.parse(str(size)) for size in (topologies.args if topologies else ())]
        targets = [
            Target(lane.name, placed, framework)
            for lane, is_able in _named(lanes.args)
            for size in sizes or [lane.default_topology]
            for divided in _divided(size, processes)
            for framework, placed in _asked(divided, frameworks)
            if is_able(placed, framework)
        ]
    except BadInputError as error:
        raise BadInputError(f"{item.nodeid}: {error}") from None
    return list(dict.fromkeys(targets))


def _named(words: Sequence[str]) -> Iterator[tuple[Lane, Callable[[Topology, str], bool]]]:
    """Yield each lane, and a function that says whether it can have a topology and a framework.

    Of the lanes that a pattern names, some may not be able to; each other one must.
    """
    for word in words:
        if "*" not in word:
            yield lane_named(word), partial(_must, lane_named(word))
            continue
        names = [name for name in LANES if fnmatchcase(name, word)]
        if not names:
            raise BadInputError(f"lanes({word!r}): expected a pattern of {', '.join(LANES)}")
        for lane in map(lane_named, names):
            yield lane, partial(_may, lane)


def _must(lane: Lane, size: Topology, _: str) -> bool:
    return bool(lane_can(lane, size))


def _may(lane: Lane, size: Topology, framework: str) -> bool:
    """Return whether the lane can have both, and its job has as many processes there.

    A host of ``8@host`` has four chips of a TPU, but all eight GPUs.
    """
    name = platform_of(lane)
    if lane_refuses(lane, size) or not (framework == "" or knows(framework, name)):
        return False
    platform = PLATFORMS.get(name)
    return platform is None or size.on(platform).process_count == size.process_count


def _divided(size: Topology, processes: pytest.Mark | None) -> list[Topology]:
    if processes is None:
        return [size]
    if not processes.args:
        raise BadInputError("processes(): expected words, as processes('chip', 'one')")
    return [size.divided(str(word)) for word in processes.args]


def _asked(size: Topology, frameworks: pytest.Mark | None) -> list[tuple[str, Topology]]:
    """Return each framework's name, and the topology as its processes divide it."""
    if frameworks is None:
        return [("", size)]
    if not frameworks.args:
        raise BadInputError("frameworks(): expected names, as frameworks('torch_xla', 'torch_tpu')")
    for name in frameworks.args:
        if name not in FRAMEWORKS:
            known = ", ".join(FRAMEWORKS)
            raise BadInputError(f"frameworks({name!r}): expected some of {known}")
    return [
        (name, size.divided(each) if (each := FRAMEWORKS[name].processes) else size)
        for name in frameworks.args
    ]


def parametrized_target(item: pytest.Item) -> Target | None:
    """Return the target that is a parameter of the item; None for a test without ``lanes``."""
    callspec = getattr(item, "callspec", None)
    target: Target | None = callspec.params.get("xla_target") if callspec else None
    return target


def case_of(item: pytest.Item, target: Target, deadline: float) -> Case:
    """Read the item's markers; ``deadline`` in seconds is the default.

    Raises BadInputError for an issue that is not ``owner/repo#number`` and for a variable that was
    read before the fork.
    """
    issues = dict.fromkeys(
        str(issue) for mark in item.iter_markers("upstream") for issue in mark.args
    )
    for issue in issues:
        if not _ISSUE.fullmatch(issue):
            raise BadInputError(f"{item.nodeid}: upstream({issue!r}): expected 'owner/repo#number'")
    for mark in item.iter_markers("environment"):
        if mark.args:
            raise BadInputError(f"{item.nodeid}: environment{mark.args!r}: expected NAME=value")
    environment = {
        name: None if value is None else str(value)
        for mark in reversed(list(item.iter_markers("environment")))
        for name, value in mark.kwargs.items()
    }
    fixed = [pattern for each in FRAMEWORKS.values() for pattern in each.read_at_import]
    for name, text in environment.items():
        if not name or "=" in name or "\0" in name + (text or ""):
            raise BadInputError(f"{item.nodeid}: environment({name}={text!r}): expected NAME=value")
        if any(fnmatchcase(name, pattern) for pattern in fixed):
            raise BadInputError(
                f"{item.nodeid}: environment({name}=...) has no effect: it is read when the "
                "framework is imported, before a case's process exists. Set it for the whole "
                "pytest run, or use jax.config in the test."
            )
    own_deadline, share = _argument(item, "deadline"), _argument(item, "share")
    return Case(
        id=item.nodeid,
        target=target,
        upstream=tuple(issues),
        environment=tuple(sorted(environment.items())),
        deadline=deadline if own_deadline is None else _seconds(item, own_deadline),
        share=None if share is None else str(share),
        declared=item.get_closest_marker("lanes") is not None,
    )


def _argument(item: pytest.Item, name: str) -> Any:
    """Return the one argument of the closest marker of that name, or None without one."""
    mark = item.get_closest_marker(name)
    if mark is None:
        return None
    if len(mark.args) != 1 or mark.kwargs:
        raise BadInputError(f"{item.nodeid}: {name}(...): expected one argument")
    return mark.args[0]


def _refuse_keywords(item: pytest.Item, *names: str) -> None:
    for name in names:
        for mark in item.iter_markers(name):
            for keyword in mark.kwargs:
                raise BadInputError(f"{item.nodeid}: {name}({keyword}=...): expected no keyword")


def _seconds(item: pytest.Item, value: Any) -> float:
    if not isinstance(value, int | float) or not 0 < value <= threading.TIMEOUT_MAX:
        raise BadInputError(f"{item.nodeid}: deadline({value!r}): expected seconds above 0")
    return float(value)
