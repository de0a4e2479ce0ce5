"""Memory of the host in programs: values by NumPy, and no array elsewhere than it was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.job.ranks import run_ranks
from harness.model.topology import Topology

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies(4),
    pytest.mark.deadline(120),
]
HOST = ["pinned_host", "unpinned_host"]


def sharding(kind: str, *spec: str | None) -> Any:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("d",))
    return NamedSharding(mesh, PartitionSpec(*spec), memory_kind=kind)


def kinds(*arrays: Any) -> list[str]:
    """In which memory each array is, by JAX and by each of its buffers."""
    memories = []
    for array in arrays:
        of_buffers = {shard.data.sharding.memory_kind for shard in array.addressable_shards}
        assert of_buffers == {array.sharding.memory_kind}
        memories.append(array.sharding.memory_kind)
    return memories


@pytest.mark.parametrize("kind", HOST)
def test_results_on_the_host(kind: str) -> None:
    import jax

    x = np.arange(8, dtype=np.float32)
    shardings = (sharding(kind, "d"), sharding("device", "d"))
    f = jax.jit(lambda x: (x * 2, x + 1), out_shardings=shardings)
    for _ in range(2):
        twice, more = f(jax.device_put(x, sharding("device", "d")))
        assert kinds(twice, more) == [kind, "device"]
        np.testing.assert_array_equal(twice, x * 2)
        np.testing.assert_array_equal(more, x + 1)


@pytest.mark.parametrize("kind", ["device", *HOST])
def test_an_array_is_copied_even_if_it_is_aligned(kind: str) -> None:
    import jax

    room = np.zeros(1024 + 64, np.uint8)
    start = -room.ctypes.data % 64
    source = room[start : start + 1024].view(np.float32)
    for spec in ((), ("d",)):
        source[:] = 1
        x = jax.device_put(source, sharding(kind, *spec))
        jax.block_until_ready(x)
        source[:] = 2
        np.testing.assert_array_equal(x, np.ones(256, np.float32))


@pytest.mark.parametrize("kind", HOST)
def test_one_device(kind: str) -> None:
    import jax
    from jax.sharding import SingleDeviceSharding

    there = SingleDeviceSharding(jax.devices()[1], memory_kind=kind)
    x = jax.device_put(np.arange(3, dtype=np.float32), there)
    y = jax.jit(lambda x: jax.device_put(x, jax.memory.Space.Device) + 1, out_shardings=there)(x)
    assert kinds(x, y) == [kind, kind]
    np.testing.assert_array_equal(y, [1, 2, 3])


@pytest.mark.parametrize(
    ("kind", "major_to_minor", "tiling"),
    [
        ("pinned_host", (1, 0), ()),
        ("pinned_host", (0, 1), ((8, 128), (2, 1))),
        ("unpinned_host", (0, 1), ()),
    ],
)
def test_layouts_of_results_on_the_host(
    kind: str, major_to_minor: tuple[int, ...], tiling: tuple[tuple[int, ...], ...]
) -> None:
    """The program is compiled as HLO, where none is named; unpinned memory has the usual only."""
    import jax
    from jax.experimental.layout import Format, Layout

    of_host = Format(Layout(major_to_minor, tiling), sharding(kind, "d"))
    of_device = Format(Layout((1, 0)), sharding("device", "d"))
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    f = jax.jit(
        lambda x: (x * 2, x + 1), in_shardings=of_device, out_shardings=(of_host, of_device)
    )
    twice, more = f(jax.device_put(x, of_device))
    assert kinds(twice, more) == [kind, "device"]
    assert twice.format.layout.major_to_minor == major_to_minor
    compiled = f.lower(jax.device_put(x, of_device)).compile()
    assert compiled.output_formats[0].layout.tiling == tiling
    assert compiled.as_text().partition("\n")[0].count("S(5)") == (kind == "pinned_host")
    assert more.format.layout.major_to_minor == (1, 0)
    np.testing.assert_array_equal(jax.device_put(more, of_host.sharding), x + 1)
    np.testing.assert_array_equal(jax.device_put(twice, of_device.sharding), x * 2)
    np.testing.assert_array_equal(twice, x * 2)
    np.testing.assert_array_equal(more, x + 1)


def test_a_layout_that_pinned_memory_has_not() -> None:
    import jax
    from jax.experimental.layout import Format, Layout

    there = Format(Layout((1, 0), ((8, 128),)), sharding("pinned_host"))
    with pytest.raises(Exception, match=r"virtual TPU: .*\{0,1:T\(8,128\)\} is not: leave out"):
        jax.jit(lambda x: x + 1, out_shardings=there)(np.zeros((8, 4), np.float32))


def test_results_of_a_kernel_on_the_host() -> None:
    """A program that calls a kernel is interpreted as HLO, where no result's memory is named."""
    import jax
    from jax.experimental import pallas as pl
    from jax.sharding import SingleDeviceSharding

    def add_one(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    x = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
    kernel = pl.pallas_call(add_one, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))
    on_host = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    y = jax.jit(kernel, out_shardings=on_host)(x)
    assert kinds(y) == ["pinned_host"]
    np.testing.assert_array_equal(y, x + 1)


