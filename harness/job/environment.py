"""The environment of each process of a job on this machine."""

from __future__ import annotations

import secrets

from harness.lanes.virtual import library
from harness.messages import new_token
from harness.messages.ports import HOST, free_port
from harness.model.topology import Topology
from harness.platforms import Platform


class JobEnvironment:
    """Environment that a job's processes share: their meeting addresses and the job's token.

    Args:
        topology: of the whole job; it says how many processes there are, and which devices each
            has.
        platform: whose devices they are.
    """

    def __init__(self, topology: Topology, platform: Platform) -> None:
        self._topology, self._platform = topology.on(platform), platform
        self._port, self._coordinator, self._token = free_port(), free_port(), new_token()
        self._of_jax = free_port()
        self._builders = [f"{HOST}:{free_port()}" for _ in range(topology.process_count)]
        # Of its own: the processes of an earlier job may still be ending.
        self._job = secrets.token_hex(8)

    def of(self, number: int) -> dict[str, str]:
        """Return the variables of process ``number``, from 0: the platform's own, and torchrun's.

        TORCHELASTIC_RUN_ID makes torch_xla take this for a process of torchrun, so that
        ``torch_xla.launch`` and ``init_process_group("xla", init_method="xla://")`` join the job.
        https://github.com/pytorch/xla/blob/v2.9.0/torch_xla/_internal/rendezvous.py
        """
        count = self._topology.process_count
        of_slice = count // self._topology.slices
        # The chips of a host are processes of one machine; hosts and slices are machines.
        here = of_slice if self._topology.processes == "chip" else 1
        launch = self._platform.launch
        return {
            **library.process_environment(self._topology, self._platform, number),
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
            **self._platform.process_environment(self._topology, number, self._builders),
            "XLA_HARNESS_JOB": self._job,
            "XLA_HARNESS_JOB_RANKS": str(count),  # all of them are processes of this machine
            "XLA_HARNESS_JOB_TOKEN": self._token,
            **(
                {launch.coordinator: f"{HOST}:{self._coordinator}"}
                if launch.coordinator and count > of_slice
                else {}
            ),
        }
