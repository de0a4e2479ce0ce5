"""Programs that JAX can't write for the virtual TPU are given to libtpu as JAX has made them."""

from __future__ import annotations

import json

import pytest
from support.project import Project, Ran

# No operation of this jaxlib is newer than the backend reads: its refusal is raised by hand, as it
# is of asynchronous collectives from JAX 0.10 on.
SUITE = """
import numpy as np
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

@pytest.fixture(autouse=True)
def too_new(monkeypatch):
    from jax._src import compiler
    from harness.lanes.virtual import newer_programs
    compile_ = compiler.backend_compile_and_load

    def refusing(backend, module, *args, **kwargs):
        if "xla_harness.made_of" not in module.operation.attributes:
            raise ValueError("INVALID_ARGUMENT: Failed to serialize StableHLO to plugin version")
        return compile_.__wrapped__(backend, module, *args, **kwargs)

    from harness.lanes.virtual import async_collectives
    monkeypatch.setattr(compiler, "backend_compile_and_load", refusing)
    async_collectives.accept(compiler)

def summed():
    mesh = Mesh(np.array(jax.devices()), ("x",))
    x = jax.ShapeDtypeStruct((64, 128), np.float32, sharding=NamedSharding(mesh, P("x")))
    return jax.jit(lambda x: x.sum(0)).lower(x)

def test_compiled():
    lowered = summed()
    before = lowered.as_text()
    lowered.compile()
    assert lowered.as_text() == before

def test_run():
    assert jax.jit(lambda x: x * 2)(np.ones(4, np.float32)).sum() == 8

def test_refused():
    x = jax.ShapeDtypeStruct((1 << 34,), np.float32)
    jax.jit(lambda x: x * 2).lower(x).compile()
"""


@pytest.fixture(scope="module")
def ran(shared_project: Project) -> Ran:
    shared_project.write("test_inner.py", SUITE)
    return shared_project.run("--lane=tpu-aot")


def test_libtpu_compiles_what_jax_has_made(ran: Ran) -> None:
    assert ran.outcomes["test_compiled"] == "passed", ran.stdout
    (program,) = json.loads(ran.properties("test_compiled")["aot_programs_compiled"])
    assert program["inside"] == ["all-reduce of 512 B over {0-3}"]


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("run", "zeros stood for results that can't be computed here: AssertionError"),
        ("run", "virtual TPU: JAX can't write"),
        ("refused", "RefusedError: RESOURCE_EXHAUSTED"),
    ],
)
def test_what_is_refused_is_named(ran: Ran, test: str, words: str) -> None:
    assert ran.outcomes[f"test_{test}"] == "failed"
    (result,) = ran.cases[f"test_{test}"].result
    assert words in result.message
