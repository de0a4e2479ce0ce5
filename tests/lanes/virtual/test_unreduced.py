"""Whole values that become unreduced: parts of a sum on each device, as on a TPU."""

from __future__ import annotations

import jax
import pytest
from packaging.version import Version
from support.project import Project

from harness.lanes.virtual.unreduced import divide_whole_values, is_any

WHOLE = "#sdy.sharding<@mesh, [{}, {}]>"
PARTS = '#sdy.sharding<@mesh, [{}, {}], unreduced={"x"}>'
MAIN = """
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%value: tensor<8x4x{type}> {{sdy.sharding = {given}}})
    -> tensor<8x4x{type}> {{
  {body}
  return %result : tensor<8x4x{type}>
}}
func.func private @inner(%value: tensor<8x4x{type}>) -> tensor<8x4x{type}> {{
  %parts = sdy.sharding_constraint %value {parts} : tensor<8x4x{type}>
  return %parts : tensor<8x4x{type}>
}}
"""
MADE = "%result = sdy.sharding_constraint %value {parts} : tensor<8x4x{type}>"
SUM = """%sum = stablehlo.add %value, %value : tensor<8x4x{type}>
  %result = sdy.sharding_constraint %sum {parts} : tensor<8x4x{type}>"""
TWICE = """%once = sdy.sharding_constraint %value {parts} : tensor<8x4x{type}>
  %result = sdy.sharding_constraint %once {parts} : tensor<8x4x{type}>"""
CALL = "%result = func.call @inner(%value) : (tensor<8x4x{type}>) -> tensor<8x4x{type}>"


@pytest.mark.parametrize(
    ("body", "given", "count"),
    [
        (MADE, WHOLE, 1),
        (MADE, PARTS, 0),
        (SUM, WHOLE, 1),
        (SUM, PARTS, 0),
        (TWICE, WHOLE, 1),
        (TWICE, PARTS, 0),
        (CALL, WHOLE, 1),
        (CALL, PARTS, 0),
    ],
)
@pytest.mark.parametrize("element", ["f32", "bf16", "i32", "i1", "complex<f32>"])
def test_only_whole_values_are_divided(body: str, given: str, count: int, element: str) -> None:
    from jax._src.interpreters.mlir import make_ir_context
    from jaxlib.mlir import ir

    short = PARTS.removeprefix("#sdy.sharding")
    names = {"type": element, "given": given, "parts": short}
    text = MAIN.format(body=body.format(**names), **names)
    if body != CALL:
        text = text[: text.index("func.func private")]
    with make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        assert is_any(module)
        assert divide_whole_values(module) == count
        assert module.operation.verify()
        assert divide_whole_values(module) == 0
        assert str(module).count("stablehlo.reduce") == count


def test_a_sum_of_parts_over_other_axes() -> None:
    """XLA's partitioner would abort: the sum has to give up one axis, and gets another."""
    from jax._src.interpreters.mlir import make_ir_context
    from jaxlib.mlir import ir

    text = """
    sdy.mesh @mesh = <["x"=2, "y"=2]>
    func.func public @main(%value: tensor<8x4xf32>
        {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}], unreduced={"y"}>}) -> tensor<4xf32> {
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %sum = stablehlo.reduce(%value init: %zero) applies stablehlo.add across dimensions = [0]
          : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
      %result = sdy.sharding_constraint %sum <@mesh, [{}], unreduced={"x"}> : tensor<4xf32>
      return %result : tensor<4xf32>
    }
    """
    with make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        assert divide_whole_values(module) == 1
        assert module.operation.verify()
        assert divide_whole_values(module) == 0
        constraints = [line for line in str(module).splitlines() if "constraint" in line]
    assert [line.partition("unreduced=")[2][:10] for line in constraints] == [
        '{"x", "y"}',
        '{"x"}> : t',
    ]


def test_a_long_chain_of_values_takes_no_long_time() -> None:
    """Each value is looked at once, though twice as many ways lead to each as to the one before."""
    from jax._src.interpreters.mlir import make_ir_context
    from jaxlib.mlir import ir

    names = {"type": "f32", "given": WHOLE, "parts": PARTS.removeprefix("#sdy.sharding")}
    sums = [f"%{n} = stablehlo.add %{n - 1}, %{n - 1} : tensor<8x4xf32>" for n in range(1, 99)]
    sums[0] = "%1 = stablehlo.add %value, %value : tensor<8x4xf32>"
    made = MADE.format(**names).replace("%value", f"%{len(sums)}")
    text = MAIN.format(body="\n  ".join([*sums, made]).replace("%", "%v"), **names)
    text = text[: text.index("func.func private")].replace("%vvalue", "%value")
    with make_ir_context(), ir.Location.unknown():
        assert divide_whole_values(ir.Module.parse(text.replace("%vresult", "%result"))) == 1


@pytest.mark.skipif(Version(jax.__version__) < Version("0.10"), reason="JAX 0.10 has reshard to it")
def test_values_come_back(project: Project) -> None:
    """Numbers are NumPy's: what becomes unreduced and is summed again is what it was."""
    project.write(
        "test_inner.py",
        """\
import jax, numpy as np
from jax.sharding import AxisType, PartitionSpec as P, reshard

pytestmark = [pytest.mark.lanes("virtual-tpu"), pytest.mark.topologies(4)]
VALUE = np.arange(32, dtype=np.float32).reshape(8, 4)

@pytest.fixture(autouse=True)
def mesh():
    with jax.set_mesh(jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)):
        yield

@pytest.mark.parametrize("parts", ["x", "y", "xy"])
@pytest.mark.parametrize("given", [P(None, None), P("x", None), P("y", "x")])
def test_there_and_back(given, parts):
    def f(value):
        return reshard(reshard(value * 2, P(None, None, unreduced=set(parts))), given)
    np.testing.assert_array_equal(jax.jit(f)(jax.device_put(VALUE, given)), VALUE * 2)

def test_shards_add_up():
    made = jax.jit(lambda v: v, out_shardings=P(None, None, unreduced={"x", "y"}))(VALUE)
    np.testing.assert_array_equal(sum(np.asarray(s.data) for s in made.addressable_shards), VALUE)

@pytest.mark.parametrize("axes", [[0], [0, 1]])
def test_sum_over_other_axes(axes):
    made = jax.jit(lambda v: v, out_shardings=P("x", None, unreduced={"y"}))(VALUE)
    rest = [None] * (2 - len(axes))
    whole = jax.jit(lambda v: reshard(
        jax.lax.reduce_sum(v, axes=axes, out_sharding=P(*rest, unreduced={"x"})), P(*rest)))
    np.testing.assert_array_equal(whole(made), VALUE.sum(tuple(axes)))

def test_gradient():
    @jax.shard_map(out_specs=P(reduced={"y"}))
    def f(x):
        s = jax.lax.all_gather(x, "y", axis=1, tiled=True, to="reduced")
        return jax.lax.psum(s.sum(), "x")
    value = jax.device_put(VALUE, P("x", "y"))
    np.testing.assert_array_equal(jax.jit(jax.grad(f))(value), np.ones((8, 4)))
""",
    )
    ran = project.run("--lane=virtual-tpu")
    assert set(ran.outcomes.values()) == {"passed"}, ran.stdout
