"""The frameworks that a case asks. A new one is one module here and one entry in ``FRAMEWORKS``.

An installed package adds one with an entry point in the group ``xla_harness.frameworks``.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from harness.frameworks import named_platforms
from harness.frameworks.protocol import Framework
from harness.platforms import PLATFORMS, VARIABLE
from harness.registry import Registry

__all__ = [
    "FRAMEWORKS",
    "Framework",
    "conflict",
    "environment",
    "knows",
    "missing",
    "prepare",
    "without_lanes",
]

FRAMEWORKS: Registry[Framework] = Registry(
    "framework",
    Framework,
    {
        "torch_xla": "harness.frameworks.torch_xla:TorchXla",
        "jax": "harness.frameworks.jax:Jax",
        "torch_tpu": "harness.frameworks.torch_tpu:TorchTpu",
    },
)


def missing(name: str, platform: str = "cpu", *, is_real: bool = False) -> str:
    """Return why a framework can't be asked here, on that platform; "" if it can.

    Does not import it. ``is_real`` asks for the platform's hardware.
    """
    if not find_spec(name):
        return f"framework {name}: not installed in this environment"
    why = PLATFORMS[platform].ended(name, is_real=is_real) if platform in PLATFORMS else ""
    return f"framework {name}: {why}" if why else ""


def knows(name: str, platform: str) -> bool:
    """Return whether any release of a framework has the platform; one that is not ours may."""
    own = any(framework.name == name for framework in FRAMEWORKS.own())
    return not own or platform not in PLATFORMS or name in PLATFORMS[platform].frameworks


def environment(platform: str, devices: int) -> dict[str, str | None]:
    """Return the variables that give every framework these devices; None unsets a variable."""
    every = (framework.environment(platform, devices) for framework in FRAMEWORKS.values())
    merged = {name: value for variables in every for name, value in variables.items()}
    return merged | {VARIABLE: platform}


def conflict(
    lane: str,
    variables: Mapping[str, str | None],
    environment: Mapping[str, str],
    *,
    is_chosen: bool,
) -> str:
    """Describe what the user has named and a lane with these variables would replace, or ""."""
    return named_platforms.conflict(
        FRAMEWORKS.values(), lane, variables, environment, is_chosen=is_chosen
    )


def without_lanes(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that name only platforms that lanes can have."""
    return named_platforms.without_lanes(FRAMEWORKS.values(), environment)


def prepare(platform: str, devices: int) -> None:
    """Tell every framework that this process has imported what its variables no longer can."""
    for framework in FRAMEWORKS.values():
        framework.prepare(platform, devices)
