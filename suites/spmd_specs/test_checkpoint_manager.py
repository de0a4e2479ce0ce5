"""CheckpointManager: which steps it keeps, and that each of them is restored as it was."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch_xla
import torch_xla.distributed.spmd as xs
from torch.distributed.checkpoint.api import CheckpointException
from torch_xla.debug import metrics
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, prime_optimizer

from harness.model.topology import Topology
from harness.oracles.sharding import Layout, check_placement
from harness.session.fixtures import StartRuntime
from suites.shared.torch_xla_releases import since_2_9
from suites.spmd_specs.meshes import grid, numbered, shuffled, xla_mesh

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*"),
    pytest.mark.topologies(4),
    pytest.mark.upstream("pytorch/xla#7215"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
]


@pytest.fixture
def one_process(tmp_path: Path) -> Any:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _state(layout: Layout, step: int) -> dict[str, Any]:
    """Tensors of which some are sharded, in lists and dicts, beside numbers and texts."""
    mesh = xla_mesh(layout)
    uneven, rows = numbered((5, 6)).add(step).to("xla"), numbered((8,)).mul(step).to("xla")
    xs.mark_sharding(uneven, mesh, ("y", "x"))
    xs.mark_sharding(rows, mesh, (("y", "x"),))
    replicated = numbered((3,)).add(step).to("xla")
    xs.mark_sharding(replicated, mesh, (None,))
    torch_xla.sync()
    return {
        "sharded": {"uneven": uneven, "list": [rows, {"replicated": replicated}, step]},
        "host": numbered((2,)) - step,
        "plain": numbered((2, 2)).sub(step).to("xla"),
        "values": [f"step {step}", step],
    }


def _check(state: dict[str, Any], layout: Layout, step: int) -> None:
    rows, inner, number = state["sharded"]["list"]
    check_placement(
        state["sharded"]["uneven"], numbered((5, 6)).add(step).numpy(), layout, ("y", "x")
    )
    check_placement(rows, numbered((8,)).mul(step).numpy(), layout, (("y", "x"),))
    assert torch.equal(inner["replicated"].cpu(), numbered((3,)) + step)
    assert torch.equal(state["host"], numbered((2,)) - step)
    assert torch.equal(state["plain"].cpu(), numbered((2, 2)) - step)
    assert (number, state["values"]) == (step, [f"step {step}", step])


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("how", ["save", "save_async"])
def test_steps(topology: Topology, start_runtime: StartRuntime, tmp_path: Path, how: str) -> None:
    """Every second step, or any by force, of which two are kept; also for another manager."""
    start_runtime(spmd=True)
    layout, path = grid(topology), tmp_path / "steps"

    def manager(**options: Any) -> CheckpointManager:
        return CheckpointManager(str(path), 2, chkpt_on_preemption=False, **options)

    first = manager(max_to_keep=2, max_pending_async=2)
    assert first.all_steps() == []
    saved = {}
    for step in range(1, 6):
        saved[step] = getattr(first, how)(step, _state(layout, step), force=step == 5)
    first.join()
    assert saved == {1: False, 2: True, 3: False, 4: True, 5: True}
    assert first.all_steps() == [4, 5]
    assert sorted(int(each.name) for each in path.iterdir()) == [4, 5]
    (path / "unfinished").mkdir()
    second = manager()
    assert second.all_steps() == [4, 5]
    other = Layout((1, 4), shuffled(4, 3), ("x", "y"))
    for step in (5, 4):
        state = _state(other, 0)
        second.restore(step, state)
        _check(state, other, step)
    with pytest.raises(AssertionError, match="Cannot restore from untracked step 2"):
        second.restore(2, {})
    assert second.save(4, _state(layout, 7))
    state = _state(other, 0)
    second.restore(4, state)
    _check(state, other, 7)


@pytest.mark.usefixtures("one_process")
def test_wrong_options(start_runtime: StartRuntime, tmp_path: Path) -> None:
    start_runtime(spmd=True)
    for options in ({"save_interval": 0}, {"max_pending_async": 0}, {"max_to_keep": -1}):
        with pytest.raises(AssertionError, match=f"{next(iter(options))} must be"):
            CheckpointManager(str(tmp_path), **{"save_interval": 1, **options})


def test_without_a_group(start_runtime: StartRuntime, tmp_path: Path) -> None:
    start_runtime(spmd=True)
    with pytest.raises(AssertionError, match="A process group is required"):
        CheckpointManager(str(tmp_path), 1)


@pytest.mark.usefixtures("one_process")
@since_2_9
def test_oldest_step(topology: Topology, start_runtime: StartRuntime, tmp_path: Path) -> None:
    """The step that was saved first is deleted first, also by a manager that found the others."""
    start_runtime(spmd=True)
    layout, path = grid(topology), tmp_path / "new" / "steps"
    path.parent.mkdir()

    def manager(**options: Any) -> CheckpointManager:
        return CheckpointManager(str(path), 1, chkpt_on_preemption=False, **options)

    first = manager(num_of_threads=2)
    state = _state(layout, 1)
    for step in (6, 2, 4):
        assert first.save(step, state)
        files = [each for each in (path / str(step)).iterdir() if each.suffix == ".distcp"]
        assert len(files) == 2  # one for each thread
    assert first.all_steps() == [2, 4, 6]
    second = manager(max_to_keep=2, process_group=dist.group.WORLD)
    assert second.pg is dist.group.WORLD
    assert second.all_steps() == [2, 4, 6]
    assert second.save(1, state)
    assert second.all_steps() == [1, 4]
    assert sorted(each.name for each in path.iterdir()) == ["1", "4"]
    third = manager()
    assert third.save(4, state)
    assert len(list((path / "4").glob("*.distcp"))) == 1  # nothing is left of the first time
    target = _state(Layout((1, 4), shuffled(4, 3), ("x", "y")), 0)
    second.restore(1, target)
    _check(target, Layout((1, 4), shuffled(4, 3), ("x", "y")), 1)


@pytest.mark.usefixtures("one_process")
@since_2_9
def test_step_saved_again(topology: Topology, start_runtime: StartRuntime, tmp_path: Path) -> None:
    """As after a restart from an earlier step: the step is there with its new numbers."""
    start_runtime(spmd=True)
    layout, path = grid(topology), tmp_path / "steps"
    manager = CheckpointManager(str(path), 1, max_to_keep=2, chkpt_on_preemption=False)
    for step, factor in ((1, 1), (2, 1), (1, 3)):
        assert manager.save(step, _state(layout, factor))
    assert sorted(each.name for each in path.iterdir()) == ["1", "2"]
    target = _state(layout, 0)
    manager.restore(1, target)
    _check(target, layout, 3)


@pytest.mark.usefixtures("one_process")
@since_2_9
def test_states_of_other_names(start_runtime: StartRuntime, tmp_path: Path) -> None:
    """A state whose parts would have the same name is refused; numbers as keys are names."""
    start_runtime(spmd=True)
    manager = CheckpointManager(str(tmp_path), 1, chkpt_on_preemption=False)
    x = numbered((4,)).to("xla")
    with pytest.raises(CheckpointException, match=r"duplicated flatten key a\.b"):
        manager.save(1, {"a": {"b": x}, "a.b": x})
    mesh = xs.Mesh(range(4), (4,), ("x",))
    sharded = numbered((4, 2)).to("xla")
    xs.mark_sharding(sharded, mesh, ("x", None))
    assert manager.save_async(2, {"a": [[1, 2], [3, [x, 4]]], "b": [[5], sharded], "c": []})
    manager.join()
    target: dict[str, Any] = {"a": [[0, 0], [0, [x * 0, 0]]], "b": [[0], None], "c": [1]}
    target["b"][1] = numbered((4, 2)).to("xla") * 0
    torch_xla.sync()
    xs.mark_sharding(target["b"][1], mesh, (None, None))
    manager.restore(2, target)
    (ones, (three, (restored, four))), (five, whole) = target["a"], target["b"]
    assert (ones, three, four, five, target["c"]) == ([1, 2], 3, 4, [5], [])
    assert torch.equal(restored.cpu(), numbered((4,)))
    assert torch.equal(whole.cpu(), numbered((4, 2)))


@pytest.mark.upstream("pytorch/xla#7919")
@pytest.mark.usefixtures("one_process")
@since_2_9
def test_partly_replicated(topology: Topology, start_runtime: StartRuntime, tmp_path: Path) -> None:
    """A tensor of which two devices hold the same part is saved, too."""
    start_runtime(spmd=True)
    layout = grid(topology)
    manager = CheckpointManager(str(tmp_path), 1, chkpt_on_preemption=False)
    states = [{"x": numbered((4, 4)).mul(n).to("xla")} for n in (1, 0)]
    for state in states:
        xs.mark_sharding(state["x"], xla_mesh(layout), ("x", None))
    assert manager.save(1, states[0])
    manager.restore(1, states[1])
    check_placement(states[1]["x"], numbered((4, 4)).numpy(), layout, ("x", None))


@pytest.mark.lanes("virtual-tpu")
@pytest.mark.upstream("pytorch/xla#5753")
@pytest.mark.usefixtures("one_process")
@since_2_9
def test_preemption(start_runtime: StartRuntime, tmp_path: Path) -> None:
    """After a SIGTERM one of the next steps is saved, of whatever number."""
    start_runtime(spmd=True)
    manager = CheckpointManager(str(tmp_path / "steps"), 1000)
    x = numbered((4,)).to("xla") * 1
    assert not manager.save(1, {"x": x})
    assert not manager.reached_preemption(2)
    os.kill(os.getpid(), signal.SIGTERM)
    until, step = time.monotonic() + 20, 3
    while not manager.save_async(step, {"x": x}):
        assert time.monotonic() < until
        time.sleep(0.01)
        step += 1
    manager.join()
    assert manager.all_steps() == [step]
    other = CheckpointManager(str(tmp_path / "steps"), 1000, chkpt_on_preemption=False)
    restored = {"x": x * 0}
    other.restore(step, restored)
    assert torch.equal(restored["x"].cpu(), numbered((4,)))
    with pytest.raises(AssertionError, match="Preemption detection not enabled"):
        other.reached_preemption(step)


OPTIMIZERS: dict[str, Any] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.5),
    "adam": lambda p: torch.optim.Adam(p, lr=0.5),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@since_2_9
def test_primed_optimizer(topology: Topology, start_runtime: StartRuntime, optimizer: str) -> None:
    """The optimizer gets its state, sharded as its parameters, and changes no number of theirs."""
    start_runtime(spmd=True)
    layout = grid(topology)
    sharded, plain, frozen = (
        torch.nn.Parameter(numbered((4, 4)).to("xla"), requires_grad=n < 2) for n in range(3)
    )
    for each in (sharded, frozen):
        xs.mark_sharding(each, xla_mesh(layout), ("y", "x"))
    made = OPTIMIZERS[optimizer]([{"params": [sharded, plain]}, {"params": [frozen]}])
    steps = metrics.counter_value("MarkStep") or 0
    assert prime_optimizer(made) is made
    assert metrics.counter_value("MarkStep") == steps + 2  # parameters first, then their states
    assert set(made.state) == {sharded, plain}
    for each, specification in ((sharded, ("y", "x")), (plain, None)):
        assert torch.equal(each.detach().cpu(), numbered((4, 4)))
        zeros = [v for v in made.state[each].values() if v is not None and v.ndim == 2]
        assert len(zeros) == (1 if optimizer == "momentum" else 2)
        assert each.grad is not None
        for zero in (*zeros, each.grad):
            assert not zero.requires_grad
            if specification:
                check_placement(zero, numbered((4, 4)).numpy() * 0, layout, specification)
            else:
                assert not zero.cpu().any()
    assert frozen.grad is None
