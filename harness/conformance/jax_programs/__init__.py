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
        "hessians by jax.hessian",
        "custom_jvp with nondiff_argnums",
    ),
    "control_flow": ("lax.associative_scan in reverse", "lax.map with batch_size"),
    "random": (
        "rbg and unsafe_rbg keys",
        "distributions other than uniform, normal and permutation",
    ),
    "array": ("int2", "float8 and float4", "arrays beyond 2 GiB", "weakref of deleted arrays"),
    "linear_algebra": ("eig of general matrices", "schur", "lu_pivots_to_permutation"),
    "ahead_of_time": ("symbolic shapes with constraints", "exports of earlier releases of JAX"),
    "host": ("callbacks ordered between devices", "callbacks that fail", "host offloading in jit"),
    "kernel": ("Pallas kernels", "custom calls by jax.ffi"),
}
