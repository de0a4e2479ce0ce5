"""What a jitted function says to the compiler of its arguments, without compiling it.

Expected is the text of a sharding as Shardy writes it, or as GSPMD does, by hand from the spec.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding

from suites.shared.global_arrays import Spec, mesh_of

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("8"),
    pytest.mark.upstream("jax-ml/jax#26946"),
    pytest.mark.skipif(
        jax.__version_info__ < (0, 7), reason="JAX before 0.7 writes shardings as GSPMD has them"
    ),
]
U = Spec.UNCONSTRAINED
# The entries of an argument, the shape, what Shardy writes for them, and what GSPMD does.
TEXTS: list[tuple[tuple[Any, ...], tuple[int, ...], str, str]] = [
    (("x", ("z", "y")), (8, 8), '[{"x"}, {"z", "y"}]', "{devices=[2,4]<=[2,2,2]T(0,2,1)}"),
    (
        (None, "y"),
        (4, 4),
        '[{}, {"y"}]',
        "{devices=[1,2,4]<=[2,2,2]T(1,0,2) last_tile_dim_replicate}",
    ),
    ((("x", "y", "z"),), (16,), '[{"x", "y", "z"}]', "{devices=[8]<=[8]}"),
    ((), (4, 2), "[{}, {}]", "{replicated}"),
    (
        ("z", None, "x"),
        (2, 3, 2),
        '[{"z"}, {}, {"x"}]',
        "{devices=[2,1,2,2]<=[4,2]T(1,0) last_tile_dim_replicate}",
    ),
    (("y",), (2, 5), '[{"y"}, {}]', "{devices=[2,1,4]<=[2,2,2]T(1,0,2) last_tile_dim_replicate}"),
]


def cube(**options: Any) -> Mesh:
    return Mesh(mesh_of(2, 4).devices.reshape(2, 2, 2), ("x", "y", "z"), **options)


def main(lowered: Any) -> tuple[list[str], list[str]]:
    """Return the texts of the arguments and of the results of a lowered function."""
    (line,) = (line for line in lowered.as_text().splitlines() if "@main(" in line)
    given, _, results = line.partition(" -> ")
    return given.split("%arg")[1:], results.split("tensor<")[1:]


def shardings(lowered: Any) -> tuple[list[str], list[str]]:
    """Return what is written for the arguments and for the results; "" for nothing."""
    patterns = r"#sdy.sharding<@\w+, (\[.*?\])>", r'mhlo.sharding = "(.*?)"'

    def of(text: str) -> str:
        matches = [match[1] for pattern in patterns if (match := re.search(pattern, text))]
        return matches[0] if matches else ""

    given, results = main(lowered)
    return [of(text) for text in given], [of(text) for text in results]


def test_written_shardings(subtests: pytest.Subtests) -> None:
    """Of each argument and each result, of those in the middle, and none that nobody gave."""
    mesh = cube()
    places = [NamedSharding(mesh, Spec(*entries)) for entries, *_ in TEXTS]
    arguments = [jax.ShapeDtypeStruct(shape, np.float32) for _, shape, *_ in TEXTS]

    def step(*values: Any) -> Any:
        return [value * 2 for value in values], values[0].sum()

    jitted = jax.jit(step, in_shardings=tuple(places), out_shardings=(places, None))
    for shardy in (True, False) if jax.__version_info__ < (0, 8) else (True,):
        with subtests.test(shardy=shardy):
            jax.config.update("jax_use_shardy_partitioner", shardy)
            again = jitted.lower(*arguments)
            jax.config.update("jax_use_shardy_partitioner", True)
            texts = [text[2 if shardy else 3] for text in TEXTS]
            assert shardings(again) == (texts, [*texts, ""])
            text = again.as_text()
            assert "mhlo.num_partitions = 8" in text
            assert "mhlo.num_replicas = 1" in text
            assert "same_data_across_replicas" not in text
            assert ('@mesh = <["x"=2, "y"=2, "z"=2]>' in text) == shardy
    with subtests.test("of the arguments themselves"):
        given = [
            jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=place)
            for each, place in zip(arguments, places, strict=True)
        ]
        assert shardings(jax.jit(step).lower(*given))[0] == [text[2] for text in TEXTS]

    def constrained(value: Any) -> Any:
        free, rows = NamedSharding(mesh, Spec(U, "x")), NamedSharding(mesh, Spec(("y", "z")))
        return lax.with_sharding_constraint(value, free) + lax.with_sharding_constraint(value, rows)

    with subtests.test("in the middle"):
        text = jax.jit(constrained).lower(arguments[0]).as_text()
        assert re.findall(r"sharding_constraint \S+ <@mesh, (.*)> :", text) == [
            '[{?}, {"x"}]',
            '[{"y", "z"}, {}]',
        ]


def test_written_types_of_axes(subtests: pytest.Subtests) -> None:
    """What explicit axes do not divide is whole along them; other axes stay free."""
    from jax.sharding import AxisType

    explicit, auto = AxisType.Explicit, AxisType.Auto
    spec = Spec("x")
    for kinds, written in (
        ((explicit, explicit, explicit), '[{"x"}, {}]'),
        ((explicit, auto, explicit), '[{"x", ?}, {?}], replicated={"z"}'),
        ((explicit, auto, auto), '[{"x", ?}, {?}]'),
    ):
        at = NamedSharding(cube(axis_types=kinds), spec)
        argument = jax.ShapeDtypeStruct((8, 8), np.float32, sharding=at)
        with subtests.test(kinds=str(kinds)):
            lowered = jax.jit(lambda v: jnp.sin(v) * 2).lower(argument)
            constraints = re.findall(r"sharding_constraint \S+ <@\w+, (.*)> :", lowered.as_text())
            assert constraints
            assert constraints[0] == written
            assert constraints[-1] == written
            assert lowered.out_info.sharding.spec[0] == "x"


@pytest.mark.upstream("jax-ml/jax#16906")
def test_written_donations(subtests: pytest.Subtests) -> None:
    """Which arguments may be given away, beside static and unused ones."""
    mesh = cube()
    at = NamedSharding(mesh, Spec("x"))

    def step(a: Any, n: int, b: Any, tree: Any, *, last: Any) -> Any:
        return b * n, a + 1, tree["c"] - tree["d"], last * 2

    def lowered(places: Any = None, **options: Any) -> Any:
        a, b, c, d, unused, last = (
            jax.ShapeDtypeStruct((8, 8), np.float32, sharding=places) for _ in range(6)
        )
        jitted = jax.jit(step, **options)
        return jitted.lower(a, 3, b, {"c": c, "d": d, "unused": unused}, last=last)

    names = ("a", "b", "c", "d", "unused", "last")
    ways: dict[str, tuple[dict[str, Any], set[str]]] = {
        "nothing": ({}, set()),
        "both": ({"donate_argnums": (2, 0)}, {"a", "b"}),
        "all": ({"donate_argnums": (0, 2, 3), "donate_argnames": "last"}, set(names)),
    }
    for name, (options, gone) in ways.items():
        for static in ({"static_argnums": 1}, {"static_argnames": "n"})[: 1 + (name == "both")]:
            with subtests.test(name=name, **static):
                step_lowered = lowered(at, **options, **static)
                infos = jax.tree.leaves(step_lowered.args_info)
                donated = dict(zip(names, (info.donated for info in infos), strict=True))
                assert {key for key, is_donated in donated.items() if is_donated} == gone
                given, _ = main(step_lowered)
                used = [key for key in names if key != "unused"]
                marked = {
                    key
                    for key, text in zip(used, given, strict=True)
                    if "aliasing_output" in text or "buffer_donor" in text
                }
                assert marked == gone - {"unused"} or name == "all"


def test_written_choices_of_the_compiler() -> None:
    """What is left to the compiler is free in each dimension, beside what is not."""
    pjit = pytest.importorskip("jax.experimental.pjit")
    if not hasattr(pjit, "AUTO"):
        pytest.skip("this release of JAX leaves no placement to the compiler")
    mesh = cube()
    free, rows = pjit.AUTO(mesh), NamedSharding(mesh, Spec("x"))
    given = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((8, 4), (4, 8))]

    def step(a: Any, b: Any) -> Any:
        return a @ b, a.sum(1), b

    jitted = jax.jit(step, in_shardings=(free, rows), out_shardings=(free, free, None))
    lowered = jitted.lower(*given)
    assert shardings(lowered) == (["[{?}, {?}]", '[{"x"}, {}]'], ["[{?}, {?}]", "[{?}]", ""])
    assert '@mesh = <["x"=2, "y"=2, "z"=2]>' in lowered.as_text()


@pytest.mark.parametrize("axis", ["x", "y"])
def test_written_sums_of_parts(axis: str) -> None:
    """Parts that still have to be added are written with the axis that they are divided over."""
    if not hasattr(Spec("x"), "reduced"):
        pytest.skip("a spec of this release of JAX says nothing of sums")
    from jax.sharding import AxisType

    mesh = cube(axis_types=(AxisType.Explicit,) * 3)
    given = [
        jax.ShapeDtypeStruct((8, 8), np.float32, sharding=NamedSharding(mesh, spec))
        for spec in (Spec("z", axis), Spec(axis))
    ]

    def product(a: Any, b: Any) -> Any:
        rows = Spec("z", None)
        parts = jnp.einsum("ij,jk->ik", a, b, out_sharding=Spec("z", None, unreduced={axis}))
        return jax.sharding.reshard(parts, rows)

    with jax.sharding.set_mesh(mesh):
        text = jax.jit(product).lower(*given).as_text()
    constraints = re.findall(r"sharding_constraint \S+ <@mesh, (.*)> :", text)
    assert constraints == [f'[{{"z"}}, {{}}], unreduced={{"{axis}"}}', '[{"z"}, {}]']


@pytest.mark.skipif(
    jax.__version_info__ >= (0, 8), reason="from JAX 0.8 on only Shardy's shardings are written"
)
def test_written_manual_axes_of_gspmd(subtests: pytest.Subtests) -> None:
    """Within a map the axes of a few are manual; along the others each device has the same."""
    mesh = cube()
    given = jax.ShapeDtypeStruct((8, 8), np.float32)
    texts = {
        ("y",): "{devices=[1,1,2,4]<=[2,2,2]T(1,0,2) last_tile_dims={manual, replicated}}",
        ("x", "z"): "{devices=[1,1,4,2]<=[2,2,2]T(0,2,1) last_tile_dims={manual, replicated}}",
        ("x", "y", "z"): "{manual}",
    }
    jax.config.update("jax_use_shardy_partitioner", False)
    for axes, written in texts.items():
        spec = Spec(axes[0])
        mapped = jax.shard_map(
            lambda v: v * 2, mesh=mesh, in_specs=spec, out_specs=spec, axis_names=set(axes)
        )
        with subtests.test(axes=axes):
            text = jax.jit(mapped).lower(given).as_text()
            assert set(re.findall(r'SPMDFullToShardShape.*sharding = "(.*?)"', text)) == {written}


def test_written_layouts() -> None:
    """A layout by a constraint is the result's own, or the compiler is free to choose that."""
    layout = pytest.importorskip("jax.experimental.layout")
    if not hasattr(layout, "Format"):
        pytest.skip("this release of JAX has no format")
    columns = layout.Format(layout.Layout((1, 0)), NamedSharding(cube(), Spec("x")))
    step = jax.jit(lambda v: (v + 1, lax.with_sharding_constraint(v * 2, columns), 3.0))
    _, results = main(step.lower(jax.ShapeDtypeStruct((8, 8), np.float32)))
    modes = [re.findall(r'layout_mode = "(.*?)"', text) for text in results]
    assert modes in ([[], ["auto"], []], [[], ["{0,1}"], []])
