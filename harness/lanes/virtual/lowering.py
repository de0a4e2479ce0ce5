"""HLO for the CPU that JAX makes of functions, and of the programs that frameworks submit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from harness.lanes.hlo import Module
from harness.lanes.virtual.host_memory import note_memories
from harness.lanes.virtual.noted_layouts import note_layouts

SCAN = "chlo.scan"  # the name of a composite operation
_MESH = re.compile(r"<@\w+, ")


def rule_of(entry: Any) -> Callable[..., Any]:
    """Return JAX's lowering rule, which since JAX 0.6 stands in an entry of its table."""
    rule: Callable[..., Any] = getattr(entry, "rule", entry)
    return rule


def lower_for_cpu(function: Callable[..., Any], shapes: Sequence[Any], *, x64: bool) -> bytes:
    """Lower a JAX function of operands like ``shapes`` to a serialised HloModuleProto.

    Its entry computation takes all operands, used or not. No client is started.
    """
    import jax

    # Options and a mesh of the user's are for their own programs.
    promotion = jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard")
    with _x64(on=x64), _without_mesh(), promotion[0], promotion[1]:
        lowered = _lower(jax.jit(function, keep_unused=True), shapes)
    module: bytes = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    return module


def lower_by_hand(
    function: Callable[..., Any], shapes: Sequence[Any], mesh: Any, *, x64: bool
) -> bytes:
    """Lower a function for one device of a mesh, for a program of one device.

    TorchTPU submits what one device does, and nothing around it. To the partitioner all devices
    have the same there, and it refuses to say which of them one is on. The shardings name their own
    mesh, since the module goes into another one.
    """
    import jax

    mesh, spec = getattr(mesh, "abstract_mesh", mesh), jax.sharding.PartitionSpec()
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    whole = jax.sharding.NamedSharding(mesh, spec)
    given = [jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=whole) for shape in shapes]
    module = Module.FromString(lower_for_cpu(mapped, given, x64=x64))
    text = ", ".join(f'"{name}"={size}' for name, size in mesh.shape.items())
    for computation in module.computations:
        for instruction in computation.instructions:
            for attribute in instruction.frontend_attributes.map:
                attribute.value = _MESH.sub(f"<mesh<[{text}]>, ", attribute.value)
    return module.SerializeToString()


def as_hlo(form: str, program: bytes) -> bytes:
    """Return what a framework submits to PJRT's compiler, as a serialised HloModuleProto.

    Args:
        form: ``hlo`` for a serialised HloModuleProto, ``mlir`` for a StableHLO portable artifact,
            of whose results it is noted in which memory they are, and of all layouts.
        program: in that form.
    """
    if form != "mlir":
        return program
    from jax._src.interpreters.mlir import make_ir_context, module_to_bytecode
    from jax._src.lib import xla_client
    from jaxlib.mlir import ir

    mlir = xla_client._xla.mlir
    with make_ir_context():
        module = mlir.deserialize_portable_artifact(program)
        if isinstance(module, str | bytes):  # before JAX 0.10
            bytecode = module
        else:
            _decompose_scans(module)
            bytecode = module_to_bytecode(module)
        if not any(kind in program for kind in (b"pinned_host", b"mhlo.layout_mode")):
            return hlo_of(bytecode)
        parsed = ir.Module.parse(bytecode)
        (main,) = (o for o in parsed.body.operations if _symbol(o) == "main")
        arguments, results = (
            list(
                zip(
                    _each(main, of, "mhlo.layout_mode", ""),
                    _each(main, of, "mhlo.memory_kind", "device"),
                    strict=True,
                )
            )
            for of in ("arg_attrs", "res_attrs")
        )
    hlo = Module.FromString(hlo_of(bytecode))
    note_memories(hlo, [memory for _, memory in results])
    note_layouts(hlo, arguments, results)
    serialized: bytes = hlo.SerializeToString()
    return serialized


def _each(function: Any, of: str, key: str, default: str) -> list[str]:
    """Return an attribute of each argument or result of a function, as text."""
    from jaxlib.mlir import ir

    if of not in function.attributes:
        type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        return [default] * len(type_.inputs if of == "arg_attrs" else type_.results)
    each: list[Any] = [ir.DictAttr(entry) for entry in function.attributes[of]]
    return [str(entry[key].value) if key in entry else default for entry in each]


def _symbol(operation: Any) -> str:
    """Return the operation's symbol name; "" if it has none."""
    attributes = operation.operation.attributes
    return str(attributes["sym_name"].value) if "sym_name" in attributes else ""


def _decompose_scans(module: Any) -> None:
    """Call the function that means the same as a scan, in place of each.

    HLO has an opcode for scans that XLA's CPU compiler does not know.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func

    composites = [o for o in operations(module.operation) if o.name == "stablehlo.composite"]
    for scan in composites:
        if ir.StringAttr(scan.attributes["name"]).value != SCAN:
            continue
        with ir.InsertionPoint(scan), scan.location:
            types = [result.type for result in scan.results]
            call = func.CallOp(types, scan.attributes["decomposition"], list(scan.operands))
        for old, new in zip(scan.results, call.results, strict=True):
            old.replace_all_uses_with(new)
        scan.erase()


def operations(operation: Any) -> Iterator[Any]:
    """Yield all operations nested in ``operation``."""
    for region in operation.regions:
        for block in region:
            for each in block.operations:
                yield each.operation
                yield from operations(each.operation)


def hlo_of(bytecode: str | bytes) -> bytes:
    """Convert a module of MLIR, which is no portable artifact, to a serialised HloModuleProto."""
    from jax._src.interpreters.mlir import make_ir_context
    from jax._src.lib import xla_client

    with make_ir_context():
        computation = xla_client._xla.mlir.mlir_module_to_xla_computation(
            bytecode, use_tuple_args=False, return_tuple=False
        )
    serialized: bytes = computation.as_serialized_hlo_module_proto()
    return serialized


def _x64(*, on: bool) -> Any:
    import jax

    if jax.__version_info__ >= (0, 8):
        return jax.enable_x64(on)
    from jax.experimental import enable_x64

    return enable_x64(on)


def _without_mesh() -> Any:
    """Leave the mesh that JAX traces for, such as a ``shard_map`` outside of jit that compiles."""
    from jax._src import mesh

    if not hasattr(mesh, "empty_abstract_mesh"):  # before JAX 0.5
        return nullcontext()
    return mesh.use_abstract_mesh(mesh.empty_abstract_mesh)


def _lower(function: Any, shapes: Sequence[Any]) -> Any:
    import jax
    from jax.interpreters import mlir

    if jax.__version_info__ >= (0, 4, 31):
        return function.trace(*shapes).lower(lowering_platforms=("cpu",))
    parameters = mlir.LoweringParameters(platforms=("cpu",))
    return function.lower(*shapes, _experimental_lowering_parameters=parameters)
