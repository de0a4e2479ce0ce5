"""What is not replaced in a program passes through as it was."""

from __future__ import annotations

import pytest

from harness.lanes.hlo import Module
from harness.lanes.virtual.custom_calls import replace_custom_calls

PROGRAM = """\
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
  %y = stablehlo.custom_call @Sharding(%x) {{mhlo.sharding = "{sharding}"}}
      : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}}
"""


@pytest.mark.parametrize("sharding", ["{replicated}", "{devices=[2]0,1}"])
def test_shardings_pass_through(sharding: str) -> None:
    # {replicated} is an empty message, and XLA refuses a Sharding call that has none.
    xla_client = pytest.importorskip("jax._src.lib").xla_client
    convert = xla_client._xla.mlir.mlir_module_to_xla_computation
    program = convert(PROGRAM.format(sharding=sharding)).as_serialized_hlo_module_proto()
    module = Module.FromString(program)
    assert replace_custom_calls(module, "tpu_custom_call", lambda *_: b"") == []
    passed = module.SerializeToString()
    assert f"sharding={sharding}" in xla_client.XlaComputation(passed).as_hlo_text()


KERNEL = """\
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
  stablehlo.custom_call @tpu_custom_call(%x) {{has_side_effect = true, mhlo.frontend_attributes =
      {{xla_allow_dce_side_effecting_op = "{removed}"}}}} : (tensor<4xf32>) -> tuple<>
  return %x : tensor<4xf32>
}}
"""
INTERPRETED = """\
HloModule interpreted
ENTRY main {
  given = token[] parameter(0)
  x = f32[4] parameter(1)
  ROOT end = token[] custom-call(given, x), custom_call_target="virtual_tpu_host_callback"
}
"""


@pytest.mark.parametrize("removed", ["true", "false"])
def test_a_kernel_without_results_keeps_its_effect(removed: str) -> None:
    xla_client = pytest.importorskip("jax._src.lib").xla_client
    convert = xla_client._xla.mlir.mlir_module_to_xla_computation
    program = convert(KERNEL.format(removed=removed)).as_serialized_hlo_module_proto()
    interpreted = xla_client._xla.hlo_module_from_text(INTERPRETED)
    module = Module.FromString(program)
    calls = replace_custom_calls(
        module, "tpu_custom_call", lambda *_: interpreted.as_serialized_hlo_module_proto()
    )
    assert len(calls) == 1
    text = xla_client.XlaComputation(module.SerializeToString()).as_hlo_text()
    assert ("custom_call_has_side_effect=true" in text) == (removed == "false")
