"""FSDPv2 shards parameters of every rank, 0-d ones included, and trains as plain PyTorch does."""

import copy
import functools

import pytest
import torch
from torch_xla.distributed.fsdp.wrap import (
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel as FSDPv2,
)

from harness.model.topology import Topology
from harness.oracles.sharding import as_numpy, check_placement
from harness.session.fixtures import StartRuntime
from suites.shared.execution import settle
from suites.spmd_specs.meshes import marked, numbered, xla_mesh
from suites.spmd_specs.models import Block, Net, batch
from suites.spmd_specs.twins import (
    ADAM,
    AXES,
    SGD,
    Optimizer,
    Twins,
    check_tensor,
    fsdp_layout,
    models,
    parameter_spec,
)

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*"),
    pytest.mark.upstream("pytorch/xla#8522"),
    pytest.mark.filterwarnings(
        "ignore:Full backward hook is firing",  # FSDPv2's own hook, on inputs without gradients
        "ignore:.*backward hooks to be called",
    ),
]


POLICIES = {
    "root": None,
    "blocks": functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
    "by-size": functools.partial(size_based_auto_wrap_policy, min_num_params=20),
}


@pytest.mark.topologies(1, 2, 4, 8)
def test_scalar_parameter_shards(topology: Topology, start_runtime: StartRuntime) -> None:
    """The report: FSDPv2 around a module with a 0-d parameter. Every device holds all of it."""
    start_runtime(spmd=True)
    layout = fsdp_layout(topology.devices)
    reference = Block()
    model = FSDPv2(copy.deepcopy(reference), mesh=xla_mesh(layout))
    Twins(model, reference, layout).check()
    output = model(numbered((8, 8)).to("xla"))
    torch.testing.assert_close(output.cpu(), reference(numbered((8, 8))))


@pytest.mark.long
@pytest.mark.topologies(1, 4, 8)
@pytest.mark.parametrize("replicas", [1, 2], ids=["fsdp-only", "extra-data-axis"])
@pytest.mark.parametrize("policy", POLICIES)
def test_train_step(
    topology: Topology, start_runtime: StartRuntime, policy: str, replicas: int
) -> None:
    """Losses, gradients and updated parameters are plain PyTorch's; shards stay in place."""
    start_runtime(spmd=True)
    layout = fsdp_layout(topology.devices, min(replicas, topology.devices))
    inner, reference = models()
    model = FSDPv2(
        inner,
        mesh=xla_mesh(layout),
        auto_wrap_policy=POLICIES[policy],
        extra_data_axis="data" if replicas > 1 else None,
    )
    twins = Twins(model, reference, layout)
    twins.check()
    twins.train(SGD)
    twins.check()


OPTIMIZERS: dict[str, tuple[Optimizer, Optimizer | None]] = {
    "sgd-momentum": (SGD, None),
    "adam": (ADAM, None),
    "adam-foreach": (functools.partial(torch.optim.Adam, lr=0.01, foreach=True), None),
    # PyTorch has capturable for accelerators only: on the host, the same without it.
    "adam-capturable": (
        functools.partial(torch.optim.Adam, lr=0.01, capturable=True),
        ADAM,
    ),
    "adamw-tensor-lr": (
        lambda ps: torch.optim.AdamW(ps, lr=torch.tensor(0.01), capturable=True),
        functools.partial(torch.optim.AdamW, lr=0.01),
    ),
    "nadam": (functools.partial(torch.optim.NAdam, lr=0.01), None),
    "radam": (functools.partial(torch.optim.RAdam, lr=0.01), None),
    "adagrad": (functools.partial(torch.optim.Adagrad, lr=0.1), None),
    "rmsprop": (functools.partial(torch.optim.RMSprop, lr=0.01, momentum=0.5), None),
    "asgd": (functools.partial(torch.optim.ASGD, lr=0.01), None),
}


