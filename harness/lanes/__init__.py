"""The lanes a case can run on. A new lane is one module here and one entry in ``LANES``.

An installed package adds one with an entry point in the group ``xla_harness.lanes``. Each platform
has a lane of virtual devices, and maybe one of real ones and one of its vendor's compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module

from harness import frameworks
from harness.errors import BadInputError
from harness.lanes.lane_protocol import Lane
from harness.model.topology import Topology
from harness.platforms import PLATFORMS, VARIABLE, Platform
from harness.registry import Registry

__all__ = [
    "DEFAULT_LANE",
    "LANES",
    "Lane",
    "check_named_platforms",
    "has_needed",
    "lane_can",
    "lane_named",
    "lane_refuses",
    "platform_of",
]

DEFAULT_LANE = "cpu"  # needs nothing but the frameworks themselves


def _of_platforms() -> Mapping[str, Callable[[], Lane]]:
    virtual = {f"virtual-{name}": partial(_virtual_lane, name) for name in PLATFORMS}
    usable = {}
    for name in PLATFORMS:
        with suppress(BadInputError):  # the lane of its virtual devices says why
            usable[name] = PLATFORMS[name]
    compiling = [name for name, platform in usable.items() if platform.compiler]
    real = [name for name, platform in usable.items() if platform.hardware]
    return {
        **virtual,
        **{f"{name}-aot": partial(_aot_lane, name) for name in compiling},
        **{name: partial(_hardware_lane, name) for name in real},
    }


# By their names, as the others below: what only names lanes imports none of them.
def _virtual_lane(platform: str) -> Lane:
    lane: Lane = import_module("harness.lanes.virtual.lane").VirtualLane(PLATFORMS[platform])
    return lane


def _aot_lane(platform: str) -> Lane:
    lane: Lane = import_module("harness.lanes.aot.lane").AotLane(PLATFORMS[platform])
    return lane


def _hardware_lane(platform: str) -> Lane:
    lane: Lane = import_module("harness.lanes.hardware.lane").HardwareLane(PLATFORMS[platform])
    return lane


# In the order of what a case costs there, the cheapest first.
LANES: Registry[Lane] = Registry(
    "lane",
    Lane,
    {
        DEFAULT_LANE: "harness.lanes.cpu:CpuLane",
        "virtual-tpu": "harness.lanes.virtual.lane:VirtualLane",
        "tpu-aot": "harness.lanes.aot.lane:AotLane",
        "tpu": "harness.lanes.hardware.lane:HardwareLane",
        "pjrt": "harness.conformance.plugin_lane:PluginLane",
    },
    _of_platforms,
)


def lane_named(name: str) -> Lane:
    """Return the lane of that name; raise BadInputError with the names of all lanes."""
    try:
        return LANES[name]
    except KeyError:
        raise BadInputError(f"lane {name!r}: expected one of {', '.join(LANES)}") from None


def platform_of(lane: Lane) -> str:
    """Return the name of the platform whose devices the lane has, or "cpu"."""
    platform = getattr(lane, "platform", None)
    return platform.name if isinstance(platform, Platform) else DEFAULT_LANE


def lane_can(lane: Lane, topology: Topology) -> Topology:
    """``topology``, if the lane can have it; raises BadInputError otherwise."""
    lane.check(topology)
    return topology


def lane_refuses(lane: Lane, topology: Topology) -> str:
    """Return why the lane can't have that topology, or ""."""
    try:
        lane.check(topology)
    except BadInputError as error:
        return str(error)
    return ""


def has_needed(packages: Collection[str], lane: Lane) -> bool:
    """Return whether the packages are all that the lane needs."""
    return all(any(name in packages for name in need.split("|")) for need in lane.needs)


def check_named_platforms(
    lane: Lane, topology: Topology, environment: Mapping[str, str], *, is_chosen: bool
) -> None:
    """Raise BadInputError if the user has named a platform that the lane would replace.

    The same if the machine, or a variable of the user, contradicts the lane's virtual devices.

    ``is_chosen`` says that the user has chosen this lane, and not only a case that declares it.
    """
    variables = lane.environment(topology)
    if why := frameworks.conflict(lane.name, variables, environment, is_chosen=is_chosen):
        raise BadInputError(why)
    platform = PLATFORMS.get(variables.get(VARIABLE) or "")
    if platform is None or not is_chosen or lane.compiles_only or lane.runs_cases_of:
        return
    if why := platform.contradiction(topology.on(platform), environment):
        raise BadInputError(f"lane {lane.name}, topology {topology}: {why}")
