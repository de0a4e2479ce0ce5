"""TorchTPU's operators of JAX's functions: which arguments and results they may have.

The same functions of NumPy's arrays decide.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
import torch
from packaging.version import Version

from harness.model.topology import Target
from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention.in_pytorch import in_each_process

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies(1),
    pytest.mark.upstream("pytorch/xla#8812", "pytorch/xla#8850"),
]
X = np.arange(12, dtype=np.float32).reshape(3, 4)
Y = np.array([[5], [-7], [2]], np.float32)


@pytest.fixture(autouse=True)
def needs_jax() -> None:
    """TorchTPU does not require it; imported here, it is not imported by each rank."""
    pytest.importorskip("jax")


class Side(enum.StrEnum):
    """An option that is a text."""

    LEFT = "l"
    RIGHT = "r"


class Level(enum.IntEnum):
    """An option that is a number."""

    LOW = 2
    HIGH = 5


class Factor(enum.Enum):
    """An option whose values are fractions."""

    HALF = 0.5
    TWICE = 2.0


@dataclass(frozen=True)
class Operator:
    """A function of arrays, the types that JAX's operator of it declares, and calls of it.

    ``types`` are of the parameters and, last, of the result. "array" stands for JAX's type.
    """

    function: Callable[..., Any]
    types: Sequence[Any]
    calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]]
    options: Mapping[str, Any] = field(default_factory=dict)


def _scaled(x, n, by, negative):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return (-x if negative else x) * n + by


def _optional(x, y=None, *, n=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    total = x if y is None else x + y
    return total if n is None else total * n


def _text(x, word="up", side=Side.LEFT):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    assert isinstance(side, Side)
    return (x + 1 if word == "up" else x - 1) * (2 if side is Side.LEFT else 3)


def _levels(x, level=Level.HIGH, factor=Factor.HALF):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    assert isinstance(level, Level)
    return x * int(level) + factor.value


def _kind(x, dtype):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return x.astype(dtype)


def _sum_of(arrays, weights):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return sum(a * w for a, w in zip(arrays, weights, strict=True))


def _pair(arrays):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return arrays[0] - arrays[1], arrays[0] * arrays[1]


def _lists(x):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return [x + 1, x[:1] * 2]


def _by_name(x, y, *, n=3):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return x * n - y


def _bound(x, n, *, by):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return x * n + by


def _unused(x, y):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    del x
    return y * 2


A, SEVERAL = "array", "arrays"
OPERATORS = {
    "numbers": Operator(
        _scaled,
        (A, int, float, bool, A),
        [((X, 2, 0.5, False), {}), ((X, 3, 0.5, False), {}), ((X, 3, 0.5, True), {})],
    ),
    "optional": Operator(
        _optional,
        (A, "array?", int | None, A),
        [((X,), {}), ((X, Y), {}), ((X, None), {"n": 3}), ((X, Y), {"n": 4})],
    ),
    "text": Operator(
        _text,
        (A, Literal["up", "down"], Side, A),
        [((X,), {}), ((X, "down"), {}), ((X, "up", Side.RIGHT), {}), ((X, "down", Side.LEFT), {})],
    ),
    "levels": Operator(
        _levels,
        (A, Level, Factor, A),
        [((X,), {}), ((X, Level.LOW), {}), ((X, Level.LOW, Factor.TWICE), {})],
    ),
    "kind": Operator(
        _kind, (A, np.dtype, A), [((X, np.dtype("int32")), {}), ((X, np.dtype("float32")), {})]
    ),
    "sequence": Operator(
        _sum_of,
        (SEVERAL, Sequence[float], A),
        [(([X, Y], [2.0, 3.0]), {}), (([X, Y, X], [2.0, 3.0, 4.0]), {})],
    ),
    "pair": Operator(_pair, ("pair", "pair"), [(((X, Y),), {}), (((Y, X),), {})]),
    "list": Operator(_lists, (A, "list"), [((X,), {}), ((Y,), {})]),
    "by-name": Operator(
        _by_name, (A, A, int, A), [((X,), {"y": Y}), ((X,), {"y": X, "n": 5}), ((Y,), {"y": X})]
    ),
    "bound": Operator(partial(_bound, by=7), (A, int, int, A), [((X, 2), {}), ((X, 3), {})]),
    "unused": Operator(_unused, (A, A, A), [((X, Y), {}), ((Y, X), {})]),
}


def _type(declared: Any) -> Any:
    import jax

    types = {
        "array": jax.Array,
        "array?": jax.Array | None,
        "arrays": Sequence[jax.Array],
        "pair": tuple[jax.Array, jax.Array],
        "list": list[jax.Array],
    }
    return types[declared] if isinstance(declared, str) else declared


def _declared(function: Callable[..., Any], types: Sequence[Any]) -> Callable[..., Any]:
    names = [*inspect.signature(function).parameters, "return"]
    getattr(function, "func", function).__annotations__ = dict(
        zip(names, map(_type, types), strict=True)
    )
    return function


def _moved(value: Any, device: str) -> Any:
    """Return arrays as tensors on the device, wherever they are in it."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value).to(device)
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(each, device) for each in value)
    return value


