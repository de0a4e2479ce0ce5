"""The PJRT plugin that a run was told to ask. A variable hands it to every process of the run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

VARIABLE = "XLA_HARNESS_PLUGIN"
COMPONENT = "plugin"  # its name among the versions that an expectation may name


@dataclass(frozen=True)
class ChosenPlugin:
    """A plugin, and what it said of itself before the first case.

    Attributes:
        request: the options of the command line that choose it.
        name: as JAX knows it.
        path: its library.
        is_registered: whether a package that is installed registers it with JAX.
        options: of its clients.
        version: the user's word, or that of the package it belongs to; "" if neither is known.
        missing: why it has no client here, or "".
        devices: how many its client has.
        api: its version of PJRT, as ``0.115``.
        says: what its client says of its version, in a line.
        attributes: the plugin's own, in a line.
        extensions: their names, in a line.
    """

    request: tuple[str, ...]
    name: str
    path: str
    is_registered: bool
    options: Mapping[str, str | int | float | bool]
    version: str
    missing: str
    devices: int
    api: str
    says: str
    attributes: str
    extensions: str

    @property
    def title(self) -> str:
        """Return its name and, if that is known, its version."""
        return " ".join(filter(None, (self.name, self.version)))

    @property
    def headline(self) -> str:
        """Return what it is in a line."""
        count = f"{self.devices} device{'s' * (self.devices != 1)}"
        parts = [f"plugin {self.title}", f"PJRT {self.api}", count, self.says, self.path]
        return ", ".join(filter(None, parts))

    def hand_on(self) -> None:
        """Tell this process and all that it starts."""
        os.environ[VARIABLE] = json.dumps(asdict(self))


def chosen_plugin() -> ChosenPlugin | None:
    """Return the plugin of this run, if it has one."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    data = json.loads(text)
    return ChosenPlugin(**{**data, "request": tuple(data["request"])})


def plugin_versions() -> dict[str, str]:
    """Return the version of the run's plugin by the component's name, if there is one."""
    plugin = chosen_plugin()
    return {COMPONENT: plugin.version} if plugin and plugin.version else {}
