"""Parts of torch_xla's FSDP in one process: flattened parameters, and which layers are wrapped."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch_xla.distributed.fsdp import wrap
from torch_xla.distributed.fsdp.xla_flatten_params_wrapper import (
    FlatParameter,
)
from torch_xla.distributed.fsdp.xla_flatten_params_wrapper import (
    XlaFlattenParamsWrapper as Flat,
)

from harness.session.fixtures import StartRuntime
from suites.shared.torch_xla_releases import since_2_9

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies(1),
    pytest.mark.upstream("pytorch/xla#3431"),
    since_2_9,
]


class Tied(nn.Sequential):
    """Layers within layers, a buffer, and a weight that two layers share."""

    def __init__(self, seed: int = 3) -> None:
        torch.manual_seed(seed)
        inner = nn.Sequential(nn.Tanh(), nn.Linear(4, 4, bias=False))
        super().__init__(nn.Linear(3, 4), inner, nn.Linear(4, 4))
        self[2].weight = inner[1].weight
        self.register_buffer("shift", torch.linspace(-1, 1, 4) * seed)
        self.label = f"seed {seed}"

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        result: torch.Tensor = super().forward(x) * scale + self.shift
        return result


NAMES = [
    "_fpw_module.0.weight",
    "_fpw_module.0.bias",
    "_fpw_module.1.1.weight",
    "_fpw_module.2.bias",
]
SHAPES = [(4, 3), (4,), (4, 4), (4,)]
PLAIN = [name.removeprefix("_fpw_module.") for name in NAMES]


def _x() -> torch.Tensor:
    return torch.linspace(-1, 1, 15).reshape(5, 3)


def _tied(seed: int = 3) -> Tied:
    model = Tied(seed).to("xla")
    model[2].weight = model[1][1].weight  # the move made two of it
    return model


def _flat(seed: int = 3, **options: Any) -> Flat:
    return Flat(_tied(seed), **options)


def _joined(model: nn.Module, of: Callable[[nn.Parameter], Any] = torch.Tensor.detach) -> Any:
    return torch.cat([of(p).reshape(-1) for p in model.parameters()])


def _equal(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-5)


def _same_state(got: dict[str, torch.Tensor], expected: nn.Module) -> None:
    state = expected.state_dict()
    assert sorted(got) == sorted(state)
    for name, value in state.items():
        assert got[name].device.type == "xla"
        _equal(got[name], value)


def test_flat_parameter(start_runtime: StartRuntime) -> None:
    """One vector of all parameters, with their numbers, gradients, names and shapes."""
    start_runtime(spmd=False)
    plain, flat = Tied(), _flat()
    (parameter,) = flat.parameters()
    assert parameter is flat.flat_param
    _equal(parameter, _joined(plain))
    assert flat.metadata(0) == (NAMES, SHAPES, [12, 4, 16, 4])
    plain(_x(), scale=0.5).sin().sum().backward()
    result = flat(_x().to("xla"), scale=0.5)
    result.sin().sum().backward()
    _equal(result, plain(_x(), scale=0.5))
    assert parameter.grad is not None
    _equal(parameter.grad, _joined(plain, lambda p: p.grad))
    with torch.no_grad():
        parameter.mul_(2)
        for each in plain.parameters():
            each.mul_(2)
    _equal(flat(_x().to("xla")), plain(_x()))
    assert (flat.label, flat[0], flat.num_params_managed) == ("seed 3", flat.module[0], 4)
    views = list(flat.get_param_views())
    assert [tuple(view.shape) for view in views] == SHAPES
    for view, each in zip(views, plain.parameters(), strict=True):
        _equal(view, each)
    (doubled, *_) = flat.get_param_views([parameter.detach() * 2])
    _equal(doubled, plain[0].weight * 2)
    with pytest.raises(ValueError, match="got 3 but expected 36"):
        list(flat.get_param_views([torch.ones(3)]))
    with pytest.raises(AssertionError, match="external data list: 2 vs"):
        flat.get_param_views([None, None])
    with pytest.raises(AttributeError):
        flat.missing  # noqa: B018


def test_states_of_flat_parameters(start_runtime: StartRuntime) -> None:
    """A state with flat parameters goes into another model, also as a part of a larger one."""
    start_runtime(spmd=False)
    flat, other = _flat(auto_unflatten_state_dict=False), _flat(8)
    assert sorted(flat.state_dict()) == ["flat_param_0", "shift"]
    state = other.flat_state_dict()
    assert sorted(state) == ["flat_param_0", "shift"]
    assert other.is_flattened
    flat.load_state_dict(state)
    _equal(flat.flat_param, _joined(Tied(8)))
    _equal(flat(_x().to("xla")), Tied(8)(_x()))
    old = _flat(5).flat_state_dict()
    flat.load_state_dict(old)
    _equal(flat(_x().to("xla")), Tied(5)(_x()))
    with pytest.raises(RuntimeError, match="Unexpected key"):
        flat.load_state_dict(old | {"more": torch.ones(1)})
    assert flat.load_state_dict(old | {"more": torch.ones(1)}, strict=False)[1]
    inside = nn.ModuleList([_flat(9, auto_unflatten_state_dict=False)])
    state = inside.state_dict()
    assert sorted(state) == ["0.flat_param_0", "0.shift"]
    target = nn.ModuleList([_flat()])
    target.load_state_dict(state)
    _equal(target[0](_x().to("xla")), Tied(9)(_x()))


def test_state_of_plain_parameters(start_runtime: StartRuntime) -> None:
    """As documented: by default the state has the parameters by their own names."""
    start_runtime(spmd=False)
    _same_state(_flat().state_dict(), Tied())


def test_unflattened_for_a_while(start_runtime: StartRuntime) -> None:
    """Within the context the module has its plain parameters again."""
    start_runtime(spmd=False)
    flat = _flat()
    with flat.unflatten_params():
        assert [name for name, _ in flat.module.named_parameters()] == PLAIN


def test_unflattened_from_given_numbers(start_runtime: StartRuntime) -> None:
    """Also those of a given flat parameter, while the own one is kept."""
    start_runtime(spmd=False)
    flat = _flat()
    with flat.unflatten_params([_flat(8).flat_param.detach()]):
        _equal(flat.module[2].weight, Tied(8)[2].weight)
    _equal(flat(_x().to("xla")), Tied()(_x()))


def _refuse(flat: Flat) -> None:
    assert not flat.is_flattened
    assert flat.flat_params == []
    with flat.unflatten_params():
        assert not flat.is_flattened
    with pytest.raises(AssertionError, match="requires current instance to be flattened"):
        flat.unflatten_params([torch.zeros(36)]).__enter__()
    raise KeyError


def test_flattened_again(start_runtime: StartRuntime) -> None:
    """After the context there is the flat parameter with its numbers, whatever happened in it."""
    start_runtime(spmd=False)
    flat = _flat()
    with pytest.raises(KeyError), flat.unflatten_params():
        _refuse(flat)
    assert flat.is_flattened
    assert [name for name, _ in flat.named_parameters()] == ["flat_param_0"]
    _equal(flat(_x().to("xla")), Tied()(_x()))


def test_copies_of_flat_parameters(start_runtime: StartRuntime) -> None:
    """Moved to another dtype or device, a flat parameter still knows its parts."""
    start_runtime(spmd=False)
    flat = _flat()
    for options in ({"dtype": torch.bfloat16}, {"device": "cpu"}):
        other = flat.flat_param.to(**options)
        assert isinstance(other, FlatParameter)
        assert other.requires_grad
        assert other.metadata() == flat.metadata(0)
        assert other.dtype == options.get("dtype", torch.float32)
        assert other.device.type == options.get("device", "xla")
        for view, expected in zip(other.get_param_views(), Tied().parameters(), strict=True):
            rounded = expected.to(other.dtype).float()
            _equal(view.float(), rounded)


def test_groups_of_flat_parameters(start_runtime: StartRuntime) -> None:
    """Each group is a vector of its own, with its name, dtype and whether it is trained."""
    start_runtime(spmd=False)
    plain = _tied()
    plain[0].bfloat16().requires_grad_(False)
    first, second = list(plain[0].parameters()), [plain[2].weight, plain[2].weight]
    flat = Flat(plain, [first, second], ["first", "second"])
    names = ["flat_param_first", "flat_param_second", "_fpw_module.2.bias"]
    assert [name for name, _ in flat.named_parameters()] == names
    sizes = [(p.numel(), p.dtype, p.requires_grad) for p in flat.flat_params]
    assert sizes == [(16, torch.bfloat16, False), (16, torch.float32, True)]
    assert flat.metadata(1) == (NAMES[2:3], SHAPES[2:3], [16])
    assert flat.num_params_managed == 3
    with pytest.raises(AssertionError, match=r"len\(self.flat_params\)=2"):
        flat.flat_param  # noqa: B018
    views = list(flat.get_param_views([None, flat.flat_params[1] * 2]))
    _equal(views[2], Tied()[2].weight * 2)
    none = Flat(_tied(), [])
    assert none.flat_params == []
    _same_state(none.state_dict(), Tied())
    none.load_state_dict(Tied(8).state_dict())
    _equal(none(_x().to("xla")), Tied(8)(_x()))
    model = _tied()
    assert Flat(model, [model[0].bias]).metadata(0) == (NAMES[1:2], SHAPES[1:2], [4])
    for groups, match in ((["x"], "number of param lists"), (["x", "x"], "a unique name")):
        model = Tied()
        with pytest.raises(ValueError, match=match):
            Flat(model, [[model[0].weight], [model[0].bias]], groups)
    model[0].bias.requires_grad_(False)
    with pytest.raises(AssertionError, match="same requires_grad"):
        Flat(model)
    with pytest.raises(AssertionError, match="same dtype"):
        Flat(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).half()))
    with pytest.raises(ValueError, match="Nesting FlatParameter"):
        FlatParameter([_flat().flat_param])


class Wrapped(nn.Module):
    """What a policy has chosen, with the options that the wrapper got."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__()
        self.inner = module
        self.options = options