def _arrays(result: Any) -> list[np.ndarray]:
    parts = result if isinstance(result, (list, tuple)) else [result]
    return [part.cpu().numpy() if isinstance(part, torch.Tensor) else part for part in parts]


def _answers(
    called: Callable[..., Any], operator: Operator, device: str, *, compiled: bool
) -> list[list[np.ndarray]]:
    answers = []
    for arguments, named in operator.calls:
        given = [_moved(each, device) for each in arguments]
        by_name = {name: _moved(each, device) for name, each in named.items()}
        if compiled:

            def step(given: list[Any] = given, by_name: dict[str, Any] = by_name) -> Any:
                return called(*given, **by_name)

            torch.compiler.reset()
            answers.append(_arrays(torch.compile(step, backend="tpu", fullgraph=True)()))
        else:
            answers.append(_arrays(called(*given, **by_name)))
    return answers


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_arguments(
    xla_target: Target, start_runtime: StartRuntime, subtests: pytest.Subtests, compiled: bool
) -> None:
    """Options select the program; each is passed by place, by name, or not at all."""
    from torch_tpu._internal.pallas import jax_op

    def ask(device: str) -> dict[str, list[list[np.ndarray]]]:
        answers = {}
        for name, operator in chosen.items():
            declared = _declared(operator.function, operator.types)
            made = jax_op(f"xla_harness::{name.replace('-', '_')}", declared, **operator.options)
            answers[name] = _answers(made, operator, device, compiled=compiled)
        return answers

    # Dynamo of torch 2.11 traces no set of NumPy's types.
    without = {"kind"} if compiled and Version(torch.__version__) < Version("2.15") else set[str]()
    chosen = {name: each for name, each in OPERATORS.items() if name not in without}
    (answers,) = in_each_process(ask, xla_target, start_runtime)
    for name, operator in chosen.items():
        with subtests.test(name):
            for (arguments, named), got in zip(operator.calls, answers[name], strict=True):
                _check(got, _arrays(operator.function(*arguments, **named)))


def _check(got: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    for value, want in zip(got, expected, strict=True):
        assert (value.dtype, value.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(value, want, rtol=1e-6)


DTYPES = ["float32", "bfloat16", "float16", "int8", "int16", "int32", "uint8", "uint32", "bool"]


def test_dtypes(xla_target: Target, start_runtime: StartRuntime, subtests: pytest.Subtests) -> None:
    """Each has the same type in the function and outside of it."""
    from torch_tpu._internal.pallas import jax_op

    def ask(device: str) -> dict[str, tuple[str, np.ndarray]]:
        import jax

        def doubled(x):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            assert x.dtype == jax.numpy.dtype(names[-1]), x.dtype
            return x | x if x.dtype == bool else x + x

        names, answers = [""], {}
        made = jax_op("xla_harness::doubled", _declared(doubled, ("array", "array")))
        for name in DTYPES:
            names.append(name)
            result = made(_of(name).to(device)).cpu()
            answers[name] = str(result.dtype), result.double().numpy()
        return answers

    (answers,) = in_each_process(ask, xla_target, start_runtime)
    for name in DTYPES:
        with subtests.test(name):
            values = np.arange(6).reshape(2, 3)
            want = values > 0 if name == "bool" else values * 2
            dtype, got = answers[name]
            assert dtype == f"torch.{name}"
            np.testing.assert_array_equal(got, want)


def _of(dtype: str) -> torch.Tensor:
    return torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))


