"""Loaders that send batches to devices: each to its own, all of them once, and sharded as asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch_xla.distributed.spmd as xs
from torch_xla.core import xla_model as xm
from torch_xla.debug import metrics
from torch_xla.debug import profiler as xp
from torch_xla.distributed.data_parallel import DataParallel
from torch_xla.distributed.parallel_loader import MpDeviceLoader, ParallelLoader

from harness.model.topology import Topology
from harness.oracles.sharding import check_placement
from harness.session.fixtures import StartRuntime
from suites.shared.torch_xla_releases import since_2_9
from suites.spmd_specs.meshes import grid, numbered, xla_mesh

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*"),
    pytest.mark.topologies(4),
    pytest.mark.upstream("pytorch/xla#8606"),
]


class Batches:
    """Batches of other numbers each, as PyTorch's DataLoader has them."""

    def __init__(self, count: int, *, named: bool = False) -> None:
        self._count = count
        self._named = named

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        for n in range(self._count):
            x = numbered((4, 8)) + 100 * n
            yield {"x": x, "y": -x[:, 0]} if self._named else (x, [-x[:, 0], "label"])


def test_batches_of_devices(start_runtime: StartRuntime) -> None:
    """Devices take turns; of a last round that is not full, nobody gets a batch."""
    start_runtime(spmd=False)
    loader = ParallelLoader(Batches(7), xm.get_xla_supported_devices()[:3], batches_per_execution=2)
    steps = metrics.counter_value("MarkStep") or 0
    for place in range(3):
        own = loader.per_device_loader(f"xla:{place}")
        assert len(own) == 2
        batches = list(own)
        assert len(batches) == 2
        for round_, (x, (y, label)) in enumerate(batches):
            expected = numbered((4, 8)) + 100 * (3 * round_ + place)
            assert str(x.device) == str(y.device) == f"xla:{place}"
            assert torch.equal(x.cpu(), expected)
            assert torch.equal(y.cpu(), -expected[:, 0])
            assert label == "label"
    # Two of each device: for both of its batches, and at the end.
    assert metrics.counter_value("MarkStep") == steps + 3 * 2
    loader.close()


@pytest.mark.parametrize("named", [False, True], ids=["tuple", "dict"])
def test_sharded_batches(topology: Topology, start_runtime: StartRuntime, named: bool) -> None:
    """One specification for all tensors of its rank, or one for each name; twice the same."""
    start_runtime(spmd=True)
    layout = grid(topology)
    mesh = xla_mesh(layout)
    rows, first = xs.ShardingSpec(mesh, ("x", "y")), xs.ShardingSpec(mesh, (("y", "x"),))
    sharding = {"x": rows, "y": first} if named else rows
    loader = MpDeviceLoader(
        Batches(3, named=named),
        "xla:0",
        input_sharding=sharding,
        loader_prefetch_size=2,
        device_prefetch_size=1,
        host_to_device_transfer_threads=1,
    )
    assert len(loader) == 3
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == 3
        for n, batch in enumerate(batches):
            x, y = (batch["x"], batch["y"]) if named else (batch[0], batch[1][0])
            expected = (numbered((4, 8)) + 100 * n).numpy()
            check_placement(x, expected, layout, ("x", "y"))
            check_placement(y, -expected[:, 0], layout, (("y", "x"),) if named else (None,))


def test_one_axis_of_two(topology: Topology, start_runtime: StartRuntime) -> None:
    """A specification that leaves an axis of the mesh out, as mark_sharding takes it."""
    start_runtime(spmd=True)
    layout = grid(topology)
    sharding = xs.ShardingSpec(xla_mesh(layout), ("y",))
    (labels,) = MpDeviceLoader([numbered((8,))], "xla:0", input_sharding=sharding)
    check_placement(labels, numbered((8,)).numpy(), layout, ("y",))


@since_2_9
def test_refused_batches(topology: Topology, start_runtime: StartRuntime) -> None:
    """What goes wrong in the loader's threads is raised where the batch is taken."""
    start_runtime(spmd=True)
    rows = xs.ShardingSpec(xla_mesh(grid(topology)), ("x", None))
    with pytest.raises(KeyError, match=r"\['y'\] are missing from input_sharding"):
        list(MpDeviceLoader(Batches(2, named=True), "xla:0", input_sharding={"x": rows}))
    with pytest.raises(ValueError, match="should be a dict when input sharding is a dict"):
        list(MpDeviceLoader(Batches(2), "xla:0", input_sharding={"x": rows}))
    uneven = xs.ShardingSpec(xs.get_1d_mesh("x"), ("x", None), minibatch=True)
    with pytest.raises(RuntimeError, match="batch size must be divisible by local runtime device"):
        list(MpDeviceLoader([numbered((6, 8))], "xla:0", input_sharding=uneven))


