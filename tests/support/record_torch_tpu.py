"""Records what torch_tpu submits for its collectives, for ``fixtures/torch_tpu/``.

In the environment of a stack with torch_tpu, at the root of the project::

    XLA_HARNESS_EVENTS=/tmp/events.jsonl xla-harness run --topology 4 --processes chip -- \
        python tests/support/record_torch_tpu.py fixtures/torch_tpu/programs.json
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from harness.lanes.virtual.submitted import Ran, Submitted, recording

Step = Callable[[torch.Tensor], object]
SHAPE = 8, 4
NAMES = b"all_reduce", b"all_gather", b"all_to_all", b"reduce_scatter"


def main(path: Path) -> None:
    """Record each step's program with a collective; rank 0 writes them."""
    with recording() as ran:
        dist.init_process_group("tpu")
        programs = {name: _encoded(_collective(ran, step)) for name, step in _steps().items()}
        if dist.get_rank() == 0:
            recorded = {"torch_tpu": version("torch_tpu"), "programs": programs}
            path.write_text(json.dumps(recorded, indent=1) + "\n")
        dist.barrier()
        dist.destroy_process_group()


def _steps() -> dict[str, Step]:
    ops = dist.ReduceOp
    world, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("tpu", (world,))
    strided = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    rows, columns = SHAPE

    def empty(height: int, x: torch.Tensor) -> torch.Tensor:
        return x.new_empty((height, columns))

    def redistribute(source: Placement, target: Placement) -> Step:
        def step(x: torch.Tensor) -> object:
            y = DTensor.from_local(x, mesh, [source], run_check=False)
            return y.redistribute(placements=[target]).to_local()

        return step

    def reduced(op: dist.ReduceOp.RedOpType, dtype: torch.dtype) -> Step:
        return lambda x: dist.all_reduce(x.to(dtype), op)

    reductions = {"sum": ops.SUM, "max": ops.MAX, "min": ops.MIN, "product": ops.PRODUCT}
    bitwise = {"and": ops.BAND, "or": ops.BOR, "xor": ops.BXOR}
    return {
        **{f"all_reduce-{name}": reduced(op, torch.float32) for name, op in reductions.items()},
        **{f"all_reduce-{name}": reduced(op, torch.int32) for name, op in bitwise.items()},
        "all_reduce-strided": lambda x: dist.all_reduce(x, group=strided),
        "all_gather": lambda x: dist.all_gather_into_tensor(empty(rows * world, x), x),
        "reduce_scatter": lambda x: dist.reduce_scatter_tensor(empty(rows // world, x), x),
        "all_to_all": lambda x: dist.all_to_all_single(torch.empty_like(x), x),
        "broadcast": lambda x: dist.broadcast(x, 1),
        "dtensor-shard-to-replicate": redistribute(Shard(0), Replicate()),
        "dtensor-partial-to-replicate": redistribute(Partial(), Replicate()),
        "dtensor-partial-to-shard": redistribute(Partial(), Shard(0)),
        "dtensor-shard-to-shard": redistribute(Shard(0), Shard(1)),
    }


def _collective(ran: Ran, step: Step) -> Submitted:
    """The one program of the step that has a collective."""
    x = torch.full(SHAPE, float(dist.get_rank() + 1)).to("tpu")
    torch.accelerator.synchronize()

    def run() -> None:
        step(x)
        torch.accelerator.synchronize()

    (program,) = (each for each in ran(run) if any(name in each.code for name in NAMES))
    return program


def _encoded(program: Submitted) -> dict[str, str]:
    return {
        "form": program.form,
        "code": base64.b64encode(program.code).decode(),
        "options": base64.b64encode(program.options).decode(),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
