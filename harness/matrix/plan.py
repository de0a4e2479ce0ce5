"""Plan of a night or a pull request, as data: stacks, and each stack's cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from harness.lanes import has_needed, lane_named
from harness.session.selection import Shard
from harness.stacks.stack import Stack


@dataclass(frozen=True)
class Planned:
    """A cell that shall run: its stack's name, and where its report will be found."""

    stack: str
    lane: str
    shard: str  # NUMBER/COUNT
    artifact: str  # the name under which its files are kept

    @property
    def data(self) -> dict[str, str]:
        """Return this cell as an entry of a GitHub Actions matrix."""
        return asdict(self)


def cells(stack: Stack, lanes: Iterable[str], count: int) -> list[Planned]:
    """Return a cell for each lane that the stack can have, in ``count`` shards.

    Raises BadInputError for an unknown lane and for no shard at all.
    """
    for lane in (lanes := list(lanes)):
        lane_named(lane)
    return [
        Planned(
            stack=stack.name,
            lane=lane,
            shard=str(shard),
            artifact=f"junit-{stack.slug}-{lane}-{shard.number}of{shard.count}",
        )
        for lane in _possible(stack, lanes)
        for shard in (Shard.parse(f"{number + 1}/{count}") for number in range(max(count, 1)))
    ]


def _possible(stack: Stack, lanes: Sequence[str]) -> list[str]:
    """Without those that nothing of the stack could run: a stack may lack what a lane needs."""
    return [lane for lane in lanes if has_needed(stack.packages, lane_named(lane))]
