"""Programs that XLA gets wrong, refuses or never ends, as JAX lowers them."""

from __future__ import annotations

# https://github.com/jax-ml/jax/issues/40849: right from jaxlib 0.12 on. An end that is cut twice.
LATE = """
module @jit_late attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%x: tensor<40xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>},
      %first: tensor<i32>, %second: tensor<i32>) -> tensor<4xf32> {
    %0 = sdy.manual_computation(%x, %first, %second)
        in_shardings=[<@mesh, [{"x"}]>, <@mesh, []>, <@mesh, []>]
        out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"}
        (%part: tensor<10xf32>, %a: tensor<i32>, %b: tensor<i32>) {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %1 = stablehlo.add %a, %zero : tensor<i32>
      %2 = stablehlo.negate %part : tensor<10xf32>
      %3 = stablehlo.dynamic_slice %2, %1, sizes = [4]
          : (tensor<10xf32>, tensor<i32>) -> tensor<4xf32>
      %4 = stablehlo.dynamic_slice %3, %b, sizes = [1]
          : (tensor<4xf32>, tensor<i32>) -> tensor<1xf32>
      sdy.return %4 : tensor<1xf32>
    } : (tensor<40xf32>, tensor<i32>, tensor<i32>) -> tensor<4xf32>
    %5 = stablehlo.add %0, %0 : tensor<4xf32>
    return %5 : tensor<4xf32>
  }
}
"""
# https://github.com/jax-ml/jax/issues/39301: two concatenations of what is left of an array.
REFUSED = """
module @jit_both attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
      -> tensor<4xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = call @cut(%x) : (tensor<4xf32>) -> tensor<1xf32>
    %1 = stablehlo.pad %x, %zero, low = [0], high = [-1], interior = [0]
        : (tensor<4xf32>, tensor<f32>) -> tensor<3xf32>
    %2 = stablehlo.concatenate %0, %1, dim = 0 : (tensor<1xf32>, tensor<3xf32>) -> tensor<4xf32>
    %3 = stablehlo.pad %x, %zero, low = [-1], high = [0], interior = [0]
        : (tensor<4xf32>, tensor<f32>) -> tensor<3xf32>
    %4 = stablehlo.pad %x, %zero, low = [0], high = [-3], interior = [0]
        : (tensor<4xf32>, tensor<f32>) -> tensor<1xf32>
    %5 = stablehlo.concatenate %3, %4, dim = 0 : (tensor<3xf32>, tensor<1xf32>) -> tensor<4xf32>
    %6 = stablehlo.add %2, %5 : tensor<4xf32>
    %7 = stablehlo.sine %6 : tensor<4xf32>
    return %7 : tensor<4xf32>
  }
  func.func private @cut(%y: tensor<4xf32>) -> tensor<1xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.pad %y, %zero, low = [-3], high = [0], interior = [0]
        : (tensor<4xf32>, tensor<f32>) -> tensor<1xf32>
    return %0 : tensor<1xf32>
  }
}
"""
ENDLESS = """
module @jit_endless attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.while(%y = %x) : tensor<4xf32>
    cond {
      %true = stablehlo.constant dense<true> : tensor<i1>
      stablehlo.return %true : tensor<i1>
    } do {
      %1 = stablehlo.add %y, %y : tensor<4xf32>
      stablehlo.return %1 : tensor<4xf32>
    }
    return %0 : tensor<4xf32>
  }
}
"""
RIGHT = ENDLESS.replace("dense<true>", "dense<false>")
UNKNOWN = """
module @jit_unknown attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.custom_call @of_nobody(%x) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""
