"""The TPU generations: what the runtime reports of each, and which slices exist."""

from __future__ import annotations

from harness.platforms.description import Generation

# https://cloud.google.com/tpu/docs/v6e and /v5e; https://cloud.google.com/tpu/docs/v4, /v5p, /tpu7x
_PLANES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_TORUSES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16")

GENERATIONS = (
    Generation(
        *("v4", "TPU v4", "v4", 2, 1, True, 3, _TORUSES),
        gke="tpu-v4-podslice",
        memory=32,
        pci=0x005E,
    ),
    Generation(
        *("v5e", "TPU v5 lite", "v5litepod"),
        grids=_PLANES,
        gke="tpu-v5-lite-podslice",
        memory=16,
        pci=0x0063,
    ),
    Generation(
        *("v5p", "TPU v5", "v5p", 2, 1, True, 3, _TORUSES),
        gke="tpu-v5p-slice",
        memory=95,
        pci=0x0062,
    ),
    Generation(
        *("v6e", "TPU v6 lite", "v6e"), grids=_PLANES, gke="tpu-v6e-slice", memory=32, pci=0x006F
    ),
    Generation(
        *("tpu7x", "TPU7x", "tpu7x", 1, 2, True, 3, _TORUSES),
        gke="tpu7x",
        memory=192,
        pci=0x0076,
        other_names=("v7x",),
    ),
)
