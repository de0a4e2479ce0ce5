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
        "jax.closure_convert",
        "jax.custom_batching",
        "custom_jvp with nondiff_argnums",
        "a policy that offloads to the host",
    ),
    "control_flow": ("lax.associative_scan in reverse", "lax.map with batch_size"),
    "random_bit": (
        "keys of rbg and unsafe_rbg",
        "distributions other than uniform, normal and permutation",
    ),
    "array": ("arrays beyond 2 GiB", "lax.approx_max_k", "convolutions with groups"),
    "number_type": ("int2", "float4", "other types of 8 bits than float8_e4m3fn"),
    "linear_algebra": ("jnp.linalg.eig", "jax.scipy.linalg", "jax.experimental.sparse"),
    "call": (
        "exports of earlier releases of JAX",
        "a persistent cache that another process has filled",
        "jax.debug_nans",
        "profiles of jax.profiler",
    ),
    "host": ("callbacks that several devices call", "computing in the host's memory"),
    "kernel": ("jax.experimental.pallas", "jax.ffi"),
    "distribution": ("jax.shard_map", "jax.make_mesh", "jax.distributed"),
}
