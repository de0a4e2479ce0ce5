"""An option has its effect on the virtual TPU, or is refused, or is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.lanes.events import EventLog

pytestmark = pytest.mark.lanes("virtual-tpu")


@pytest.mark.topologies("8")
def test_automatic_sharding_is_refused() -> None:
    """https://github.com/pytorch/xla/issues/7853: nothing would be sharded, and nobody told."""
    import torch
    import torch_xla
    import torch_xla.runtime as xr

    xr.use_spmd(auto=True)
    x = torch.randn(32, 64).to("xla") @ torch.randn(64, 16).to("xla")
    with pytest.raises((RuntimeError, ValueError), match="virtual TPU: the program is to be shard"):
        torch_xla.sync()
    del x


@pytest.mark.environment(LIBTPU_INIT_ARGS="--xla_tpu_a=true  --xla_jf_b=2")
def test_options_without_effect_are_counted(tpu_events: EventLog) -> None:
    import jax
    import jax.numpy as jnp

    def options() -> list[str]:
        return [event.option for event in tpu_events.read().of("option")]

    def compiled(**options: Any) -> Any:
        return jax.jit(lambda x: x + 1).lower(jnp.zeros(4)).compile(compiler_options=options)

    jnp.zeros(4).block_until_ready()
    assert options() == ["LIBTPU_INIT_ARGS --xla_tpu_a=true", "LIBTPU_INIT_ARGS --xla_jf_b=2"]
    compiled(xla_tpu_enable_flash_attention=True, megascale_x="1", xla_sc_y="1")
    counted = {"xla_tpu_enable_flash_attention", "megascale_x", "xla_sc_y"}
    assert set(options()[2:]) == counted
    compiled(exec_time_optimization_effort=0.5)
    assert options()[5:] == ["exec_time_optimization_effort"]
    with pytest.raises(Exception, match=r"No such compile option: 'xla_no'\nvirtual TPU: "):
        compiled(xla_no="1")
