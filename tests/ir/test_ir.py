"""Reading StableHLO. The cases run in processes of their own: MLIR's context starts threads."""

from __future__ import annotations

import pytest
from jaxlib.mlir.dialects import stablehlo

from harness import ir
from harness.ir import Collective, InvalidProgramError, Program, TensorType

pytestmark = pytest.mark.lanes("cpu")
OF_AXES = hasattr(stablehlo, "ReplicaGroupMeshAxesAttr")

VECTOR, SCALAR = TensorType((3,), "f32"), TensorType((), "f32")


def parse(source: str | bytes) -> Program:
    """What is read, also by the short module that scripts get in the place of the harness's."""
    if OF_AXES:  # where scripts get no short one
        return ir.parse(source)
    from harness.repro.standins import parse as short

    try:
        parsed = ir.parse(source)
    except InvalidProgramError:
        with pytest.raises(ValueError):
            short.parse(source)
        raise
    assert short.parse(source) == parsed
    return parsed


def program(body: str, results: str = "tensor<3xf32>") -> str:
    return f"""
    module @m {{
      func.func @main(%x: tensor<3xf32>, %y: tensor<f32>) -> ({results}) {{
        {body}
      }}
    }}"""


def all_reduce(groups: str, *reducer: str) -> str:
    return program(f"""
        %r = "stablehlo.all_reduce"(%x) <{{replica_groups = {groups}}}> ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          {" ".join(reducer)}
        }}) : (tensor<3xf32>) -> tensor<3xf32>
        return %r : tensor<3xf32>""")


ADD = ("%s = stablehlo.add %a, %b : tensor<f32>", "stablehlo.return %s : tensor<f32>")


def test_signature_of_main():
    parsed = parse(
        program("return %x, %y : tensor<3xf32>, tensor<f32>", "tensor<3xf32>, tensor<f32>")
    )
    assert parsed.inputs == (VECTOR, SCALAR)
    assert parsed.outputs == (VECTOR, SCALAR)
    assert parsed.collectives == ()
    assert [str(type_) for type_ in parsed.inputs] == ["3xf32", "f32"]


def test_all_reduce():
    parsed = parse(all_reduce("dense<[[0, 2], [3, 1]]> : tensor<2x2xi64>", *ADD))
    assert parsed.collectives == (
        Collective("all_reduce", (VECTOR,), (VECTOR,), "add", ((0, 2), (3, 1))),
    )
    assert parsed.only("all_reduce") is parsed.collectives[0]


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("dense<> : tensor<0x0xi64>", ()),
        ("dense<0> : tensor<1x1xi64>", ((0,),)),
        ("dense<[[0, 1, 2], [3, -1, -1]]> : tensor<2x3xi64>", ((0, 1, 2), (3,))),
        ("dense<[[0], [1]]> : tensor<2x1xi64>", ((0,), (1,))),
    ],
    ids=["empty", "splat", "uneven", "singletons"],
)
def test_groups(text, groups):
    assert parse(all_reduce(text, *ADD)).only("all_reduce").groups == groups


@pytest.mark.parametrize(
    ("body", "reducer"),
    [
        (ADD, "add"),
        (("%s = stablehlo.maximum %a, %b : tensor<f32>", ADD[1]), "maximum"),
        (("%s = stablehlo.add %a, %a : tensor<f32>", ADD[1]), "other"),
        (("stablehlo.return %a : tensor<f32>",), "other"),
        (
            (
                "%t = stablehlo.add %a, %b : tensor<f32>",
                "%s = stablehlo.negate %t : tensor<f32>",
                ADD[1],
            ),
            "other",
        ),
    ],
    ids=["add", "maximum", "doubled", "first", "two_operations"],
)
def test_reducer(body, reducer):
    groups = "dense<> : tensor<0x0xi64>"
    assert parse(all_reduce(groups, *body)).only("all_reduce").reducer == reducer


def test_a_region_that_computes_something_unused_has_no_simple_reducer():
    body = ("%s = stablehlo.add %a, %b : tensor<f32>", "stablehlo.return %a : tensor<f32>")
    groups = "dense<> : tensor<0x0xi64>"
    assert parse(all_reduce(groups, *body)).only("all_reduce").reducer == "other"


def test_attributes_of_the_other_collectives():
    types = "(tensor<4x2xf32>) -> tensor<4x2xf32>"
    parsed = parse(f"""
    module @m {{
      func.func @main(%x: tensor<4x2xf32>) -> tensor<8x1xf32> {{
        %p = "stablehlo.collective_permute"(%x) <{{
            source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}}> : {types}
        %t = "stablehlo.all_to_all"(%p) <{{concat_dimension = 0 : i64, split_dimension = 1 : i64,
            split_count = 2 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}}>
            : (tensor<4x2xf32>) -> tensor<8x1xf32>
        %g = "stablehlo.all_gather"(%t) <{{all_gather_dim = 1 : i64,
            replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}}>
            : (tensor<8x1xf32>) -> tensor<8x2xf32>
        %s = "stablehlo.reduce_scatter"(%g) <{{scatter_dimension = 1 : i64,
            replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}}> ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %m = stablehlo.minimum %a, %b : tensor<f32>
          stablehlo.return %m : tensor<f32>
        }}) : (tensor<8x2xf32>) -> tensor<8x1xf32>
        return %s : tensor<8x1xf32>
      }}
    }}""")
    permute, exchange, gather, scatter = parsed.collectives
    assert permute.pairs == ((0, 1), (1, 0))
    assert (exchange.dimensions, exchange.split_count) == ((1, 0), 2)
    assert (gather.dimensions, gather.reducer) == ((1,), None)
    assert (scatter.dimensions, scatter.reducer) == ((1,), "minimum")
    assert scatter.operands == (TensorType((8, 2), "f32"),)
    assert scatter.results == (TensorType((8, 1), "f32"),)


