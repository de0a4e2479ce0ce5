"""What JAX tells a TPU's compiler beside a kernel: costs, limits, memories, aliases, the grid."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from suites.multislice_flash_attention.plain_kernels import EVERYWHERE, copy, custom_call, floats
from suites.shared.global_arrays import mesh_of
from suites.shared.jax_releases import jitted, needs_tpu_interpret_mode

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("1"),
    pytest.mark.upstream("jax-ml/jax#25097"),
    needs_tpu_interpret_mode,
]
F32 = np.float32
X = floats(16, 128)
LIKE = jax.ShapeDtypeStruct(X.shape, F32)
ROWS = pl.BlockSpec((8, 128), lambda i, *_: (i, 0))


def costs(options: dict[str, Any]) -> tuple[int, ...]:
    names = "flops", "transcendentals", "bytes_accessed"
    return tuple(options["cost_estimate"][name] for name in names)


def aliases(line: str) -> list[tuple[int, ...]]:
    """Return the result and the operand of each alias."""
    pattern = r"output_tuple_indices = \[(\d*)\], operand_index = (\d+)"
    return [(int(result or 0), int(operand)) for result, operand in re.findall(pattern, line)]


def test_options(subtests: pytest.Subtests) -> None:
    fn = pl.pallas_call(
        copy,
        LIKE,
        input_output_aliases={0: 0},
        cost_estimate=pl.CostEstimate(flops=3, transcendentals=5, bytes_accessed=7),
        compiler_params=pltpu.CompilerParams(
            vmem_limit_bytes=1 << 20,
            has_side_effects=True,
            allow_input_fusion=[True],
            disable_bounds_checks=True,
        ),
        name="mine",
    )
    for count, function, operand in ((1, fn, X), (3, jax.vmap(fn), np.stack([X] * 3))):
        options, line = custom_call(function, operand)
        with subtests.test(calls=count):
            assert costs(options) == (3 * count, 5 * count, 7 * count)
            assert [each["size"] for each in options["scoped_memory_configs"]] == [1 << 20]
            assert options["allow_input_fusion"] == [True]
            assert options["disable_bounds_checks"] is True
            assert "has_side_effect = true" in line
            assert 'kernel_name = "mine"' in line
            assert aliases(line) == [(0, 0)]
    plain, line = custom_call(pl.pallas_call(copy, LIKE), X)
    with subtests.test("none"):
        assert not set(plain) & {
            *("cost_estimate", "scoped_memory_configs", "allow_input_fusion"),
            *("disable_bounds_checks", "skip_device_barrier", "output_memory_colors"),
        }
        assert "has_side_effect = true" not in line


def test_cost_of_a_tangent() -> None:
    cost = pl.CostEstimate(flops=3, transcendentals=5, bytes_accessed=7)
    fn = pl.pallas_call(copy, LIKE, cost_estimate=cost)
    options, _ = custom_call(lambda x, dx: jax.jvp(fn, (x,), (dx,)), X, X)
    assert costs(options) == (6, 10, 14)


def test_aliases_behind_other_operands() -> None:
    """A bound of the grid and numbers fetched ahead come before the operands."""

    def fn(bound: Any, places: Any, x: Any, y: Any) -> Any:
        def kernel(places: Any, x: Any, y: Any, first: Any, second: Any) -> None:
            first[...] = x[...]
            second[...] = y[...] + places[0]

        return pl.pallas_call(
            kernel,
            [LIKE, LIKE],
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1, grid=(bound,), in_specs=[ROWS] * 2, out_specs=[ROWS] * 2
            ),
            input_output_aliases={2: 0, 1: 1},
        )(places, x, y)

    _, line = custom_call(fn, np.int32(2), np.array([1], np.int32), X, X)
    assert sorted(aliases(line)) == [(0, 3), (1, 2)]


@pytest.mark.skipif(
    jax.__version_info__ >= (0, 9), reason="newer JAX says in another place where results are"
)
@pytest.mark.parametrize("name", ["VMEM", "SMEM", "HBM"])
def test_memories(name: str) -> None:
    """The numbers are XLA's: 0 of HBM, 1 of VMEM, 4 of SMEM, which no operand is put into."""
    memory = getattr(pltpu, name)
    spec = pl.BlockSpec(memory_space=memory)

    def kernel(x: Any, _: Any, out: Any) -> None:
        pltpu.sync_copy(x, out)

    def fn(x: Any, y: Any) -> Any:
        call = pl.pallas_call(
            kernel, memory(X.shape, F32), in_specs=[EVERYWHERE, spec], out_specs=spec
        )
        return call(x, pltpu.with_memory_space_constraint(y, memory))

    options, line = custom_call(fn, X, X)
    color = {"HBM": 0, "VMEM": 1, "SMEM": 4}[name]
    assert options.get("output_memory_colors") == [color], line
    given = [{"operand_index": 1, "color": color}] if name != "SMEM" else None
    assert options.get("input_memory_space_colors") == given

    def alias(x: Any, y: Any) -> Any:
        call = pl.pallas_call(
            kernel,
            memory(X.shape, F32),
            in_specs=[EVERYWHERE, spec],
            out_specs=spec,
            input_output_aliases={1: 0},
        )
        return call(x, y)

    options, line = custom_call(alias, X, X)
    assert aliases(line) == [(0, 1)]
    assert options.get("input_memory_space_colors") == given


