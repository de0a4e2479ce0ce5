"""What JAX's users have reported after an upgrade, each as the smallest program that shows it.

Each case names its thread. It passes on the versions that have the defect neither yet nor any more,
so ``qualify`` and ``since`` say which versions those are.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from suites.shared.global_arrays import mesh_of
from suites.shared.jax_compiled import exchanges
from suites.shared.jax_releases import (
    checked,
    explicit,
    needs_explicit_axes,
    unreadable_before_0_4_30,
)

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*", "tpu"),
    pytest.mark.topologies("4"),
    pytest.mark.deadline(60),
    unreadable_before_0_4_30,
]
# For a defect of XLA, which on the virtual TPU is one for all releases.
of_jaxlib = pytest.mark.lanes("cpu")


@pytest.mark.upstream("jax-ml/jax#28193")
def test_a_gradient_taken_inside_of_shard_map() -> None:
    """Of a loss of the device's own part: every device has a value and a gradient of its own."""
    mesh, spec = mesh_of(4), PartitionSpec("x")

    def loss(x: Any) -> Any:
        return jnp.mean(x**2)

    def step(x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(x)
        return jnp.atleast_1d(value), gradient

    x = np.arange(8, dtype=np.float32) * 37  # which bfloat16 lacks
    value, gradient = jax.jit(checked(step, mesh, (spec,), (spec, spec)))(x)
    np.testing.assert_allclose(value, (x**2).reshape(4, 2).mean(1))
    np.testing.assert_allclose(gradient, x)


@pytest.mark.upstream("jax-ml/jax#26148")
@pytest.mark.parametrize("derivative", [jax.jacfwd, jax.jacrev])
def test_a_jacobian_taken_inside_of_shard_map(derivative: Any) -> None:
    mesh, whole = mesh_of(4), PartitionSpec()

    def line(t: Any) -> Any:
        return jnp.zeros(10) + t * (jnp.arange(10) * -301)  # which bfloat16 lacks

    jacobian = checked(derivative(line), mesh, (whole,), whole)(np.float32(2))
    np.testing.assert_array_equal(jacobian, np.arange(10) * -301)


@pytest.mark.upstream("jax-ml/jax#34249")
def test_a_sum_over_devices_inside_of_vmap() -> None:
    mesh = mesh_of(4)
    spec, whole = PartitionSpec("x"), PartitionSpec()
    x = np.arange(24, dtype=np.float32).reshape(3, 8) * 97  # whose sums bfloat16 lacks
    summed = checked(lambda part: lax.psum(part, "x"), mesh, (spec,), whole)
    sums = jax.vmap(summed)(x)
    np.testing.assert_array_equal(sums, x.reshape(3, 4, 2).sum(1))


@of_jaxlib
@pytest.mark.upstream("jax-ml/jax#24576")
def test_concatenate_over_one_of_two_axes() -> None:
    """Each part is there twice, once for each device along the other axis."""
    along = NamedSharding(mesh_of(2, 2), PartitionSpec("x"))
    given = [np.arange(4, dtype=np.float32), np.arange(12, dtype=np.float32)]
    joined = jnp.concatenate([jax.device_put(array, along) for array in given])
    np.testing.assert_array_equal(joined, np.concatenate(given))


@pytest.mark.upstream("jax-ml/jax#32157")
def test_gradients_of_each_example_of_a_convolution() -> None:
    """Of arrays that lie on all devices of a mesh, outside of jit."""
    everywhere = NamedSharding(mesh_of(4), PartitionSpec())
    x = np.arange(8 * 6, dtype=np.float32).reshape(8, 1, 6)
    kernel = np.array([[[1.0, -2.0, 3.0]]], np.float32)

    def loss(weights: Any, example: Any) -> Any:
        return lax.conv_general_dilated(example[None], weights, (1,), "VALID").sum()

    gradients = jax.vmap(jax.value_and_grad(loss), (None, 0))
    losses, per_example = gradients(*(jax.device_put(array, everywhere) for array in (kernel, x)))
    windows = np.stack([x[:, 0, n : n + 4].sum(-1) for n in range(3)], -1)
    np.testing.assert_allclose(losses, windows @ kernel[0, 0])
    np.testing.assert_allclose(per_example, windows[:, None, None])


@pytest.mark.upstream("jax-ml/jax#16894")
@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_divided_by_batch_and_channel(stride: int) -> None:
    along = NamedSharding(mesh_of(4), PartitionSpec("x"))
    x = np.arange(4 * 2 * 8, dtype=np.float32).reshape(4, 2, 8) % 7
    x *= 513 / 512  # so that no result is a number that bfloat16 has
    kernel = np.arange(4 * 2 * 3, dtype=np.float32).reshape(4, 2, 3) % 5 - 2

    def convolve(images: Any, kernels: Any) -> Any:
        return lax.conv_general_dilated(images, kernels, (stride,), [(1, 1)])

    result = jax.jit(convolve)(*(jax.device_put(array, along) for array in (x, kernel)))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1)))
    places = range(0, 8, stride)
    expected = [np.einsum("nci,oci->no", padded[..., at : at + 3], kernel) for at in places]
    np.testing.assert_allclose(result, np.stack(expected, -1))


