"""The parameters of a TPU's kernel: what each is, and that each one reaches the compiler."""

from __future__ import annotations

import copy as copying
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from suites.multislice_flash_attention.plain_kernels import copy, custom_call, floats
from suites.shared.jax_releases import needs_tpu_interpret_mode

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("1"),
    pytest.mark.upstream("jax-ml/jax#25097"),
    needs_tpu_interpret_mode,
]
X = floats(16, 128)
LIKE = jax.ShapeDtypeStruct(X.shape, X.dtype)
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
OPTIONS: dict[str, Any] = {
    "vmem_limit_bytes": 1 << 20,
    "has_side_effects": True,
    "allow_input_fusion": [True],
    "disable_bounds_checks": True,
    "internal_scratch_in_bytes": 4096,
    "serialization_format": 0,
    "skip_device_barrier": True,
    "dimension_semantics": ["parallel"],
    "flags": {"xla_tpu_first": 7, "xla_tpu_second": True},
}
# Where the compiler reads an option, unless it has the option's own name.
WRITTEN: dict[str, Callable[[dict[str, Any], str], Any]] = {
    "vmem_limit_bytes": lambda options, _: options["scoped_memory_configs"][0]["size"],
    "has_side_effects": lambda _, line: "has_side_effect = true" in line,
    "flags": lambda options, _: {
        each["flag_type"]: next(iter(each["value"].values())) for each in options["flag_configs"]
    },
}


def call(capfd: pytest.CaptureFixture[str], **options: Any) -> tuple[dict[str, Any], str, str]:
    """Return the configuration of a kernel's call, its line, and what JAX prints of it."""
    fn = pl.pallas_call(
        copy,
        LIKE,
        grid=(2,),
        in_specs=[ROWS],
        out_specs=ROWS,
        compiler_params=pltpu.CompilerParams(**options),
        debug=True,
        name="copier",
    )
    capfd.readouterr()
    configuration, line = custom_call(fn, X)
    return configuration, line, capfd.readouterr().out


def test_each_parameter(capfd: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    names = {field.name for field in dataclasses.fields(pltpu.CompilerParams)}
    options = {name: value for name, value in OPTIONS.items() if name in names}
    configuration, line, printed = call(capfd, **options)
    for name, value in options.items():
        if name == "dimension_semantics":
            continue
        with subtests.test(name=name):
            written = WRITTEN.get(name, lambda of, _, name=name: of[name])
            assert written(configuration, line) == value
    with subtests.test("printed"):
        kernel, _, module = printed.partition("The Mosaic module for pallas_call copier")
        assert "The kernel jaxpr for pallas_call copier" in kernel
        assert "lambda" in kernel
        assert "dimension_semantics<parallel>" in module
        assert "iteration_bounds = array<i64: 2>" in module
    plain, line, printed = call(capfd)
    with subtests.test("none"):
        assert not plain.keys() & {*(options.keys() - {"serialization_format"}), "flag_configs"}
        assert "has_side_effect = true" not in line
        assert "dimension_semantics<parallel>" not in printed
    with subtests.test("silent"):
        custom_call(pl.pallas_call(copy, LIKE), X)
        assert "pallas_call" not in capfd.readouterr().out
    with subtests.test("a kernel of another core"):
        if not hasattr(pltpu, "KernelType"):
            pytest.skip("kernels of this release of JAX have no type of core")
        params = pltpu.CompilerParams(kernel_type=pltpu.KernelType.SC_VECTOR_SUBCORE)
        with pytest.raises(NotImplementedError, match=r"SC_VECTOR|Get only supports"):
            jax.jit(pl.pallas_call(copy, LIKE, compiler_params=params)).lower(X)


def test_values(subtests: pytest.Subtests) -> None:
    """Parameters are a key of a dictionary, so that a kernel is not traced again."""
    jax.devices()
    names = [field.name for field in dataclasses.fields(pltpu.CompilerParams)]
    options: dict[str, Any] = {
        **{name: value for name, value in OPTIONS.items() if name in names},
        "collective_id": 5,
    }
    if hasattr(pltpu, "KernelType"):
        options["kernel_type"] = pltpu.KernelType.SC_VECTOR_SUBCORE
    plain = pltpu.CompilerParams()
    keys = {pltpu.CompilerParams(**{name: value}): name for name, value in options.items()}
    assert len(keys) == len(options)
    for name, value in options.items():
        with subtests.test(name=name):
            params = pltpu.CompilerParams(**{name: value})
            assert keys[params] == name
            assert params not in (plain, None)
            got = getattr(params, name)
            assert (dict(got) if name == "flags" else got) == (
                tuple(value) if isinstance(value, list) else value
            )
            assert all(
                getattr(params, other) == getattr(plain, other) for other in names if other != name
            )
            assert dataclasses.replace(params, **{name: getattr(plain, name)}) == plain
            for again in (copying.copy(params), pickle.loads(pickle.dumps(params))):  # noqa: S301
                assert again == params
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(params, name, value)


def test_blocks_as_values(subtests: pytest.Subtests) -> None:
    """Specifications of a block are equal if their shape, function, memory and buffers are."""
    jax.devices()

    def rows(i: int) -> tuple[int, int]:
        return i, 0

    def columns(i: int) -> tuple[int, int]:
        return 0, i

    makers: dict[str, Callable[[], Any]] = {
        "nothing": pl.BlockSpec,
        "shape": lambda: pl.BlockSpec((8, 128)),
        "rows": lambda: pl.BlockSpec((8, 128), rows),
        "columns": lambda: pl.BlockSpec((8, 128), columns),
        "memory": lambda: pl.BlockSpec((8, 128), rows, memory_space=pltpu.SMEM),
        "buffers": lambda: pl.BlockSpec((8, 128), rows, pipeline_mode=pl.Buffered(1)),
    }
    for name, make in makers.items():
        with subtests.test(name=name):
            assert [other for other, maker in makers.items() if make() == maker()] == [name]
    with subtests.test("called"):
        maps: list[tuple[Callable[[int], Any], tuple[int, ...]]] = [
            (columns, (0, 3)),
            (lambda i: [i, 1], (3, 1)),
            (lambda i: i, (3,)),
        ]
        for function, result in maps:
            assert pl.BlockSpec((8,) * len(result), function).index_map(3) == result


def test_meshes_of_cores(subtests: pytest.Subtests) -> None:
    """A mesh of cores is a value, which nobody changes, of the cores that a chip has."""
    made = pltpu.create_tensorcore_mesh
    (device, *_) = jax.devices()
    meshes = {f"{name}{cores}": made(name, num_cores=cores) for name in "ab" for cores in (1, 2)}
    for key, mesh in meshes.items():
        with subtests.test(mesh=key):
            assert dict(mesh.shape) == {key[0]: int(key[1])}
            assert hash(mesh) == hash(made(key[0], num_cores=int(key[1])))
            assert len({hash(other) for other in meshes.values()}) == len(meshes)
            if not hasattr(mesh, "devices"):
                continue  # meshes of JAX 0.12 keep the number of cores
            assert [core.id for core in mesh.devices.flat] == list(range(int(key[1])))
            with pytest.raises(ValueError, match="read-only"):
                mesh.devices[0] = None
    for given in ({}, {"devices": [device]}):
        with subtests.test("of devices", given=list(given)):
            assert dict(made("c", **given).shape) == {"c": device.num_cores}
    with subtests.test("of both"), pytest.raises(ValueError, match="both"):
        made("c", devices=[device], num_cores=1)
