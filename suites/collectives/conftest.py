from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from harness.model.topology import Topology


@pytest.fixture
def world(topology: Topology) -> int:
    """Return the number of ranks, one per device."""
    return topology.total


@pytest.fixture
def group(world: int) -> Iterator[str]:
    """Yield the name of the default process group, which has a rank for each device."""
    with fake_group(world) as name:
        yield name


@pytest.fixture
def group_of_four() -> Iterator[str]:
    """Yield the name of the default process group, of four ranks on any number of devices."""
    with fake_group(4) as name:
        yield name


@contextmanager
def fake_group(ranks: int) -> Iterator[str]:
    """PyTorch's group without peers, this process as rank 0: exporting needs no more."""
    # Here, so that the cases of JAX run where there is no torch.
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield dist.group.WORLD.group_name
    finally:
        dist.destroy_process_group()
