"""The NVIDIA GPUs: what CUDA reports of each, and which machines and NVLink domains exist."""

from __future__ import annotations

from functools import partial

from harness.platforms.description import Generation

# A node's GPUs are on one NVSwitch: https://docs.nvidia.com/dgx. Of gb200, 72 on 18 nodes are one
# NVLink domain: https://docs.nvidia.com/multi-node-nvlink-systems. l4 has no NVLink at all.
_OF_A_NODE = ("1", "2", "4", "8")
_OF_A_RACK = ("1", "2", "4", "8", "12", "16", "24", "32", "36", "48", "64", "72")

_Gpu = partial(Generation, torus=1, words={"chip": "device", "host": "node"})

GENERATIONS = (
    _Gpu(
        "a100", "NVIDIA A100-SXM4-80GB", memory=80, capability="8.0", grids=_OF_A_NODE, host_chips=8
    ),
    _Gpu(
        "h100", "NVIDIA H100 80GB HBM3", memory=80, capability="9.0", grids=_OF_A_NODE, host_chips=8
    ),
    _Gpu("h200", "NVIDIA H200", memory=141, capability="9.0", grids=_OF_A_NODE, host_chips=8),
    _Gpu("b200", "NVIDIA B200", memory=180, capability="10.0", grids=_OF_A_NODE, host_chips=8),
    _Gpu("gb200", "NVIDIA GB200", memory=186, capability="10.0", grids=_OF_A_RACK, host_chips=4),
    _Gpu("l4", "NVIDIA L4", memory=24, capability="8.9", grids=_OF_A_NODE, host_chips=8),
)
