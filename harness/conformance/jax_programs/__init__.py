"""Level 2: JAX programs that every plugin must pass, compared with NumPy.

Each is a generator of pairs: what the plugin gives, and what NumPy does. Its source is the program
that reproduces a failure.
"""

from __future__ import annotations

VERSION = "2026.11"  # of the list: another one when a program comes, goes or asks something else

# By area, what has no program yet.
PLANNED = {
    "transformation": (
        "jax.linearize",
        "custom_jvp with nondiff_argnums",
        "jax.checkpoint_policies",
        "jax.closure_convert",
        "jax.custom_batching",
    ),
    "control_flow": (
        "lax.associative_scan in reverse",
        "lax.map with batch_size",
    ),
    "random_bit": (
        "keys of rbg and unsafe_rbg",
        "distributions other than uniform, normal and permutation",
    ),
    "array": (
        "jax.device_put to another device or memory",
        "jax.live_arrays",
        "jax.dlpack",
        "jnp.sort and jnp.argsort in general",
        "lax.top_k",
        "jax.ops.segment_sum",
        "lax.conv_general_dilated",
        "jnp.fft",
        "updates in place by .at[].set",
        "bfloat16, x64, int8, int4, int2, float8 and float4",
        "weak types and promotion",
        "arrays beyond 2 GiB",
    ),
    "linear_algebra": ("jnp.linalg", "jax.scipy.linalg"),
    "ahead_of_time": (
        "lower and compile",
        "jax.export",
        "the persistent cache of compilations",
        "exports of earlier releases of JAX",
    ),
    "execution": (
        "donation",
        "errors that an execution raises",
        "hundreds of arguments",
        "large constants",
        "static arguments",
    ),
    "host": (
        "jax.pure_callback",
        "jax.experimental.io_callback",
        "jax.debug.callback",
        "offloading to the host",
    ),
    "kernel": ("jax.experimental.pallas", "jax.ffi"),
    "distribution": ("jax.shard_map", "jax.sharding", "jax.distributed"),
}