def test_collectives_inside_other_functions_and_regions_are_found():
    parsed = parse("""
    module @m {
      func.func private @inner(%x: tensor<3xf32>) -> tensor<3xf32> {
        %r = "stablehlo.collective_permute"(%x) <{
            source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}>
            : (tensor<3xf32>) -> tensor<3xf32>
        return %r : tensor<3xf32>
      }
      func.func @main(%x: tensor<3xf32>, %i: tensor<i32>) -> tensor<3xf32> {
        %c = "stablehlo.case"(%i) ({
          %r = func.call @inner(%x) : (tensor<3xf32>) -> tensor<3xf32>
          stablehlo.return %r : tensor<3xf32>
        }, {
          %g = "stablehlo.collective_permute"(%x) <{
              source_target_pairs = dense<[[1, 0]]> : tensor<1x2xi64>}>
              : (tensor<3xf32>) -> tensor<3xf32>
          stablehlo.return %g : tensor<3xf32>
        }) : (tensor<i32>) -> tensor<3xf32>
        return %c : tensor<3xf32>
      }
    }""")
    assert [collective.pairs for collective in parsed.collectives] == [((0, 1),), ((1, 0),)]


def test_artifact_holds_the_same_program():
    parsed = parse(all_reduce("dense<[[0, 1]]> : tensor<1x2xi64>", *ADD))
    again = parse(parsed.artifact)
    assert again == parsed
    assert again.text == parsed.text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("module {", "expected"),
        (program("return %y : tensor<f32>"), "type of return operand 0"),
        (all_reduce("dense<[[0, 0]]> : tensor<1x2xi64>", *ADD), "replica"),
        ("module { func.func @other() { return } }", "no function main"),
        (b"ML\xefR garbage", "."),
    ],
    ids=["syntax", "types", "duplicate_replica", "no_main", "artifact"],
)
def test_invalid_programs(source, message):
    with pytest.raises(InvalidProgramError, match=message):
        parse(source)


def test_only_names_what_there_is_instead():
    parsed = parse(all_reduce("dense<> : tensor<0x0xi64>", *ADD))
    with pytest.raises(AssertionError, match=r"expected one all_gather, got \['all_reduce'\]"):
        parsed.only("all_gather")
    with pytest.raises(AssertionError, match="expected one all_reduce, got none"):
        parse(program("return %x : tensor<3xf32>")).only("all_reduce")


AXES = """
module {{
  sdy.mesh @mesh = <["x"=2, "y"=4]{ids}>
  func.func public @main(%a: tensor<8xf32>) -> tensor<8xf32> {{
    %r = "stablehlo.all_reduce"(%a) <{{replica_groups = #stablehlo.replica_group_mesh_axes<
      mesh = @mesh, axes = [{axes}]>, channel_handle =
      #stablehlo.channel_handle<handle = 1, type = 0>, use_global_device_ids}}> ({{
    ^bb0(%b: tensor<f32>, %c: tensor<f32>):
      %s = stablehlo.add %b, %c : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }}) : (tensor<8xf32>) -> tensor<8xf32>
    return %r : tensor<8xf32>
  }}
}}
"""
X, Y = (f'#stablehlo.axis_ref<name = "{axis}">' for axis in "xy")
HALF = '#stablehlo.axis_ref<name = "y", sub_axis_info = ({})2>'


@pytest.mark.skipif(not OF_AXES, reason="written since JAX 0.12")
@pytest.mark.parametrize(
    ("axes", "ids", "groups"),
    [
        (X, "", ((0, 4), (1, 5), (2, 6), (3, 7))),
        (Y, "", ((0, 1, 2, 3), (4, 5, 6, 7))),
        (f"{X}, {Y}", "", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        (f"{Y}, {X}", "", ((0, 4, 1, 5, 2, 6, 3, 7),)),
        (Y, ", device_ids=[7, 6, 5, 4, 3, 2, 1, 0]", ((7, 6, 5, 4), (3, 2, 1, 0))),
        (HALF.format(1), "", ((0, 2), (1, 3), (4, 6), (5, 7))),
        (HALF.format(2), "", ((0, 1), (2, 3), (4, 5), (6, 7))),
    ],
)
def test_groups_along_axes_of_a_mesh(axes: str, ids: str, groups: object) -> None:
    program = parse(AXES.format(axes=axes, ids=ids))
    assert program.only("all_reduce").groups == groups
