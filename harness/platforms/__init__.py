"""The kinds of devices that cases can be about. A new one is one module here and one entry.

An installed package adds one with an entry point in the group ``xla_harness.platforms``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from harness.platforms.description import Generation, Platform, generation_among
from harness.registry import Registry

__all__ = [
    "PLATFORMS",
    "VARIABLE",
    "Generation",
    "Platform",
    "generation_named",
    "platform_here",
    "platform_with",
]

VARIABLE = "XLA_HARNESS_PLATFORM"  # the platform whose variables a lane has set in this process
_DEFAULT = "tpu"

PLATFORMS: Registry[Platform] = Registry(
    "platform",
    Platform,
    {_DEFAULT: "harness.platforms.tpu:TPU", "gpu": "harness.platforms.gpu:GPU"},
)


def generation_named(name: str) -> Generation:
    """Return the generation of that name, of any platform; raises BadInputError for others.

    Without a name it is the default one of the first platform.
    """
    return platform_with(name).generation(name)


def platform_with(generation: str) -> Platform:
    """Return the platform that has the generation; raises BadInputError if none has it."""
    if not generation:
        return PLATFORMS[_DEFAULT]
    platforms = PLATFORMS.values()  # the harness's own first
    for platform in platforms:
        if any(generation in each.names for each in platform.generations):
            return platform
    generation_among([each for platform in platforms for each in platform.generations], generation)
    raise AssertionError


def platform_here(environment: Mapping[str, str] = os.environ) -> Platform:
    """Return the platform of the lane that has set up this process, or else the default one."""
    return PLATFORMS.get(environment.get(VARIABLE, ""), PLATFORMS[_DEFAULT])
