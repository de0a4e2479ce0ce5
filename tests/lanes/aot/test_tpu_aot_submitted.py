"""What frameworks submit on the virtual TPU, compiled by the real libtpu with their own options."""

from __future__ import annotations

import pytest
from support.project import Project, Ran

from harness.lanes.aot.compiler import identity
from harness.lanes.virtual.submitted import Submitted

SUITE = """
import numpy as np
from harness.lanes.aot.compiler import RefusedError
from harness.lanes.virtual.submitted import recording

both_slices = pytest.mark.topologies("2xv6e:2x2")
aot = pytest.mark.lanes("tpu-aot")

def summed_over_pairs(devices):
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    mesh = Mesh(np.array(devices).reshape(4, 2), ("pair", "of"))
    spec, whole = PartitionSpec("pair", "of"), PartitionSpec("pair")
    total = jax.shard_map(
        lambda x: jax.lax.psum(x, "of"), mesh=mesh, in_specs=spec, out_specs=whole
    )
    return jax.jit(total), NamedSharding(mesh, spec)

@aot
@both_slices
@pytest.mark.parametrize("order", [
    pytest.param([0, 4, 2, 6, 1, 5, 3, 7], id="across"),
    pytest.param([0, 2, 1, 3, 4, 6, 5, 7], id="inside"),
    pytest.param([0, 1, 2, 3, 4, 5, 6, 7], id="neighbours"),
])
def test_assignment(xla_compiler, order):
    import jax
    total, sharding = summed_over_pairs([jax.devices()[number] for number in order])
    x = jax.block_until_ready(jax.device_put(np.ones((8, 256), np.float32), sharding))
    with recording() as ran:
        (submitted,) = ran(lambda: jax.block_until_ready(total(x)))
    found = xla_compiler.submitted(submitted).program
    # JAX's own way to libtpu, for devices in the same order.
    total, sharding = summed_over_pairs([xla_compiler.devices[number] for number in order])
    abstract = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    assert found == xla_compiler.jax(total, abstract).program
    pairs = {tuple(sorted(pair)) for pair in zip(order[::2], order[1::2])}
    if 4 in order[:2]:
        assert not found.collectives
        assert {pair for transfer in found.transfers for pair in transfer.groups} == pairs
    else:
        assert not found.transfers
        (collective,) = found.collectives
        assert set(collective.groups) == {pair for pair in pairs if max(pair) < 4}

def doubled():
    import jax
    return jax.jit(lambda x: x * 2)

@pytest.mark.lanes("virtual-tpu")
def test_repeated():
    x, double = np.float32(1), doubled()
    with recording() as ran:
        once = ran(lambda: double(x).block_until_ready())
        twice = ran(lambda: double(double(x)).block_until_ready())
    assert len(once) == 1
    assert twice == 2 * once

@pytest.mark.lanes("virtual-tpu")
def test_compiled_before():
    x, double = np.float32(1), doubled()
    double(x).block_until_ready()
    with recording() as ran, pytest.raises(RuntimeError, match="^1 of the programs that ran"):
        ran(lambda: double(x).block_until_ready())

@aot
@both_slices
def test_refused_by_the_cpu(xla_compiler):
    import jax
    def attempt():
        with pytest.raises(Exception, match="xla_no_such"):
            jax.jit(lambda x: x, compiler_options={"xla_no_such": "1"})(np.float32(1))
    with recording() as ran:
        (submitted,) = ran(attempt)
    with pytest.raises(RefusedError, match="xla_no_such"):
        xla_compiler.submitted(submitted)

@aot
@pytest.mark.deadline(150)
@pytest.mark.topologies("v6e:2x2@chip")
@pytest.mark.deadline(120)
@pytest.mark.parametrize("asked", ["pairs", "all"])
def test_ranks(xla_compiler, asked):
    import torch, torch_xla, torch_xla.core.xla_model as xm
    from harness.job.ranks import run_ranks

    def rank(number):
        device = torch_xla.device()
        xm.set_replication(device, xm.get_xla_supported_devices())
        x = torch.ones(64, 128).to(device)
        groups = {"pairs": [[0, 1], [2, 3]], "all": [[0, 1, 2, 3]]}[asked]
        total = xm.all_reduce("sum", x, groups=groups)
        def step():
            torch_xla.sync()
            xm.wait_device_ops()
        with recording() as ran:
            return ran(step)

    ranks = run_ranks(rank, xla_compiler.topology, deadline=100)
    assert [len(programs) for programs in ranks] == [1] * 4
    compiled = xla_compiler.submitted(ranks[0][0])
    assert {c.groups for c in compiled.program.collectives} == {((0, 1), (2, 3))}
"""


@pytest.fixture(scope="module")
def ran(shared_project: Project) -> Ran:
    shared_project.write("test_inner.py", SUITE)
    return shared_project.run("--lane=virtual-tpu,tpu-aot")


@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        *((f"assignment[tpu-aot-2xv6e:2x2-{order}]", "passed") for order in ("across", "inside")),
        ("assignment[tpu-aot-2xv6e:2x2-neighbours]", "passed"),
        ("repeated[virtual-tpu-4]", "passed"),
        ("compiled_before[virtual-tpu-4]", "passed"),
        ("refused_by_the_cpu[tpu-aot-2xv6e:2x2]", "passed"),
        ("ranks[tpu-aot-v6e:2x2@chip-pairs]", "passed"),
        ("ranks[tpu-aot-v6e:2x2@chip-all]", "failed"),
    ],
)
def test_submitted(ran: Ran, case: str, outcome: str) -> None:
    assert ran.outcomes[f"test_{case}"] == outcome, ran.stdout


def test_the_wrong_groups_are_told(ran: Ran) -> None:
    assert ran.shows("(0, 1, 2, 3)")


@pytest.mark.parametrize("partitions", [1, 2])
def test_options_in_another_order_are_the_same(partitions: int) -> None:
    """XLA writes the entries of a map in any order; each order was compiled again."""
    from jaxlib.xla_client import CompileOptions

    options = CompileOptions()
    options.executable_build_options.num_partitions = partitions
    # Of env_option_overrides, a map to messages whose field 1 is text.
    entries = [b"\x3a\x0a\x0a\x03xla\x12\x03\x0a\x01" + value for value in (b"1", b"2")]
    entries[1] = entries[1].replace(b"xla", b"xlb")
    identities = {
        identity(Submitted("hlo", b"", options.SerializeAsString() + b"".join(order)))
        for order in (entries, entries[::-1], entries[:1])
    }
    assert len(identities) == 2
