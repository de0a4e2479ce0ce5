"""What torch_xla's runtime and core say of a job and its devices, and small helpers of a step."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_xla
from torch_xla import runtime as xr
from torch_xla.core import xla_model as xm
from torch_xla.distributed.data_parallel import Context, DataParallel

from harness.job.ranks import run_ranks
from harness.model.topology import Topology
from harness.session.fixtures import StartRuntime
from suites.shared.backends import join_replicas
from suites.shared.torch_xla_releases import since_2_9

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.upstream("pytorch/xla#3824"),
    since_2_9,
]


def _says(number: int) -> dict[str, Any]:
    join_replicas()
    attributes = xr.global_runtime_device_attributes()
    own = xr.runtime_device_attributes(str(torch_xla.device()))
    return {
        "device-type": xr.device_type(),
        "spmd": xr.is_spmd(),
        "host": xr.host_index(),
        # All replicas take part in it, of which a host's process has several.
        "master": xr.get_master_ip() if xr.addressable_device_count() == 1 else None,
        "process": (xr.process_index(), xr.process_count()),
        "ordinal": xr.global_ordinal(),
        "world": xr.world_size(),
        "runtime": (xr.global_runtime_device_count(), xr.addressable_runtime_device_count()),
        "places": [tuple(each["coords"]) for each in attributes],
        "own": tuple(own["coords"]),
        "number": number,
    }


@pytest.mark.topologies("v6e:2x2@chip", "8@host")
def test_processes(topology: Topology) -> None:
    """Each process has its own number and chip; all of them agree on the rest."""
    ranks = run_ranks(_says, topology)
    chips = topology.total // topology.process_count
    for number, answers in enumerate(ranks):
        assert (answers["device-type"], answers["spmd"]) == ("TPU", False)
        assert answers["number"] == number
        assert answers["process"] == (number, topology.process_count)
        assert answers["world"] == topology.total
        assert answers["ordinal"] == number * chips
        assert answers["runtime"] == (topology.total, chips)
        assert answers["own"] == answers["places"][number * chips]
        assert answers["host"] == number
        assert answers["master"] == ("127.0.0.1" if chips == 1 else None)
    assert len(set(ranks[0]["places"])) == topology.total


@pytest.mark.topologies(4)
@pytest.mark.parametrize("how", ["variable", "call", "late"])
def test_use_spmd(start_runtime: StartRuntime, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """By a variable that is deprecated, by the call, and after the first tensor."""
    if how == "late":
        start_runtime(spmd=False)
        early = torch.ones(2, device="xla")
        torch_xla.sync()
        with pytest.warns(UserWarning, match="Replicating tensors already initialized"):
            xr.use_spmd()
        assert early.cpu().tolist() == [1.0, 1.0]
    elif how == "variable":
        monkeypatch.setenv("XLA_USE_SPMD", "1")
        with pytest.warns(UserWarning, match="XLA_USE_SPMD is being deprecated"):
            xr.use_spmd()
        start_runtime(spmd=True)
    else:
        start_runtime(spmd=True)
    assert (xr.is_spmd(), xr.global_device_count(), xr.global_runtime_device_count()) == (
        True,
        1,
        4,
    )
    assert (torch.ones(2, device="xla") + 1).cpu().tolist() == [2.0, 2.0]


@pytest.mark.topologies(1)
@pytest.mark.parametrize("readonly", [False, True])
def test_persistent_cache(start_runtime: StartRuntime, tmp_path: Path, readonly: bool) -> None:
    """Compiled programs are written to the folder, unless it is only to be read."""
    xr.initialize_cache(str(tmp_path), readonly=readonly)
    start_runtime(spmd=False)
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    assert (x * 2 + 5).cpu().tolist() == [7.0, 7.0, 7.0]
    xm.wait_device_ops()
    assert bool(list(tmp_path.iterdir())) is not readonly
    with pytest.raises(AssertionError, match="already been initialized"):
        xr.initialize_cache(str(tmp_path))


@pytest.mark.topologies(1)
def test_chosen_device_type(start_runtime: StartRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The type is the variable's, up to an underscore; it can't change once there are devices."""
    before = os.environ["PJRT_DEVICE"]
    xr.set_device_type("CPU_X")
    assert (os.environ["PJRT_DEVICE"], xr.device_type()) == ("CPU_X", "CPU")
    assert xr.host_index() == 0
    with pytest.raises(RuntimeError, match="IP discovery not supported for device: CPU"):
        xr.get_master_ip()
    monkeypatch.delenv("PJRT_DEVICE")
    assert xr.device_type() is None
    xr.set_device_type(before)
    start_runtime(spmd=False)
    xr.set_device_type(before)
    with pytest.raises(RuntimeError, match="Can't change device type"):
        xr.set_device_type("CPU")
    assert os.environ["PJRT_DEVICE"] == before
    assert xr.is_bf16_supported()
    assert torch.ones(2, device="xla").sum().item() == 2


