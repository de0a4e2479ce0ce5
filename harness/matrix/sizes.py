"""The topologies that a cell's pytest is given, as the cell's lane reads them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from harness.errors import BadInputError
from harness.lanes import Lane, lane_can
from harness.model.topology import Topology

_OPTION = "--topology"


def for_lane(arguments: Sequence[str], lane: Lane) -> tuple[str, ...]:
    """Return the arguments for pytest with ``--topology`` as the lane can have it.

    A compiler needs a generation, which a size such as ``2x4`` does not name: it gets that of the
    lane's default, as on the virtual TPU.
    """
    return tuple(_with_generation(arguments, lane) if lane.compiles_only else arguments)


def can_have(arguments: Sequence[str], lane: Lane) -> bool:
    """Return whether the lane can have every topology that the arguments, as they are, ask for."""
    words = for_lane(arguments, lane)
    texts = [after for word, after in itertools.pairwise(words) if word == _OPTION]
    texts += [w.partition("=")[2] for w in words if w.startswith(f"{_OPTION}=")]
    try:
        for size in [size for text in texts for size in text.split(",") if text != "all"]:
            lane_can(lane, Topology.parse(size))
    except BadInputError:
        return False
    return True


def _with_generation(arguments: Sequence[str], lane: Lane) -> Iterator[str]:
    before = ""
    for word in arguments:
        option, equal, sizes = word.partition("=")
        if before == _OPTION:
            yield _sizes(word, lane)
        elif option == _OPTION and equal:
            yield f"{option}={_sizes(sizes, lane)}"
        else:
            yield word
        before = word


def _sizes(text: str, lane: Lane) -> str:
    try:
        topologies = [Topology.parse(size) for size in text.split(",") if text != "all"]
    except BadInputError:
        return text  # pytest says what is wrong with it
    generation = lane.default_topology.generation
    named = [
        str(size) if size.generation else f"{size.slices}x{generation}:{size.devices}"
        for size in topologies
    ]
    return ",".join(named) or text
