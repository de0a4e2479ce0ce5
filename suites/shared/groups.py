"""Replica groups: which ranks exchange with each other."""

from __future__ import annotations

import numpy as np

from harness.model.topology import Topology

Groups = tuple[tuple[int, ...], ...]


def layout(name: str, world: int) -> Groups:
    """Return the replica groups of that name over `world` ranks; `()` is the API's default."""
    ranks = tuple(range(world))
    half = max(world // 2, 1)
    groups: dict[str, Groups] = {
        "default": (),
        "all": (ranks,),
        "reversed": (ranks[::-1],),
        "pairs": tuple(ranks[i : i + 2] for i in range(0, world, 2)),
        "strided": tuple(ranks[i::half] for i in range(half)),
        "uneven": (ranks[:-1], ranks[-1:]) if world > 1 else (ranks,),
        "singletons": tuple((rank,) for rank in ranks),
    }
    return groups[name]


LAYOUTS = ("default", "all", "reversed", "pairs", "strided", "uneven", "singletons")
EVEN_LAYOUTS = tuple(name for name in LAYOUTS if name != "uneven")


def slice_groups(name: str, topology: Topology) -> Groups:
    """Replica groups of a multi-slice job, whose ranks are numbered slice by slice.

    `within`: each slice. `across`: each chip with those of its place in the other slices. `mixed`:
    one half of every slice, and the other. `all`: one group.
    """
    ranks = np.arange(topology.total).reshape(topology.slices, topology.devices)
    groups: dict[str, np.ndarray] = {"within": ranks, "across": ranks.T}
    groups["all"] = ranks.reshape(1, -1)
    if name == "mixed":  # a slice of one chip has no halves
        halves = ranks.reshape(topology.slices, 2, -1)
        groups[name] = halves.transpose(1, 0, 2).reshape(2, -1)
    return tuple(map(tuple, groups[name].tolist()))


def leaves_slices(groups: Groups, topology: Topology) -> bool:
    """Return whether a group has devices of several slices."""
    return any(len({rank // topology.devices for rank in group}) > 1 for group in groups)


def lists(groups: Groups) -> list[list[int]] | None:
    """Return the groups as lists, or None for the default, as the API takes them."""
    return [list(ranks) for ranks in groups] or None
