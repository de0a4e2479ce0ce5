"""A program's callback that ends, hangs or takes long in one process, while others wait for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """\
import gc, os, sys, time
import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

def compute(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sorted(str(number) for number in range(1000))

what, first = sys.argv[1], os.environ["RANK"] == "0"
does = {
    "leaves": lambda: time.sleep(6) if first else os._exit(0),
    "hangs": lambda: time.sleep(0 if first else 600),
    "computes": lambda: compute(0 if first else 8),
}
mesh = Mesh(np.array(jax.devices()), "x")
ones = jax.make_array_from_callback((2,), NamedSharding(mesh, P("x")), lambda i: np.ones(1))

def call(value):
    does[what]()
    return np.array(value)

def body(v):
    return lax.psum(jax.pure_callback(call, jax.ShapeDtypeStruct(v.shape, v.dtype), v), "x")

program = jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False)
try:
    jax.jit(program)(ones).block_until_ready()
except jax.errors.JaxRuntimeError:
    if what != "leaves":
        raise
    gc.collect()
    time.sleep(8)  # its own callback returns meanwhile
print("the end", flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "code", "reason", "ends"),
    [
        ("leaves", 0, "rank 1 failed in a program of ranks 0, 1: virtual TPU: the process has", 1),
        ("hangs", 1, "rank 1 does nothing in a callback of a running program, for 3 s, and", 0),
        ("computes", 0, "", 2),
    ],
)
def test_a_callback_of_one_rank(
    tmp_path: Path, part: str, code: int, reason: str, ends: int
) -> None:
    """What JAX frees when a job fails is not used by a callback that runs on."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    run = [sys.executable, "-m", "harness", "run", "--topology=2@chip", "--deadline=200"]
    ran = subprocess.run(
        [*run, "--", sys.executable, str(script), part],
        # What is freed is overwritten at once.
        env={**os.environ, "VIRTUAL_TPU_DEADLINE": "3", "MALLOC_PERTURB_": "85"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert reason in ran.stderr
    assert ("the job can't go on" in ran.stderr) == bool(reason)
    assert ran.stdout.count("the end") == ends