REFUSED: dict[str, tuple[str, Callable[..., Any], Sequence[Any], type[Exception], str]] = {
    "no-namespace": ("name", _lists, (A, "list"), ValueError, "does not contain a namespace"),
    "two-namespaces": ("a::b::c", _lists, (A, "list"), ValueError, "exactly one '::' separator"),
    "argument": ("a::b", _scaled, (A, dict, set, bool, A), ValueError, r"indices \[1, 2\] are inv"),
    "sequence": ("a::b", _sum_of, (SEVERAL, list[str], A), ValueError, r"indices \[1\] are inv"),
    "result": ("a::b", _lists, (A, dict), ValueError, "return annotation is invalid"),
    "both": ("a::b", _lists, (dict, str), ValueError, r"\[0\] are invalid. The return annotation"),
    "unsupported": ("a::c", _lists, (A, "list"), NotImplementedError, "torch.complex32"),
}


def test_refusals(xla_target: Target, start_runtime: StartRuntime) -> None:
    from torch_tpu._internal.pallas import jax_op

    def ask(device: str) -> dict[str, str]:
        torch.ones(1, device=device).cpu()
        answers = {}

        def refused(name: str, function: Callable[..., Any]) -> None:
            jax_op(name, function)(torch.ones(2, dtype=torch.complex32, device="meta"))

        for case, (name, function, types, error, message) in REFUSED.items():
            with pytest.raises(error, match=message) as caught:
                refused(name, _declared(function, types))
            answers[case] = str(caught.value)
        with pytest.raises(ValueError, match="Missing argument type annotation"):
            jax_op("a::d", lambda x: x)
        return answers

    (answers,) = in_each_process(ask, xla_target, start_runtime)
    assert list(answers) == list(REFUSED)


def test_kernels_of_any_name(xla_target: Target, start_runtime: StartRuntime) -> None:
    """The older function, which takes a function without types, or returns a decorator."""
    from torch_tpu._internal.pallas import custom_jax_kernel

    def ask(device: str) -> list[list[np.ndarray]]:
        import jax

        x, y = _moved(X, device), _moved(Y, device)

        def unnamed(function: Callable[..., Any]) -> Callable[..., Any]:
            made: Callable[..., Any] = custom_jax_kernel(function)
            return made

        plus, minus = unnamed(lambda x: x + 1), unnamed(lambda x: x - 1)
        static = custom_jax_kernel(static_argnums=(1,), static_argnames=("by",))(_bound)
        aliased = custom_jax_kernel(lambda x, y: x + y, input_output_aliases={0: 0})
        kept = custom_jax_kernel(jax.jit(lambda x, y: None))
        z = _moved(X, device)
        results = [plus(x), minus(x), plus(y), static(x, 2, by=3), static(x, 3, by=3)]
        results += [static(x, 3, by=4), aliased(z, y)]
        named = custom_jax_kernel(lambda x, *, more: x - more[0] - more[1])
        results += [named(x, more=[y, y]), named(x, more=(x, y))]
        assert kept(x, y) is None
        with pytest.raises(TypeError, match="input 1 was of type"):
            aliased(x, 1)
        with pytest.raises(ValueError, match="index 1 is marked as static but is a"):
            static(x, y, by=1)
        with pytest.raises(ValueError, match="the same as the keys of input_output_aliases"):
            custom_jax_kernel(
                lambda x, y: x + y, input_output_aliases={0: 0}, donate_argnums=[0, 1]
            )
        return [_arrays(result) for result in results]

    (answers,) = in_each_process(ask, xla_target, start_runtime)
    expected: list[np.ndarray] = [X + 1, X - 1, Y + 1, X * 2 + 3, X * 3 + 3, X * 3 + 4, X + Y]
    expected += [X - Y - Y, -np.broadcast_to(Y, X.shape)]
    _check([value for (value,) in answers], expected)


