"""Sharded computations: where their results are, and that their numbers are right."""

import itertools
from collections.abc import Callable

import pytest
import torch
import torch_xla.distributed.spmd as xs
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.model.topology import Topology
from harness.oracles.sharding import Layout, Spec, check_placement
from harness.session.fixtures import StartRuntime
from suites.shared.execution import settle
from suites.spmd_specs.meshes import (
    check_product,
    every_spec,
    layouts,
    marked,
    numbered,
    shuffled,
    xla_mesh,
)
from suites.spmd_specs.twins import fsdp_layout

pytestmark = [pytest.mark.lanes("cpu", "virtual-*"), pytest.mark.upstream("pytorch/xla#5264")]


@pytest.mark.topologies(4, 8)
@pytest.mark.parametrize("tensor_rank", [1, 2, 3], ids="tensor{}d".format)
def test_intermediate(
    topology: Topology, start_runtime: StartRuntime, tensor_rank: int, subtests: pytest.Subtests
) -> None:
    """A tensor that is still a computation is sharded by the compiler, not by a transfer."""
    start_runtime(spmd=True)
    value = numbered((8, 16, 8)[:tensor_rank])
    layout = layouts(topology.devices, 2)[0]
    specs = list(every_spec(layout, tensor_rank))[:: 2 ** (tensor_rank - 1)]
    tensors = [value.to("xla") + i for i in range(len(specs))]
    for tensor, spec in zip(tensors, specs, strict=True):
        xs.mark_sharding(tensor, xla_mesh(layout), spec)
    settle()
    for i, (tensor, spec) in enumerate(zip(tensors, specs, strict=True)):
        with subtests.test(spec=spec):
            check_placement(tensor, value.numpy() + i, layout, spec)


@pytest.mark.topologies(2, 8)
@pytest.mark.parametrize("results", [1, 2], ids="results{}".format)
def test_uneven_intermediate(
    topology: Topology, start_runtime: StartRuntime, results: int, subtests: pytest.Subtests
) -> None:
    """However many results the program has, each keeps the sharding that it was given."""
    start_runtime(spmd=True)
    layout = Layout((topology.devices,), shuffled(topology.devices), ("x",))
    value = numbered((5, 3))
    tensors = [value.to("xla") + 1 for _ in range(results)]
    for tensor in tensors:
        xs.mark_sharding(tensor, xla_mesh(layout), ("x", None))
    settle()
    for number, tensor in enumerate(tensors):
        with subtests.test(result=number):
            assert torch.equal(tensor.cpu(), value + 1)
            check_placement(tensor, value.numpy() + 1, layout, ("x", None))


def _op_cases() -> dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Spec]]:
    return {
        "elementwise": (lambda t: t * 2 + 1, ("x", "y")),
        "transpose": (lambda t: t.T * 2, ("y", "x")),
        "sum-columns": (lambda t: t.sum(1), ("x",)),
        "sum-rows": (lambda t: t.sum(0), ("y",)),
        "broadcast": (
            lambda t: t.unsqueeze(1) + torch.zeros(8, 3, 8, device=t.device),
            ("x", None, "y"),
        ),
    }


@pytest.mark.topologies(8)
@pytest.mark.parametrize("op", _op_cases())
def test_sharding_propagates(topology: Topology, start_runtime: StartRuntime, op: str) -> None:
    """Results that need no communication of their operand's shards stay where these are."""
    start_runtime(spmd=True)
    compute, spec = _op_cases()[op]
    layout = Layout((2, topology.devices // 2), shuffled(topology.devices), ("x", "y"))
    value = numbered((8, 8))
    tensor = value.to("xla")
    xs.mark_sharding(tensor, xla_mesh(layout), ("x", "y"))
    result = compute(tensor)
    settle()
    check_placement(result, compute(value).numpy(), layout, spec)


def _scalar_operations() -> dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    return {
        "multiply": lambda x, s: x * s,
        "subtract-from": lambda x, s: s - x,
        "divide": lambda x, s: x / s,
        "compare": lambda x, s: (x > s).float(),
        "where": lambda x, s: torch.where(x > s, x, s),
        "clamp": lambda x, s: torch.clamp(x, max=s),
        "in-place": lambda x, s: x.mul_(s),
    }


@pytest.mark.topologies(4)
@pytest.mark.parametrize("operation", _scalar_operations())
def test_scalar_operand(topology: Topology, start_runtime: StartRuntime, operation: str) -> None:
    """A replicated scalar and a sharded tensor make a tensor that is sharded likewise."""
    start_runtime(spmd=True)
    compute = _scalar_operations()[operation]
    layout = fsdp_layout(topology.devices, 2)
    x, s = numbered((8, 4)), torch.tensor(5.0)
    result = compute(marked(x, layout, ("fsdp", "data")), marked(s, layout, ()))
    settle()
    check_placement(result, compute(x, s).numpy(), layout, ("fsdp", "data"))


def product_error(layout: Layout, specs: tuple[Spec, Spec, Spec]) -> float:
    """Largest error of a matrix product with specs of its operands and its result."""
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 8, 8, generator=generator)
    product = marked(left, layout, specs[0]) @ marked(right, layout, specs[1])
    xs.mark_sharding(product, xla_mesh(layout), specs[2])
    return float((product.cpu() - left @ right).abs().max())


ORDERS = tuple(itertools.permutations(range(4)))


@pytest.mark.topologies(4)
@pytest.mark.parametrize("ids", ORDERS, ids=lambda ids: "".join(map(str, ids)))
def test_product_over_device_order(start_runtime: StartRuntime, ids: tuple[int, ...]) -> None:
    """The order of the devices in a mesh may cost time; it must not change a number."""
    start_runtime(spmd=True)
    layout = Layout((2, 2), ids, ("x", "y"))
    error = product_error(layout, ((None, "x"), ("x", "y"), ("y", "x")))
    check_product(error, f"the product over devices {ids}")


@pytest.mark.topologies(4, 8)
def test_random_products(topology: Topology, start_runtime: StartRuntime) -> None:
    """Specs of operands and result drawn at random over one mesh, devices in order."""
    start_runtime(spmd=True)
    layout = Layout((topology.devices // 2, 2), tuple(range(topology.devices)), ("x", "y"))
    specs = st.sampled_from(list(every_spec(layout, 2)))

    @settings(derandomize=True, deadline=None, database=None, max_examples=20)
    @given(specs=st.tuples(specs, specs, specs))
    def check(specs: tuple[Spec, Spec, Spec]) -> None:
        error = product_error(layout, specs)
        check_product(error, f"the product with specs {specs}")

    check()
