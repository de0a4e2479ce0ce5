"""The environment of each process of a job on this machine."""

from __future__ import annotations

import secrets

from harness.job.ports import HOST, free_port
from harness.lanes.virtual_tpu import library
from harness.messages import new_token
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
        # Of its own: the processes of an earlier job may still be ending.
        self._job = secrets.token_hex(8)

    def of(self, number: int) -> dict[str, str]:
        """The variables of process ``number``, from 0: libtpu's own, and those of a launcher."""
        count = self._topology.process_count
        of_slice = count // self._topology.slices
        found = {
            **library.process_environment(self._topology, number),
            "RANK": str(number),
            "WORLD_SIZE": str(count),
            "LOCAL_RANK": str(number % of_slice),
            "LOCAL_WORLD_SIZE": str(of_slice),
            "MASTER_ADDR": HOST,
            "MASTER_PORT": str(self._port),
            "XLA_HARNESS_JOB": self._job,
            "XLA_HARNESS_JOB_TOKEN": self._token,
        }
        if self._topology.slices > 1:
            found["MEGASCALE_COORDINATOR_ADDRESS"] = f"{HOST}:{self._coordinator}"
        return found
