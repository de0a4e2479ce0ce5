"""The platform ``gpu``: NVIDIA's GPUs, which JAX and torch_xla reach by XLA's CUDA plugin.

A slice is what NVLink connects: a node, or a rack of them.
"""

from __future__ import annotations

import re
from pathlib import Path

from harness.platforms.description import Generation, Hardware, Platform
from harness.platforms.gpu import machine, on_import, packages, torch_xla_plugin, variables
from harness.platforms.gpu.generations import GENERATIONS

# What XLA's compiler is told of each generation's GPU; where it was read is said in each file.
TARGETS = Path(__file__).with_name("targets")

_SIZES = re.compile(r"^ *(core_count|shared_memory_per_block_optin): (\d+)$", re.MULTILINE)


def _attributes(generation: Generation, slices: int) -> dict[str, str]:
    """Return what the CUDA plugin says of a device; it numbers slices also where there is one."""
    del slices
    target = (TARGETS / f"{generation.name}.txtpb").read_text()
    sizes = dict(_SIZES.findall(target))
    return {
        **sizes,
        "coords": "{index},",
        "compute_capability": generation.capability,
        "device_vendor": "NVIDIA Corporation",
        "slice_index": "{slice}",
        "partition_index": "{slice}",  # a second name, seen on an H100 with jax 0.11.2
        "fabric_uuid": "",
    }


_RANDOM = ("jax._src.prng", "jax._src.random.threefry2x32")  # the second since JAX 0.10
_SPARSE = tuple(
    f"jax.experimental.sparse.{name}" for name in ("_lowerings", "bcsr", "coo", "csr", "linalg")
)

GPU = Platform(
    name="gpu",
    title="GPU",
    default="h100",
    generations=GENERATIONS,
    pjrt_name="cuda",
    device="cuda:{id}",
    device_repr="CudaDevice(id={id})",
    attributes=_attributes,
    frameworks={"jax": "cuda,cpu", "torch_xla": "CUDA"},
    last={"torch_xla": torch_xla_plugin.LAST},
    loading={"PJRT_NAMES_AND_LIBRARY_PATHS": "cuda:{plugin}"},
    launch=variables.LAUNCH,
    clients_say_place=True,
    version=lambda *_: "cuda 12090",
    compiler="harness.lanes.aot.cuda",
    compiler_name="the CUDA plugin",
    environment=variables.environment,
    contradiction=variables.contradiction,
    process_environment=variables.process_environment,
    on_import={
        "jax._src.hardware_utils": on_import.show_gpu,
        "jax._src.lib": on_import.answer_versions,
        "jax._src.xla_bridge": on_import.hand_options,
        "torch_xla": torch_xla_plugin.register,
        **{f"jax_plugins.xla_cuda{cuda}": on_import.leave_out for cuda in packages.CUDAS},
    },
    hardware=Hardware(
        topology=machine.topology,
        library=machine.library,
        needs=("jax",),
        frameworks=("jax",),
        environment=machine.environment,
        facts=machine.facts,
        divides=True,
        on_import={f"jax_plugins.xla_cuda{cuda}": on_import.name_plugin for cuda in packages.CUDAS},
    ),
    packages=packages.PACKAGES,
    calls_python=True,
    calls_libraries={
        "jax._src.lax.linalg": "",
        "jax._src.lax.control_flow.loops": "",  # cumulative sums, by CUB
        **dict.fromkeys(_RANDOM, "jax_threefry_gpu_kernel_lowering"),
        **dict.fromkeys(_SPARSE, ""),
        "jax._src.cudnn.fused_attention_stablehlo": "",
        "jax._src.cudnn.scaled_matmul_stablehlo": "",
    },
)
