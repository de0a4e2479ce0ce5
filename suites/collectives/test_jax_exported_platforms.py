"""JAX's exported functions for several platforms, with donation, custom calls and of GSPMD."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import Mesh, NamedSharding

from suites.collectives.exported import written
from suites.shared.global_arrays import Spec, mesh_of
from suites.shared.jax_releases import checked

pytest.importorskip("flatbuffers", reason="jax.export writes with flatbuffers, not installed")
pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("4"),
    pytest.mark.upstream("jax-ml/jax#40830"),
    pytest.mark.skipif(
        jax.__version_info__ < (0, 7), reason="JAX before 0.7 partitions exports without Shardy"
    ),
]
VALUE = (np.arange(32).reshape(4, 8) * 37 % 11 - 4).astype(np.float32)


def shape_of(*dimensions: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dimensions, "float32")


def by_platform(x: Any) -> Any:
    """Multiply by another number on each platform."""
    return lax.platform_dependent(x, cpu=lambda v: v * 3, tpu=lambda v: v * 5, cuda=lambda v: v * 7)


@pytest.mark.long
def test_of_several_platforms(subtests: pytest.Subtests) -> None:
    """Each call takes this platform's branch, also within a function of others in another order."""
    (a,) = export.symbolic_shape("a")
    for names in (["tpu"], ["cpu", "tpu"], ["tpu", "cuda", "cpu"], ["cuda", "cpu", "tpu"]):
        inner = written(export.export(jax.jit(by_platform), platforms=names)(shape_of(a, 8)))
        with subtests.test(names=names):
            np.testing.assert_array_equal(inner.call(VALUE), VALUE * 5)
            np.testing.assert_array_equal(jax.jit(inner.call)(VALUE), VALUE * 5)
        if "cpu" not in names:
            continue
        for others in (["tpu", "cpu"], ["cpu", "tpu"], ["tpu"]):
            outer = export.export(jax.jit(lambda x, of=inner: of.call(x + 1)), platforms=others)
            with subtests.test(names=names, others=others):
                for shape in (shape_of(4, 8), shape_of(2 * a, 8)):
                    result = written(outer(shape)).call(VALUE)
                    np.testing.assert_array_equal(result, (VALUE + 1) * 5)
    for names, others in ((["tpu"], ["tpu", "cpu"]), (["cpu", "cuda"], ["tpu"])):
        exported = export.export(jax.jit(by_platform), platforms=names)(shape_of(4, 8))
        with subtests.test(refused=names), pytest.raises(ValueError, match="platforms"):
            export.export(jax.jit(exported.call), platforms=others)(shape_of(4, 8))


def test_donated(subtests: pytest.Subtests) -> None:
    """An argument that may be given away has the right result, whatever its size."""
    (a,) = export.symbolic_shape("a")

    def step(scale: Any, state: Any) -> Any:
        return scale.sum(), state * scale.sum() + state.shape[0]

    jitted = jax.jit(step, donate_argnums=1)
    for shape in (shape_of(4, 8), shape_of(a, 8)):
        exported = written(export.export(jitted)(shape_of(3), shape))
        for rows in (4,) if shape.shape == (4, 8) else (4, 2):
            with subtests.test(shape=str(shape.shape), rows=rows):
                state = jax.device_put(VALUE[:rows])
                total, new = exported.call(np.ones(3, np.float32), state)
                assert total == 3
                np.testing.assert_array_equal(new, VALUE[:rows] * 3 + rows)


def test_custom_calls(subtests: pytest.Subtests) -> None:
    """A call of somebody's own is refused, but for the one that was allowed, within loops, too."""

    def program(x: Any) -> Any:
        call = jax.ffi.ffi_call("nobody", jax.ShapeDtypeStruct(x.shape, x.dtype))
        return lax.fori_loop(0, 2, lambda _, v: call(v), x)

    check = export.DisabledSafetyCheck.custom_call
    for checks in ((), (check("another"),)):
        with subtests.test(checks=checks), pytest.raises(ValueError, match="nobody"):
            export.export(jax.jit(program), disabled_checks=checks)(VALUE)
    allowed = export.export(jax.jit(program), disabled_checks=[check("another"), check("nobody")])
    assert "nobody" in written(allowed(VALUE)).mlir_module()


def test_of_each_partitioner(subtests: pytest.Subtests) -> None:
    """What one of them exported is divided as it says; Shardy also calls GSPMD's, not reversed."""
    mesh, other = mesh_of(2, 2), Mesh(mesh_of(2, 2).devices[::-1], ("x", "y"))
    at, rows = NamedSharding(mesh, Spec("x", "y")), NamedSharding(mesh, Spec("x"))

    def program(x: Any) -> Any:
        centred = checked(lambda v: v - v.mean(), mesh, (Spec("x"),), Spec("x"))(x)
        held = lax.with_sharding_constraint(centred * 2, NamedSharding(mesh, Spec(None, "y")))
        return held + 1

    centred = VALUE - VALUE.reshape(2, 2, 8).mean((1, 2)).repeat(2)[:, None]
    weights = np.cos(VALUE)
    pulled = 2 * (weights - weights.reshape(2, 2, 8).mean((1, 2)).repeat(2)[:, None])
    before = jax.config.jax_use_shardy_partitioner
    try:
        for shardy in (True, False) if jax.__version_info__ < (0, 9) else (True,):
            jax.config.update("jax_use_shardy_partitioner", shardy)
            jitted = jax.jit(program, in_shardings=at, out_shardings=rows)
            exported = written(export.export(jitted)(VALUE), 1)
            with subtests.test(shardy=shardy):
                assert exported.nr_devices == 4
                there = exported.in_shardings_jax(other)[0]
                assert there.is_equivalent_to(NamedSharding(other, Spec("x", "y")), 2)
                given = jax.device_put(VALUE, there)
                result = jax.jit(exported.call)(given)
                np.testing.assert_allclose(result, centred * 2 + 1, rtol=1e-5, atol=1e-5)
                assert result.sharding.is_equivalent_to(exported.out_shardings_jax(other)[0], 2)
                gradient = jax.jit(jax.grad(lambda x, of=exported: (of.call(x) * weights).sum()))
                np.testing.assert_allclose(gradient(given), pulled, rtol=1e-4, atol=1e-4)
            with subtests.test("called by the other one", shardy=shardy):
                jax.config.update("jax_use_shardy_partitioner", not shardy)
                call = jax.jit(exported.call)
                if shardy:
                    with pytest.raises(ValueError, match="hardy"):
                        call(given)
                else:
                    np.testing.assert_allclose(call(given), centred * 2 + 1, rtol=1e-5, atol=1e-5)
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
