"""The environment of each process of a job on this machine."""

from __future__ import annotations

import secrets

from harness.lanes.virtual import library
from harness.messages import new_token
from harness.messages.ports import HOST, free_port
from harness.model.topology import Topology


class JobEnvironment:
    """What the processes of one job share: where they meet, and the token that lets them.

    Args:
        topology: of the whole job; it says how many processes there are, and which devices each
            has.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._port, self._coordinator, self._token = free_port(), free_port(), new_token()
        self._of_jax = free_port()
        self._builders = [f"{HOST}:{free_port()}" for _ in range(topology.process_count)]
        # Of its own: the processes of an earlier job may still be ending.
        self._job = secrets.token_hex(8)

    def of(self, number: int) -> dict[str, str]:
        """The variables of process ``number``, from 0: libtpu's own, and torchrun's.

        TORCHELASTIC_RUN_ID makes torch_xla take this for a process of torchrun, so that
        ``torch_xla.launch`` and ``init_process_group("xla", init_method="xla://")`` join the job.
        https://github.com/pytorch/xla/blob/v2.9.0/torch_xla/_internal/rendezvous.py
        """
        count = self._topology.process_count
        of_slice = count // self._topology.slices
        # The chips of a host are processes of one machine; hosts and slices are machines.
        here = of_slice if self._topology.processes == "chip" else 1
        first = number - number % of_slice
        found = {
            **library.process_environment(self._topology, number),
            "RANK": str(number),
            "WORLD_SIZE": str(count),
            "LOCAL_RANK": str(number % here),
            "LOCAL_WORLD_SIZE": str(here),
            "TORCHELASTIC_RUN_ID": self._job,
            "MASTER_ADDR": HOST,
            "MASTER_PORT": str(self._port),
            "JAX_COORDINATOR_ADDRESS": f"{HOST}:{self._of_jax}",
            # As torchrun and TorchTPU count machines, whatever the names of the workers.
            "NNODES": str(count // here),
            "NODE_RANK": str(number // here),
            # Of the processes of each slice: torch_xla and newer JAX read and set them, too.
            "TPU_PROCESS_ADDRESSES": ",".join(self._builders[first : first + of_slice]),
            "TPU_PROCESS_PORT": self._builders[number].rpartition(":")[2],
            # As torch.tpu.distributed.set_tpu_launch_env says them on the hosts of each slice; a
            # process is at its rank modulo their number. Nobody listens there.
            "TORCH_TPU_SLICEBUILDER_ADDRESSES": ",".join(self._builders[first : first + of_slice]),
            "TORCH_TPU_TOPOLOGY": ",".join(map(str, self._topology.bounds)),
            "XLA_HARNESS_JOB": self._job,
            "XLA_HARNESS_JOB_RANKS": str(count),  # all of them are processes of this machine
            "XLA_HARNESS_JOB_TOKEN": self._token,
        }
        if self._topology.slices == 1:
            # Its processes meet in a file that is named after their parent, of which there is one
            # on each host, but here one for all slices. Without this they meet in the store.
            found["TORCH_TPU_DEVICES_PER_HOST"] = str(here)
        else:
            found["MEGASCALE_COORDINATOR_ADDRESS"] = f"{HOST}:{self._coordinator}"
        return found
