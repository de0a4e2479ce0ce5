"""A program that libtpu compiles to other results than were asked for is a finding of the lane."""

from __future__ import annotations

import pytest
from jaxlib import xla_client

from harness.lanes.aot.optimized import read
from harness.lanes.aot.results import check_results, differing_results, is_comparable
from harness.lanes.virtual.submitted import Submitted
from harness.model.mismatch import CompilationError

# How a top_k over four devices returns its indices, by XLA's CPU compiler and by libtpu 0.0.46.
TOP_K = """\
HloModule jit_top_k, num_partitions=4
ENTRY main {{
  v = f32[8,4096]{{1,0}} parameter(0)
  values = f32[8,50]{{1,0}} slice(v), slice={{[0:8], [0:50]}}
  indices = s32[{rows},50]{{1,0}} iota(), iota_dimension=1
  ROOT r = (f32[8,50]{{1,0}}, s32[{rows},50]{{1,0}}) tuple(values, indices)
}}
"""


def module(rows: int) -> bytes:
    text = TOP_K.format(rows=rows)
    proto: bytes = xla_client._xla.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    return proto


def submitted(*, left_to_the_compiler: bool, partitions: int = 4) -> Submitted:
    options = xla_client.CompileOptions()
    options.executable_build_options.num_partitions = partitions
    options.executable_build_options.allow_spmd_sharding_propagation_to_output = [
        left_to_the_compiler
    ]
    return Submitted("hlo", module(8), options.SerializeAsString())


def test_rows_of_all_devices_are_a_fault() -> None:
    program = submitted(left_to_the_compiler=False)
    with pytest.raises(CompilationError) as raised:
        check_results(program, read(module(32), 4).results, module(8))
    expected = "result 1 on a device: expected [8, 50], got [32, 50] (program jit_top_k)"
    assert str(raised.value) == expected


@pytest.mark.parametrize(("rows", "left"), [(8, False), (32, True)])
def test_what_was_asked_for_is_not(rows: int, left: bool) -> None:  # noqa: FBT001
    program = submitted(left_to_the_compiler=left)
    check_results(program, read(module(rows), 4).results, module(8))


def test_each_result_has_its_own_permission() -> None:
    other = [(4,), (8,)]
    assert differing_results(other, [(1,), (8,)], [True, False]) == ""
    assert "result 1" in differing_results(other, [(4,), (2,)], [True, False])
    assert differing_results(other, [(4,)], [False]) == "results: expected 1, got 2"


def test_only_what_is_divided_as_asked_is_compared() -> None:
    assert is_comparable(submitted(left_to_the_compiler=False))
    assert not is_comparable(submitted(left_to_the_compiler=True))
    assert not is_comparable(submitted(left_to_the_compiler=False, partitions=1))
