"""What users of GPUs reported of collectives after an upgrade of jax.

Each case names its threads, and passes on versions that do not have the change yet. Tools of users
read the text of the compiled program; the oracle is what the lane reads from its proto.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from harness.lanes.aot.case_compiler import CaseCompiler
from harness.lanes.aot.compiler import Compilation

pytestmark = pytest.mark.lanes("gpu-aot")
on_a_node = pytest.mark.topologies("h100:8")


class Compiler:
    """Compiles for the case's GPUs, along one axis."""

    def __init__(self, compiler: CaseCompiler) -> None:
        self.case, self.mesh = compiler, Mesh(np.array(compiler.devices), ("x",))

    def along(self, *axes: str | None) -> NamedSharding:
        """Return the sharding by these axes, which may be none."""
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    def array(
        self, *shape: int, axes: tuple[str | None, ...], dtype: Any = jnp.bfloat16
    ) -> jax.ShapeDtypeStruct:
        """Return an abstract array that is divided by these axes."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.along(*axes))

    def text(self, fn: Any, *arguments: Any, **options: Any) -> tuple[str, Compilation]:
        """Return the compiled program as JAX prints it, and what the lane reads without options."""
        read = self.case.jax(fn, *arguments)
        lowered = jax.jit(fn).lower(*arguments)
        return lowered.compile(compiler_options={**read.options, **options}).as_text(), read


@pytest.fixture
def gpus(xla_compiler: CaseCompiler) -> Compiler:
    return Compiler(xla_compiler)


def total(gpus: Compiler) -> tuple[str, Compilation]:
    """Compile a sum over all GPUs, which is one collective."""
    x = gpus.array(512, 1024, axes=("x",))
    text, read = gpus.text(lambda x: lax.with_sharding_constraint(x.sum(0), gpus.along()), x)
    assert read.program.kinds == {"all-reduce": 1}
    return text, read


@on_a_node
@pytest.mark.upstream(
    "NVIDIA/TransformerEngine#3398", "ROCm/TransformerEngine#736", "jax-ml/jax#40572"
)
def test_each_collective_has_a_start(gpus: Compiler) -> None:
    """All three count collectives by the names of asynchronous ones, as all were."""
    text, read = total(gpus)
    assert Counter(re.findall(r" ([a-z-]+)-start\(", text)) == read.program.kinds


@on_a_node
@pytest.mark.upstream("jax-ml/jax#36354")
def test_groups_are_numbers_of_devices(gpus: Compiler) -> None:
    """Either listed, or as a grid of groups by members."""
    text, read = total(gpus)
    numbers = re.findall(r"replica_groups=(?:\{\{[\d,]+\}|\[\d+,\d+\]<=\[\d+)", text)
    assert len(numbers) == read.program.kinds.total(), re.findall(r"replica_groups=\S+", text)


@pytest.mark.topologies("b200:4")
@pytest.mark.upstream("jax-ml/jax#34434", "openxla/xla#35348")
def test_collective_is_written_before_the_scaled_product(gpus: Compiler) -> None:
    """Tests search for a collective and the product that needs its result, in this order.

    The product is of 8-bit numbers with a scale for each 32, of which each GPU has some rows.
    """
    numbers = gpus.array(2, 512, 512, axes=(None, "x"), dtype=jnp.float8_e4m3fn)
    scales = gpus.array(2, 512, 16, axes=(None, "x"), dtype=jnp.float8_e8m0fnu)
    text, read = gpus.text(jax.nn.scaled_matmul, numbers, numbers, scales, scales)
    assert read.program.kinds == {"all-gather": 1}
    product = r" fusion\(.* calls=%\S*_dot|__cudnn\$blockScaledDot"
    written = re.findall(rf" all-gather(?:-start)?\(|{product}", text)
    assert ["gather" in name for name in written] == [True, False], written


@on_a_node
@pytest.mark.upstream("openxla/xla#44228", "openxla/xla#45836")
def test_loop_fetches_the_next_weights_early(gpus: Compiler) -> None:
    """Where a program's own options ask for it: one turn then stands outside of the loop."""

    def step(weights: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> tuple[Any, None]:
            return jnp.tanh(x @ lax.with_sharding_constraint(w, gpus.along())), None

        return lax.scan(layer, x, weights)[0]

    weights, x = gpus.array(12, 256, 256, axes=(None, "x")), gpus.array(64, 256, axes=("x",))
    text, read = gpus.text(step, weights, x, xla_gpu_enable_pipelined_all_gather=True)
    assert [c.count for c in read.program.collectives] == [12]
    assert re.findall(r'"known_trip_count":\{"n":"(\d+)"', text) == ["11"]
