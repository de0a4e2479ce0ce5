"""Helpers around shardings: einsum layers, pictures, and what meshes and specifications refuse."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch.distributed.tensor import Replicate, Shard
from torch_xla.distributed.spmd import xla_sharding
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel as FSDPv2,
)

from harness.model.topology import Topology
from harness.oracles.sharding import Layout, as_numpy, check_placement
from harness.session.fixtures import StartRuntime
from suites.shared.execution import settle
from suites.shared.torch_xla_releases import since_2_9
from suites.spmd_specs.meshes import grid, marked, numbered, sharding_of, shuffled, xla_mesh

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*"),
    pytest.mark.topologies(4),
    pytest.mark.upstream("pytorch/xla#5264"),
    since_2_9,
]


class Layers(torch.nn.Module):
    """Layers within layers, with and without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 4)
        self.inner = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(4, 8, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.first(x))


@pytest.mark.parametrize("how", ["eager", "compiled", "frozen", "by-checkpoint"])
def test_einsum_linear(topology: Topology, start_runtime: StartRuntime, how: str) -> None:
    """Layers that multiply by einsum have the numbers and gradients of plain ones, of any rank."""
    start_runtime(spmd=True)
    torch.manual_seed(5)
    plain = Layers()
    patched = xla_sharding.apply_xla_patch_to_nn_linear(copy.deepcopy(plain))
    if how == "frozen":
        _freeze(plain)
        _freeze(patched)
    kinds = [type(m) for m in patched.modules() if isinstance(m, torch.nn.Linear)]
    assert kinds == [xla_sharding.EinsumLinear] * 2
    assert list(patched.state_dict()) == list(plain.state_dict())
    patched = patched.to("xla")
    xs.mark_sharding(patched.first.weight, xla_mesh(grid(topology)), ("y", "x"))
    x = torch.randn(3, 2, 6, generator=torch.Generator().manual_seed(1))
    leaf, own = x.clone().requires_grad_(), x.to("xla").requires_grad_(how != "frozen")
    if how == "by-checkpoint":
        xla_sharding.apply_backward_optimization_barrier(patched)
    called = torch.compile(patched, backend="openxla") if how == "compiled" else patched
    result, expected = called(own), plain(leaf)
    result.sin().sum().backward()
    expected.sin().sum().backward()
    settle()
    torch.testing.assert_close(result.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    pairs = list(zip(patched.parameters(), plain.parameters(), strict=True))
    for ours, theirs in [*pairs, *([] if how == "frozen" else [(own, leaf)])]:
        if theirs.grad is None:
            assert ours.grad is None
        else:
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-5)


def _freeze(layers: Any) -> None:
    layers.first.bias.requires_grad_(False)
    layers.inner[1].weight.requires_grad_(False)


def test_frozen_layers(start_runtime: StartRuntime) -> None:
    """Parameters that are not to be trained still are not."""
    start_runtime(spmd=True)
    layers = Layers()
    _freeze(layers)
    patched = xla_sharding.apply_xla_patch_to_nn_linear(layers)
    assert [p.requires_grad for p in patched.parameters()] == [True, False, False]


PICTURES: dict[str, tuple[tuple[str | None, ...] | None, list[list[list[int]]]]] = {
    "both": (("y", "x"), [[[2], [1]], [[0], [3]]]),
    "rows": (("x", None), [[[2, 0]], [[1, 3]]]),
    "columns": ((None, "y"), [[[2, 1], [0, 3]]]),
    "replicated": ((None, None), [[[0, 1, 2, 3]]]),
    "none": (None, [[[0, 1, 2, 3]]]),
}


