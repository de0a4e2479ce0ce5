"""Environment variables of GPU jobs, as Slurm sets them and JAX reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from harness.platforms.description import Generation, JobLayout, LaunchVariables

LAUNCH = LaunchVariables(visible_chips="CUDA_VISIBLE_DEVICES")
# JAX looks for Open MPI's job before it looks for Slurm's.
_ELSEWHERE = ("OMPI_MCA_orte_hnp_uri", "JAX_COORDINATOR_BIND_ADDRESS", "JAX_LOCAL_DEVICE_IDS")


def environment(generation: Generation, layout: JobLayout) -> Mapping[str, str | None]:
    """Return what the processes of a job read besides: nothing of a job that started this one."""
    del generation
    return dict.fromkeys(_ELSEWHERE) if layout.processes else {}


def process_environment(
    layout: JobLayout, number: int, addresses: Sequence[str]
) -> Mapping[str, str]:
    """Return what process ``number`` of a job reads of it, as ``srun`` says it on its node.

    JAX then takes the device with the process's number on its node. A process that has the whole
    node is told so, as users have to do it.
    https://github.com/jax-ml/jax/blob/jax-v0.7.1/jax/_src/clusters/slurm_cluster.py
    """
    of_node = math.prod(layout.host_bounds)
    nodes = math.prod(layout.bounds) * layout.slices // of_node
    here = layout.process_count // nodes
    node, local = divmod(number, here)
    hosts = ",".join([addresses[0].rpartition(":")[0]] * nodes)
    devices = {"JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(of_node)))} if here == 1 else {}
    return {
        **devices,
        "SLURM_JOB_ID": addresses[0].rpartition(":")[2],
        "SLURM_STEP_NODELIST": hosts,
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_NTASKS": str(layout.process_count),
        "SLURM_PROCID": str(number),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(here),
        "NNODES": str(nodes),
        "NODE_RANK": str(node),
    }
