"""JAX, which keeps a client for each platform that it was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from harness.frameworks.protocol import Framework, NamedPlatforms
from harness.platforms import PLATFORMS


def _platforms(platform: str) -> str:
    """Return what JAX has to look for: without any platform it would look for a TPU first."""
    return "cpu" if platform == "cpu" else PLATFORMS[platform].frameworks.get("jax", "cpu")


class Jax(Framework):
    """The framework ``jax``."""

    name = "jax"
    packages = ("jax", "jaxlib")
    preload = ("jax.numpy", "jax.extend", "jax.experimental.pallas.tpu")
    read_at_import = ("JAX_*",)

    def environment(self, platform: str, devices: int) -> Mapping[str, str | None]:
        chosen = {"JAX_PLATFORMS": _platforms(platform)}
        return chosen | {"JAX_NUM_CPU_DEVICES": str(devices)} if platform == "cpu" else chosen

    def prepare(self, platform: str, devices: int) -> None:
        # JAX read its variables when it was imported, before the fork.
        if "jax" not in sys.modules:
            return
        import jax

        jax.config.update("jax_platforms", _platforms(platform))
        if platform != "cpu":
            return
        if hasattr(jax.config, "jax_num_cpu_devices"):
            jax.config.update("jax_num_cpu_devices", devices)
        else:  # before JAX 0.5
            flag = f"--xla_force_host_platform_device_count={devices}"
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"

    def named_platforms(self, environment: Mapping[str, str]) -> Sequence[NamedPlatforms]:
        """Return JAX's configuration where it differs from what JAX has read, or adds to a TPU."""
        variable = environment.get("JAX_PLATFORMS", "")
        jax = sys.modules.get("jax")
        configured = jax.config.jax_platforms or "" if jax is not None else ""
        if configured in (variable, _platforms("tpu")):
            configured = ""
        values = {
            "JAX_PLATFORM_NAME": environment.get("JAX_PLATFORM_NAME", ""),
            "jax.config.jax_platforms": configured,
            "JAX_PLATFORMS": variable,
            "PJRT_NAMES_AND_LIBRARY_PATHS": environment.get("PJRT_NAMES_AND_LIBRARY_PATHS", ""),
        }
        return [
            NamedPlatforms(name, value, "JAX_PLATFORMS", wins=name == "JAX_PLATFORM_NAME")
            for name, value in values.items()
        ]

    def clients(self) -> Sequence[str]:
        bridge = sys.modules.get("jax._src.xla_bridge")
        return [f"JAX's {platform}" for platform in getattr(bridge, "_backends", ())]

    def start(self, devices: int, *, spmd: bool) -> None:
        del spmd  # a program's shardings say over which devices it runs
        import jax

        count = jax.device_count()
        if count != devices:
            raise RuntimeError(f"JAX has {count} devices, expected {devices}")
