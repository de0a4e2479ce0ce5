"""Grouped matmul by torch_xla: gmm, tgmm and the autograd function over both."""

from collections.abc import Sequence

import pytest
import torch
import torch_xla

from harness.lanes.events import EventLog
from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention.grouped import (
    GROUPS,
    OUT,
    ROWS,
    TILING,
    assert_close,
    expected,
    expected_transposed,
    matrices,
)
from suites.multislice_flash_attention.torchax_without_flax import import_torchax

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2x1"),
    pytest.mark.upstream("pytorch/xla#8334"),
]
SIZES = pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)


def on_tpu(groups: Sequence[int]) -> list[torch.Tensor]:
    return [t.to("xla") for t in matrices(groups)]


def test_as_released(start_runtime: StartRuntime) -> None:
    """What pip install torch_xla==2.9.0 jax==0.7.1 gives can multiply groups."""
    start_runtime(spmd=False)
    from torch_xla.experimental.custom_kernel import gmm

    groups = GROUPS["even"]
    lhs, rhs, _ = matrices(groups)
    result = gmm(*on_tpu(groups), tiling=TILING)
    assert_close(result, expected(lhs.double(), rhs.double(), groups), "gmm")


@pytest.mark.long
@SIZES
def test_gmm(start_runtime: StartRuntime, groups: Sequence[int]) -> None:
    start_runtime(spmd=False)
    import_torchax()
    from torch_xla.experimental.custom_kernel import gmm

    lhs, rhs, _ = matrices(groups)
    result = gmm(*on_tpu(groups), tiling=TILING)
    assert_close(result, expected(lhs.double(), rhs.double(), groups), "gmm")


@pytest.mark.long
def test_gmm_with_transposed_matrices(start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    import_torchax()
    from torch_xla.experimental.custom_kernel import gmm

    groups = GROUPS["uneven"]
    lhs, rhs, sizes = on_tpu(groups)
    result = gmm(lhs, rhs.mT.contiguous(), sizes, tiling=TILING, transpose_rhs=True)
    host = matrices(groups)
    assert_close(result, expected(host[0].double(), host[1].double(), groups), "gmm")


@pytest.mark.long
def test_tgmm(start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    import_torchax()
    from torch_xla.experimental.custom_kernel import tgmm

    groups = GROUPS["uneven"]
    lhs, _, sizes = matrices(groups)
    grad = torch.randn(ROWS, OUT, generator=torch.Generator().manual_seed(1))
    result = tgmm(lhs.mT.contiguous().to("xla"), grad.to("xla"), sizes.to("xla"), tiling=TILING)
    assert_close(result, expected_transposed(lhs.double(), grad.double(), groups), "tgmm")


@pytest.mark.long
def test_gradients(start_runtime: StartRuntime, subtests: pytest.Subtests) -> None:
    start_runtime(spmd=False)
    import_torchax()
    from torch_xla.experimental.custom_kernel import GMM

    groups = GROUPS["uneven"]
    lhs, rhs, sizes = on_tpu(groups)
    leaves = lhs.requires_grad_(), rhs.requires_grad_()
    x, y, _ = matrices(groups)
    hosts = x.double().requires_grad_(), y.double().requires_grad_()
    GMM.apply(*leaves, sizes, TILING).sin().sum().backward()
    torch_xla.sync()
    expected(*hosts, groups).sin().sum().backward()
    for name, leaf, host in zip(("lhs", "rhs"), leaves, hosts, strict=True):
        with subtests.test(gradient=name):
            assert_close(leaf.grad, host.grad, f"gradient of {name}")


@pytest.mark.long
def test_one_discovery(tpu_events: EventLog, start_runtime: StartRuntime) -> None:
    """By way of torchax too."""
    start_runtime(spmd=False)
    import_torchax()
    from torch_xla.experimental.custom_kernel import gmm

    lhs, rhs, _ = matrices(GROUPS["even"])
    result = gmm(*on_tpu(GROUPS["even"]), tiling=TILING)
    torch_xla.sync()
    assert_close(result, expected(lhs.double(), rhs.double(), GROUPS["even"]), "gmm")
    tpu_events.expect_discoveries(1)