def test_threads_of_devices(start_runtime: StartRuntime) -> None:
    """DataParallel: a copy of the model on each device, a thread for each, and its own batches."""
    start_runtime(spmd=False)
    model = torch.nn.Linear(8, 2)
    parallel = DataParallel(lambda: model, batches_per_execution=1)
    assert parallel.devices == xm.get_xla_supported_devices()

    def loop(own: Any, batches: Any, device: torch.device, context: Any, scale: float) -> Any:
        calls = context.getattr_or("calls", list)
        calls.append(device)
        results = [own(x).mul(scale).cpu() for x, _ in batches]
        return str(device), len(calls), context.getattr_or("calls", None) is calls, results

    for call in (1, 2):
        answers = parallel(loop, Batches(9), scale=2.0)
        assert len(answers) == 4
        for place, answer in enumerate(answers):
            assert answer[:3] == (f"xla:{place}", call, True)
            expected = [model(numbered((4, 8)) + 100 * n) * 2 for n in (place, place + 4)]
            torch.testing.assert_close(
                answer[3], [x.detach() for x in expected], rtol=1e-4, atol=1e-3
            )
    assert all(own is not model for own in parallel.models)


def test_no_devices(start_runtime: StartRuntime) -> None:
    """Without devices the model runs on the host, in this thread."""
    start_runtime(spmd=False)
    model = torch.nn.Linear(8, 2)
    parallel = DataParallel(model, [])

    def loop(own: Any, batches: Any, device: torch.device, *_: Any) -> Any:
        return own, device, [n for n, _ in batches]

    assert parallel(loop, Batches(2)) == [(model, torch.device("cpu"), [0, 1])]
    assert parallel.devices == ["cpu"]


@pytest.mark.upstream("pytorch/xla#2710")
@since_2_9
def test_executions(start_runtime: StartRuntime) -> None:
    """Each batch, or so many together, is an execution, unless a trace of steps has begun one."""
    start_runtime(spmd=False)

    def executions(traced: bool, **options: Any) -> int:
        before = metrics.counter_value("MarkStep") or 0
        loader = MpDeviceLoader([numbered((2,))] * 7, "xla:0", **options)
        sums = []
        for batch in loader:
            if traced:
                with xp.StepTrace("step"):
                    sums.append((batch + 1).sum())
            else:
                sums.append((batch + 1).sum())
        count = (metrics.counter_value("MarkStep") or 0) - before
        assert [x.item() for x in sums] == [3.0] * 7
        return int(count)

    # The question that has no answer, and the end, are two more.
    assert executions(traced=False) == 7 + 2
    assert executions(traced=False, batches_per_execution=1) == 7 + 2
    assert executions(traced=False, batches_per_execution=2) == 7 // 2 + 2
    assert executions(traced=False, batches_per_execution=3) == 7 // 3 + 1
    assert executions(traced=True) == 1 + 7 + 1


@since_2_9
def test_waiting_batches(start_runtime: StartRuntime) -> None:
    """No more are read, and sent, than the queues hold, and closing the loader ends its threads."""
    start_runtime(spmd=False)
    read: list[int] = []

    def endless() -> Iterator[torch.Tensor]:
        while True:
            read.append(len(read))
            yield numbered((2,))

    loader = ParallelLoader(
        endless(),
        ["xla:0", "xla:1"],
        loader_prefetch_size=2,
        device_prefetch_size=3,
        host_to_device_transfer_threads=2,
    )
    assert loader.batches_per_execution == 1
    own = loader.per_device_loader("xla:1")
    assert iter(own) is own
    for _ in range(4):
        assert str(next(own).device) == "xla:1"
    threads = list(loader._threads)
    assert len(threads) == 1 + 2 * 2
    deadline = time.monotonic() + 10
    count = -1
    while count != len(read) and time.monotonic() < deadline:
        count = len(read)
        time.sleep(0.05)
    # Of each device: in both queues, in both threads' hands, and what was taken; one in the reader.
    assert 2 * 4 <= count <= 2 * (2 + 3 + 2 * 3 + 4) + 2
    loader.close()
    assert not any(each.is_alive() for each in threads)
