"""Options of XlaFullyShardedDataParallel: training is plain PyTorch's, and so is what is saved."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch_xla.distributed.fsdp import (
    XlaFullyShardedDataParallel as Fsdp,
)
from torch_xla.distributed.fsdp import (
    checkpoint_module,
    consolidate_sharded_state_dicts,
    wrap,
)

from harness.job.ranks import run_ranks
from harness.model.topology import Topology
from suites.process_groups.training import batch, own, probe
from suites.shared.backends import TorchXla
from suites.shared.torch_xla_releases import since_2_9

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#3431"),
]
XLA = TorchXla()
STEPS = 2


class Half(nn.Module):
    """One layer that is trained, beside one that is frozen, on an input given by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.trained = nn.Linear(5, 5)
        self.frozen = nn.Linear(5, 5)
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)
        self.register_buffer("shift", torch.linspace(-1, 1, 5))

    def forward(self, x: torch.Tensor, *, scale: float) -> tuple[torch.Tensor]:
        return (self.trained(x) * scale + torch.tanh(self.frozen(x) + self.shift),)


class Whole(nn.Module):
    """Two halves that share a weight, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.halves = nn.ModuleList([Half(), Half()])
        self.halves[1].trained.weight = self.halves[0].trained.weight
        self.last = nn.Linear(5, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for half in self.halves:
            (x,) = half(x, scale=0.5)
        return self.last(x)


class Apart(Whole):
    """The same, where nothing is shared, so that each half can be wrapped by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.halves[1].trained.weight = nn.Parameter(torch.linspace(-1, 1, 25).reshape(5, 5))


Clip = Callable[[nn.Module], Any]


@dataclass(frozen=True)
class Feature:
    """Options of the wrapper, and what else happens in each step."""

    model: type[Whole] = Whole
    options: Callable[[int], dict[str, Any]] = lambda _: {}
    norm: tuple[float, float] | None = None  # of gradients: the largest, and its p
    accumulated: int = 1  # parts of the batch, of which only the last one exchanges gradients
    ranks: tuple[int, ...] = (0, 1, 2, 3)  # that rank 0 exchanges with
    tolerance: float = 1e-5


def _checkpointed(module: nn.Module, **options: Any) -> Fsdp:
    return Fsdp(checkpoint_module(module), **options)


SIZE = functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=60)
LAYERS = functools.partial(wrap.transformer_auto_wrap_policy, transformer_layer_cls={Half})
FEATURES = {
    "flat": Feature(options=lambda _: {"flatten_parameters": True, "_shard_size_multiple": 2}),
    "by-size": Feature(
        Apart, lambda _: {"auto_wrap_policy": SIZE, "disable_reshard_on_root": False}
    ),
    "checkpointed": Feature(
        Apart,
        lambda _: {
            "auto_wrap_policy": LAYERS,
            "auto_wrapper_callable": _checkpointed,
            "flatten_parameters": True,
        },
    ),
    "norm-2": Feature(norm=(0.05, 2.0)),
    "norm-inf": Feature(
        norm=(0.02, float("inf")), options=lambda _: {"shard_param_on_dim_0": True}
    ),
    "accumulated": Feature(Apart, lambda _: {"auto_wrap_policy": LAYERS}, accumulated=2),
    "groups": Feature(
        options=lambda rank: {
            "sharding_groups": [[0, 2], [1, 3]],
            "sharding_rank": rank // 2,
            "sharding_world_size": 2,
        },
        ranks=(0, 2),
    ),
    "bfloat16": Feature(
        options=lambda _: {
            "compute_dtype": torch.bfloat16,
            "fp32_reduce_scatter": True,
            "pin_layout_in_collective_ops": False,
        },
        tolerance=0.03,
    ),
    "coalesced": Feature(
        options=lambda _: {
            "pin_layout_in_collective_ops": False,
            "shard_param_on_dim_0": True,
            "coalesce_all_gather_ops": True,
            "reduce_scatter_bucket_size_mb": 1,
            "reshard_after_forward": False,
        }
    ),
    "no-barriers": Feature(
        options=lambda _: {
            "optimization_barrier_in_forward": False,
            "optimization_barrier_in_backward": False,
            "sync_on_finalization": True,
            "execute_sharding_on_init": False,
            "_use_xla_patched_linear": False,
            "disable_reshard_on_root": False,
        }
    ),
}
# Each of these is a job.
GROUPS = {
    "shards": ("flat", "norm-2", "norm-inf", "groups"),
    "wrapped": ("by-size", "checkpointed", "accumulated"),
    "programs": ("bfloat16", "no-barriers", "coalesced"),
}
State = tuple[torch.Tensor, dict[str, torch.Tensor], dict[str, Any], float]


