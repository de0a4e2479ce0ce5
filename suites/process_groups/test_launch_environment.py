"""What TorchTPU's `set_tpu_launch_env` decides before a launcher starts workers, and their job.

Each host is a process of this machine. What it must decide is written down by hand.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import torch
import torch.distributed as dist

from harness.isolation.ranks import fork_ranks
from harness.messages.ports import free_port
from harness.model.topology import Target
from suites.shared.backends import BACKENDS

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#9315"),
]
ADDRESSES, GRID = "TORCH_TPU_SLICEBUILDER_ADDRESSES", "TORCH_TPU_TOPOLOGY"
SESSION = "TORCH_TPU_XPROF_SESSION_ID"
DECIDED = (ADDRESSES, GRID, SESSION, "NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
HOSTS = "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4"
TWO = {"TPU_WORKER_HOSTNAMES": "alpha,beta", "JOB_COMPLETION_INDEX": "1"}


@dataclass(frozen=True)
class Host:
    """A host's variables and arguments, and what must be decided there, or the error's text."""

    variables: Mapping[str, str]
    decided: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, int] = field(default_factory=dict)
    refused: str = ""


# Each host has the four chips of a grid of 2 x 2.
DECISIONS = {
    "two-hosts": Host(
        TWO | {"TORCH_TPU_DEVICES_PER_HOST": "2"},
        {
            ADDRESSES: "alpha:8070,alpha:8071,beta:8070,beta:8071",
            GRID: "2,2,1",
            "NNODES": "2",
            "NODE_RANK": "1",
            "MASTER_ADDR": "alpha",
            "MASTER_PORT": "29500",
        },
    ),
    "chips-of-the-host": Host(
        TWO | {"TORCH_TPU_BASE_PORT": "9000"},
        {ADDRESSES: ",".join(f"{host}:{9000 + n}" for host in ("alpha", "beta") for n in range(4))},
    ),
    "one-process": Host(TWO, {ADDRESSES: "alpha:8070,beta:8070"}, {"nproc_per_node": 1}),
    "empty-names": Host(
        {"TPU_WORKER_HOSTNAMES": "alpha,,beta,", "JOB_COMPLETION_INDEX": "0"},
        {ADDRESSES: "alpha:8070,beta:8070", "NNODES": "2", "NODE_RANK": "0"},
        {"nproc_per_node": 1, "nnodes": 2},
    ),
    "only-an-index": Host(
        {"TPU_WORKER_HOSTNAMES": "alpha", "JOB_COMPLETION_INDEX": "0"},
        {ADDRESSES: "alpha:8070", "NNODES": "1", "NODE_RANK": "0", "MASTER_ADDR": "alpha"},
        {"nproc_per_node": 1},
    ),
    "pinned": Host(
        TWO
        | {ADDRESSES: "gamma:1", "NNODES": "7", "NODE_RANK": "6", "MASTER_ADDR": "delta"}
        | {GRID: "4x4", "MASTER_PORT": "5", SESSION: "8"},
        {ADDRESSES: "gamma:1", "NNODES": "7", "NODE_RANK": "6", "MASTER_ADDR": "delta"}
        | {GRID: "4x4", "MASTER_PORT": "5", SESSION: "8"},
    ),
    "pinned-without-names": Host(
        {ADDRESSES: "gamma:1", "MASTER_ADDR": "delta", "JOB_COMPLETION_INDEX": "2"},
        {ADDRESSES: "gamma:1", "NNODES": "3", "NODE_RANK": "2", "MASTER_ADDR": "delta"},
        {"nnodes": 3},
    ),
    "other-number": Host(
        TWO, arguments={"nnodes": 3}, refused='TPU_WORKER_HOSTNAMES (2: "alpha,beta"), got 3'
    ),
    "same-number": Host(TWO, {"NNODES": "2"}, {"nnodes": 2, "nproc_per_node": 1}),
    "no-names": Host(
        {"JOB_COMPLETION_INDEX": "0"}, refused="TPU_WORKER_HOSTNAMES to be a comma-separated list"
    ),
    "no-names-of-two": Host(
        {}, arguments={"nnodes": 2}, refused="TPU_WORKER_HOSTNAMES to be a comma-separated list"
    ),
    "no-index": Host(
        {"TPU_WORKER_HOSTNAMES": "alpha,beta"}, refused="JOB_COMPLETION_INDEX to be a 0-based index"
    ),
}


def _decide(arguments: Mapping[str, int]) -> dict[str, str | None]:
    torch.tpu.distributed.set_tpu_launch_env(**arguments)
    return {name: os.environ.get(name) for name in DECIDED}


def _on(host: Host) -> dict[str, str | None] | str:
    """Return what is decided on this host, or the error's text."""
    os.environ.pop("TPU_WORKER_HOSTNAMES", None)
    os.environ.update(host.variables)
    try:
        decided = _decide(host.arguments)
        assert _decide(host.arguments) == decided  # a second call changes nothing
    except ValueError as error:
        return str(error)
    return decided


