"""torch_xla's flash attention computes a softmax attention and its gradients."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch_xla

from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention.problems import (
    Problem,
    assert_all_close,
    assert_close,
    expected,
    flash,
    inputs,
    leaves_on_tpu,
    softmax_attention,
)

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2x1"),
    pytest.mark.upstream("pytorch/xla#8812"),
]
DTYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
MASKS = {
    "full": {},
    "causal": {"causal": True},
    "segments": {"segments": True},
    "causal-segments": {"causal": True, "segments": True},
    "bias": {"bias": True},
}
MASK = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def assert_forward(problem: Problem) -> None:
    leaves = {name: leaf.detach() for name, leaf in leaves_on_tpu(problem).items()}
    out, _ = expected(problem)
    assert_close(flash(problem, leaves), out, problem.dtype, "output")


def assert_backward(problem: Problem, wanted: Sequence[str] = ("q", "k", "v", "bias")) -> None:
    """Check the output and the gradients of the wanted inputs."""
    leaves = leaves_on_tpu(problem)
    for name, leaf in leaves.items():
        leaf.requires_grad_(name in wanted)
    out, gradients = expected(problem)
    result = flash(problem, leaves)
    result.backward(leaves["do"])
    torch_xla.sync()
    of_inputs = [
        (f"gradient of {name}", leaves[name].grad, oracle)
        for name, oracle in gradients.items()
        if name in wanted
    ]
    assert_all_close([("output", result, out), *of_inputs], problem.dtype)


@DTYPE
@MASK
def test_forward(start_runtime: StartRuntime, mask: dict[str, bool], dtype: torch.dtype) -> None:
    start_runtime(spmd=False)
    assert_forward(Problem(dtype=dtype, **mask))


@pytest.mark.long
@DTYPE
@MASK
def test_backward(start_runtime: StartRuntime, mask: dict[str, bool], dtype: torch.dtype) -> None:
    start_runtime(spmd=False)
    assert_backward(Problem(dtype=dtype, **mask))


@pytest.mark.long
@pytest.mark.parametrize(
    "shape",
    [
        {"batch": 3, "heads": 1},
        {"heads": 5},
        {"width": 64},
        {"width": 256},
        {"queries": 256, "keys": 256},
        {"queries": 128, "keys": 256},
        {"queries": 256, "keys": 128},
    ],
    ids=lambda shape: "-".join(f"{name}{size}" for name, size in shape.items()),
)
def test_shapes(start_runtime: StartRuntime, shape: dict[str, Any]) -> None:
    """Widths beside 128, several blocks, and a cross attention of other keys than queries."""
    start_runtime(spmd=False)
    assert_backward(Problem(**shape))


@pytest.mark.parametrize("scale", [1.0, 0.0, -0.3], ids=str)
def test_scale(start_runtime: StartRuntime, scale: float) -> None:
    start_runtime(spmd=False)
    assert_forward(Problem(scale=scale))


@pytest.mark.parametrize("wanted", ["q", "k", "v", "qk"])
def test_some_gradients(start_runtime: StartRuntime, wanted: Sequence[str]) -> None:
    start_runtime(spmd=False)
    assert_backward(Problem(causal=True), wanted)


@pytest.mark.parametrize("wanted", [["bias"], ["k", "v", "bias"]], ids=["bias", "k-v-bias"])
def test_gradient_of_the_bias_without_the_queries(
    start_runtime: StartRuntime, wanted: Sequence[str]
) -> None:
    """A trained bias over frozen queries still gets its gradient."""
    start_runtime(spmd=False)
    assert_backward(Problem(bias=True), wanted)


@pytest.mark.parametrize(
    "mask", [{}, {"causal": True}, {"bias": True}], ids=["full", "causal", "bias"]
)
def test_forward_of_a_length_between_blocks(
    start_runtime: StartRuntime, mask: dict[str, bool]
) -> None:
    """640 keys are more than one block of 512, and no multiple of it: the rest is padded."""
    start_runtime(spmd=False)
    assert_forward(Problem(heads=1, queries=640, keys=640, **mask))


def test_backward_of_a_length_between_blocks(start_runtime: StartRuntime) -> None:
    """Where the forward pass takes a length, the backward pass takes it too."""
    start_runtime(spmd=False)
    assert_backward(Problem(heads=1, queries=640, keys=640, causal=True))


def test_segments_of_a_length_between_blocks(start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    assert_forward(Problem(heads=1, queries=640, keys=640, segments=True))


def test_registered_operator(start_runtime: StartRuntime) -> None:
    """torch.ops.xla.flash_attention is the same attention, with a scale of 1."""
    start_runtime(spmd=False)
    import torch_xla.experimental.custom_kernel  # noqa: F401  (registers it)

    problem = Problem(causal=True, scale=1.0)
    leaves = leaves_on_tpu(problem)
    out = torch.ops.xla.flash_attention(*(leaves[n].detach() for n in "qkv"), True)
    assert_close(out, expected(problem)[0], problem.dtype, "output")


@pytest.mark.long
def test_under_dynamo(start_runtime: StartRuntime) -> None:
    """torch.compile(backend="openxla") traces it."""
    start_runtime(spmd=False)
    problem = Problem(causal=True)
    leaves = {name: leaf.detach() for name, leaf in leaves_on_tpu(problem).items()}
    compiled = torch.compile(lambda: flash(problem, leaves), backend="openxla")
    assert_close(compiled(), expected(problem)[0], problem.dtype, "output")


@pytest.mark.long
def test_two_layers(start_runtime: StartRuntime) -> None:
    """The second attention reads the first one's result; gradients flow through both."""
    start_runtime(spmd=False)
    problem = Problem()
    leaves = leaves_on_tpu(problem)
    inner = flash(problem, leaves)
    flash(problem, leaves | {"q": inner}).backward(leaves["do"])
    torch_xla.sync()
    assert_close(leaves["q"].grad, _gradient_through_two(problem), problem.dtype, "gradient of q")


def _gradient_through_two(problem: Problem) -> torch.Tensor:
    host = {name: t.double() for name, t in inputs(problem).items()}
    q = host["q"].requires_grad_()
    inner = softmax_attention(problem, host)
    softmax_attention(problem, host | {"q": inner}).backward(host["do"])
    return q.grad