@pytest.mark.parametrize("name", PICTURES)
def test_picture(
    start_runtime: StartRuntime, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """The printed table has the devices of each part at its place."""
    pytest.importorskip("rich")
    from torch_xla.distributed.spmd.debugging import visualize_tensor_sharding

    start_runtime(spmd=True)
    spec, cells = PICTURES[name]
    tensor = numbered((4, 4)).to("xla")
    if spec is not None:
        layout = Layout((2, 2), (2, 0, 1, 3), ("x", "y"))
        tensor = xs.mark_sharding(tensor, xla_mesh(layout), spec)
    table = visualize_tensor_sharding(tensor, use_color=False)
    printed = capsys.readouterr().out.splitlines()[1:]
    rows = [line.split("│")[1:-1] for line in printed if re.search("[0-9]", line)]
    got = [[sorted(map(int, re.findall("[0-9]+", cell))) for cell in row] for row in rows]
    assert got == [[sorted(cell) for cell in row] for row in cells]
    assert (len(table.columns), table.row_count) == (len(cells[0]), len(cells))
    assert all(line.startswith(("│", "┌", "├", "└")) for line in printed if line)


def test_layout_of_a_picture(
    start_runtime: StartRuntime,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Parts have borders where a terminal has no colors, and a line above and below."""
    pytest.importorskip("rich")
    from torch_xla.distributed.spmd.debugging import visualize_sharding

    start_runtime(spmd=True)
    cells = [[f" {xr.device_type()} {n} " for n in row] for row in ((2, 0), (1, 3))]
    gap = " " * len(cells[0][0])

    def lines(left: str, middle: str, right: str, row: list[str]) -> list[str]:
        empty = left + middle.join([gap, gap]) + right
        return [empty, left + middle.join(row) + right, empty]

    edge = "─" * len(gap)
    first, second = (lines("│", "│", "│", row) for row in cells)
    between = [f"├{edge}┼{edge}┤"]
    bordered = [f"┌{edge}┬{edge}┐", *first, *between, *second, f"└{edge}┴{edge}┘"]
    plain = [line for row in cells for line in lines("", "", "", row)]
    monkeypatch.setenv("TERM", "xterm-256color")
    for colors, options, picture, highlighted in (
        ("", {}, bordered, False),
        ("1", {}, plain, False),
        ("1", {"use_color": False}, bordered, True),
    ):
        monkeypatch.setenv("FORCE_COLOR", colors)
        visualize_sharding("{devices=[2,2]2,0,1,3}", **options)
        text = capsys.readouterr().out
        title, *printed = re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()
        assert "{devices=[2,2]2,0,1,3}" in title
        assert printed == picture
        assert ("\x1b[" in text) == highlighted
    monkeypatch.setenv("FORCE_COLOR", "")
    visualize_sharding("{replicated}", max_width=12)
    _, *printed = capsys.readouterr().out.splitlines()
    assert max(map(len, printed)) <= 12
    assert len(printed) > len("┌│││└")


def test_pictures_of_nothing(start_runtime: StartRuntime) -> None:
    pytest.importorskip("rich")
    from torch_xla.distributed.spmd.debugging import visualize_sharding

    start_runtime(spmd=True)
    for text in ("{devices=[2,2]0,1,2,3", "{devices=[2,2]a,b}", "{devices=[2,a,2]0 last_tile"):
        with pytest.raises(ValueError, match="is not organized as expected"):
            visualize_sharding(text if "last" not in text else f"{text}_dim_replicate}}")


def test_marks_of_wrapped_tensors(topology: Topology, start_runtime: StartRuntime) -> None:
    """A sharded tensor is wrapped, annotated in another way, and gets other shards."""
    start_runtime(spmd=True)
    layout = grid(topology)
    mesh = xla_mesh(layout)
    plain, sharded = numbered((8, 8)).to("xla"), marked(numbered((8, 8)), layout, ("x", "y"))
    assert xs.wrap_if_sharded(plain) is plain
    assert xs.wrap_if_sharded(3) == 3
    wrapped = xs.wrap_if_sharded(sharded)
    assert isinstance(wrapped, xs.XLAShardedTensor)
    assert xs.wrap_if_sharded(wrapped) is wrapped
    twice = xs.annotate_custom_sharding(sharded * 2, mesh, ("y", None))
    check_placement(twice.global_tensor, numbered((8, 8)).numpy() * 2, layout, ("y", None))
    with pytest.raises(AssertionError, match=r"Partition spec length \(1\) should be equal"):
        xs.annotate_custom_sharding(plain, mesh, ("x",))
    shards = wrapped.local_shards
    for shard in shards:
        shard.unpadded_data = -shard.unpadded_data
    wrapped.load_local_shards_(shards)
    check_placement(sharded, -numbered((8, 8)).numpy(), layout, ("x", "y"))


def test_global_mesh(start_runtime: StartRuntime) -> None:
    """A mesh that need not be given; one of another text is none."""
    start_runtime(spmd=True)
    assert xs.get_global_mesh() is None
    layout = Layout((2, 2), shuffled(4), ("data", "fsdp"))
    mesh = xla_mesh(layout)
    xs.set_global_mesh(mesh)
    assert xs.get_global_mesh() is mesh
    model = FSDPv2(torch.nn.Sequential(torch.nn.Linear(4, 8)), shard_output=_by_columns)
    check_placement(model[0].weight, as_numpy(model[0].weight), layout, ("fsdp", None))
    output = model(numbered((4, 4)).to("xla"))
    check_placement(output, as_numpy(output), layout, (None, "fsdp"))
    value = numbered((8, 4)).to("xla")
    part = xs.enable_manual_sharding(value, ("data", None))
    whole = xs.disable_manual_sharding(part.global_tensor * 2, ("data", None), (8, 4))
    assert part.shape == (4, 4)
    assert torch.equal(whole.global_tensor.cpu(), numbered((8, 4)) * 2)
    for text in ("", "{'device_ids': [0, 1]}", "Mesh"):
        assert xs.Mesh.from_str(text) is None


def _by_columns(output: Any, mesh: xs.Mesh) -> None:
    xs.mark_sharding(output, mesh, (None, "fsdp"))


def test_outputs(start_runtime: StartRuntime) -> None:
    """Of a tuple the first tensor is sharded; what has none is refused."""
    start_runtime(spmd=True)
    layout = Layout((2, 2), shuffled(4), ("data", "fsdp"))

    class Outputs(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, wrong: bool) -> Any:
            return [x] if wrong else (x + 1, x + 2)

    model = FSDPv2(Outputs(), mesh=xla_mesh(layout), extra_data_axis="data")
    x = numbered((4, 4)).to("xla")
    with pytest.warns(UserWarning, match="only the first element is sharded"):
        first, second = model(x, wrong=False)
    check_placement(first, numbered((4, 4)).numpy() + 1, layout, (("data", "fsdp"), None))
    assert sharding_of(second) == ""
    with pytest.raises(RuntimeError, match="The output type is not supported: <class 'list'>"):
        model(x, wrong=True)


def test_what_the_runtime_says(topology: Topology, start_runtime: StartRuntime) -> None:
    """Under SPMD a process has one virtual device, over the devices of its runtime."""
    start_runtime(spmd=True)
    assert xr.is_spmd()
    assert (xr.addressable_device_count(), xr.global_device_count(), xr.world_size()) == (1, 1, 1)
    assert xr.addressable_runtime_device_count() == topology.devices
    names = [each["name"] for each in xr.global_runtime_device_attributes()]
    assert len(set(names)) == topology.devices
    assert xr.is_bf16_supported()
    with pytest.raises(RuntimeError, match="Can't change device type"):
        xr.set_device_type("NEURON")
    assert torch_xla.device().index == xr.local_ordinal() == xr.host_index() == 0
    before = xr.get_num_cached_compilation_graph()
    torch.equal((numbered((3,)).to("xla") * 3).cpu(), numbered((3,)))
    assert xr.get_num_cached_compilation_graph() == before + 1
    with pytest.raises(AssertionError, match="has already been initialized"):
        xr.initialize_cache("/nowhere")


def test_wrapped_again(topology: Topology, start_runtime: StartRuntime) -> None:
    """A wrapped tensor keeps what it is not given, and as a DTensor it is divided by the new."""
    start_runtime(spmd=True)
    assert xs.get_1d_mesh("x").shape() == {"x": topology.total}
    value = torch.arange(64.0).reshape(8, 8)
    wrapped = xla_sharding.wrap_as_sharded_tensor(
        value.to("xla"), mesh_shape=(topology.total,), partition_spec=(0, None)
    )
    assert wrapped.placements == (Shard(0),)
    assert xla_sharding.wrap_as_sharded_tensor(wrapped, partition_spec=(None, 0)) is wrapped
    assert (wrapped.mesh_shape, wrapped.placements) == ((topology.total,), (Shard(1),))
    xla_sharding.wrap_as_sharded_tensor(wrapped, mesh_shape=(2, 2))
    assert (wrapped.device_mesh.shape, wrapped.partition_spec) == ((2, 2), (None, 0))
    assert wrapped.placements == (Shard(1), Replicate())
    assert xla_sharding.wrap_as_sharded_tensor(wrapped).mesh_shape == (2, 2)
    assert torch.equal((xla_sharding.unwrap_sharded_tensor(wrapped) + 1).cpu(), value + 1)
