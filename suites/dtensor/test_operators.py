"""Operations on a distributed tensor, with functionalization on and off.

The oracle is eager PyTorch: a distributed tensor is by definition worth the global one.
"""

from collections.abc import Callable

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional
from torch_xla.distributed.spmd import mark_sharding
from torch_xla.distributed.spmd.api import convert_to_xla_mesh

from harness.oracles import dtensor as oracle
from harness.oracles.torch_dtensor import distribute_tensor
from harness.session.fixtures import StartRuntime
from suites.dtensor.layouts import FUNCTIONALIZATION, S0, S1, R, quiet_upstream, ranks
from suites.dtensor.shards import assert_close_to_held, assert_functionalization, assert_value

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*"),
    pytest.mark.upstream("pytorch/xla#9472"),
    quiet_upstream,
]

OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "T": lambda x, y: x.T,
    "t": lambda x, y: x.t(),
    "transpose": lambda x, y: x.transpose(0, 1),
    "linear": lambda x, y: functional.linear(y, x),
    "matmul": lambda x, y: y @ x,
    "slice": lambda x, y: x[2:5],
    "index": lambda x, y: x[1],
    "chunk": lambda x, y: x.chunk(2, dim=1)[1],
    "reshape": lambda x, y: x.reshape(-1),
    "relu": lambda x, y: torch.relu(x),
    "softmax": lambda x, y: torch.softmax(x, dim=0),
    "sum": lambda x, y: x.sum(dim=0),
    "layer_norm": lambda x, y: functional.layer_norm(x, (8,)),
    "embedding": lambda x, y: functional.embedding(y.abs().long(), x),
}


def seeded(seed: int) -> torch.Tensor:
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.topologies(4)
@FUNCTIONALIZATION
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation(start_runtime: StartRuntime, operation: str, functionalization: bool) -> None:
    start_runtime(spmd=True)
    expected = OPERATIONS[operation](seeded(0), seeded(1))
    assert_functionalization(on=functionalization)
    mesh = DeviceMesh("xla", ranks((4,)))
    x = distribute_tensor(seeded(0), mesh, (S0,))
    y = distribute_tensor(seeded(1), mesh, (R,))
    assert_value(OPERATIONS[operation](x, y), expected, operation)


@pytest.mark.topologies(4)
@FUNCTIONALIZATION
@pytest.mark.parametrize(
    "mix",
    [torch.add, torch.matmul, lambda plain, x: torch.matmul(x, plain)],
    ids=["plain+sharded", "plain@sharded", "sharded@plain"],
)
@pytest.mark.upstream("pytorch/xla#8775", "pytorch/xla#5798")
def test_result_with_a_plain_operand_can_be_marked(
    start_runtime: StartRuntime,
    mix: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    functionalization: bool,
) -> None:
    """torch_xla lets a plain tensor and a distributed one meet; the result is one to mark."""
    plain, sharded = seeded(0), seeded(1)
    held = oracle.distribute(mix(plain, sharded), ranks((4,)), (S1,))
    start_runtime(spmd=True)
    assert_functionalization(on=functionalization)
    mesh = DeviceMesh("xla", ranks((4,)))
    mixed = mix(plain.to("xla"), distribute_tensor(sharded, mesh, (S0,)))
    mark_sharding(mixed, convert_to_xla_mesh(mesh), (None, 0))
    assert_close_to_held(mixed, held, "the marked result")
