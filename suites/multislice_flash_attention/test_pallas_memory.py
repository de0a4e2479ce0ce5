"""How a Pallas kernel reads and writes memory, copies, loops and branches, against NumPy."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from harness.model.topology import Topology
from suites.multislice_flash_attention.mosaic_by_hand import Module, printed, ways
from suites.multislice_flash_attention.plain_kernels import BOTH, EVERYWHERE
from suites.shared.jax_releases import jitted, needs_tpu_interpret_mode

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("1"),
    pytest.mark.upstream("jax-ml/jax#25097"),
    pytest.mark.deadline(60),
    needs_tpu_interpret_mode,
]
F32 = np.float32
SCALARS = pl.BlockSpec(memory_space=pltpu.SMEM)
X = np.random.default_rng(0).standard_normal((4, 16, 256), F32)
NUMBERS = np.array([2, 5, 1, 8], np.int32)


def call(
    body: Callable[..., None], result: np.ndarray, *operands: Any, **options: Any
) -> np.ndarray:
    """Call a kernel whose result is like this array."""
    fn = pl.pallas_call(body, jax.ShapeDtypeStruct(result.shape, result.dtype), **options)
    return np.asarray(jax.jit(fn)(*operands))


# What a kernel reads of X, with numbers in SMEM, and what NumPy reads.
READS: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "row": (lambda x, n: x[1, 3:4, :], X[1, 3:4]),
    "number": (lambda x, n: x[n[2]], X[1]),
    "slice": (lambda x, n: x[0, pl.ds(8, 8), pl.ds(128, 128)], X[0, 8:, 128:]),
    "computed slice": (lambda x, n: x[3, pl.ds(n[3], 8), :], X[3, 8:]),
    "multiple": (lambda x, n: x[0, pl.ds(pl.multiple_of(n[3], 8), 8), :], X[0, 8:]),
    "part of a part": (lambda x, n: x.at[2].at[pl.ds(n[0], 8)][4:6, :128], X[2, 6:8, :128]),
    "without two": (lambda x, n: x.at[n[0], pl.ds(8, 8)][...], X[2, 8:]),
    "reshaped": (lambda x, n: x.reshape(64, 256)[16:32], X[1]),
    "bits": (lambda x, n: x.at[0].bitcast(jnp.int32)[...], X[0].view(np.int32)),
    "ellipsis": (lambda x, n: x[..., 128:][1], X[1, :, 128:]),
}


@BOTH
def test_reads(interpret: bool, subtests: pytest.Subtests) -> None:
    """All in one kernel; the generic interpreter knows no other shape of a reference."""
    reads = {n: r for n, r in READS.items() if not interpret or n not in ("reshaped", "bits")}

    def body(x: Any, numbers: Any, *outs: Any) -> None:
        for (read, _), out in zip(reads.values(), outs, strict=True):
            out[...] = read(x, numbers)

    shapes = [jax.ShapeDtypeStruct(oracle.shape, oracle.dtype) for _, oracle in reads.values()]
    fn = pl.pallas_call(
        body, shapes, in_specs=[pl.BlockSpec(), SCALARS], interpret=interpret, debug=True
    )
    for way, results in ways(fn, X, NUMBERS, interpret=interpret):
        for (name, (_, oracle)), result in zip(reads.items(), results, strict=True):
            with subtests.test(way, read=name):
                np.testing.assert_array_equal(result, oracle)


def test_strides() -> None:
    """Every second row is read, and every fourth one written, or exchanged for what was there."""

    def body(x: Any, read: Any, written: Any, before: Any) -> None:
        read[...] = x[0, pl.ds(1, 8, stride=2), pl.ds(0, 128)]
        written[...] = x[3, :, :128]
        written[pl.ds(2, 4, stride=4), pl.ds(0, 128)] = x[1, :4, :128]
        rows = pl.ds(1, 4, stride=4), pl.ds(0, 128)
        if hasattr(pl, "swap"):  # JAX before 0.12
            before[...] = pl.swap(written, rows, x[2, :4, :128])
        else:
            before[...] = written[rows]
            written[rows] = x[2, :4, :128]

    expected = X[3, :, :128].copy()
    expected[2::4] = X[1, :4, :128]
    old = expected[1::4].copy()
    expected[1::4] = X[2, :4, :128]
    shapes = [jax.ShapeDtypeStruct((rows, 128), F32) for rows in (8, 16, 4)]
    for way, results in ways(pl.pallas_call(body, shapes, debug=True), X):
        np.testing.assert_array_equal(results[0], X[0, 1::2, :128], err_msg=way)
        np.testing.assert_array_equal(results[1], expected, err_msg=way)
        if way != "executed":  # JAX's interpreter exchanges for the new value: docs/findings.md
            np.testing.assert_array_equal(results[2], old)


@BOTH
def test_writes(interpret: bool) -> None:
    """By slices, by numbers, and masked."""

    def body(x: Any, numbers: Any, out: Any) -> None:
        out[...] = x[...]
        out[0, pl.ds(8, 8), :] = x[1, :8, :]
        out[numbers[2], 2:4, :128] = x[3, 6:8, 128:]
        mask = lax.broadcasted_iota(np.int32, (16, 256), 1) < numbers[1]
        value = pltpu.load(x.at[numbers[0]])
        pltpu.store(out.at[numbers[2] + 2], value, mask=mask)

    fn = pl.pallas_call(
        body,
        jax.ShapeDtypeStruct(X.shape, F32),
        in_specs=[pl.BlockSpec(), SCALARS],
        interpret=interpret,
        debug=True,
    )
    expected = X.copy()
    expected[0, 8:] = X[1, :8]
    expected[1, 2:4, :128] = X[3, 6:8, 128:]
    expected[3, :, :5] = X[2, :, :5]
    for way, (result,) in ways(fn, X, NUMBERS, interpret=interpret):
        np.testing.assert_array_equal(result, expected, err_msg=way)
    assert "<-" in str(jax.make_jaxpr(fn)(X, NUMBERS))


@pytest.mark.skipif(not hasattr(pl, "swap"), reason="this release of JAX has no pl.swap")
@BOTH
def test_exchange(interpret: bool) -> None:
    """What is written in exchange for what was there before."""

    def body(x: Any, numbers: Any, out: Any, before: Any) -> None:
        out[...] = x[...]
        before[...] = pl.swap(out, (numbers[0], pl.ds(0, 8), slice(None)), x[0, :8, :])

    shapes = (jax.ShapeDtypeStruct(X.shape, F32), jax.ShapeDtypeStruct((8, 256), F32))
    fn = pl.pallas_call(
        body, shapes, in_specs=[pl.BlockSpec(), SCALARS], interpret=interpret, debug=True
    )
    for way, (out, before) in ways(fn, X, NUMBERS, interpret=interpret):
        np.testing.assert_array_equal(out[2, :8], X[0, :8], err_msg=way)
        np.testing.assert_array_equal(before, X[2, :8], err_msg=way)


def clamped(n: Any) -> Any:
    return lax.switch(n % 3, [lambda: n, lambda: n * 2, lambda: n - 7])


def total(n: Any, numbers: Any) -> Any:
    return lax.fori_loop(0, n, lambda i, sum_: sum_ + numbers[i] * i, np.int32(1))


def halved(n: Any) -> Any:
    return lax.while_loop(lambda s: s[0] > 1, lambda s: (s[0] // 2, s[1] + 1), (n, np.int32(0)))


def nested(numbers: Any) -> Any:
    def outer(i: Any, sum_: Any) -> Any:
        return lax.fori_loop(i, 4, lambda j, s: s + numbers[j] * (i + 1), sum_)

    return lax.fori_loop(0, 4, outer, np.int32(0), unroll=True)


@jax.custom_jvp
def twice(n: Any) -> Any:
    return n * 2


twice.defjvp(lambda primals, tangents: (twice(*primals), tangents[0] * 2))


@BOTH
def test_loops_and_branches(interpret: bool, subtests: pytest.Subtests) -> None:
    """Each as a number that a loop over SMEM computes, beside plain Python."""
    programs: dict[str, tuple[Callable[[Any], Any], int]] = {
        "computed bound": (lambda n: total(n[0], n), 1 + 5),
        "bound": (lambda n: total(4, n), 1 + 5 + 2 + 24),
        "while": (lambda n: halved(n[3])[1] * 10 + halved(n[3])[0], 31),
        "nested": (
            nested,
            sum((j >= i) * NUMBERS[j] * (i + 1) for i in range(4) for j in range(4)),
        ),
        "first branch": (lambda n: clamped(n[0] + 1), 3),
        "second branch": (lambda n: clamped(n[2]), 2),
        "last branch": (lambda n: clamped(n[1]), -2),
        "two branches": (lambda n: lax.cond(n[0] > 1, lambda: n[1], lambda: n[2]), 5),
        "other branch": (lambda n: lax.cond(n[0] > 2, lambda: n[1], lambda: n[2]), 1),
        "jit": (lambda n: jax.jit(lambda a, b: a * b)(n[0], n[3]), 16),
        "own derivative": (lambda n: twice(n[1]), 10),
        "booleans": (lambda n: ((n[0] > 1) & ~(n[1] == 4)).astype(np.int32), 1),
    }

    def body(numbers: Any, out: Any, flags: Any) -> None:
        for index, (program, _) in enumerate(programs.values()):
            out[index] = program(numbers)

        @pl.when(numbers[0] == 2)
        def first() -> None:
            flags[0] = numbers[1] > 4

        @pl.when(numbers[0] == 3)
        def never() -> None:
            flags[0] = False

        @pl.loop(1, 3)
        def others(i: Any) -> None:
            flags[i] = ~flags[i - 1]

    shapes = [jax.ShapeDtypeStruct((len(programs),), np.int32), jax.ShapeDtypeStruct((3,), bool)]
    fn = pl.pallas_call(
        body,
        shapes,
        in_specs=[SCALARS],
        out_specs=[SCALARS, SCALARS],
        interpret=interpret,
        debug=True,
    )
    for way, (results, flags) in ways(fn, NUMBERS, interpret=interpret):
        for (name, (_, oracle)), result in zip(programs.items(), results, strict=True):
            with subtests.test(way, program=name):
                assert int(result) == oracle
        with subtests.test(way, results="flags"):
            assert list(map(bool, flags)) == [True, False, True]


@BOTH
def test_copies(interpret: bool) -> None:
    """From memory to memory, whole and in part, two at a time, with memory that a scope has."""
    x = X[:, :8, :128]

    def body(x: Any, out: Any, counts: Any, semaphores: Any) -> None:
        def scoped(first: Any, second: Any, *, done: Any) -> Any:
            copies = [
                pltpu.make_async_copy(x.at[n], memory, semaphores.at[n])
                for n, memory in enumerate((first, second))
            ]
            for copy in copies:
                copy.start()
            for copy in copies:
                copy.wait()
            first[...] += second[...]
            pltpu.async_copy(first, out.at[0], done).wait()
            pltpu.sync_copy(second.at[pl.ds(0, 4)], out.at[1, pl.ds(4, 4)])
            return second[0, 0] * 2

        alone = pl.run_scoped(
            scoped,
            *[pltpu.VMEM((8, 128), F32)] * 2,
            done=pltpu.SemaphoreType.DMA,
        )
        pltpu.sync_copy(x.at[pl.ds(2, 2)], out.at[pl.ds(2, 2)])
        pltpu.sync_copy(x.at[0, pl.ds(0, 4)], out.at[1, pl.ds(0, 4)])
        counts[0] = alone

    shapes = [jax.ShapeDtypeStruct((4, 8, 128), F32), jax.ShapeDtypeStruct((1,), F32)]
    fn = pl.pallas_call(
        body,
        shapes,
        in_specs=[EVERYWHERE],
        out_specs=[EVERYWHERE, SCALARS],
        scratch_shapes=[pltpu.SemaphoreType.DMA((2,))],
        interpret=interpret,
        debug=True,
    )
    expected = x.copy()
    expected[0] = x[0] + x[1]
    expected[1, :4], expected[1, 4:] = x[0, :4], x[1, :4]
    for way, (out, counts) in ways(fn, x, interpret=interpret):
        np.testing.assert_allclose(out, expected, rtol=1e-6, err_msg=way)
        assert float(counts[0]) == 2 * x[1, 0, 0], way
    program = str(jax.make_jaxpr(fn)(x))
    assert program.count("dma_start") == program.count("dma_wait") == 6


@BOTH
def test_semaphores(interpret: bool) -> None:
    """A count that goes up and down; one of a row of them, and one alone."""

    def body(counts: Any, row: Any, alone: Any) -> None:
        pl.semaphore_signal(row.at[1], 5)
        pl.semaphore_signal(alone)
        pl.semaphore_wait(row.at[1], 2)
        counts[0] = pl.semaphore_read(row.at[0])
        counts[1] = pl.semaphore_read(row.at[1])
        counts[2] = pl.semaphore_read(alone)
        pl.semaphore_wait(row.at[1], 3)
        pl.semaphore_wait(alone)
        counts[3] = pl.semaphore_read(row.at[1])

    regular = pltpu.SemaphoreType.REGULAR
    fn = pl.pallas_call(
        body,
        jax.ShapeDtypeStruct((4,), np.int32),
        out_specs=SCALARS,
        scratch_shapes=[regular((2,)), regular],
        interpret=interpret,
        debug=True,
    )
    for way, (counts,) in ways(fn, interpret=interpret):
        assert list(map(int, counts)) == [0, 3, 1, 0], way
    program = str(jax.make_jaxpr(fn)())
    assert (program.count("semaphore_signal"), program.count("semaphore_wait")) == (2, 3)


@pytest.mark.topologies("4")
@pytest.mark.parametrize("kind", ["numbers", "places", "names", "both axes"])
def test_copies_to_other_devices(kind: str, topology: Topology) -> None:
    """Each device sends to its neighbour in a row, or to the one across, and says so first."""
    from jax.sharding import Mesh, PartitionSpec

    mesh = Mesh(np.array(jax.devices()).reshape(2, topology.total // 2), ("x", "y"))

    def body(x: Any, out: Any, sent: Any, received: Any, ready: Any) -> None:
        row, column = lax.axis_index("x"), lax.axis_index("y")
        target: dict[str, tuple[Any, Any]] = {
            "numbers": (row * 2 + (1 - column), pl.DeviceIdType.LOGICAL),
            "places": ((row, 1 - column), pl.DeviceIdType.MESH),
            "names": ({"y": 1 - column}, pl.DeviceIdType.MESH),
            "both axes": ({("x", "y"): (row * 2 + column + 1) % 4}, pl.DeviceIdType.MESH),
        }
        device, id_type = target[kind]
        before = {("x", "y"): (row * 2 + column + 3) % 4} if kind == "both axes" else device
        pl.semaphore_signal(ready, 1, device_id=before, device_id_type=id_type)
        pl.semaphore_wait(ready)
        copy = pltpu.make_async_remote_copy(
            x, out, sent, received, device_id=device, device_id_type=id_type
        )
        copy.start()
        copy.wait_send()
        copy.wait_recv()

    regular, dma = pltpu.SemaphoreType.REGULAR, pltpu.SemaphoreType.DMA
    fn = pl.pallas_call(
        body,
        jax.ShapeDtypeStruct((8, 128), F32),
        in_specs=[EVERYWHERE],
        out_specs=EVERYWHERE,
        scratch_shapes=[dma, dma, regular],
        debug=True,
    )
    x = np.arange(4 * 8 * 128, dtype=F32).reshape(32, 128)
    spec = PartitionSpec(("x", "y"))
    sharded: Any = jitted(fn, mesh, (spec,), spec)
    # The interpreter of JAX before 0.8 knows no names of axes; Mosaic does.
    if kind not in ("names", "both axes") or jax.__version_info__ >= (0, 8):
        result = np.asarray(sharded(x)).reshape(4, 8, 128)
        order = [3, 0, 1, 2] if kind == "both axes" else [1, 0, 3, 2]
        np.testing.assert_array_equal(result, x.reshape(4, 8, 128)[order])
    _, text = printed(sharded, x)
    for n in range(topology.total):
        module, following = Module(text, n), [1, 2, 3, 0] if kind == "both axes" else [1, 0, 3, 2]
        module.run([x[:8]], [np.zeros((8, 128), F32)])
        assert module.reached == [following.index(n), following[n]]


@pytest.mark.topologies("4")
def test_generic_interpreter_copies_to_other_devices(topology: Topology) -> None:
    """Around a ring, by a number and by a place: all devices copy at once."""
    from jax.sharding import Mesh, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("x",))

    def body(x: Any, by_number: Any, by_place: Any, sent: Any, received: Any) -> None:
        following = (lax.axis_index("x") + 1) % topology.total
        for out, device, kind in (
            (by_number, following, pl.DeviceIdType.LOGICAL),
            (by_place, following, pl.DeviceIdType.MESH),
        ):
            pltpu.async_remote_copy(x, out, sent, received, device, kind).wait()

    dma = pltpu.SemaphoreType.DMA
    fn = pl.pallas_call(
        body,
        [jax.ShapeDtypeStruct((8, 128), F32)] * 2,
        scratch_shapes=[dma, dma],
        interpret=True,
    )
    x = np.arange(4 * 8 * 128, dtype=F32).reshape(32, 128)
    for result in jitted(fn, mesh, (PartitionSpec("x"),), PartitionSpec("x"))(x):
        np.testing.assert_array_equal(result, np.roll(x, 8, axis=0))


def test_random_numbers(subtests: pytest.Subtests) -> None:
    """A key of Threefry gives what it gives elsewhere; a TPU's seed the same numbers again."""
    shape, key = (8, 128), jax.random.key(7, impl="threefry2x32")

    def body(data: Any, uniform: Any, bits: Any, folded: Any) -> None:
        own = jax.random.wrap_key_data(data[0, ...], impl="threefry2x32")
        uniform[...] = jax.random.uniform(own, shape, F32)
        bits[...] = jax.random.bits(own, shape, np.uint32)
        folded[...] = jax.random.uniform(jax.random.fold_in(own, 3), shape, F32)

    shapes = [jax.ShapeDtypeStruct(shape, dtype) for dtype in (F32, np.uint32, F32)]
    results = jax.jit(pl.pallas_call(body, shapes))(jax.random.key_data(key)[None])
    oracles = (
        jax.random.uniform(key, shape, F32),
        jax.random.bits(key, shape, np.uint32),
        jax.random.uniform(jax.random.fold_in(key, 3), shape, F32),
    )
    for number, (result, oracle) in enumerate(zip(results, oracles, strict=True)):
        with subtests.test(key=number):
            np.testing.assert_allclose(result, oracle, rtol=1e-6)

    def seeded(numbers: Any, first: Any, again: Any, other: Any) -> None:
        for out, seed in ((first, (0, 1)), (again, (0, 1)), (other, (1, 0))):
            pltpu.prng_seed(*(numbers[n] for n in seed))
            out[...] = pltpu.bitcast(pltpu.prng_random_bits(shape), np.int32)

    fn = pl.pallas_call(seeded, [jax.ShapeDtypeStruct(shape, np.int32)] * 3, in_specs=[SCALARS])
    first, again, other = map(np.asarray, jax.jit(fn)(NUMBERS))
    with subtests.test("seed"):
        np.testing.assert_array_equal(first, again)
        assert (first != other).mean() > 0.9
        assert 0.48 < np.unpackbits(first.view(np.uint8)).mean() < 0.52


