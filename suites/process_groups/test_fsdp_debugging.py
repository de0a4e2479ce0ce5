"""FSDP's rarer ways: exchanges left out, other factors, containers, and printed progress."""

from __future__ import annotations

import re
from collections import OrderedDict
from functools import partial
from io import StringIO
from typing import Any

import pytest
import torch
import torch_xla
from torch import nn
from torch_xla.core import xla_model as xm
from torch_xla.debug import metrics
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as Fsdp
from torch_xla.distributed.fsdp import wrap

from harness.job.ranks import run_ranks
from harness.model.topology import Topology
from harness.session.fixtures import StartRuntime
from suites.process_groups.filled import check_close, fill, numbered
from suites.shared.backends import join_replicas
from suites.shared.torch_xla_releases import since_2_9

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.upstream("pytorch/xla#4664"),
    since_2_9,
]
one_chip = pytest.mark.topologies(1)
LINEAR = partial(wrap.transformer_auto_wrap_policy, transformer_layer_cls={nn.Linear})


@one_chip
def test_attributes_of_the_module(start_runtime: StartRuntime) -> None:
    """The wrapper stands for its module, says its options, and lists its parameters by name."""
    start_runtime(spmd=False)
    layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    layers.note = "kept"
    steps = metrics.counter_value("MarkStep") or 0
    Fsdp(nn.Linear(3, 4), execute_sharding_on_init=False)
    assert (metrics.counter_value("MarkStep") or 0) == steps
    model = Fsdp(layers, compute_dtype=torch.bfloat16, flatten_parameters=False)
    assert metrics.counter_value("MarkStep") == steps + 1
    assert (model.note, model[1]) == ("kept", layers[1])
    for text in (
        "world_size=1, rank=0",
        "compute_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16",
        "flatten_parameters=False, reshard_after_forward=True, sharding_groups=None",
    ):
        assert text in model.extra_repr()
    named = model.get_original_names_and_sharded_parameters()
    assert [name for name, _ in named] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [p.numel() for _, p in named] == [128, 128, 128, 128]
    for (_, shard), own in zip(named, model.parameters(), strict=True):
        assert shard is own


@one_chip
def test_names_in_wrapped_layers(start_runtime: StartRuntime) -> None:
    """Each layer that is wrapped by itself has its parameters under its own name."""
    start_runtime(spmd=False)
    model = Fsdp(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), auto_wrap_policy=LINEAR)
    named = model.get_original_names_and_sharded_parameters()
    assert [name for name, _ in named] == ["0.weight", "0.bias", "1.weight", "1.bias"]


@one_chip
def test_options_of_inner_layers(start_runtime: StartRuntime) -> None:
    """Each layer that is wrapped by itself is wrapped as the whole is."""
    start_runtime(spmd=False)
    options: dict[str, Any] = {
        **dict.fromkeys(("reshard_after_forward", "execute_sharding_on_init"), False),
        **{f"optimization_barrier_in_{way}": False for way in ("forward", "backward")},
        **dict.fromkeys(("disable_reshard_on_root", "pin_layout_in_collective_ops"), False),
        **dict.fromkeys(("flatten_parameters", "sync_on_finalization"), True),
        **dict.fromkeys(("fp32_reduce_scatter", "shard_param_on_dim_0"), True),
        "compute_dtype": torch.bfloat16,
        "buffer_dtype": torch.float16,
        "sharding_groups": [[0]],
        "sharding_rank": 0,
        "sharding_world_size": 1,
        "param_init_fn": fill,
        "_shard_size_multiple": 4,
        "_use_xla_patched_linear": False,
        "_debug_dummy_forward_pass": True,
        "_debug_msg": "mine",
        "_debug_print": True,
        **{f"_debug_dummy_{name}": True for name in LEFT_OUT},
    }
    given: list[dict[str, Any]] = []

    def wrapper(layer: nn.Module, **own: Any) -> nn.Module:
        given.append(own)
        return Fsdp(layer, **own)

    with torch.device("meta"):
        layers = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model = Fsdp(layers, auto_wrap_policy=LINEAR, auto_wrapper_callable=wrapper, **options)
    assert given == [options, options]
    for shard, shape in zip(model.parameters(), ((4, 3), (2, 4)), strict=True):
        own = torch.cat([numbered(*shape).reshape(-1), numbered(shape[0])])
        torch.testing.assert_close(shard.detach().cpu()[: len(own)], own)


