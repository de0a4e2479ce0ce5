"""Lane ``pjrt``: the devices of any PJRT plugin, whose calls are counted and handed on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import wrapt

from harness import frameworks
from harness.errors import BadInputError
from harness.lanes.events import Events
from harness.lanes.hardware.enough import why_not
from harness.lanes.hardware.lane import FORWARD
from harness.lanes.lane_protocol import RealLane
from harness.lanes.virtual import library
from harness.lanes.virtual.lane import requests, unless_client
from harness.model.chosen_plugin import ChosenPlugin, chosen_plugin
from harness.model.topology import Topology

_EXPECTED = "expected --plugin NAME=PATH, or --plugin NAME of an installed plugin of JAX"


class PluginLane(RealLane):
    """Runs the cases of lane ``cpu``, which are about no vendor's devices, on a plugin's."""

    name = "pjrt"
    counts_events = True
    compiles_only = False
    runs_cases_of = "cpu"
    needs = ("pypjrt",)

    @property
    def default_topology(self) -> Topology:
        """All devices of the plugin; without one, where no case runs, those of lane ``cpu``."""
        plugin = chosen_plugin()
        return Topology(1, plugin.devices) if plugin and plugin.devices else Topology(1, 4)

    def check(self, topology: Topology) -> None:
        if topology.generation:
            raise BadInputError(f"topology {topology}: lane pjrt has no generations")
        if topology.processes:
            raise BadInputError(f"topology {topology}: lane pjrt has all devices in one process")

    def lacks(self, needed: Topology) -> str:
        # The plugin in front shows as many devices as a case needs, and knows no slices.
        return why_not(Topology(1, needed.total), self.default_topology, divides=True)

    def missing(self) -> str:
        plugin = chosen_plugin()
        if plugin is None:
            return _EXPECTED
        if plugin.missing:
            return f"plugin {plugin.name} has no client here: {plugin.missing}"
        try:
            library.load_plugin()
        except BadInputError as error:
            return str(error)
        return ""

    def preload(self) -> None:
        """Load what counts; the plugin itself may start threads, which no fork would keep."""
        library.load_plugin()

    def environment(self, topology: Topology) -> Mapping[str, str | None]:
        plugin = _chosen()
        named = "" if plugin.is_registered else f"{plugin.name}:{library.PLUGIN}"
        return {
            **frameworks.environment("cpu", topology.total),
            "JAX_PLATFORMS": f"{plugin.name},cpu",
            "PJRT_DEVICE": _torch_name(plugin),
            "PJRT_NAMES_AND_LIBRARY_PATHS": named or None,
            FORWARD: plugin.path,
            "VIRTUAL_TPU_FORWARD_DEVICES": str(topology.total),
            "VIRTUAL_TPU_LAUNCH": "," * 10,  # no launcher's variables say a place in a job
        }

    def prepare(self, topology: Topology) -> None:
        plugin = _chosen()
        wrapt.register_post_import_hook(partial(_register, plugin), "jax._src.xla_bridge")
        wrapt.register_post_import_hook(partial(_register_in_torch, plugin), "torch_xla")
        frameworks.prepare("cpu", topology.total)
        if "jax" in sys.modules:
            import jax

            jax.config.update("jax_platforms", f"{plugin.name},cpu")

    def unproven(self, process: Events, case: Events) -> str:
        del case
        return unless_client(self.name, process)

    def facts(self, events: Events) -> Mapping[str, str]:
        """Return counts of requests to the plugin and of planted faults, and what the plugin is."""
        plugin = chosen_plugin()
        return {
            **requests(events),
            **events.planted,
            "plugin": plugin.title if plugin else "",
            "plugin_api": plugin.api if plugin else "",
            "plugin_says": plugin.says if plugin else "",
            "plugin_attributes": plugin.attributes if plugin else "",
            "plugin_extensions": plugin.extensions if plugin else "",
        }


def _chosen() -> ChosenPlugin:
    plugin = chosen_plugin()
    if plugin is None:
        raise BadInputError(f"lane pjrt: {_EXPECTED}")
    return plugin


def _torch_name(plugin: ChosenPlugin) -> str:
    return plugin.name.upper()  # torch_xla knows devices by such names


def _register(plugin: ChosenPlugin, bridge: Any) -> None:
    """Have JAX load what counts in place of the plugin, with the options of the run.

    The first registration of the name holds: a package's own, which may do more than that, or else
    that of the variable.
    """
    register, registered = bridge.register_plugin, list[str]()

    def counted(name: str, *arguments: Any, options: Any = None, **keywords: Any) -> Any:
        if name != plugin.name:
            return register(name, *arguments, options=options, **keywords)
        if registered:
            return None
        registered.append(name)
        own = options() if callable(options) else options or {}
        keywords |= {"library_path": str(library.PLUGIN), "c_api": None}
        return register(name, *arguments, options={**own, **plugin.options}, **keywords)

    bridge.register_plugin = counted


def _register_in_torch(plugin: ChosenPlugin, _: Any) -> None:
    """Have torch_xla load what counts for ``PJRT_DEVICE=NAME``."""
    from torch_xla.experimental import plugins

    class Counted(plugins.DevicePlugin):  # type: ignore[misc]
        """The plugin of the run, as torch_xla asks it."""

        def library_path(self) -> str:
            return str(library.PLUGIN)

        def client_create_options(self) -> dict[str, str | int | float | bool]:
            return dict(plugin.options)

    plugins.use_dynamic_plugins()
    plugins.register_plugin(_torch_name(plugin), Counted())
