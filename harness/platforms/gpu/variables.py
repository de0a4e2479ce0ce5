"""Environment variables of GPU jobs, as Slurm sets them and JAX reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.platforms.description import Generation, JobLayout, LaunchVariables
from harness.platforms.gpu import machine

LAUNCH = LaunchVariables(visible_chips=machine.VISIBLE)
_NONE = "-1"  # hides real cards; a virtual GPU has none to hide
# JAX looks for Open MPI's job before it looks for Slurm's.
_ELSEWHERE = ("OMPI_MCA_orte_hnp_uri", "JAX_COORDINATOR_BIND_ADDRESS", "JAX_LOCAL_DEVICE_IDS")


def environment(generation: Generation, layout: JobLayout) -> Mapping[str, str | None]:
    """Return what hides the real cards, and what leaves out a job that started this one."""
    del generation
    elsewhere = dict.fromkeys(_ELSEWHERE) if layout.processes else {}
    return {**elsewhere, machine.VISIBLE: _NONE if machine.cards() else None}


def contradiction(
    layout: JobLayout, variables: Mapping[str, str], devices: Path = machine.DEVICES
) -> str:
    """Describe a real card that a program could reach, or a list of other devices; or ""."""
    visible, of_node = variables.get(machine.VISIBLE), math.prod(layout.host_bounds)
    if visible is not None and visible.strip() in ("", _NONE):
        return ""
    if here := machine.cards(devices):
        facts = ", ".join(f"{name} {value}" for name, value in machine.facts().items() if value)
        return (
            f"this machine has a real GPU, {here[0]}{facts and f' ({facts})'}, which a program "
            "could use in place of a virtual one: hide it by "
            f"{machine.VISIBLE}={_NONE}, or use lane gpu"
        )
    numbers = None if visible is None else sorted(visible.split(","))
    if numbers is None or numbers == sorted(map(str, range(of_node))):
        return ""
    return (
        f"{machine.VISIBLE}={visible} is not all of the {of_node} devices of a node: expected it "
        f"unset, or 0 to {of_node - 1}, or another topology"
    )


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
        **dict.fromkeys(
            ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"), str(nodes)
        ),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(layout.process_count)),
        "SLURM_PROCID": str(number),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(here),
        "NNODES": str(nodes),
        "NODE_RANK": str(node),
    }
