"""What JAX has the compiler call while it partitions, for XLA's CPU plugin, which can't.

That is ``custom_partitioning``, whose author divides a function, and ``inspect_array_sharding``.
jaxlib's own compiler for the CPU calls both. So it is asked first, about as many devices; then each
function becomes a ``jax.shard_map`` with the shardings that its author has chosen there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import wrapt

from harness.lanes import events
from harness.lanes.virtual import in_own_words, newer_programs
from harness.lanes.virtual.lowering import operations

_COMPILE = "backend_compile_and_load"
_FAILED = "custom_partitioner: "  # begins what jaxlib says of an error of such a function
_OWN_CHANNELS = 1 << 15  # of at most twice as many; JAX counts its own from 1
_CALL, _INSPECTION = "CustomSPMDPartitioning", "InspectSharding"
_UNNAMED = (
    "custom_partitioning without names of a mesh's axes can't be called here: expected"
    " jax.sharding.NamedSharding from its partition, and no decode_shardings=False"
)


@dataclass(frozen=True)
class _Division:
    """How the author of a function divides it, for arrays of these shapes."""

    arrays: Sequence[Any]
    mesh: Any
    function: Callable[..., Any]
    result_shardings: Any
    array_shardings: Any


def accept(compiler: Any) -> None:
    """Let ``jax._src.compiler`` submit programs that call Python while they are partitioned."""
    if hasattr(compiler, _COMPILE):  # since JAX 0.7
        wrapt.wrap_function_wrapper(compiler, _COMPILE, _compile)


def _compile(
    compile_: Callable[..., Any], _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    names = ("backend", "module", "executable_devices", "options", "host_callbacks")
    given = dict(zip(names, args, strict=False)) | kwargs
    if given["backend"].platform == "cpu" or not _calls(given["module"]):
        return compile_(*args, **kwargs)
    divisions = _ask(compile_, given)
    module = newer_programs.copy_of(given["module"])
    callbacks = [*given["host_callbacks"]]
    with _channels_from(_OWN_CHANNELS):
        for call, target in _calls(module):
            if target == _CALL:
                callbacks += _replace(module, call, divisions[_key(call)])
            call.erase()
            events.note("rewrite", rewrite=target)
    return compile_(**given | {"module": module, "host_callbacks": callbacks})


def tell_devices(debugging: Any) -> None:
    """Have JAX say which devices a program with a callback is for, as ``call_on_each_part`` needs.

    Args:
        debugging: ``jax._src.debugging``.
    """
    from jax._src import dispatch

    for name in ("debug_callback_p", "debug_print_p"):  # the second since JAX 0.8
        if primitive := getattr(debugging, name, None):
            dispatch.prim_requires_devices_during_lowering.add(primitive)


def call_on_each_part(context: Any, callback: Callable[..., Any], operands: Sequence[Any]) -> None:
    """Have a program call Python on each part of arrays, however the compiler divides them.

    Args:
        context: of JAX's lowering rule.
        callback: called with arrays of NumPy or JAX.
        operands: values of MLIR, whose shapes the context has.
    """
    import jax
    from jax._src import custom_partitioning as theirs
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    def call(*parts: Any) -> Any:
        jax.debug.callback(callback, *parts)
        return jax.numpy.zeros((), "int32")

    def divide(mesh: Any, arrays: Any, _: Any) -> Any:
        whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        return mesh, call, whole, tuple(array.sharding for array in arrays)

    function = theirs.custom_partitioning(call)
    function.def_partition(divide)
    results = [jax.core.ShapedArray((), "int32")]
    mlir.lower_fun(function, multiple_results=False)(context.replace(avals_out=results), *operands)
    for operation, target in _calls(context.module_context.module):
        # The result, which nobody reads, is no reason to call it.
        if target == _CALL and theirs._sharding_callbacks[_key(operation)].partition is divide:
            operation.attributes["has_side_effect"] = ir.BoolAttr.get(True)


@contextmanager
def _channels_from(first: int) -> Iterator[None]:
    """Give callbacks other numbers of channels than those of the whole program."""
    from jax._src.interpreters import mlir

    theirs, numbers = mlir.ModuleContext.new_channel, count(first)
    mlir.ModuleContext.new_channel = lambda _: next(numbers)
    try:
        yield
    finally:
        mlir.ModuleContext.new_channel = theirs


def _calls(module: Any) -> list[tuple[Any, str]]:
    """Return the calls of Python, each with its target."""
    calls = [o for o in operations(module.operation) if o.name == "stablehlo.custom_call"]
    named = [(o, o.attributes["call_target_name"].value) for o in calls]
    return [(o, name) for o, name in named if name in (_CALL, _INSPECTION)]


def _key(call: Any) -> bytes:
    key: str = call.attributes["backend_config"].value
    return key.encode()


def _ask(compile_: Callable[..., Any], given: Mapping[str, Any]) -> Mapping[bytes, _Division]:
    """Return how each function is divided, and let inspections see shardings, by their calls."""
    from jaxlib import xla_client

    keys = {_key(call) for call, target in _calls(given["module"]) if target == _CALL}
    cpu = xla_client.make_cpu_client(num_devices=len(given["backend"].devices()))
    numbers = [device.id for device in given["executable_devices"]]
    devices = xla_client.DeviceList(tuple(cpu.devices()[number] for number in numbers))
    with _noted(keys) as divisions:
        try:
            compile_(cpu, given["module"], devices, given["options"], [])
        except Exception as error:
            # The rest of a program may be what jaxlib can't compile, after it was partitioned.
            if _FAILED in str(error) or len(divisions) < len(keys):
                raise
    return divisions


@contextmanager
def _noted(keys: set[bytes]) -> Iterator[Mapping[bytes, _Division]]:
    """Note what the authors' functions answer."""
    from jax._src import custom_partitioning as theirs

    divisions: dict[bytes, _Division] = {}
    calls = {key: theirs._sharding_callbacks[key] for key in keys}
    own = {key: call.partition for key, call in calls.items()}

    def noted(key: bytes) -> Callable[..., Any]:
        def partition(*args: Any) -> Any:
            import jax

            *_, arrays, _ = args
            mesh, function, results, shardings = own[key](*args)
            flat = jax.tree.leaves(arrays)
            divisions[key] = _Division(flat, mesh, function, results, shardings)
            return mesh, function, results, shardings

        return partition

    for key, call in calls.items():
        call.partition = noted(key)
    try:
        yield divisions
    finally:
        for key, call in calls.items():
            call.partition = own[key]


