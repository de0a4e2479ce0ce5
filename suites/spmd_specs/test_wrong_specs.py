"""A wrong mesh or spec is refused where it is written, with the error that the code documents."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
from torch import nn
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel as FSDPv2,
)

from harness.oracles.sharding import Layout
from harness.session.fixtures import StartRuntime
from suites.spmd_specs.meshes import check_marked, numbered

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*"),
    pytest.mark.topologies(4),
    pytest.mark.upstream("pytorch/xla#8522"),
]

Refusal = tuple[type[Exception], str]
RANK: Refusal = (AssertionError, r"Partition spec length \(\d\) should be equal to the input rank")
TWICE: Refusal = (AssertionError, "Each device mesh dimension should appear at most once")
RANGE: Refusal = (AssertionError, "contains out of bound index into mesh_shape")
NAME: Refusal = (ValueError, "Axis name .* is not defined in the given mesh")
TYPE: Refusal = (ValueError, "Spec type .* is not supported in partition spec")

SPECS: dict[str, tuple[object, Refusal]] = {
    "unknown-axis": (("z", None), NAME),
    "unknown-axis-in-tuple": ((("x", "z"), None), NAME),
    "too-few": (("x",), RANK),
    "too-many": (("x", "y", None), RANK),
    "empty": ((), RANK),
    "axis-twice": (("x", "x"), TWICE),
    "axis-twice-by-number": ((1, 1), TWICE),
    "axis-by-name-and-number": (("x", 0), TWICE),
    "axis-twice-in-tuple": ((("x", "x"), None), TWICE),
    "axis-in-tuple-and-alone": ((("x", "y"), "y"), TWICE),
    "number-too-large": ((2, None), RANGE),
    "number-negative": ((-1, None), RANGE),
    "number-is-float": ((1.0, None), TYPE),
    "number-is-bool": ((True, None), TYPE),
    "number-is-numpy": ((np.int64(0), None), TYPE),
    "nested-tuple": (
        (("x", ("y",)), None),
        (AssertionError, "Partition spec cannot contain nested tuples"),
    ),
    "list": (["x", None], (TypeError, "unhashable type: 'list'")),
    "list-of-axes": ((["x", "y"], None), (TypeError, "unhashable type: 'list'")),
}
MARKERS = {  # by name: not every release has each
    "mark_sharding": "mark_sharding",
    "annotate": "annotate_custom_sharding",
    "with_gradients": "mark_sharding_with_gradients",
}


def mesh(names: tuple[str, ...] | None = ("x", "y")) -> xs.Mesh:
    return xs.Mesh(np.arange(4), (2, 2), names)


@pytest.mark.parametrize("case", SPECS)
def test_spec(start_runtime: StartRuntime, case: str) -> None:
    """The tensor stays as it was, and can be marked right afterwards."""
    start_runtime(spmd=True)
    spec, (error, message) = SPECS[case]
    tensor = numbered((4, 4)).to("xla")
    with pytest.raises(error, match=message):
        xs.mark_sharding(tensor, mesh(), spec)
    assert torch_xla._XLAC._get_xla_sharding_spec(tensor) == ""
    assert torch.equal(tensor.cpu(), numbered((4, 4)))
    check_marked(numbered((4, 4)), Layout((2, 2), (0, 1, 2, 3), ("x", "y")), ("x", "y"))


@pytest.mark.parametrize("marker", MARKERS)
@pytest.mark.parametrize("case", ["unknown-axis", "too-few", "axis-twice"])
def test_spec_of_scalar_or_matrix(start_runtime: StartRuntime, case: str, marker: str) -> None:
    """The other ways to mark refuse the same; a 0-d tensor takes the empty spec only."""
    start_runtime(spmd=True)
    spec, (error, message) = SPECS[case]
    mark = getattr(xs, MARKERS[marker])
    with pytest.raises(error, match=message):
        mark(numbered((4, 4)).to("xla"), mesh(), spec)
    with pytest.raises(RANK[0], match=RANK[1]):
        mark(torch.tensor(1.0).to("xla"), mesh(), (None,))


@pytest.mark.parametrize("names", [None, ("x", "y")], ids=["unnamed-mesh", "named-mesh"])
def test_unknown_axis(start_runtime: StartRuntime, names: tuple[str, ...] | None) -> None:
    start_runtime(spmd=True)
    with pytest.raises(NAME[0], match=NAME[1]):
        xs.mark_sharding(numbered((4, 4)).to("xla"), mesh(names), ("data", None))


@pytest.mark.upstream("pytorch/xla#8522")
def test_empty_tuple_of_axes(start_runtime: StartRuntime) -> None:
    """No axes, in the place of axes, is JAX's way too to say: not sharded."""
    start_runtime(spmd=True)
    check_marked(numbered((4, 4)), Layout((2, 2), (0, 1, 2, 3), ("x", "y")), ((), "x"))


