"""Makes frameworks find the chips of a virtual TPU, where the PCI bus has none."""

from __future__ import annotations

import os
from typing import Any

from harness.platforms.tpu.variables import LAUNCH


def show_chips(tpu: Any) -> None:
    """Tell torch_xla how many chips there are, which it counts among the PCI devices."""
    tpu.num_available_chips = _chips


def is_tpu_machine(module: Any) -> None:
    """Tell JAX that it runs beside a TPU, which it knows by the chips on the PCI bus.

    It lowers kernels for the libtpu that it sees, and finds the processes of its job, only there.
    Two modules have copied the answer, before a fork maybe.
    """
    module.running_in_cloud_tpu_vm = True


def count_slices(clusters: Any) -> None:
    """Let JAX count the slices that are other processes, without asking a metadata server.

    It multiplies the processes of a slice by the slices, but one process may have them all.
    """
    is_tpu_machine(clusters)
    clusters.BaseTpuCluster._get_num_slices = staticmethod(lambda: _of_slices(LAUNCH.slices, 1))
    clusters.BaseTpuCluster._get_slice_id = staticmethod(lambda: _of_slices(LAUNCH.slice, 0))


def _of_slices(name: str, alone: int) -> int:
    """Return MegaScale's variable, or ``alone`` where this process has all slices."""
    apart = os.environ.get(LAUNCH.coordinator)
    return int(os.environ.get(name) or alone) if apart else alone


def show_pci_devices(hardware: Any) -> None:
    """Tell torch_tpu how many chips there are and of which generation, as the PCI bus does."""
    device = os.environ["VIRTUAL_TPU_PCI"]
    name, bounds = hardware._PCI_DEVICE_ID_TO_NAME, hardware._TOPOLOGY_BY_TPU_PCI_DEVICE_ID
    hardware.get_tpu_device_name = lambda: name[device]
    hardware._scan_pci_tpus = lambda: (_chips(), bounds[device])


def _chips() -> int:
    return int(os.environ["VIRTUAL_TPU_CHIPS"])
