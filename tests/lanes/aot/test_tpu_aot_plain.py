"""Plain tests on lane tpu-aot: what they submit on the virtual TPU is compiled by libtpu."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.project import Project, Ran

SUITE = """
import unittest
import numpy as np

def jitted(body, size=(256, 128), **scratch):
    import jax
    from jax.experimental import pallas as pl
    out = jax.ShapeDtypeStruct(size, "float32")
    return jax.jit(lambda x: pl.pallas_call(body, out, **scratch)(x)), out

def double(x, out):
    out[...] = x[...] * 2

def test_step():
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    mesh = Mesh(np.array(jax.devices()), ("x",))
    x = jax.device_put(np.ones((64, 128), np.float32), NamedSharding(mesh, P("x")))
    total = jax.jit(lambda x: x.sum(0))
    for _ in range(3):
        assert (np.asarray(total(x)) == 64).all()

def test_kernel():
    import jax.numpy as jnp
    from jax.experimental.pallas import tpu as pltpu

    def body(x, out, small, large):
        small[0] = 1
        large[...] = x[...] + small[0]
        out[...] = large[...]

    scratch = [pltpu.SMEM((300,), jnp.int32), pltpu.VMEM((256, 128), jnp.float32)]
    fn, _ = jitted(body, scratch_shapes=scratch)
    assert (np.asarray(fn(np.ones((256, 128), np.float32))) == 2).all()

def test_spills():
    import jax.numpy as jnp

    def body(x, out):
        rows = [jnp.sin(x[8 * n : 8 * n + 8, :]) for n in range(32)]
        rows += [jnp.cos(row) for row in rows] + [jnp.tan(row) for row in rows]
        for n in range(32):
            out[8 * n : 8 * n + 8, :] = sum(row * k for k, row in enumerate(rows, n))

    fn, out = jitted(body)
    fn.lower(out).compile()

def test_too_large():
    fn, out = jitted(double, size=(8192, 4608))
    fn.lower(out).compile()

class Case(unittest.TestCase):
    def test_of_unittest(self):
        import jax
        self.assertEqual(float(jax.jit(lambda x: x * 3)(np.float32(2))), 6)

def test_torch_xla():
    import torch, torch_xla
    assert (torch.ones(4, device="xla") + 1).sum().item() == 8

def from_another_process():
    # No interpreter is asked about a kernel that JAX has not lowered in this process.
    import jax, jax.export
    from pathlib import Path
    exported = jax.export.deserialize(bytearray(Path("kernel.bin").read_bytes()))
    return jax.jit(exported.call), jax.ShapeDtypeStruct((8, 128), "int32")

def test_compiled_only():
    fn, out = from_another_process()
    fn.lower(out).compile()

def test_run_as_well():
    fn, _ = from_another_process()
    assert not np.asarray(fn(np.ones((8, 128), np.int32))).any()

def test_needs_numbers():
    fn, _ = from_another_process()
    assert np.asarray(fn(np.ones((8, 128), np.int32))).any(), "no numbers"

def test_wrong():
    import jax
    assert float(jax.jit(lambda x: x * 3)(np.float32(2))) == 5

def test_nothing():
    pass
"""


EXPORT = """
import sys, jax, jax.export
from jax.experimental import pallas as pl
from pathlib import Path

def triple(x, out):
    out[...] = x[...] * 3

array = jax.ShapeDtypeStruct((8, 128), "int32")
exported = jax.export.export(jax.jit(pl.pallas_call(triple, array)), platforms=["tpu"])(array)
Path(sys.argv[1]).write_bytes(exported.serialize())
"""


@pytest.fixture(scope="module")
def ran(shared_project: Project) -> Ran:
    subprocess.run(
        [sys.executable, "-c", EXPORT, str(shared_project.path / "kernel.bin")],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=True,
    )
    shared_project.write("test_inner.py", SUITE)
    return shared_project.run("--lane=tpu-aot")


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("step", "passed"),
        ("kernel", "passed"),
        ("spills", "passed"),
        ("too_large", "failed"),
        ("of_unittest", "passed"),
        ("torch_xla", "passed"),
        ("compiled_only", "passed"),
        ("run_as_well", "passed"),
        ("needs_numbers", "failed"),
        ("wrong", "failed"),
        ("nothing", "skipped"),
    ],
)
def test_outcome(ran: Ran, test: str, outcome: str) -> None:
    assert ran.outcomes[f"test_{test}"] == outcome, ran.stdout


def test_what_is_submitted_is_compiled(ran: Ran) -> None:
    """A sum over the chips of each of two slices, and over the slices."""
    (program,) = programs(ran, "step")
    assert program["across"] == ["ALL_REDUCE of 512 B to 512 B over {0,4} {1,5} {2,6} {3,7}"]
    assert program["inside"] == ["all-reduce of 512 B over {0-3}"]


def test_memory_of_a_tensor_core(ran: Ran) -> None:
    """Two buffers of 128 KiB, of which one is the input's or the output's, and 300 numbers."""
    properties = ran.properties("test_kernel")
    assert int(properties["aot_vmem"]) >= 2 * 256 * 128 * 4
    assert 300 * 4 <= int(properties["aot_smem"]) <= 4096
    assert properties["aot_vector_spills"] == "0"
    assert properties["aot_kernels"] == "1"
    assert properties["aot_flops"] == "0"  # XLA knows none of a kernel's


def test_spilled_registers_are_counted(ran: Ran) -> None:
    assert int(ran.properties("test_spills")["aot_vector_spills"]) > 0


def test_a_refused_program_is_named(ran: Ran) -> None:
    (result,) = ran.cases["test_too_large"].result
    assert "RefusedError: RESOURCE_EXHAUSTED" in result.message
    assert "(program jit__lambda)" in result.message


@pytest.mark.parametrize("test", ["compiled_only", "run_as_well", "needs_numbers"])
def test_libtpu_is_asked_for_what_the_virtual_tpu_refuses(ran: Ran, test: str) -> None:
    assert [program["kernels"] for program in programs(ran, test)] == [1]


def test_what_only_libtpu_compiles_returns_zeros(ran: Ran) -> None:
    assert ran.properties("test_run_as_well")["aot_not_computed"] == "1"
    assert "aot_not_computed" not in ran.properties("test_step")
    assert ran.shows("2  cases got zeros: their programs can't be computed here")
    (result,) = ran.cases["test_needs_numbers"].result
    assert "zeros stood for results that can't be computed here: AssertionError" in result.message
    assert "JAX did not lower it in this process" in result.message


def test_a_failure_of_the_test_itself_comes_first(ran: Ran) -> None:
    assert "aot_programs" not in ran.properties("test_wrong")


def programs(ran: Ran, test: str) -> list[dict[str, object]]:
    recorded: list[dict[str, object]] = json.loads(
        ran.properties(f"test_{test}")["aot_programs_compiled"]
    )
    return recorded