def _replace(module: Any, call: Any, division: _Division) -> Sequence[Any]:
    """Use the results of the divided function in the place of a call's; return its callbacks."""
    from jax._src.interpreters.mlir import merge_mlir_modules
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func

    text, callbacks = _lowered(division)
    source = ir.Module.parse(text, module.context)
    with module.context:
        name = merge_mlir_modules(module, "divided", source)
    with ir.InsertionPoint(call), call.location:
        types = [result.type for result in call.results]
        divided = func.CallOp(types, ir.FlatSymbolRefAttr.get(name), list(call.operands))
    for old, new in zip(call.results, divided.results, strict=True):
        old.replace_all_uses_with(new)
    return callbacks


def _lowered(division: _Division) -> tuple[str, Sequence[Any]]:
    """Return a module's text, and what it calls on the host.

    Its main function does what each device does of the arrays.
    """
    import jax

    specs = [_specs(s) for s in (division.array_shardings, division.result_shardings)]
    tree = jax.tree.structure(division.array_shardings)

    def flat(*arrays: Any) -> Any:
        return tuple(jax.tree.leaves(division.function(*jax.tree.unflatten(tree, arrays))))

    mapped = jax.shard_map(
        flat, mesh=division.mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False
    )
    arrays = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in division.arrays]
    lowered = jax.jit(mapped, keep_unused=True).lower(*arrays)
    return lowered.as_text(debug_info=True), lowered._lowering.compile_args["host_callbacks"]


def _specs(shardings: Any) -> tuple[Any, ...]:
    import jax

    flat = jax.tree.leaves(shardings)
    if any(not isinstance(each, jax.sharding.NamedSharding) for each in flat):
        raise NotImplementedError(in_own_words(_UNNAMED))
    return tuple(each.spec for each in flat)
