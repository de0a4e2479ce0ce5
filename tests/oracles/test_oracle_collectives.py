"""The oracles of the collectives: NumPy's, by hand-made results, and XLA's over replicas."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from harness.oracles import collectives as oracle

pytestmark = pytest.mark.measures_coverage


def ranks(*values):
    return [np.array(value) for value in values]


def lists(results):
    return [result.tolist() for result in results]


class TestAllReduce:
    def test_groups(self):
        inputs = ranks([1, 2], [3, 4], [5, 6], [7, 8])
        assert lists(oracle.all_reduce(inputs, "sum")) == [[16, 20]] * 4
        pairs = [(0, 2), (3, 1)]
        assert lists(oracle.all_reduce(inputs, "sum", pairs)) == [[6, 8], [10, 12]] * 2
        assert lists(oracle.all_reduce(inputs, "sum", [(0, 1, 2), (3,)])) == [[9, 12]] * 3 + [
            [7, 8]
        ]

    @pytest.mark.parametrize(
        ("reducer", "expected"),
        [("sum", 11), ("mul", 30), ("min", 5), ("max", 6), ("and", 4), ("or", 7)],
    )
    def test_reducers(self, reducer, expected):
        assert lists(oracle.all_reduce(ranks(5, 6), reducer)) == [expected] * 2

    def test_unsigned_integers_wrap(self):
        results = oracle.all_reduce([np.array([200], np.uint8), np.array([100], np.uint8)], "sum")
        assert (results[0].dtype, results[0].tolist()) == (np.dtype(np.uint8), [44])

    def test_booleans_add_as_or(self):
        inputs = ranks([True, False, False], [True, True, False])
        assert lists(oracle.all_reduce(inputs, "sum")) == [[True, True, False]] * 2
        assert lists(oracle.all_reduce(inputs, "mul")) == [[True, False, False]] * 2

    def test_half_precision_rounds_once(self):
        inputs = [np.full(1, value, ml_dtypes.bfloat16) for value in (256, 1, 1)]
        (result,) = oracle.all_reduce(inputs, "sum")[:1]
        assert (result.dtype, float(result[0])) == (ml_dtypes.bfloat16, 258.0)

    def test_shapes_without_elements(self):
        for shape in ((), (0,), (0, 3)):
            results = oracle.all_reduce([np.ones(shape, np.float32)] * 2, "max")
            assert [result.shape for result in results] == [shape] * 2


def test_all_gather_keeps_the_order_of_the_group():
    inputs = ranks([[1], [2]], [[3], [4]])
    assert lists(oracle.all_gather(inputs, 0, [(1, 0)])) == [[[3], [4], [1], [2]]] * 2
    assert lists(oracle.all_gather(inputs, 1)) == [[[1, 3], [2, 4]]] * 2


def test_reduce_scatter_gives_by_position_in_the_group():
    inputs = ranks([1, 2], [3, 4])
    assert lists(oracle.reduce_scatter(inputs, "sum", 0)) == [[4], [6]]
    assert lists(oracle.reduce_scatter(inputs, "sum", 0, [(1, 0)])) == [[6], [4]]
    with pytest.raises(ValueError, match="equal division"):
        oracle.reduce_scatter(ranks([1, 2, 3], [4, 5, 6]), "sum", 0)


def test_all_to_all_transposes_parts():
    inputs = ranks([[1, 2]], [[3, 4]])
    assert lists(oracle.all_to_all(inputs, 1, 1)) == [[[1, 3]], [[2, 4]]]
    assert lists(oracle.all_to_all(inputs, 1, 0)) == [[[1], [3]], [[2], [4]]]


def test_permute_leaves_zeros_where_nothing_arrives():
    assert lists(oracle.collective_permute(ranks(1, 2, 3), [(0, 2), (2, 1)])) == [0, 3, 1]


def test_broadcast_is_the_roots_value():
    assert lists(oracle.broadcast(ranks(1, 2, 3), 1)) == [2, 2, 2]


@pytest.mark.parametrize("groups", [[(0,)], [(0, 1), (1,)], [(0, 2)]])
def test_groups_must_partition_the_ranks(groups):
    with pytest.raises(ValueError, match="don't partition 2 ranks"):
        oracle.all_reduce(ranks(1, 2), "sum", groups)


PROGRAM = """
module @m {
  func.func @main(%x: tensor<2xELEMENT>) -> (tensor<2xELEMENT>, tensor<ui32>) {
    %r = "stablehlo.all_reduce"(%x) <{
        replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>}> ({
    ^bb0(%a: tensor<ELEMENT>, %b: tensor<ELEMENT>):
      %s = stablehlo.add %a, %b : tensor<ELEMENT>
      stablehlo.return %s : tensor<ELEMENT>
    }) : (tensor<2xELEMENT>) -> tensor<2xELEMENT>
    %i = stablehlo.replica_id : tensor<ui32>
    return %r, %i : tensor<2xELEMENT>, tensor<ui32>
  }
}"""


@pytest.mark.lanes("cpu")
class TestReplicas:
    """In processes of their own: they start XLA."""

    @pytest.mark.parametrize(
        ("element", "dtype"),
        [
            ("f32", np.float32),
            ("bf16", ml_dtypes.bfloat16),
            ("f16", np.float16),
            ("i32", np.int32),
            ("i64", np.int64),
            ("ui8", np.uint8),
        ],
    )
    def test_each_replica_gets_its_own_arguments_and_results(self, element, dtype):
        from harness.ir import parse
        from harness.oracles.replicas import execute

        inputs = [np.array([rank, 10 * rank], dtype) for rank in range(4)]
        program = parse(PROGRAM.replace("ELEMENT", element))
        results = execute(program, [[value] for value in inputs])
        expected = oracle.all_reduce(inputs, "sum", [(0, 2), (1, 3)])
        for rank, (reduced, replica) in enumerate(results):
            assert int(replica) == rank
            assert reduced.dtype == dtype
            np.testing.assert_array_equal(reduced, expected[rank])

    def test_wrong_arguments_are_named(self):
        from harness.ir import parse
        from harness.oracles.replicas import execute

        good, bad = [np.zeros(2, np.float32)], [np.zeros(3, np.float32)]
        with pytest.raises(ValueError, match=r"replica 1: the program takes .*got"):
            execute(parse(PROGRAM.replace("ELEMENT", "f32")), [good, bad, good, good])
        with pytest.raises(ValueError, match="replica 0: the program takes"):
            execute(parse(PROGRAM.replace("ELEMENT", "f32")), [[np.zeros(2, np.int32)]] * 4)

    def test_what_xla_refuses_is_an_error_with_its_reason(self):
        from harness.ir import parse
        from harness.oracles.replicas import ExecutionError, execute

        program = parse(PROGRAM.replace("ELEMENT", "f32"))
        with pytest.raises(ExecutionError, match=r"[Rr]eplica"):
            execute(program, [[np.zeros(2, np.float32)]] * 2)