@pytest.mark.topologies("4")
def test_meshes(xla_target: Target, start_runtime: StartRuntime) -> None:
    """Arrays are the ranks' parts where a specification names an axis, and else whole."""
    import jax
    from torch_tpu._internal.pallas import jax_op

    world = xla_target.topology.total
    host = np.arange(world * 2 * 6, dtype=np.float32).reshape(world * 2, 6)

    def ask(device: str) -> dict[str, np.ndarray]:
        from torch_tpu._internal.pallas import get_default_pallas_mesh
        from torch_tpu._internal.pallas.mesh import get_pallas_mesh

        rank = torch.distributed.get_rank()
        spec = jax.sharding.PartitionSpec
        line, plane = get_default_pallas_mesh(), get_pallas_mesh(("a", "b"), (2, 2))
        assert (line.axis_names, line.devices.shape) == (("rank",), (world,))

        def made(name: str, mesh: Any, specs: Sequence[Any], results: Sequence[Any]) -> Any:
            def of_parts(x, y):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
                total = jax.lax.psum(x.sum(0, keepdims=True), mesh.axis_names[0])
                return x + y, total * y

            sharded = jax.shard_map(
                of_parts,
                mesh=mesh,
                in_specs=tuple(specs),
                out_specs=tuple(spec(*each) for each in results),
                check_vma=False,
            )

            def summed(x, y):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
                return sharded(x, y)

            return jax_op(
                f"xla_harness::{name}",
                _declared(summed, ("array", "array", "pair")),
                mesh=mesh,
                input_partition_specs=tuple(specs),
                output_partition_specs=tuple(results),
            )

        rows = made("rows", line, [spec("rank"), spec()], [("rank",), (None,)])
        columns = made(
            "columns", plane, [spec("a", "b"), spec(None, "b")], [("a", "b"), (None, "b")]
        )
        x, y = host, host[:1]
        own = x.reshape(world, 2, 6)[rank]
        given = {"rows": rows(_moved(own, device), _moved(y, device))}
        down, across = divmod(rank, 2)
        block = np.ascontiguousarray(x[4 * down : 4 * down + 4, 3 * across : 3 * across + 3])
        top = np.ascontiguousarray(y[:, 3 * across : 3 * across + 3])
        given["columns"] = columns(_moved(block, device), _moved(top, device))
        for names, shape, message in (
            (("a", "b"), (2, 3), "must match world size"),
            (("a", "b", "c"), (2, 2), "does not match length"),
            (("a", "b"), None, "must be explicitly specified"),
        ):
            with pytest.raises(ValueError, match=message):
                get_pallas_mesh(names, shape)
        pairs = [torch.distributed.new_group([0, 1]), torch.distributed.new_group([2, 3])]
        with pytest.raises(ValueError, match="full world-size meshes only"):
            get_pallas_mesh("rank", process_group=pairs[rank // 2])
        same = get_pallas_mesh("rank", process_group=torch.distributed.group.WORLD)
        assert [d.id for d in same.devices.flat] == [d.id for d in line.devices.flat]
        return {
            f"{name}-{n}": v for name, both in given.items() for n, v in enumerate(_arrays(both))
        }

    for rank, got in enumerate(in_each_process(ask, xla_target, start_runtime)):
        down, across = divmod(rank, 2)
        part = np.s_[3 * across : 3 * across + 3]
        totals = host.sum(0, keepdims=True) * host[:1]
        expected = {
            "rows-0": (host + host[:1])[2 * rank : 2 * rank + 2],
            "rows-1": totals,
            "columns-0": (host + host[:1])[4 * down : 4 * down + 4, part],
            "columns-1": totals[:, part],
        }
        for name, want in expected.items():
            np.testing.assert_allclose(got[name], want, rtol=1e-6, err_msg=f"rank {rank}: {name}")