class Deep(nn.Module):
    """Of 20 parameters in the list, 60 in attention, and 40 in layers of which one is inside."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.list = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])
        self.attention = nn.MultiheadAttention(3, 1)
        self.nested = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4, bias=False)))
        self.bare = nn.Parameter(torch.ones(4))


# Each with the layers that it wraps, and how many parameters these have.
POLICIES: dict[str, tuple[Callable[..., bool], list[str], int]] = {
    "always": (
        wrap.always_wrap_policy,
        [
            *("", "attention", "attention.out_proj", "list", "list.0", "list.1", "nested"),
            *("nested.0", "nested.1", "nested.1.0"),
        ],
        108,
    ),
    "lambda": (
        partial(wrap.lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, nn.Sequential)),
        ["nested", "nested.1"],
        36,
    ),
    "classes": (
        partial(
            wrap.transformer_auto_wrap_policy, transformer_layer_cls={nn.Linear, nn.ModuleList}
        ),
        ["attention.out_proj", "list", "list.0", "list.1", "nested.0", "nested.1.0"],
        68,
    ),
    # Attention is a leaf that is never wrapped: what is left of the root's parameters is its.
    "10": (
        partial(wrap.size_based_auto_wrap_policy, min_num_params=10),
        ["", "list.0", "list.1", "nested.0", "nested.1.0"],
        108,
    ),
    # Lists are not wrapped, and the layer of 16 parameters is too small.
    "20": (
        partial(wrap.size_based_auto_wrap_policy, min_num_params=20),
        ["", "nested.0"],
        108,
    ),
    "other-classes": (
        partial(
            wrap.size_based_auto_wrap_policy,
            min_num_params=12,
            force_leaf_modules={nn.Sequential},
            exclude_wrap_modules={nn.MultiheadAttention, nn.Linear},
        ),
        ["", "list"],
        108,
    ),
    "larger": (partial(wrap.size_based_auto_wrap_policy, min_num_params=109), [], 0),
    "default": (wrap.size_based_auto_wrap_policy, [], 0),
}


def _wrap(module: nn.Module, policy: Callable[..., bool], **options: Any) -> tuple[list[str], int]:
    options = {"ignored_modules": set(), "ignored_params": set(), "wrapper_cls": Wrapped} | options
    wrapped, count = wrap.recursive_wrap(module, policy, **options)
    names = [name for name, each in wrapped.named_modules() if isinstance(each, Wrapped)]
    return sorted(re.sub(r"\.?inner", "", name).removeprefix(".") for name in names), count


def test_wrapped_layers(start_runtime: StartRuntime, subtests: pytest.Subtests) -> None:
    """By each policy, for the sizes of Deep; no parameter is lost."""
    start_runtime(spmd=False)
    for name, (policy, expected, size) in POLICIES.items():
        with subtests.test(name):
            module = Deep().to("xla")
            assert _wrap(module, policy) == (expected, size)
            total = sum(p.detach().sum() for p in module.parameters())
            _equal(total, sum(p.detach().sum() for p in Deep().parameters()))
    with pytest.raises(TypeError, match="transformer_layer_cls"):
        _wrap(Deep(), wrap.transformer_auto_wrap_policy)


def test_layers_that_stay(start_runtime: StartRuntime) -> None:
    """What is ignored is neither wrapped nor counted; options reach the wrapper."""
    start_runtime(spmd=False)
    module = Deep().to("xla")
    ignored = {"ignored_modules": {module.nested}, "ignored_params": {module.list[0].bias}}
    policy = partial(wrap.size_based_auto_wrap_policy, min_num_params=9)
    assert _wrap(module, policy, **ignored) == (["", "list.1"], 106)
    _equal(module.bare.exp(), Deep().bare.exp())
    module = Deep().to("xla")
    module.nested[0]._wrap_overrides = {"mark": 8}
    children = {"only_wrap_children": True, "mark": 7, "other": 1}
    policy = partial(wrap.transformer_auto_wrap_policy, transformer_layer_cls={Deep, nn.Linear})
    wrapped = ["attention.out_proj", "list.0", "list.1", "nested.0", "nested.1.0"]
    assert _wrap(module, policy, **children) == (wrapped, 68)
    marks = [m.options for m in module.modules() if isinstance(m, Wrapped)]
    assert sorted(each["mark"] for each in marks) == [7, 7, 7, 7, 8]
    assert all(each["other"] == 1 for each in marks)
    with pytest.raises(AssertionError):
        _wrap(module, policy)
    again, _ = _wrap(module, policy, ignored_modules=set(module.modules()))
    assert again == ["", *wrapped]
    functions = {"wrapper_cls": lambda m, **_: Wrapped(m)}
    assert _wrap(Deep().to("xla"), policy, **functions) == (["", *wrapped], 108)
