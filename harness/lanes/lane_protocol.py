"""Interface that every lane implements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from harness.lanes.events import Events
from harness.model.topology import Topology


class Lane(Protocol):
    """Lane: sets up one kind of device. No method starts a client or a thread."""

    name: str
    counts_events: bool
    """Whether the plugin behind it counts what is asked of it, so that a case can look at it."""
    compiles_only: bool
    """Whether it is a compiler for devices that nothing is executed on."""
    runs_cases_of: str
    """The lane whose cases it runs on real hardware, by their ids; "" if cases name it itself."""
    needs: tuple[str, ...]
    """The packages without which a stack can run no case of it; ``a|b`` is either."""

    @property
    def default_topology(self) -> Topology:
        """The topology of a case that names the lane and no topology."""
        ...

    def check(self, topology: Topology) -> None:
        """Raise BadInputError if the lane can't have that topology."""
        ...

    def missing(self) -> str:
        """Return what the lane needs and this Python or machine lacks; "" if it can run."""
        ...

    def preload(self) -> None:
        """Load what every case of the lane needs, once, before the first is forked.

        Raises BadInputError when it is missing. Starts no thread: none would survive the fork.
        """
        ...

    def environment(self, topology: Topology) -> Mapping[str, str | None]:
        """Return the variables to set before the runtime starts; None unsets."""
        ...

    def prepare(self, topology: Topology) -> None:
        """Set in this process what the environment no longer reaches."""
        ...

    def settle(self) -> None:
        """Wait until all that this process has queued on the lane has run; the default never waits.

        An error that the test was not given is an event then.
        """

    def unproven(self, process: Events, case: Events) -> str:
        """Explain why a pass would prove nothing about the lane, or return "".

        ``process`` are the events of the test's whole process, ``case`` those of the test alone.
        """
        ...

    def facts(self, events: Events) -> Mapping[str, str]:
        """Return the lane's measurements of a case as JUnit properties; empty ones are left out."""
        ...


class RealLane(Lane, Protocol):
    """Lane whose devices are there already, so that a case may need more than there are."""

    def lacks(self, needed: Topology) -> str:
        """Return why a case of that topology can't run on these devices, or ""."""
        ...