def module(fn: Callable[..., Any], capfd: pytest.CaptureFixture[str], *operands: Any) -> str:
    """Return the Mosaic module that JAX prints of a call with ``debug=True``."""
    capfd.readouterr()
    jax.jit(fn).lower(*operands)
    printed = capfd.readouterr().out
    return printed[printed.rindex("\nmodule") :]


@pytest.mark.skipif(
    jax.__version_info__ >= (0, 8), reason="this is asked of the releases that are known to do it"
)
@pytest.mark.parametrize("place", ["stdout", "folder"])
def test_model_of_a_kernel(place: str, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """JAX writes a kernel as a program for a checker of races and deadlocks."""
    parallel = pltpu.CompilerParams(dimension_semantics=("parallel",))
    options = {"grid": (2,), "in_specs": [ROWS], "out_specs": ROWS, "compiler_params": parallel}
    fn = pl.pallas_call(copy, LIKE, **options, name="copier")
    jax.config.update(
        "jax_pallas_dump_promela_to", "stdout" if place == "stdout" else str(tmp_path)
    )
    try:
        custom_call(fn, X)
    finally:
        jax.config.update("jax_pallas_dump_promela_to", "")
    printed = capfd.readouterr().out
    assert ("The Promela model for pallas_call copier" in printed) == (place == "stdout")
    files = list(tmp_path.iterdir())
    assert [path.name.startswith("copier-") for path in files] == [True] * (place == "folder")
    model = printed if place == "stdout" else files[0].read_text()
    assert "proctype" in model
    assert "#define NDEVICE 1\n#define NCORE 1\n" in model


def test_grid(capfd: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    """Its bounds, what may run in parallel, and how each block is buffered."""
    once = pl.BlockSpec((8, 128), lambda i, j: (j, i), pipeline_mode=pl.Buffered(1))
    twice = pl.BlockSpec((16, 128), lambda i, j: (i, j), pipeline_mode=pl.Buffered(2))
    at = pl.BlockSpec((pl.Element(16), pl.Element(128, (0, 128))), lambda i, j: (i, 128 * j))

    def kernel(x: Any, y: Any, z: Any, out: Any) -> None:
        out[...] = x[...] + y[:8] + z[:8]

    fn = pl.pallas_call(
        kernel,
        jax.ShapeDtypeStruct((16, 256), F32),
        grid=(2, 2),
        in_specs=[once, twice, at],
        out_specs=pl.BlockSpec((8, 128), lambda i, j: (j, i)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        debug=True,
    )
    x, y = floats(16, 256), floats(32, 256)
    xs = np.stack([x] * 5)
    for bounds, semantics, function, first in (
        ("2, 2", "parallel arbitrary", fn, x),
        ("5, 2, 2", "parallel parallel arbitrary", jax.vmap(fn, (0, None, None)), xs),
    ):
        text = module(function, capfd, first, y, x)
        with subtests.test(bounds=bounds):
            assert f"iteration_bounds = array<i64: {bounds}>" in text
            assert re.findall(r"dimension_semantics<(\w+)>", text) == semantics.split()
            modes = re.findall(r"pipeline_mode<(\w+)>", text)
            assert modes == ["synchronous", "double_buffered"]
            assert len(re.findall("element_window<", text)) == 1
            assert "[0, 0], [0, 128]" in text
            assert text.count("func.func @transform_") == 4


@pytest.mark.parametrize("scopes", [True, False])
def test_names_in_a_profile(scopes: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """The parts of a pipeline have names, unless they are not wanted, and so do users' scopes."""

    def body(x: Any, out: Any) -> None:
        def kernel(x: Any, out: Any) -> None:
            with jax.named_scope("inner"):
                out[...] = x[...] * 2

        pltpu.emit_pipeline(
            kernel, grid=(2,), in_specs=[ROWS], out_specs=[ROWS], trace_scopes=scopes
        )(x, out)

    fn = pl.pallas_call(body, LIKE, in_specs=[EVERYWHERE], out_specs=EVERYWHERE, debug=True)
    text = module(fn, capfd, X)
    names = set(re.findall(r'"?tpu\.trace_start"?.*?message = "([^"]*)"', text))
    assert "inner" in names
    assert ("ep_run_kernel" in names) == scopes
    assert ({"ep_copy_in", "ep_wait_in", "ep_copy_out", "ep_wait_out"} <= names) == scopes
    assert text.count("tpu.trace_start") == text.count("tpu.trace_stop")


@pytest.mark.long
@pytest.mark.parametrize(
    "kernels", ["a", pytest.param("ab", marks=pytest.mark.upstream("jax-ml/jax#34400"))]
)
def test_sizes_that_are_symbols(
    kernels: str, capfd: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    """Each size that is computed of symbols comes with the function that computes it."""
    from jax import export

    def twice(x: Any, out: Any) -> None:
        out[...] = x[...] + x[...]

    def fn(x: Any) -> Any:
        rows = x.shape[0]
        call = pl.pallas_call(
            twice,
            jax.ShapeDtypeStruct(x.shape, F32),
            grid=(rows // 8, 2),
            in_specs=[pl.BlockSpec((8, x.shape[1]), lambda i, j: (i, 0))],
            out_specs=pl.BlockSpec((8, x.shape[1]), lambda i, j: (i, 0)),
            debug=True,
        )
        return call(x)

    for rows in kernels:  # the second one has nothing of the first one's sizes
        shape = export.symbolic_shape(f"{rows}, n", constraints=[f"mod({rows}, 8) == 0"])
        with subtests.test(rows=rows):
            operand = jax.ShapeDtypeStruct(shape, F32)
            assert "@tpu_custom_call" in str(pl.lower_as_mlir(fn, operand, dynamic_shapes=True))
            text = capfd.readouterr().out
            if jax.__version_info__ >= (0, 9):
                continue  # it gives these functions in another place
            (bounds,) = re.findall(r"iteration_bounds = array<i64: (\d+), 2>", text)
            (width,) = set(re.findall(r"memref<8x(\d+)xf32", text))
            names = dict(re.findall(r'dynamic_dimension_mapping_arg_name_(\d+) = "([^"]*)"', text))
            modules = dict(re.findall(r'dynamic_dimension_mapping_module_(\d+) = "([^"]*)"', text))
            assert names[bounds] == f"{rows},n"
            assert set(names) == set(modules) <= {bounds, width}
            assert "stablehlo.divide" in modules[bounds]


def test_lowered_for_a_platform() -> None:
    """A function is lowered for a TPU, or for the platforms that are named, with its options."""
    if "platforms" not in inspect.signature(pl.lower_as_mlir).parameters:
        pytest.skip("this release of JAX lowers for a TPU alone")

    def fn(x: Any, times: int, *, negative: bool) -> Any:
        y = lax.platform_dependent(x, cpu=jnp.sin, tpu=jnp.cos) * times
        return -y if negative else y

    def operations(**options: Any) -> set[str]:
        static = {"times", "negative"}
        module = pl.lower_as_mlir(fn, X, 3, negative=True, static_argnames=static, **options)
        return set(re.findall(r"stablehlo\.(sine|cosine|negate)", str(module)))

    assert operations() == {"cosine", "negate"}
    assert operations(platforms=["cpu"]) == {"sine", "negate"}
    assert operations(platforms=["tpu", "cpu"]) == {"sine", "cosine", "negate"}


def test_where_results_are() -> None:
    """Each memory has a number of XLA's; that of a semaphore, and the host's, too."""
    if jax.__version_info__ >= (0, 9):
        pytest.skip("newer JAX says in another place where results are")
    semaphore = pltpu.SemaphoreType.DMA
    at = pl.BlockSpec(memory_space=pltpu.SEMAPHORE)
    signals = pl.pallas_call(
        lambda x, out, done: None, (LIKE, semaphore), out_specs=(EVERYWHERE, at)
    )
    assert custom_call(signals, X)[0]["output_memory_colors"] == [-1, 2]
    host = pl.BlockSpec(memory_space=pltpu.HOST)
    copies = pl.pallas_call(
        pltpu.sync_copy, pltpu.HOST(X.shape, X.dtype), in_specs=[EVERYWHERE], out_specs=host
    )
    assert custom_call(copies, X)[0]["output_memory_colors"] == [5]
    assert (
        not {"output_memory_colors", "input_memory_space_colors"}
        & custom_call(pl.pallas_call(copy, LIKE), X)[0].keys()
    )


@pytest.mark.skipif(
    jax.__version_info__ >= (0, 8), reason="this is asked of the releases that are known to do it"
)
@pytest.mark.topologies("4")
def test_model_of_a_kernel_on_devices(capfd: pytest.CaptureFixture[str]) -> None:
    """The program for a checker of races has as many devices as the mesh."""
    fn = pl.pallas_call(copy, jax.ShapeDtypeStruct((4, 128), X.dtype))
    spec = PartitionSpec("x")
    jax.config.update("jax_pallas_dump_promela_to", "stdout")
    try:
        program: Any = jitted(fn, mesh_of(4), (spec,), spec)
        program.lower(X)
    finally:
        jax.config.update("jax_pallas_dump_promela_to", "")
    model = capfd.readouterr().out
    assert "#define NDEVICE 4\n#define NCORE 1\n" in model