def _of_rank(feature: Feature, rank: int, device: torch.device) -> State:
    model = Fsdp(feature.model(), **feature.options(rank))
    update = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    norm = 0.0
    for step in range(STEPS):
        x, y = (own(rows, rank).to(device) for rows in batch(step, 4))
        update.zero_grad()
        parts = list(zip(x.chunk(feature.accumulated), y.chunk(feature.accumulated), strict=True))
        for part, expected in parts[:-1]:
            with model.no_sync():
                nn.functional.mse_loss(model(part), expected).div(len(parts)).backward()
        nn.functional.mse_loss(model(parts[-1][0]), parts[-1][1]).div(len(parts)).backward()
        if feature.norm:
            norm = model.clip_grad_norm_(*feature.norm).item()
        update.step()
        XLA.end_step()
    with torch.no_grad():
        outputs = model(probe().to(device)).float().cpu()
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    return outputs, state, model.get_shard_metadata(), norm


def _expected(feature: Feature) -> tuple[nn.Module, float]:
    model, norm = feature.model(), 0.0
    trained = [p for p in model.parameters() if p.requires_grad]
    update = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    for step in range(STEPS):
        x, y = (torch.cat([own(r, n) for n in feature.ranks]) for r in batch(step, 4))
        update.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        if feature.norm:
            norm = nn.utils.clip_grad_norm_(trained, *feature.norm).item()
        update.step()
    return model, norm


@pytest.mark.long
@pytest.mark.deadline(120)
@pytest.mark.parametrize("group", ["shards", "wrapped", pytest.param("programs", marks=since_2_9)])
def test_options(topology: Topology, subtests: pytest.Subtests, group: str) -> None:
    """Outputs, norms of gradients, and the model that all ranks' shards make together."""
    features = {name: FEATURES[name] for name in GROUPS[group]}

    def ask(number: int) -> dict[str, State]:
        device = XLA.join()
        return {name: _of_rank(feature, number, device) for name, feature in features.items()}

    ranks = run_ranks(ask, topology, deadline=100)
    for name, feature in features.items():
        with subtests.test(name):
            model, norm = _expected(feature)
            near = {"rtol": 10 * feature.tolerance, "atol": feature.tolerance}
            states = [ranks[rank][name] for rank in feature.ranks]
            for outputs, _, _, got in states:
                torch.testing.assert_close(outputs, model(probe()).detach(), **near)
                torch.testing.assert_close(got, norm, rtol=1e-4, atol=0)
            saved = consolidate_sharded_state_dicts([s[1] for s in states], states[0][2])
            for key, value in model.named_parameters():
                torch.testing.assert_close(saved.pop(key), value.detach(), **near)
            for key, value in model.named_buffers():
                torch.testing.assert_close(saved.pop(key).float(), value, **near)
            assert not saved


def test_buffer_of_another_dtype(topology: Topology) -> None:
    """Saved by each rank as it computes, and consolidated as the module had it."""

    def ask(_: int) -> State:
        norm = nn.BatchNorm1d(3).to(XLA.join())
        model = Fsdp(norm, compute_dtype=torch.bfloat16)
        state = {name: value.cpu() for name, value in model.state_dict().items()}
        return torch.ones(1), state, model.get_shard_metadata(), 0.0

    states = run_ranks(ask, topology)
    saved = consolidate_sharded_state_dicts([s[1] for s in states], states[0][2])
    assert {k: v.dtype for k, v in saved.items()} == {
        k: v.dtype for k, v in nn.BatchNorm1d(3).state_dict().items()
    }