@of_jaxlib
@pytest.mark.upstream("jax-ml/jax#39301")
def test_two_concatenations_of_one_element_a_device() -> None:
    """The sum of a value's two rotations, each of what is left of it after negative padding."""
    x = np.arange(4, dtype=np.float32)

    def cut(value: Any, before: int, after: int) -> Any:
        return lax.pad(value, np.float32(0), [(-before, -after, 0)])

    def both(value: Any) -> Any:
        right = lax.concatenate([cut(value, 3, 0), cut(value, 0, 1)], 0)
        return right + lax.concatenate([cut(value, 1, 0), cut(value, 0, 3)], 0)

    along = NamedSharding(mesh_of(4), PartitionSpec("x"))
    result = jax.jit(both)(jax.device_put(x, along))
    np.testing.assert_array_equal(result, np.roll(x, 1) + np.roll(x, -1))


@needs_explicit_axes
@pytest.mark.upstream("jax-ml/jax#39309")
def test_a_reshape_keeps_an_axis_of_one_device() -> None:
    mesh = explicit(mesh_of(1, 4))
    with jax.set_mesh(mesh):
        x = jax.device_put(
            np.ones((1, 512), np.float32), NamedSharding(mesh, PartitionSpec("x", "y"))
        )
        reshaped = jax.jit(lambda value: value.reshape(-1, 4, 128))(x)
    assert tuple(reshaped.sharding.spec) == ("x", "y", None)
    np.testing.assert_array_equal(reshaped, np.ones((1, 4, 128)))


@needs_explicit_axes
@pytest.mark.upstream("sgl-project/sglang-jax#1407")
def test_shard_map_divides_what_is_whole() -> None:
    """An array that each device has, to a function of parts: the upgrade was sglang-jax#1461."""
    mesh, spec = explicit(mesh_of(1, 4)), PartitionSpec("y")
    x = np.arange(8, dtype=np.float32)
    with jax.set_mesh(mesh):
        whole = jax.device_put(x, NamedSharding(mesh, PartitionSpec(None)))
        doubled = jax.jit(checked(lambda part: part * 2, mesh, (spec,), spec))(whole)
    np.testing.assert_array_equal(doubled, x * 2)


@needs_explicit_axes
@pytest.mark.upstream("marin-community/marin#8715")
def test_attention_between_divided_heads_and_whole_ones() -> None:
    """Of queries whose heads are divided with keys whose heads are not, over explicit axes."""
    mesh = explicit(mesh_of(2, 2))
    # Numbers above 256 are more than bfloat16 has.
    q, k = (np.arange(64, dtype=np.float32).reshape(2, 4, 2, 4) % n + 257 for n in (5, 7))
    with jax.set_mesh(mesh):
        given = [
            jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))
            for array, spec in ((q, ("x", None, "y", None)), (k, ("x", None, None, None)))
        ]
        scores = jax.jit(lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k)).lower(*given).compile()
        np.testing.assert_array_equal(scores(*given), np.einsum("bqhd,bkhd->bhqk", q, k))
    assert exchanges(scores) == set(), "each device has the heads that it needs"


@of_jaxlib
@pytest.mark.upstream("openxla/xla#49122")
@pytest.mark.parametrize("start", [2, 9])
def test_a_divided_slice_that_begins_too_late(start: int) -> None:
    """XLA moves a slice back into its operand: as a whole, and not each device's part of it."""
    x = np.arange(12, dtype=np.float32)
    along = NamedSharding(mesh_of(4), PartitionSpec("x"))
    sliced = jax.jit(lambda x, at: lax.dynamic_slice(x, (at,), (8,)), out_shardings=along)
    rows = sliced(jax.device_put(x, along), np.int32(start))
    first = min(start, 4)
    np.testing.assert_array_equal(rows, x[first : first + 8])


@pytest.mark.upstream("openxla/xla#49118")
@pytest.mark.parametrize("start", [2, 9])
def test_an_update_of_a_divided_array_that_begins_too_late(start: int) -> None:
    """It is moved back as a slice is, and not dropped."""
    x = np.arange(8, dtype=np.float32)
    along = NamedSharding(mesh_of(4), PartitionSpec("x"))
    updated = jax.jit(lambda x, at: lax.dynamic_update_slice(x, -x[:1], (at,)), out_shardings=along)
    result = updated(jax.device_put(x + 1, along), np.int32(start))
    expected = x + 1
    expected[min(start, 7)] = -1
    np.testing.assert_array_equal(result, expected)


@of_jaxlib
@pytest.mark.upstream("jax-ml/jax#40849")
@pytest.mark.parametrize("first", [1, 9])
def test_a_slice_of_each_part_that_begins_too_late(first: int) -> None:
    """Two slices after each other, each moved back into its own operand."""
    mesh, spec, whole = mesh_of(4), PartitionSpec("x"), PartitionSpec()

    def one_of(part: Any, first: Any, second: Any) -> Any:
        return lax.dynamic_slice(lax.dynamic_slice(part, (first,), (4,)), (second,), (1,))

    x = np.arange(40, dtype=np.float32)
    sliced = jax.jit(checked(one_of, mesh, (spec, whole, whole), spec))
    result = sliced(x, np.int32(first), np.int32(1))
    np.testing.assert_array_equal(result, x.reshape(4, 10)[:, min(first, 6) + 1])
