"""Calls of compiled programs: what they take, keep and give back, and when they are compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.conformance.jax_programs.agreement import normal
from harness.conformance.jax_programs.compared_program import program
from harness.conformance.jax_programs.late import jax, jnp, np

Pairs = Iterator[tuple[Any, Any]]


@program()
def donation() -> Pairs:
    """Donate an argument: it is deleted, and the other one is not."""
    x, y = normal(64), normal(64, seed=1)
    donated, kept = jax.device_put(x), jax.device_put(y)
    yield jax.jit(lambda x, y: x * 2 + y, donate_argnums=0)(donated, kept), x * 2 + y
    yield (donated.is_deleted(), kept.is_deleted()), (True, False)
    yield kept, y


@program()
def donation_in_a_loop() -> Pairs:
    """Donate a state again and again."""
    step = jax.jit(lambda s: {"n": s["n"] + 1, "x": s["x"] * 0.5}, donate_argnums=0)
    state = jax.device_put({"n": np.int32(0), "x": np.ones(9, "float32")})
    for _ in range(20):
        state = step(state)
    yield state, {"n": np.int32(20), "x": np.full(9, 0.5**20, "float32")}


@program()
def deleted_array() -> Pairs:
    """Refuse to read an array that was deleted."""
    array = jax.device_put(normal(4))
    array.delete()
    try:
        word = f"read {np.asarray(array)}"
    except RuntimeError as error:
        word = "deleted" if "deleted" in str(error) else str(error)
    yield word, "deleted"
    yield jnp.ones(2), np.ones(2)


@program()
def hundreds_of_arguments() -> Pairs:
    """Pass three hundred arguments and take as many results."""
    xs = [np.float32(n) for n in range(300)]
    yield jax.jit(lambda *xs: [x + n for n, x in enumerate(xs)])(*xs), [2 * x for x in xs]


@program()
def trees() -> Pairs:
    """Pass and return a tree of dicts, tuples, None and arrays of no element."""
    tree = {"a": (normal(2), None), "b": [np.int32(1), {"c": np.zeros((0, 3), "float32")}]}
    doubled = jax.jit(lambda t: jax.tree.map(lambda x: x * 2, t))(tree)
    yield doubled, {"a": (normal(2) * 2, None), "b": [np.int32(2), {"c": np.zeros((0, 3), "f")}]}


@program()
def large_constants() -> Pairs:
    """Compile four megabytes of numbers into a program."""
    table = normal(1024, 1024)
    yield jax.jit(lambda n: jnp.asarray(table)[n])(np.int32(700)), table[700]


@program()
def static_arguments() -> Pairs:
    """Compile once for each value of a static argument."""
    traced = []

    def power(x: Any, n: int) -> Any:
        traced.append(n)
        return x**n

    x, compiled = normal(3), jax.jit(power, static_argnames="n")
    for n in (2, 3, 2):
        yield compiled(x, n=n), x**n
    yield len(traced), 2


@program()
def unused_and_repeated_results() -> Pairs:
    """Return an argument, a constant, and one result twice."""
    x = normal(3)
    twice = jax.jit(lambda x, _: (x, x + 1, x + 1, jnp.float32(4)))(x, normal(2))
    yield twice, (x, x + 1, x + 1, np.float32(4))


@program()
def ahead_of_time() -> Pairs:
    """Lower and compile for shapes, then call it twice."""
    shape = jax.ShapeDtypeStruct((3, 2), "float32")
    lowered = jax.jit(lambda x: x.T @ x).lower(shape)
    yield "stablehlo" in lowered.as_text(), True
    compiled = lowered.compile()
    for seed in (0, 1):
        x = normal(3, 2, seed=seed)
        yield compiled(x), x.T @ x
    try:
        word = f"took {compiled(normal(4, 2))}"
    except TypeError:
        word = "refused"
    yield word, "refused"


@program(optional="exports")
def export() -> Pairs:
    """Export a program, read it back from bytes, and call it, also with another size."""
    from importlib.util import find_spec

    from jax import export as exports

    if find_spec("flatbuffers") is None:
        raise ImportError("jax.export has no flatbuffers here")

    (n,) = exports.symbolic_shape("n")
    shape = jax.ShapeDtypeStruct((n, 2), "float32")
    data = exports.export(jax.jit(lambda x: jnp.sin(x).sum(0)))(shape).serialize()
    imported = exports.deserialize(data)
    for size in (3, 7):
        x = normal(size, 2)
        yield jax.jit(imported.call)(x), np.sin(x).sum(0)


@program(optional="the persistent cache of compilations")
def persistent_cache() -> Pairs:
    """Compile a program again from the cache on disk."""
    import tempfile
    from pathlib import Path

    from jax import monitoring
    from jax.experimental.compilation_cache import compilation_cache

    hits = []
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        monitoring.register_event_listener(
            lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None
        )
        x = normal(5)
        for _ in range(2):
            yield jax.jit(lambda x: jnp.cos(x) * 7)(x), np.cos(x) * np.float32(7)
        entries = list(Path(folder).iterdir())
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()
    if not entries:
        raise RuntimeError("not supported: nothing was kept")
    yield bool(hits), True


@program()
def live_arrays() -> Pairs:
    """List the arrays that live: a new one is there until it is deleted."""
    array = jax.device_put(normal(3))
    numbers = [sum(each is array for each in jax.live_arrays())]
    yield array, normal(3)
    array.delete()
    numbers.append(sum(each is array for each in jax.live_arrays()))
    yield numbers, [1, 0]


@program()
def checkpoint_policies() -> Pairs:
    """Keep nothing, everything, or products for a gradient."""
    w, x = normal(4, 4), normal(4, seed=1)
    expected = w.T @ ((1 - np.tanh(w @ x) ** 2) * 1)
    for name in ("nothing_saveable", "everything_saveable", "dots_saveable"):
        policy = getattr(jax.checkpoint_policies, name)
        function = jax.checkpoint(lambda x: jnp.tanh(w @ x).sum(), policy=policy)
        yield jax.jit(jax.grad(function))(x), expected


@program(devices=2)
def other_device() -> Pairs:
    """Move an array to another device, compute there, and move it back."""
    x, (first, second) = normal(4, 3), jax.devices()[:2]
    there = jax.device_put(x, second)
    result = jax.jit(lambda x: x * 3)(there)
    yield [str(each.device) for each in (there, result)], [str(second)] * 2
    yield result, x * 3
    yield jax.device_put(result, first), x * 3


@program(optional="memories of the host")
def host_memory() -> Pairs:
    """Keep an array in pinned memory of the host, and take it back."""
    x, device = normal(6), jax.devices()[0]
    kinds = [memory.kind for memory in device.addressable_memories()]
    if "pinned_host" not in kinds:
        raise RuntimeError(f"not supported: the kinds of memory are {kinds}")
    away = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
    kept = jax.device_put(x, away)
    yield kept.sharding.memory_kind, "pinned_host"
    yield kept, x
    home = jax.sharding.SingleDeviceSharding(device, memory_kind=device.default_memory().kind)
    yield jax.device_put(kept, home) + 1, x + 1


@program(optional="DLPack")
def dlpack() -> Pairs:
    """Hand an array to NumPy, and take one from it, by DLPack."""
    x = normal(3, 4)
    yield jnp.from_dlpack(x.copy()), x
    array = jax.device_put(x)
    yield array, x
    yield np.from_dlpack(array), x


@program(optional="callbacks to the host")
def pure_callback() -> Pairs:
    """Compute a value by a function of the host, alone and in a batch."""
    x = normal(4)

    def function(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(
            lambda x: np.sinc(x).astype("f"), shape, x, vmap_method="sequential"
        )

    yield jax.jit(function)(x) + 1, np.sinc(x) + 1
    yield jax.jit(jax.vmap(function))(x), np.sinc(x)


@program(optional="callbacks to the host")
def ordered_callbacks() -> Pairs:
    """Call functions of the host for their effects, in the order of a loop."""
    from jax.experimental import io_callback

    calls = []

    def turn(n: Any, total: Any) -> Any:
        io_callback(lambda n: calls.append(int(n)), None, n, ordered=True)
        return total + n

    yield jax.jit(lambda: jax.lax.fori_loop(0, 5, turn, 0))(), np.int32(10)
    jax.effects_barrier()
    yield calls, [0, 1, 2, 3, 4]


@program(optional="callbacks to the host")
def debug_callback() -> Pairs:
    """Watch values of a program that is differentiated."""
    values = []

    def function(x: Any) -> Any:
        jax.debug.callback(lambda x: values.append(float(x)), x * 2)
        return x * x

    yield jax.jit(jax.grad(function))(np.float32(3)), np.float32(6)
    jax.effects_barrier()
    yield values, [6.0]


@program(optional="callbacks to the host")
def error_in_an_execution() -> Pairs:
    """Raise an error while a program runs; the next program runs as before."""

    def fail(_: Any) -> Any:
        raise ValueError("as planned")

    x = normal(3)
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    try:
        word = f"gave {np.asarray(jax.jit(lambda x: jax.pure_callback(fail, shape, x))(x))}"
    except Exception as error:
        if "as planned" not in str(error):
            raise
        word = "as planned"
    yield word, "as planned"
    yield jax.jit(lambda x: x + 1)(x), x + 1
