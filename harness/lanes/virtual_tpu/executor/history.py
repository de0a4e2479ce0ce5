"""Where ranks came from at each program they met in, to tell since when they disagree."""

from __future__ import annotations

from collections.abc import Sequence

from harness.lanes.virtual_tpu.executor.ranks import Execution
from harness.lanes.virtual_tpu.sites import NEAR

Sites = dict[str, list[int]]


class History:
    """Remembers the first program that ranks came to from different lines.

    Ranks of which one has left a program out meet in different ones from there on, until one of
    them ends. Where they come from one line again, nothing has been left out.
    """

    def __init__(self) -> None:
        self._programs = 0
        self._since = 0
        self._sites: Sites = {}

    def met(self, executions: Sequence[Execution]) -> None:
        """Note a program that ranks have met in."""
        self._programs += 1
        sites: Sites = {}
        for one in executions:
            sites.setdefault(one.site, []).append(one.rank.number)
        if len(sites) == 1 or any(not site or site.startswith(NEAR) for site in sites):
            self._sites = {}
        elif not self._sites:
            self._since, self._sites = self._programs, sites

    @property
    def diverged(self) -> str:
        """Where they first came from different lines; "" if they did not."""
        if not self._sites:
            return ""
        first = f"at program {self._since} of {self._programs} ranks first came from other lines: "
        said = (f"rank {_listed(ranks)} from {site}" for site, ranks in self._sites.items())
        return first + "; ".join(said)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
