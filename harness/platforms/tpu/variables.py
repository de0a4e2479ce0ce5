"""Environment variables that TPU launchers set and libtpu reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.platforms.description import Generation, JobLayout, LaunchVariables

LAUNCH = LaunchVariables(
    slices="MEGASCALE_NUM_SLICES",
    slice="MEGASCALE_SLICE_ID",
    coordinator="MEGASCALE_COORDINATOR_ADDRESS",
    no_discovery="SKIP_MEGASCALE_PJRT_CLIENT",
    process_bounds="TPU_PROCESS_BOUNDS",
    chips_per_process="TPU_CHIPS_PER_PROCESS_BOUNDS",
    process="CLOUD_TPU_TASK_ID",
    visible_chips="TPU_VISIBLE_CHIPS",
    arguments="LIBTPU_INIT_ARGS",
    worker="TPU_WORKER_ID",
    hostnames="TPU_WORKER_HOSTNAMES",
)


def environment(generation: Generation, layout: JobLayout) -> Mapping[str, str | None]:
    """Return what a process reads of the machine, before a launcher divides its chips."""
    bounds = ",".join(map(str, layout.bounds))
    x, y, z = layout.bounds
    return {
        "VIRTUAL_TPU_PCI": f"0x{generation.pci:04x}",
        "TORCH_TPU_DEVICES_PER_HOST": None,
        "TPU_ACCELERATOR_TYPE": generation.accelerator_type(x * y * z),
        "TPU_SKIP_MDS_QUERY": "1",
        # Lists of processes that JAX reads instead, of a job that this one is not part of.
        "TPU_PROCESS_ADDRESSES": None,
        "TPU_PROCESS_ADDRESSES_PATH": None,
        # Each makes JAX look for another cluster than the TPU's, or listen at another address.
        "SLURM_JOB_ID": None,
        "OMPI_MCA_orte_hnp_uri": None,
        "JAX_COORDINATOR_BIND_ADDRESS": None,
        **(
            {"TPU_HOST_BOUNDS": "1,1,1", "TPU_CHIPS_PER_HOST_BOUNDS": bounds}
            if layout.processes
            else {}
        ),
    }


def process_environment(
    layout: JobLayout, number: int, addresses: Sequence[str]
) -> Mapping[str, str]:
    """Return what process ``number`` of a job reads of the others, each at one of the addresses.

    ``torch.tpu.distributed.set_tpu_launch_env`` says the same on the hosts of each slice, where a
    process is at its rank modulo their number. Nobody listens there.
    """
    of_slice = layout.process_count // layout.slices
    first = number - number % of_slice
    slice_ = ",".join(addresses[first : first + of_slice])
    here = of_slice if layout.processes == "chip" else 1
    return {
        # Of the processes of each slice: torch_xla and newer JAX read and set them, too.
        "TPU_PROCESS_ADDRESSES": slice_,
        "TPU_PROCESS_PORT": addresses[number].rpartition(":")[2],
        "TORCH_TPU_SLICEBUILDER_ADDRESSES": slice_,
        "TORCH_TPU_TOPOLOGY": ",".join(map(str, layout.bounds)),
        # Processes of one slice meet in a file that is named after their parent, of which there is
        # one on each host, but here one for all slices. Without this they meet in the store.
        **({"TORCH_TPU_DEVICES_PER_HOST": str(here)} if layout.slices == 1 else {}),
    }