def test_optimizer_state_on_the_host() -> None:
    """A step takes it from there, computes on the device, and leaves it there again."""
    import jax
    import jax.numpy as jnp

    on_host, on_device = sharding("pinned_host", "d"), sharding("device", "d")

    def step(weights: Any, state: Any) -> Any:
        momentum = 0.5 * jax.device_put(state, on_device) + jax.grad(lambda w: (w**2).sum())(
            weights
        )
        return weights - 0.1 * momentum, jax.device_put(momentum, on_host)

    f = jax.jit(step, donate_argnums=(0, 1), out_shardings=(on_device, on_host))
    want, momentum = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    weights = jax.device_put(want, on_device)
    state = jax.device_put(jnp.zeros(8), on_host)
    for _ in range(3):
        weights, state = f(weights, state)
        momentum = 0.5 * momentum + 2 * want
        want = want - 0.1 * momentum
    assert kinds(weights, state) == ["device", "pinned_host"]
    np.testing.assert_allclose(weights, want, rtol=1e-6)
    np.testing.assert_allclose(state, momentum, rtol=1e-6)


def test_offloaded_residuals() -> None:
    import jax
    import jax.numpy as jnp
    from jax.ad_checkpoint import checkpoint_name

    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["h"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def body(x: Any, _: Any) -> Any:
        return checkpoint_name(jnp.sin(x), "h") * 2, None

    def loss(x: Any) -> Any:
        return jax.lax.scan(jax.remat(body, policy=policy), x, None, length=3)[0].sum()

    x = np.linspace(0, 1, 8, dtype=np.float32)
    got = jax.jit(jax.grad(loss))(jax.device_put(x, sharding("device", "d")))
    want, value = np.ones(8), x.astype(np.float64)
    for _ in range(3):
        want, value = want * 2 * np.cos(value), 2 * np.sin(value)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_stored_executable_knows_it(tmp_path: Path) -> None:
    """JAX's compilation cache holds what the backend has serialised."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    x = jax.device_put(np.arange(8, dtype=np.float32), sharding("device", "d"))
    for _ in range(2):
        f = jax.jit(lambda x: x * 3, out_shardings=sharding("pinned_host", "d"))
        assert kinds(f(x)) == ["pinned_host"]
        assert list(tmp_path.iterdir())
        jax.clear_caches()


@pytest.mark.topologies("2@chip")
def test_in_a_job(topology: Topology) -> None:
    def work(rank: int) -> Any:
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        mesh = Mesh(np.array(jax.devices()), ("d",))
        whole = NamedSharding(mesh, PartitionSpec(), memory_kind="pinned_host")
        given = NamedSharding(mesh, PartitionSpec("d"))
        x = jax.make_array_from_callback((2,), given, lambda at: np.arange(2.0)[at])
        total = jax.jit(lambda x: x.sum(), out_shardings=whole)(x)
        return kinds(total), float(np.asarray(total.addressable_shards[0].data))

    assert run_ranks(work, topology) == [(["pinned_host"], 1.0)] * 2
