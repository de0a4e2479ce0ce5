"""What an exported function says of itself, before and after it was written, and its gradient."""

from __future__ import annotations

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding

from suites.collectives.exported import written
from suites.shared.global_arrays import Spec, mesh_of
from suites.shared.jax_releases import since_0_5

pytest.importorskip("flatbuffers", reason="jax.export writes with flatbuffers, not installed")
pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("4"),
    pytest.mark.upstream("jax-ml/jax#40830"),
    since_0_5,
]
GIVEN = (("x", None), ("y",), (), ("y", "x"))
UNUSED = 2
RESULTS = ((("x", "y"),), ("y",), ())


def program(a: Any, b: Any, unused: Any, c: Any) -> Any:
    del unused
    return {"sum": a * c, "b": b * b, "total": a.sum() + b.sum()}


def test_facts(subtests: pytest.Subtests) -> None:
    mesh = mesh_of(2, 2)
    given = tuple(NamedSharding(mesh, Spec(*entries)) for entries in GIVEN)
    results = dict(
        zip(("b", "sum", "total"), (NamedSharding(mesh, Spec(*e)) for e in RESULTS), strict=True)
    )
    arguments = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((4, 4), (4,), (3,), (4, 4))]
    check = export.DisabledSafetyCheck
    checks = [check.custom_call("mine"), check.platform(), check.custom_call("other")]
    jitted = jax.jit(program, in_shardings=given, out_shardings=results)
    exported = export.export(jitted, platforms=("tpu", "cpu"), disabled_checks=checks)(*arguments)
    for name, of in (("exported", exported), ("read", written(exported, 1))):
        with subtests.test(of=name):
            assert (of.fun_name, of.nr_devices) == ("program", 4)
            assert tuple(of.platforms) == ("tpu", "cpu")
            assert list(of.disabled_safety_checks) == checks
            assert tuple(of.module_kept_var_idx) == (0, 1, 3)
            assert [aval.shape for aval in of.in_avals] == [each.shape for each in arguments]
            assert [aval.shape for aval in of.out_avals] == [(4,), (4, 4), ()]
            assert of.in_tree == jax.tree.structure(((*arguments,), {}))
            assert of.out_tree == jax.tree.structure(results)
            assert (of.ordered_effects, of.unordered_effects) == ((), ())
            assert of.has_vjp()
            assert "num_partitions = 4" in of.mlir_module()
        with subtests.test("where", of=name):
            there = (*of.in_shardings_jax(mesh), *of.out_shardings_jax(mesh))
            expected = (*given, *results.values())
            avals = (*of.in_avals, *of.out_avals)
            for number, (got, own, aval) in enumerate(zip(there, expected, avals, strict=True)):
                if number == UNUSED:
                    assert got is None
                    continue
                indices = got.devices_indices_map(aval.shape)
                assert indices == own.devices_indices_map(aval.shape)
        with subtests.test("gradient", of=name):
            back = of.vjp()
            assert (back.nr_devices, tuple(back.platforms)) == (4, ("tpu", "cpu"))
            assert [aval.shape for aval in back.in_avals] == [
                aval.shape for aval in (*of.in_avals, *of.out_avals)
            ]
            assert [aval.shape for aval in back.out_avals] == [aval.shape for aval in of.in_avals]
            written_as = [str(hlo) for hlo in (*of.in_shardings_hlo, *of.out_shardings_hlo)]
            needed = [n for n in range(len(written_as)) if n in back.module_kept_var_idx]
            assert {0, 1, 3, 4, 5, 6} >= set(needed) >= {0, 1, 3, 4, 5}
            assert [str(back.in_shardings_hlo[n]) for n in needed] == [
                written_as[n] for n in needed
            ]
            assert [str(hlo) for hlo in back.out_shardings_hlo] == written_as[: len(arguments)]
            assert list(back.disabled_safety_checks) == checks
            assert back.has_vjp() == (name == "exported")
    with subtests.test("nothing given"):
        plain = export.export(jax.jit(program))(*arguments)
        assert set(plain.in_shardings_hlo) == {None}
        assert plain.nr_devices == 1
        assert list(plain.disabled_safety_checks) == []
        assert tuple(plain.platforms) == ("tpu",)
        assert not written(plain).has_vjp()


class Box:
    def __init__(self, value: Any, label: str) -> None:
        self.value, self.label = value, label


def test_registered_classes(subtests: pytest.Subtests) -> None:
    """A registration gives the class back, and what is written has its name."""
    jax.devices()
    jax.tree_util.register_pytree_node(
        Box, lambda box: ((box.value,), box.label), lambda label, values: Box(values[0], label)
    )
    Row = collections.namedtuple("Row", ["first", "second"])  # noqa: PYI024 - as users write it
    made = export.register_pytree_node_serialization(
        Box,
        serialized_name="suites.Box",
        serialize_auxdata=lambda label: label.upper().encode(),
        deserialize_auxdata=lambda blob: blob.decode().lower(),
    )
    assert made is Box
    assert export.register_namedtuple_serialization(Row, serialized_name="suites.Row") is Row
    exported = export.export(jax.jit(lambda row: (Box(row.second * 2, "mine"), row)))(
        Row(jnp.float32(1), jnp.float32(2))
    )
    blob = bytes(exported.serialize())
    again = export.deserialize(bytearray(blob))
    with subtests.test("names"):
        assert all(name in blob for name in (b"suites.Box", b"suites.Row", b"MINE"))
    with subtests.test("trees"):
        assert (again.in_tree, again.out_tree) == (exported.in_tree, exported.out_tree)
        box, row = jax.tree.unflatten(again.out_tree, [1, 2, 3])
        assert (type(box), box.value, box.label) == (Box, 1, "mine")
        assert (type(row), row.first, row.second) == (Row, 2, 3)


def test_calls_to_the_host_are_refused(subtests: pytest.Subtests) -> None:
    """What would call back a process that is not there is not exported."""
    programs = {
        "print": lambda x: (jax.debug.print("{}", x), x)[1],
        "ordered": lambda x: (jax.debug.print("{}", x, ordered=True), x)[1],
        "callback": lambda x: jax.pure_callback(lambda v: v, x, x),
    }
    for name, fn in programs.items():
        with subtests.test(name=name), pytest.raises(NotImplementedError, match="callbacks"):
            export.export(jax.jit(fn))(np.float32(1))
    mapped = jax.pmap(lambda x: x)
    with subtests.test("mapped"), pytest.raises((NotImplementedError, ValueError)):
        export.export(mapped)(np.zeros((4, 2), np.float32))
