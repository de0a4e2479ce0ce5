"""What the harness has to know of a framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class NamedPlatforms:
    """What a user has named platforms with.

    Attributes:
        setting: a variable, or a setting of the framework's.
        value: platforms with commas between, each perhaps with ``:`` and the path of its plugin.
        variable: with which a lane names its own.
        wins: holds in spite of that variable; the others are replaced by it.
    """

    setting: str
    value: str
    variable: str
    wins: bool = False


class Framework(Protocol):
    """How one framework is pinned, imported, configured and started.

    Only ``start`` imports the framework; the other methods look at what is imported already.
    """

    name: str
    """That of the module to import."""
    packages: tuple[str, ...]
    """The distributions it consists of, whose versions each report states."""
    preload: tuple[str, ...]
    """Modules that are imported once, before the first fork; they start no thread and no client."""

    processes: str = ""
    """What a process of it has at the most: ``chip`` for one that has one device, "" for all."""

    read_at_import: tuple[str, ...]
    """Variables that it reads when it is imported, so that a case can't set them; ``*`` matches."""

    def environment(self, platform: str, devices: int) -> Mapping[str, str | None]:
        """Variables that must stand in a case's process before the runtime starts; None unsets.

        ``platform`` is ``cpu`` or the name of one in ``harness.platforms``, and ``devices`` the
        number of all devices of all slices. What only one lane needs, such as
        the path of its plugin, is that lane's to set.
        """
        ...

    def prepare(self, platform: str, devices: int) -> None:
        """Set in this process what was read from the environment when the framework was imported.

        Does nothing if it is not imported, and starts nothing.
        """
        ...

    def named_platforms(self, environment: Mapping[str, str]) -> Sequence[NamedPlatforms]:
        """What names platforms here, the deciding first; "" names none.

        ``environment`` are the user's variables: a framework may have set its default since.

        Imports nothing. A setting that a lane leaves alone need not be here.
        """
        ...

    def clients(self) -> Sequence[str]:
        """The clients it has started in this process, as ``JAX's cpu``; starts and imports none."""
        ...

    def start(self, devices: int, *, spmd: bool) -> None:
        """Start its runtime in this process.

        Args:
            devices: the number of all devices of all slices.
            spmd: whether one program runs on all devices; otherwise each device is a replica. A
                framework that has no such mode ignores it.

        Raises:
            RuntimeError: the runtime has another number of devices.
        """
        ...