@pytest.mark.topologies(1)
@pytest.mark.parametrize("variable", ["CLOUD_TPU_TASK_ID", "TPU_WORKER_ID"])
def test_number_of_a_host(
    start_runtime: StartRuntime, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Without a plugin in Python, as libtpu has none, the number is the variable's."""
    with monkeypatch.context() as variables:
        for name in ("CLOUD_TPU_TASK_ID", "TPU_WORKER_ID", "PJRT_DYNAMIC_PLUGINS"):
            variables.delenv(name, raising=False)
        variables.setenv("PJRT_DEVICE", "TPU")
        variables.setenv("TPU_SKIP_MDS_QUERY", "1")
        variables.setenv(variable, "3")
        assert xr.host_index() == 3
    start_runtime(spmd=False)
    assert xr.host_index() == 0
    assert torch.ones(2, device="xla").sum().item() == 2


@pytest.mark.topologies(1)
def test_memory_of_a_device(start_runtime: StartRuntime) -> None:
    """A tensor takes its bytes; the default is the device of this process."""
    start_runtime(spmd=False)
    torch_xla.sync()
    before = xm.get_memory_info("xla:0")
    x = torch.ones(2**20, device="xla")
    torch_xla.sync(wait=True)
    after = xm.get_memory_info()
    assert x.sum().item() == 2**20
    assert after["bytes_used"] - before["bytes_used"] >= 4 * 2**20
    assert after["bytes_limit"] == before["bytes_limit"] > after["bytes_used"]


@pytest.mark.topologies(1)
def test_rates(start_runtime: StartRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples for each second: since the last question, smoothed, and since the beginning."""
    start_runtime(spmd=False)
    now = [100.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    tracker = xm.RateTracker(smooth_factor=0.25)
    assert (tracker.rate(), tracker.global_rate()) == (0.0, 0.0)
    now[0] = 102.0
    tracker.add(6)
    tracker.add(2)
    assert tracker.global_rate() == 4.0
    assert tracker.rate() == 4.0
    now[0] = 103.0
    tracker.add(12)
    assert tracker.rate() == 0.75 * 12 + 0.25 * 4.0
    assert tracker.rate() == 0.0
    assert tracker.global_rate() == 20 / 3
    monkeypatch.setenv("RATE_TRACKER_SMOOTHING", "0.5")
    tracker = xm.RateTracker()
    for count, expected in ((2, 2.0), (4, 3.0)):
        now[0] += torch.ones(1, device="xla").item()
        tracker.add(count)
        assert tracker.rate() == expected


@pytest.mark.topologies(1)
def test_shared_views(start_runtime: StartRuntime) -> None:
    """Tensors on the host that share memory are found, wherever they are in what is sent."""
    start_runtime(spmd=False)
    x, y = torch.ones(4), torch.ones(4)
    xm.check_view_sharing([x, {"y": (y, x)}, "text"])
    device = x.to("xla")
    xm.check_view_sharing([device, device * 2, device])
    assert (device * 2).sum().item() == 8
    for shared in (x[1:].view(3), x.view(2, 2)):
        aliased = [y, {"x": x}, (torch.as_strided(x, shared.shape, shared.stride()),)]
        with pytest.raises(RuntimeError, match=r"is sharing a view with tensor .*float32\[4\]"):
            xm.check_view_sharing(aliased)


@pytest.mark.topologies(1)
def test_reductions_of_one_device(
    start_runtime: StartRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reduction over one device is a copy, or in place the tensors themselves."""
    start_runtime(spmd=False)
    x = torch.arange(3.0, device="xla")
    for always in ("0", "1"):
        monkeypatch.setenv("XLA_ALWAYS_ALLREDUCE", always)
        result = xm.all_reduce("sum", x, scale=1.0)
        result += 1
        assert x.cpu().tolist() == [0.0, 1.0, 2.0]
        given = [x, x * 2]
        reduced = xm.all_reduce("sum", given)
        assert reduced is given
        assert [each.cpu().tolist() for each in reduced] == [[0.0, 1.0, 2.0], [0.0, 2.0, 4.0]]
    assert xm.all_gather(x, -1).cpu().tolist() == [0.0, 1.0, 2.0]


def _after_broadcast(number: int) -> tuple[list[torch.Tensor], bool, str]:
    os.environ["PJRT_LOCAL_PROCESS_RANK"] = str(number)  # as torch_xla's launchers do
    device = join_replicas()
    model = torch.nn.BatchNorm1d(3).to(device)
    with torch.no_grad():
        model.weight.fill_(number + 5)
        model.running_mean.fill_(number + 7)
    xm.broadcast_master_param(model)
    output = io.StringIO()
    xm.master_print("of", number, fd=output, flush=True)
    xm.master_print("here", fd=output, local=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.weight.grad = torch.full((3,), float(number), device=device)
    xm.optimizer_step(optimizer, barrier=number == 0, optimizer_args={"closure": None})
    return (
        [x.detach().cpu() for x in model.state_dict().values()],
        xm.is_master_ordinal(),
        output.getvalue(),
    )


@pytest.mark.topologies("4@chip")
def test_first_rank(topology: Topology) -> None:
    """Rank 0's parameters and buffers go to all; it alone prints; gradients are averaged."""
    for rank, (state, master, printed) in enumerate(run_ranks(_after_broadcast, topology)):
        assert master is (rank == 0)
        assert printed == ("of 0\nhere\n" if rank == 0 else "")
        weight, bias, mean, *_ = state
        assert weight.tolist() == [5 - 1.5] * 3
        assert bias.tolist() == [0.0] * 3
        assert mean.tolist() == [7.0] * 3


@pytest.mark.topologies(2)
def test_thread_that_raises(start_runtime: StartRuntime, capfd: Any) -> None:
    """An error in one device's thread ends the process, since the others would wait forever."""
    process = os.fork()
    if process == 0:
        sys.stderr = os.fdopen(2, "w", closefd=False)
        start_runtime(spmd=False)
        parallel = DataParallel(torch.nn.Linear(2, 2))

        def loop(*_: Any) -> None:
            raise ValueError("of this thread")

        parallel(loop, [torch.ones(1, 2)] * 2)
        os._exit(0)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 17
    errors = capfd.readouterr().err
    assert "Exception in model function for device=xla:" in errors
    assert "ValueError: of this thread" in errors
    start_runtime(spmd=False)
    assert torch.ones(2, device="xla").sum().item() == 2


@pytest.mark.topologies(2)
def test_models_of_devices(start_runtime: StartRuntime) -> None:
    """Each device has a copy of its own, and its replicas' numbers; contexts keep what is set."""
    start_runtime(spmd=False)
    parallel = DataParallel(torch.nn.Linear(2, 2), device_ids=["xla:0", "xla:1"])
    assert parallel.devices == ["xla:0", "xla:1"]
    assert [str(next(m.parameters()).device) for m in parallel.models] == parallel.devices

    def loop(_: Any, batches: Any, device: Any, context: Context, **given: Any) -> Any:
        total = xm.all_reduce("sum", torch.ones(1, device=device) * (device.index + 1)).item()
        return total, context.device, len(list(batches)), given

    answers = parallel(loop, [torch.ones(1, 2)] * 4, batchdim=0, mark=3)
    assert answers == [(3.0, torch.device(f"xla:{n}"), 2, {"mark": 3}) for n in range(2)]
    context = Context(torch.device("cpu"))
    assert context.getattr_or("value", 4) == 4
    assert context.getattr_or("value", 5) == 4
    mixed = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).to("xla")])
    with pytest.raises(RuntimeError, match="Model uses more than one device"):
        DataParallel(mixed, [])
    on_device = DataParallel(lambda: torch.nn.Linear(2, 2).to("xla:1"), [], other=5)
    assert on_device.devices == ["xla:1"]

    def alone(_: Any, batches: Any, device: Any, context: Context, options: Any) -> Any:
        return list(batches), device, context.device, options

    device = torch.device("xla:1")
    assert on_device(alone, ["batch"]) == [([(0, "batch")], device, device, {"other": 5})]
    assert DataParallel(torch.nn.Tanh(), []).devices == ["cpu"]