@pytest.mark.long
@pytest.mark.topologies(4)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(
    topology: Topology, start_runtime: StartRuntime, name: str, subtests: pytest.Subtests
) -> None:
    """Two steps; 0-d state (step counts, means of 0-d parameters) and sharded state alike."""
    start_runtime(spmd=True)
    layout = fsdp_layout(topology.devices)
    torch.manual_seed(0)
    reference = Block()
    model = FSDPv2(copy.deepcopy(reference), mesh=xla_mesh(layout))
    twins = Twins(model, reference, layout)
    optimizer = twins.train(*OPTIMIZERS[name], steps=2)
    twins.check()
    names = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if not isinstance(value, torch.Tensor):
                continue
            with subtests.test(parameter=names[parameter], state=key):
                if value.device.type == "xla":
                    spec = parameter_spec(value if value.dim() == 0 else parameter)
                    check_placement(value, as_numpy(value), layout, spec)
                else:
                    assert value.dim() == 0, f"{key} stayed on the host"


@pytest.mark.topologies(4)
@pytest.mark.upstream("pytorch/xla#7042")
def test_parameters_tied_before(topology: Topology, start_runtime: StartRuntime) -> None:
    """FSDPv2 moves the module to the device, and what was one parameter must remain one."""
    start_runtime(spmd=True)
    inner, reference = models(tied=True)
    model = FSDPv2(inner, mesh=xla_mesh(fsdp_layout(topology.devices)))
    count, expected = len(list(model.parameters())), len(list(reference.parameters()))
    assert count == expected, f"{expected} parameters became {count}"


@pytest.mark.topologies(1, 4)
@pytest.mark.upstream("pytorch/xla#2719")
@pytest.mark.parametrize("policy", ["root", "blocks"])
def test_parameters_tied_after(
    topology: Topology, start_runtime: StartRuntime, policy: str
) -> None:
    """What upstream recommends: move, tie again, wrap. A shared 0-d parameter is trained once."""
    start_runtime(spmd=True)
    layout = fsdp_layout(topology.devices)
    inner, reference = models(tied=True)
    inner = inner.to("xla")
    inner.tie()
    model = FSDPv2(inner, mesh=xla_mesh(layout), auto_wrap_policy=POLICIES[policy])
    twins = Twins(model, reference, layout)
    twins.train(SGD)
    twins.check()


@pytest.mark.topologies(1, 4)
@pytest.mark.parametrize("extra", [None, "data"], ids=["fsdp-only", "extra-data-axis"])
def test_scalar_output(
    topology: Topology, start_runtime: StartRuntime, extra: str | None, subtests: pytest.Subtests
) -> None:
    """FSDPv2 shards the output as well: a model that returns its loss has a 0-d one."""
    start_runtime(spmd=True)

    class Loss(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).square().mean()

    layout = fsdp_layout(topology.devices)
    torch.manual_seed(0)
    reference = Loss()
    model = FSDPv2(copy.deepcopy(reference), mesh=xla_mesh(layout), extra_data_axis=extra)
    output = model(marked(batch()[0], layout, (AXES, None)))
    output.backward()
    settle()
    expected = reference(batch()[0])
    expected.backward()
    check_tensor(output, expected, layout, "output")
    gradients = zip(model.parameters(), reference.named_parameters(), strict=True)
    for ours, (name, theirs) in gradients:
        with subtests.test(gradient=name):
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.topologies(4)
def test_shards_of_output(topology: Topology, start_runtime: StartRuntime) -> None:
    """By default the output's dimension 0 goes to the axis 'fsdp'."""
    start_runtime(spmd=True)
    layout = fsdp_layout(topology.devices, 2)
    inner, reference = models()
    output = FSDPv2(inner, mesh=xla_mesh(layout))(batch()[0].to("xla"))
    settle()
    torch.testing.assert_close(output.detach().cpu(), reference(batch()[0]).detach())
    check_placement(output, as_numpy(output), layout, ("fsdp", None))