def _sum_of_ranks(number: int, world: int, here: int) -> list[float]:
    """Join the job as a launcher's worker, and sum over all ranks."""
    os.environ.update(RANK=str(number), WORLD_SIZE=str(world))
    os.environ.update(LOCAL_RANK=str(number % here), LOCAL_WORLD_SIZE=str(here))
    backend = BACKENDS["torch_tpu"]
    x = torch.full((3,), 2.0**number, device=backend.join())
    dist.all_reduce(x)
    backend.settle()
    values: list[float] = x.cpu().tolist()
    return values


def test_one_host(xla_target: Target) -> None:
    """Each worker has an address of its own, and the grid is that of the host's chips."""
    world = xla_target.topology.total
    decided = _decide({"nproc_per_node": world})
    addresses = (decided[ADDRESSES] or "").split(",")
    assert len(set(addresses)) == world
    assert all(address.startswith("localhost:") for address in addresses)
    assert decided[GRID] == "2,2,1"
    assert (decided[SESSION] or "").isdecimal()
    assert not any(decided[name] for name in ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    sums = fork_ranks(lambda number: _sum_of_ranks(number, world, world), world, deadline=50)
    assert sums == [[2.0**world - 1] * 3] * world


def test_flags_of_a_worker(xla_target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was spawned has not parsed the program's flags, and then can read them.

    Arguments that are no flags, such as a launcher's, are left alone; what was parsed, stays so.
    """
    from absl import flags

    flags.DEFINE_integer("xla_harness_layers", 2, "an example")
    arguments = ["program", "--xla_harness_layers=7", "--of-the-launcher=1", "file"]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(flags.UnparsedFlagAccessError):
        assert flags.FLAGS.xla_harness_layers
    world = xla_target.topology.total
    _decide({"nproc_per_node": world})
    assert flags.FLAGS.xla_harness_layers == 7
    monkeypatch.setattr("sys.argv", ["program", "--xla_harness_layers=9"])
    _decide({"nproc_per_node": world})
    assert flags.FLAGS.xla_harness_layers == 7
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    sums = fork_ranks(lambda number: _sum_of_ranks(number, world, world), world, deadline=50)
    assert sums == [[2.0**world - 1] * 3] * world


def test_all_chips_of_one_host(xla_target: Target) -> None:
    """Without arguments there is a worker for each chip; the name of one host is no other host."""
    world = xla_target.topology.total
    os.environ["TPU_WORKER_HOSTNAMES"] = "alpha"
    decided = _decide({})
    addresses = (decided[ADDRESSES] or "").split(",")
    assert (len(addresses), decided[GRID], decided["NNODES"]) == (world, "2,2,1", None)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    sums = fork_ranks(lambda number: _sum_of_ranks(number, world, world), world, deadline=50)
    assert sums == [[2.0**world - 1] * 3] * world


def test_hosts(xla_target: Target, subtests: pytest.Subtests) -> None:
    """Hosts with one worker each, which are ranked by their index, whatever the order they start.

    Before that, what is decided on other hosts.
    """
    world, port, hosts = xla_target.topology.total, str(free_port()), list(DECISIONS.values())
    answers = fork_ranks(lambda number: _on(hosts[number]), len(hosts), deadline=50)
    for (name, host), answer in zip(DECISIONS.items(), answers, strict=True):
        with subtests.test(name):
            if host.refused:
                assert host.refused in answer
            else:
                assert host.decided.items() <= answer.items()

    def host_of_job(number: int) -> tuple[str, list[float]]:
        index = world - 1 - number
        os.environ.update(TPU_WORKER_HOSTNAMES=HOSTS, JOB_COMPLETION_INDEX=str(index))
        os.environ["MASTER_PORT"] = port
        decided = _decide({"nnodes": world, "nproc_per_node": 1})
        assert decided[ADDRESSES] == ",".join(f"{name}:8070" for name in HOSTS.split(","))
        assert (decided["MASTER_ADDR"], decided["MASTER_PORT"]) == ("127.0.0.1", port)
        rank = decided["NODE_RANK"] or ""
        return rank, _sum_of_ranks(int(rank), world, 1)

    of_hosts = fork_ranks(host_of_job, world, deadline=50)
    assert of_hosts == [(str(world - 1 - n), [2.0**world - 1] * 3) for n in range(world)]


@pytest.mark.long
@pytest.mark.deadline(120)
def test_rank_of_a_host(xla_target: Target) -> None:
    """A host is ranked by where the slice has its first chip, and by its index only without that.

    A child process asks the runtime, which leaves the chips to the workers.
    """
    os.environ.update(TWO | {"JOB_COMPLETION_INDEX": "5", GRID: "4x4,2"})
    decided = _decide({})
    assert (decided["NODE_RANK"], decided["NNODES"], decided[GRID]) == ("0", "2", "4x4,2")
    for name in ("TPU_WORKER_HOSTNAMES", "JOB_COMPLETION_INDEX"):
        del os.environ[name]
    world = xla_target.topology.total
    os.environ |= {ADDRESSES: ",".join(f"localhost:{free_port()}" for _ in range(world))}
    os.environ |= {GRID: "2,2,1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    sums = fork_ranks(lambda number: _sum_of_ranks(number, world, world), world, deadline=50)
    assert sums == [[2.0**world - 1] * 3] * world