def test_host_tensor(start_runtime: StartRuntime) -> None:
    start_runtime(spmd=True)
    with pytest.raises(RuntimeError, match=r"Expected XLA tensor|not an XLA tensor"):
        xs.mark_sharding(numbered((4, 4)), mesh(), ("x", None))


MESHES: dict[str, tuple[object, tuple[int, ...], tuple[str, ...] | None, str]] = {
    "too-few-devices": (range(2), (2,), None, "must match the global number of devices"),
    "too-many-devices": (range(8), (8,), None, "must match the global number of devices"),
    "shape-too-small": (range(4), (2,), None, "must match mesh size"),
    "shape-too-large": (range(4), (2, 4), None, "must match mesh size"),
    "shape-with-zero": (range(4), (4, 0), None, "must match mesh size"),
    "shape-negative": (range(4), (-2, -2), None, "mesh"),
    "id-twice": ([0, 1, 2, 2], (4,), None, "Device IDs must be unique"),
    "id-too-large": ([0, 1, 2, 4], (4,), None, "Device IDs must be less than mesh size"),
    "id-negative": ([0, 1, 2, -1], (4,), None, "Device IDs"),
    "id-fractional": ([0, 1, 2, 0.5], (4,), None, "Device IDs"),
    "too-few-names": (range(4), (2, 2), ("x",), "must match mesh dimensions"),
    "too-many-names": (range(4), (4,), ("x", "y"), "must match mesh dimensions"),
    "name-twice": (range(4), (2, 2), ("x", "x"), "Axis names must be unique"),
}


@pytest.mark.parametrize("case", MESHES)
def test_mesh(start_runtime: StartRuntime, case: str) -> None:
    start_runtime(spmd=True)
    ids, shape, names, message = MESHES[case]
    with pytest.raises(AssertionError, match=message):
        xs.Mesh(np.array(ids), shape, names)


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.inner(x)}


def _fsdp_mesh() -> xs.Mesh:
    return mesh(("data", "fsdp"))


FSDP: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no-mesh": (lambda: FSDPv2(Linear()), ValueError, "No mesh is provided"),
    "no-fsdp-axis": (
        lambda: FSDPv2(Linear(), mesh=mesh()),
        ValueError,
        "The mesh must have an axis named 'fsdp'",
    ),
    "unnamed-mesh": (
        lambda: FSDPv2(Linear(), mesh=mesh(None)),
        ValueError,
        "The mesh must have an axis named 'fsdp'",
    ),
    "unknown-data-axis": (
        lambda: FSDPv2(Linear(), mesh=_fsdp_mesh(), extra_data_axis="dcn"),
        ValueError,
        "The provided dcn axis is not in the mesh",
    ),
    "wrapped-twice": (
        lambda: FSDPv2(FSDPv2(Linear(), mesh=_fsdp_mesh()), mesh=_fsdp_mesh()),
        RuntimeError,
        "Cannot wrap a module that is already wrapped",
    ),
    "no-forward": (
        lambda: FSDPv2(nn.ModuleList([Linear()]), mesh=_fsdp_mesh()),
        RuntimeError,
        "must define a `forward` method",
    ),
    "output-is-a-dict": (
        lambda: FSDPv2(Linear(), mesh=_fsdp_mesh())(numbered((4, 4)).to("xla")),
        RuntimeError,
        "The output type is not supported",
    ),
}


@pytest.mark.filterwarnings("ignore:For backward hooks")
@pytest.mark.parametrize("case", FSDP)
def test_fsdpv2(start_runtime: StartRuntime, case: str) -> None:
    start_runtime(spmd=True)
    build, error, message = FSDP[case]
    with pytest.raises(error, match=message):
        build()


@pytest.mark.upstream("pytorch/xla#8606")
@pytest.mark.parametrize(
    ("spec", "refusal"), [(("z",), NAME), ((("x", "z"),), NAME)], ids=["axis", "in-tuple"]
)
def test_sharding_spec(
    start_runtime: StartRuntime, spec: tuple[object, ...], refusal: Refusal
) -> None:
    start_runtime(spmd=True)
    with pytest.raises(refusal[0], match=refusal[1]):
        xs.ShardingSpec(mesh(), spec)


@pytest.mark.upstream("pytorch/xla#8606")
def test_sharding_spec_of_another_rank(start_runtime: StartRuntime) -> None:
    """It is left out for tensors that it does not fit (pytorch/xla#5768)."""
    start_runtime(spmd=True)
    sharding = xs.ShardingSpec(mesh(), ("x", "y"))
    assert not sharding.can_apply(numbered((4,)))
    tensor = xm.send_cpu_data_to_device([numbered((4,))], torch_xla.device(), sharding)[0]
    assert torch.equal(tensor.cpu(), numbered((4,)))