@BOTH
def test_printing(interpret: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """What a kernel prints, and what it is, if JAX is to say that."""

    def body(numbers: Any, x: Any, out: Any) -> None:
        pl.debug_print("two are {} and {}", numbers[0], numbers[3])
        pl.debug_print("all are {}", x[...])
        out[...] = x[...]

    x = np.full((8, 128), 6, F32)
    fn = pl.pallas_call(
        body,
        jax.ShapeDtypeStruct((8, 128), F32),
        in_specs=[SCALARS, pl.BlockSpec()],
        interpret=interpret,
        debug=True,
        name="speaker",
    )
    np.testing.assert_array_equal(jax.jit(fn)(NUMBERS, x), x)
    jax.effects_barrier()
    printed = "".join(capfd.readouterr())
    for words in ("two are 2 and 8", "all are ", "debug_print", "speaker"):
        assert words in printed, words


def test_body_of_a_core() -> None:
    """A map over a core writes to references around it."""
    x = X[0, :8, :128]

    def body(refs: Any) -> None:
        source, target = refs

        @pl.core_map(pltpu.create_tensorcore_mesh("core", num_cores=1))
        def _() -> None:
            def scoped(memory: Any) -> None:
                pltpu.sync_copy(source, memory)
                memory[...] = memory[...] * 3 + lax.axis_index("core")
                pltpu.sync_copy(memory, target)

            pl.run_scoped(scoped, pltpu.VMEM((8, 128), F32))

    _, result = jax.jit(pl.run_state(body))((jnp.asarray(x), jnp.zeros_like(x)))
    np.testing.assert_allclose(result, x * 3, rtol=1e-6)


def test_checked_bodies_of_cores(subtests: pytest.Subtests) -> None:
    """JAX's own checks find nothing wrong with a map over cores, under the name that it has."""
    if "name" not in inspect.signature(pl.core_map).parameters:
        pytest.skip("this release of JAX gives maps over cores no name")
    x = X[0, :8, :128]
    mesh = pltpu.create_tensorcore_mesh("core", num_cores=1)

    def over(**options: Any) -> Any:
        def body(refs: Any) -> None:
            source, target = refs

            @pl.core_map(mesh, **options)
            def tripled() -> None:
                def scoped(memory: Any) -> None:
                    pltpu.sync_copy(source, memory)
                    memory[...] *= 3 + lax.axis_index("core")
                    pltpu.sync_copy(memory, target)

                pl.run_scoped(scoped, pltpu.VMEM((8, 128), F32))

        return jax.jit(lambda: pl.run_state(body)((jnp.asarray(x), jnp.zeros_like(x)))[1])

    for options, name in ({}, "tripled"), ({"name": "mine"}, "mine"):
        with subtests.test(name=name), jax.enable_checks(True):
            assert re.findall(r'kernel_name = "(\w+)"', over(**options).lower().as_text()) == [name]
            np.testing.assert_allclose(over(**options)(), x * 3, rtol=1e-6)


def test_wrong_bodies_of_cores_are_refused(subtests: pytest.Subtests) -> None:
    x = X[0, :8, :128]
    mesh = pltpu.create_tensorcore_mesh("core", num_cores=1)

    def run(mesh: Any = mesh, memory: Any = None, result: Any = None, **options: Any) -> Any:
        def body(refs: Any) -> None:
            source, target = refs

            @pl.core_map(mesh, **options)
            def _() -> Any:
                pltpu.sync_copy(source, target)
                return result

        given = jnp.asarray(x), jnp.zeros_like(x)
        if memory is not None:
            given = tuple(pltpu.with_memory_space_constraint(each, memory) for each in given)
        return pl.run_state(body)(given)[1]

    two = pltpu.create_tensorcore_mesh("core", num_cores=2)
    wrong: dict[str, Callable[[], Any]] = {
        "devices and a number": lambda: pltpu.create_tensorcore_mesh("c", jax.devices(), 1),
        "memory of one core on two": lambda: jax.jit(lambda: run(two, pltpu.VMEM)).lower(),
        "semantics of a mesh": lambda: jax.jit(
            lambda: run(compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)))
        ).lower(),
        "other parameters": lambda: jax.jit(lambda: run(compiler_params=7)).lower(),
        "a result": lambda: jax.jit(lambda: run(result=1)).lower(),
    }
    if hasattr(two, "devices"):
        both = type(mesh)(np.concatenate([two.devices, two.devices]).reshape(2, 2), ["a", "b"])
        wrong["a mesh of two dimensions"] = lambda: jax.jit(lambda: run(both)).lower()
    refusals = ValueError, NotImplementedError, AssertionError
    for name, fn in wrong.items():
        with subtests.test(wrong=name), pytest.raises(refusals):
            fn()
    assert mesh.shape == {"core": 1}
    assert two.shape == {"core": 2}
    assert hash(two) == hash(pltpu.create_tensorcore_mesh("core", num_cores=2)) != hash(mesh)
    right = jax.jit(lambda: run(compiler_params=pltpu.CompilerParams(vmem_limit_bytes=1 << 20)))
    assert "tpu_custom_call" in right.lower().as_text()
