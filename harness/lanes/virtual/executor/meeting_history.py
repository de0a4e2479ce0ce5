"""History of the programs that ranks reached and met in, to tell since when they disagree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from harness.lanes.virtual.executor.connected_ranks import Execution
from harness.lanes.virtual.executor.folding import grouped, ranks_named
from harness.lanes.virtual.executor.programs import RankProgram
from harness.lanes.virtual.sites import NEAR


class MeetingHistory:
    """Counts the programs of each rank, and remembers the first that ranks came to differently.

    Ranks of which one has left a program out meet in different ones from there on, until one of
    them ends. Where they come from one line again, or run one program, nothing has been left out.
    """

    def __init__(self) -> None:
        self._come: Counter[int] = Counter()
        self._met: Counter[int] = Counter()
        self._sites: _Difference[str] = _Difference("came from different lines")
        self._programs: _Difference[RankProgram] = _Difference("ran different programs")

    def queued(self, execution: Execution) -> None:
        """Note a program that a rank has come to."""
        self._come[execution.rank.number] += 1

    def met(self, executions: Sequence[Execution]) -> None:
        """Note a program that ranks have met in."""
        ranks = {execution.rank.number: execution for execution in executions}
        self._met.update(ranks.keys())
        number = max(self._met[rank] for rank in ranks)
        programs = {rank: execution.program for rank, execution in ranks.items()}
        same = len({program.digest for program in programs.values()}) == 1
        self._programs.note(number, programs, _constant if same else _exchanges)
        sites = {rank: execution.site for rank, execution in ranks.items()}
        if all(site and not site.startswith(NEAR) for site in sites.values()):
            self._sites.note(number, sites, str)

    def come(self, rank: int) -> int:
        """Return how many programs over several ranks a rank has come to."""
        return self._come[rank]

    def met_by(self, ranks: Sequence[int]) -> int:
        """Return how many programs the ranks have met in, at the most."""
        return max((self._met[rank] for rank in ranks), default=0)

    @property
    def parted(self) -> list[str]:
        """Describe where ranks first differed, one line each; return [] if they did not."""
        lines = (self._sites.text(str), self._programs.text(_summary))
        return [line for line in lines if line]


Value = TypeVar("Value")


class _Difference(Generic[Value]):
    """The first program since which ranks differ in something."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._since = self._last = 0
        self._values: Mapping[int, Value] = {}

    def note(
        self, number: int, values: Mapping[int, Value], key: Callable[[Value], Hashable]
    ) -> None:
        """Note what ranks have at a program; those with equal keys agree."""
        self._last = number
        if len({key(value) for value in values.values()}) == 1:
            self._values = {}
        elif not self._values:
            self._since, self._values = number, values

    def text(self, describe: Callable[[Value], str]) -> str:
        """Return it in words; "" if they agree."""
        if not self._values:
            return ""
        described = {rank: describe(value) for rank, value in self._values.items()}
        groups = (f"{ranks_named(ranks)}: {text}" for text, ranks in grouped(described).items())
        since = f"  from program {self._since} of {self._last} on"
        return f"{since} ranks {self._kind}: {'; '.join(groups)}"


def _exchanges(program: RankProgram) -> tuple[object, ...]:
    return program.exchanges


def _constant(program: RankProgram) -> int:
    del program
    return 0


def _summary(program: RankProgram) -> str:
    return program.summary
