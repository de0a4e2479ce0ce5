"""What no check of operators compiles yet.

Operators of several devices and of the host belong to other levels, and those of CHLO whose names
begin with ``broadcast`` are others after their operands were broadcast.
"""

from __future__ import annotations

OPERATORS = (
    *("stablehlo.batch_norm_grad", "stablehlo.broadcast", "stablehlo.composite", "stablehlo.dot"),
    *("stablehlo.dynamic_conv", "stablehlo.dynamic_gather", "stablehlo.einsum", "stablehlo.rng"),
    *("stablehlo.torch_index_select", "stablehlo.unary_einsum", "stablehlo.uniform_dequantize"),
    *("stablehlo.uniform_quantize", "chlo.bessel_i1e", "chlo.conj", "chlo.constant"),
    *("chlo.constant_like", "chlo.digamma", "chlo.erf_inv", "chlo.is_inf", "chlo.is_neg_inf"),
    *("chlo.is_pos_inf", "chlo.next_after", "chlo.polygamma", "chlo.ragged_dot", "chlo.square"),
    *("chlo.tan", "chlo.zeta"),
)
ELSEWHERE = (
    *("after_all", "all_gather", "all_reduce", "all_to_all", "collective_broadcast"),
    *("collective_permute", "create_token", "cross-replica-sum", "custom_call", "infeed"),
    *("outfeed", "partition_id", "recv", "reduce_scatter", "replica_id", "send"),
)
TYPES = ("f4E2M1FN", "f6E2M3FN", "f6E3M2FN", "f8E8M0FNU", "!quant.uniform")
