"""CheckpointManager: which steps it keeps, and that each of them is restored as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch_xla
import torch_xla.distributed.spmd as xs
from torch_xla.experimental.distributed_checkpoint import CheckpointManager

from harness.model.topology import Topology
from harness.oracles.sharding import Layout, check_placement
from harness.session.fixtures import StartRuntime
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
