"""Interface through which the harness uses a framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class NamedPlatforms:
    """Setting with which a user has named platforms.

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
    """Framework that the harness can pin, import, configure and start.

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
        """Return what names platforms here, the deciding source first; "" names none.

        ``environment`` is the user's: a framework may have set its default since. Imports nothing,
        and leaves out settings that no lane changes.
        """
        ...

    def clients(self) -> Sequence[str]:
        """Return the clients that it has started in this process, such as ``JAX's cpu``.

        Starts and imports nothing.
        """
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
