"""What each process of a job is told."""

from __future__ import annotations

from harness.job.environment import JobEnvironment
from harness.lanes.virtual import library
from harness.model.topology import Topology
from harness.platforms.tpu import TPU


def told(topology: str, name: str) -> list[str]:
    """The variable in each process."""
    job = Topology.parse(topology)
    environment = JobEnvironment(job, TPU)
    return [environment.of(number)[name] for number in range(job.process_count)]


def test_torch_tpu_finds_a_process_of_its_own_slice() -> None:
    name = "TORCH_TPU_SLICEBUILDER_ADDRESSES"
    addresses = [value.split(",") for value in told("2x4@chip", name)]
    assert addresses[:4] == [addresses[0]] * 4
    assert addresses[4:] == [addresses[4]] * 4
    assert len({*addresses[0], *addresses[4]}) == 8  # one for each process
    ranks, tasks = told("2x4@chip", "RANK"), told("2x4@chip", "CLOUD_TPU_TASK_ID")
    # Where torch_tpu finds itself among them, and what it then sets as the task.
    assert [int(rank) % len(hosts) for rank, hosts in zip(ranks, addresses, strict=True)] == [
        int(task) for task in tasks
    ]


def test_torch_tpu_meets_in_a_file_on_one_host_only() -> None:
    name = "TORCH_TPU_DEVICES_PER_HOST"
    assert told("4@chip", name) == ["4"] * 4
    assert name not in JobEnvironment(Topology.parse("2x2@chip"), TPU).of(0)
    assert library.environment(Topology.parse("2x2@chip"), TPU)[name] is None
