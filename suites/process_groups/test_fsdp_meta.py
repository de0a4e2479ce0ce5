"""FSDP of modules without storage, on the meta device, and of what it refuses."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as Fsdp
from torch_xla.distributed.fsdp import wrap

from harness.session.fixtures import StartRuntime
from suites.process_groups.filled import check_close, fill, numbered
from suites.shared.torch_xla_releases import since_2_9

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies(1),
    pytest.mark.upstream("pytorch/xla#4664"),
    since_2_9,
]


class Constant(nn.Module):
    """A layer that is initialised with numbers that are known."""

    def __init__(self, device: str = "meta") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3, 4, device=device))

    def reset_parameters(self) -> None:
        assert not torch.is_grad_enabled()
        assert self.weight.device.type == "cpu"
        self.weight.copy_(numbered(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def test_module_without_storage(start_runtime: StartRuntime) -> None:
    """A module on the meta device initialises itself, or is initialised as its user wants."""
    start_runtime(spmd=False)
    x = numbered(2, 3)
    model = Fsdp(Constant())
    check_close(model(x.to("xla")), x @ numbered(3, 4))
    with torch.device("meta"):
        layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    policy = partial(wrap.transformer_auto_wrap_policy, transformer_layer_cls={nn.Linear})
    wrapped = Fsdp(layers, auto_wrap_policy=policy, param_init_fn=fill)
    expected = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    expected.apply(fill)
    check_close(wrapped(x.to("xla")), expected(x))
    # Of a module that has its memory, nothing is initialised again.
    plain = nn.Linear(3, 4)
    expected_outputs = plain(x)
    check_close(Fsdp(plain, param_init_fn=fill)(x.to("xla")), expected_outputs)


def test_refused_modules(start_runtime: StartRuntime) -> None:
    """What can't be initialised or sharded is refused, with the reason."""
    start_runtime(spmd=False)
    with pytest.raises(ValueError, match="Expected 3 to be callable"):
        Fsdp(Constant(), param_init_fn=3)
    layers = nn.Sequential(nn.Linear(3, 4, device="meta"))
    unable = pytest.warns(UserWarning, match="Unable to call")
    with unable, pytest.raises(AttributeError, match="reset_parameters"):
        Fsdp(layers)
    for option in ("compute_dtype", "buffer_dtype"):
        with pytest.raises(ValueError, match=f"{option} must be one of"):
            Fsdp(nn.Linear(2, 2), **{option: torch.int32})
    for left in ("sharding_rank", "sharding_world_size"):
        given = {"sharding_groups": [[0]], "sharding_rank": 0, "sharding_world_size": 1}
        del given[left]
        with pytest.raises(ValueError, match="must be provided when sharding_groups"):
            Fsdp(nn.Linear(2, 2), **given)
    with pytest.raises(RuntimeError, match="Cannot wrap a module that is already wrapped"):
        Fsdp(Fsdp(nn.Linear(2, 2)))