@one_chip
def test_buffers_of_wrapped_layers(start_runtime: StartRuntime) -> None:
    """Buffers are moved to the device, those of floats with the type of buffers."""
    start_runtime(spmd=False)

    class Buffers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("nothing", None)
            self.register_buffer("numbers", numbered(3))
            self.register_buffer("count", torch.tensor(3))
            self.weight = nn.Parameter(numbered(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.numbers * self.weight + self.count

    model = Fsdp(
        nn.Sequential(Fsdp(Buffers()), Buffers()),
        compute_dtype=torch.bfloat16,
        buffer_dtype=torch.float16,
    )
    buffers = dict(model.named_buffers())
    assert len(buffers) == 4
    for name, buffer in buffers.items():
        assert buffer.device.type == "xla"
        own, dtype = (numbered(3), torch.float16) if "numbers" in name else (3, torch.int64)
        assert buffer.dtype == dtype
        torch.testing.assert_close(buffer.cpu(), torch.as_tensor(own, dtype=dtype))


def _trained(number: int, **options: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return this rank's result, the norm of the gradient, and the shard after a step."""
    device = join_replicas()
    layer = nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        layer.weight.copy_(numbered(4, 4))
    model = Fsdp(layer, **options)
    update = torch.optim.SGD(model.parameters(), lr=1.0)
    result = model((numbered(2, 4) + number).to(device))
    result.square().sum().backward()
    norm = model.clip_grad_norm_(float("inf"))
    update.step()
    torch_xla.sync()
    (shard,) = model.parameters()
    return result.detach().cpu(), norm.cpu(), shard.detach().cpu()


LEFT_OUT = (
    "all_gather_op",
    "all_reduce_op",
    "reduce_scatter_op",
    "optimization_barrier_op",
)


@pytest.mark.topologies("4@chip")
@pytest.mark.parametrize("rows", [False, True], ids=["flat", "rows"])
def test_exchanges_left_out(topology: Topology, rows: bool) -> None:
    """Each rank computes with its own row alone, in shapes as if it had all of them."""
    options: dict[str, Any] = {f"_debug_dummy_{name}": True for name in LEFT_OUT}
    options |= {"shard_param_on_dim_0": True} if rows else {"_shard_size_multiple": 1}
    ranks = run_ranks(lambda number: _trained(number, **options), topology)
    for rank, (result, norm, shard) in enumerate(ranks):
        x, row = numbered(2, 4) + rank, numbered(4, 4)[rank : rank + 1]
        weight = row.repeat(4, 1).requires_grad_()
        expected = x @ weight.T
        expected.square().sum().backward()
        assert weight.grad is not None
        gradient = weight.grad[rank : rank + 1] / 4  # the mean over ranks is still taken
        check_close(result, expected)
        torch.testing.assert_close(norm, gradient.norm(), rtol=1e-4, atol=1e-4)
        left = (row - gradient).reshape(shard.shape)
        torch.testing.assert_close(shard, left, rtol=1e-4, atol=1e-4)


@pytest.mark.topologies("4@chip")
def test_divided_gradients(topology: Topology) -> None:
    """With factors of one, the exchange takes the mean; with others, they divide the sum."""

    def ask(number: int) -> list[torch.Tensor]:
        device = join_replicas()
        shards = []
        for factors in ((1, 1), (2.0, 8.0)):
            layers = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
            layers.apply(fill)
            model = Fsdp(layers, auto_wrap_policy=LINEAR, shard_param_on_dim_0=True)
            model.set_gradient_divide_factors(*factors, recursive=True)
            model((numbered(2, 4) + number).to(device)).sum().backward()
            shards += [p.grad.cpu() for p in model.parameters()]
        return shards

    got = run_ranks(ask, topology)
    layers = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    layers.apply(fill)
    layers(torch.cat([numbered(2, 4) + rank for rank in range(4)])).sum().backward()
    whole = [p.grad for p in layers.parameters()]
    for rank, shards in enumerate(got):
        for place, divisor in enumerate((4, 16)):
            for number, gradient in enumerate(whole):
                assert gradient is not None
                expected = gradient[rank : rank + 1] / divisor
                check_close(shards[2 * place + number], expected)


@one_chip
def test_dummy_forward(start_runtime: StartRuntime) -> None:
    """A pass that only reads inputs and parameters: the sum of their means."""
    start_runtime(spmd=False)
    layers = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    layers.apply(fill)
    model = Fsdp(layers, _debug_dummy_forward_pass=True)
    x = numbered(2, 3) + 1
    outputs = model(x.to("xla"), torch.ones(2, dtype=torch.int32).to("xla"), other=x.to("xla"))
    expected = 2 * x.mean() + sum(p.detach().mean() for p in layers.parameters())
    assert outputs.shape == (1,)
    expected = 2 * x.mean() + sum(numbered(*s).mean() for s in ((4, 3), (4,), (2, 4), (2,)))
    check_close(outputs[0], expected)


@one_chip
def test_barriers(start_runtime: StartRuntime) -> None:
    """What the compiler may not move: in both passes, in one of them, or nothing."""
    start_runtime(spmd=False)

    def barriers(forward: bool, backward: bool, **options: Any) -> int:
        layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        layers[0].bias.requires_grad_(False)
        model = Fsdp(
            layers,
            auto_wrap_policy=LINEAR,
            optimization_barrier_in_forward=forward,
            optimization_barrier_in_backward=backward,
            **options,
        )
        loss = model(numbered(2, 3).to("xla").requires_grad_()).sum()
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        return xm.get_stablehlo([loss, *gradients]).count("stablehlo.optimization_barrier")

    both, forward, backward = barriers(True, True), barriers(True, False), barriers(False, True)
    assert barriers(False, False) == 0
    assert 0 < forward < both
    assert 0 < backward < both
    assert barriers(True, True, _debug_dummy_optimization_barrier_op=True) == 0


@one_chip
def test_buckets_of_gradients(start_runtime: StartRuntime) -> None:
    """An exchange for each gradient, or for as many as are larger than the bucket together."""
    start_runtime(spmd=False)

    def exchanges(**options: Any) -> int:
        layers = nn.Sequential(*(nn.Linear(384, 384, bias=False) for _ in range(4)))  # 0.56 MiB
        model = Fsdp(layers, pin_layout_in_collective_ops=False, **options)
        model(torch.ones(2, 384, device="xla")).sum().backward()
        gradients = [p.grad for p in model.parameters()]
        text = torch_xla._XLAC._get_xla_tensors_hlo(gradients)
        return len(re.findall(r" reduce-scatter\(", text))

    assert exchanges() == 4
    assert exchanges(reduce_scatter_bucket_size_mb=1) == 2
    assert exchanges(reduce_scatter_bucket_size_mb=3) == 1


@one_chip
def test_printed_progress(start_runtime: StartRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its name, each wrapper prints how many parameters it has, and its synchronizations."""
    start_runtime(spmd=False)
    # The default is what was standard output at the import, which pytest has closed.
    output = StringIO()
    monkeypatch.setitem(xm.master_print.__kwdefaults__, "fd", output)
    layers, plain = (
        nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False)).apply(fill) for _ in range(2)
    )
    options = {"_debug_print": True, "_debug_msg": "mine", "sync_on_finalization": True}
    model = Fsdp(layers, auto_wrap_policy=LINEAR, shard_param_on_dim_0=True, **options)
    x = numbered(2, 4, 3)
    own, leaf = x.to("xla").requires_grad_(), x.clone().requires_grad_()
    model(own).square().sum().backward()
    plain(leaf).square().sum().backward()
    pairs = zip([own, *model.parameters()], [leaf, *plain.parameters()], strict=True)
    for got, expected in pairs:
        assert got.grad is not None
        assert expected.grad is not None
        check_close(got.grad, expected.grad)
    printed = output.getvalue()
    assert printed.count("root FSDP got 3 total params (_debug_msg: mine)") == 1
    assert printed.count("called in FSDP _wait_for_post_backward (_debug_msg: mine)") == 1


@one_chip
def test_packed_sequences(start_runtime: StartRuntime) -> None:
    """As a recurrent layer takes them in plain PyTorch."""
    start_runtime(spmd=False)
    rows = [numbered(3, 2), numbered(1, 2)]
    plain = nn.RNN(2, 3)
    packed = nn.utils.rnn.pack_sequence(rows)
    expected = plain(packed)[0].data
    model = Fsdp(plain)
    check_close(model(packed.to("xla"))[0].data, expected)


class Containers(nn.Module):
    """Takes and returns tensors in containers of all kinds."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(numbered(3))
        self.dtype = dtype

    def forward(self, given: Any, *, more: Any) -> Any:
        x, y = given["x"][0], given["y"]
        (z,) = more
        assert {x.dtype, y.dtype, z.dtype} == {self.dtype}
        assert given["label"] == "label"
        assert given["count"].dtype == torch.int32
        result = x * self.weight
        return OrderedDict(a=[result + y], b=(result * z, {"c": result}, "text"), c=given["count"])


@one_chip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_containers(start_runtime: StartRuntime, dtype: torch.dtype) -> None:
    """Floats are cast wherever they are, and the gradients of all results come back."""
    start_runtime(spmd=False)
    model = Fsdp(Containers(dtype), compute_dtype=dtype)
    x, y, z = (numbered(3) + n for n in range(3))
    given = {"x": [x.to("xla")], "y": y.to("xla"), "label": "label"}
    given["count"] = torch.tensor([3], dtype=torch.int32, device="xla")
    results = model(given, more={z.to("xla")})
    assert list(results) == ["a", "b", "c"]
    assert type(results) is OrderedDict
    assert results["b"][2] == "text"
    (a,), (b, c, _) = results["a"], results["b"]
    weight = numbered(3).requires_grad_()
    tolerance = {"rtol": 2e-2, "atol": 2e-2}
    wanted = (x * weight + y, x * weight * z, x * weight)
    for got, expected in zip((a, b, c["c"]), wanted, strict=True):
        torch.testing.assert_close(got.float().cpu(), expected, **tolerance)
    (a.sum() + b.sum() + c["c"].sum()).float().backward()
    sum(each.sum() for each in wanted).backward()
    (shard,) = model.parameters()
    assert (shard.dtype, shard.grad.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(shard.grad[:3].cpu(), weight.grad, **tolerance)


@one_chip
def test_wrong_order(start_runtime: StartRuntime, capsys: pytest.CaptureFixture[str]) -> None:
    """What needs the wrapper to be idle, or to be the outermost, says so elsewhere."""
    start_runtime(spmd=False)

    class Asking(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with pytest.raises(ValueError, match="expected to be in states"):
                outer.set_gradient_divide_factors(1, 1, recursive=False)
            return super().forward(x)

    outer = Fsdp(nn.Sequential(Fsdp(Asking(3, 2))))
    outer(torch.ones(2, 3, device="xla"))
    printed = capsys.readouterr()
    assert re.search("ERROR: expected to be in states", printed.out)
    assert "Asserting FSDP instance is: XlaFullyShardedDataParallel(" in printed.out
    assert "set_gradient_divide_factors" in printed.err
    with pytest.raises(AssertionError, match="only be called on the root"):
        outer[0].clip_grad_norm_(1.0)
    assert outer.clip_grad_norm_(1.0).item() == 0
