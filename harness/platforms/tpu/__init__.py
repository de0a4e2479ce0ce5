"""The platform ``tpu``: Google's TPUs, and libtpu, which all frameworks reach them by."""

from __future__ import annotations

from functools import cache

from harness.platforms.description import Generation, Hardware, Platform
from harness.platforms.tpu import libtpu_file, machine, on_import, variables
from harness.platforms.tpu.generations import GENERATIONS

# For stacks without a libtpu: JAX refuses to lower kernels for one that is older than it asks for.
_BUILD = "Built on Jan 1 2100 00:00:00 (4102444800)"


@cache
def _libtpu_build() -> str:
    """Return what the stack's own libtpu says of its build, which JAX asks for."""
    path = libtpu_file.library()
    return (libtpu_file.build(path) if path else "") or _BUILD


def _version(generation: Generation, slices: int) -> str:
    wrapper = "megascale+" if slices > 1 else ""  # libtpu's client over all slices
    return f"{wrapper}TFRT {generation.device_kind}\n{_libtpu_build()} virtual TPU"


def _attributes(generation: Generation, slices: int) -> dict[str, str]:
    """Return what libtpu says of a device: its slice only if there are several."""
    several = {"slice_index": "{slice}"} if slices > 1 else {}
    core = {"core_on_chip": "{core}", "num_cores": str(generation.cores)}
    return {"coords": "{x},{y},{z}", **core, **several}


_IS_MACHINE = ("jax._src.cloud_tpu_init", "jax._src.clusters.cluster")

TPU = Platform(
    name="tpu",
    title="TPU",
    default="v6e",
    generations=GENERATIONS,
    pjrt_name="tpu",
    device="TPU_{id}(process={process},({x},{y},{z},{core}))",
    device_repr=(
        "TpuDevice(id={id}, process_index={process}, coords=({x},{y},{z}), core_on_chip={core})"
    ),
    attributes=_attributes,
    # On a machine with a TPU JAX itself looks for these two.
    frameworks={"jax": "tpu,cpu", "torch_xla": "TPU", "torch_tpu": "tpu"},
    loading={"TPU_LIBRARY_PATH": "{plugin}"},
    launch=variables.LAUNCH,
    version=_version,
    compiler="harness.lanes.aot.libtpu",
    compiler_name="libtpu",
    environment=variables.environment,
    process_environment=variables.process_environment,
    on_import={
        "torch_xla._internal.tpu": on_import.show_chips,
        "torch_tpu._internal.utils.hardware": on_import.show_pci_devices,
        "jax._src.clusters.cloud_tpu_cluster": on_import.count_slices,
        **dict.fromkeys(_IS_MACHINE, on_import.is_tpu_machine),
    },
    hardware=Hardware(
        topology=machine.topology,
        library=machine.libtpu,
        needs=("libtpu",),
        environment=lambda plugin, _: {
            "TPU_LIBRARY_PATH": plugin,
            variables.LAUNCH.no_discovery: None,
        },
    ),
    packages=("libtpu",),
)
