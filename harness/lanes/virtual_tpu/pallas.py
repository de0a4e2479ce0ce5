"""Pallas kernels on the CPU: JAX's own interpretation takes the place of Mosaic's compilation.

JAX hands each ``pallas_call`` to one lowering rule, whoever asked for it: torch_xla's tracing or a
program of JAX's own. The custom call that comes out carries the kernel as an opaque payload, which
names the ``pallas_call`` again when a program with that payload reaches the compiler. Its place is
then taken by the HLO that JAX makes of the same call with ``interpret=True``.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import wrapt

from harness.lanes.virtual_tpu.custom_calls import Shapes, replace_custom_calls

TARGET = "tpu_custom_call"
_RULE = "jax._src.pallas.mosaic.pallas_call_registration"


class CannotInterpretError(RuntimeError):
    """A kernel that has no interpretation; the message names it and says why."""


@dataclass(eq=False)
class Kernel:
    """One lowered ``pallas_call``: its name, parameters, and the operands' shapes and dtypes."""

    name: str
    parameters: dict[str, Any]
    operands: Sequence[Any]
    x64: bool
    _modules: dict[Shapes, bytes] = field(default_factory=dict)

    def module(self, shapes: Shapes) -> bytes:
        """The interpreted kernel for operands of those shapes, as a serialised HloModuleProto.

        Mosaic reads blocks of its operands and does not ask how large they are. torch_xla's flash
        attention relies on that: backward it passes 128 columns of ``di`` where JAX passes more.

        Raises CannotInterpretError.
        """
        if shapes not in self._modules:
            try:
                self._modules[shapes] = self._lower(shapes)
            except Exception as error:
                text = str(error).strip().split("\n")[0] or _raiser(error)
                raise CannotInterpretError(
                    f"Pallas kernel {self.name!r} can't be interpreted by JAX: "
                    f"{type(error).__name__}: {text}"
                ) from error
        return self._modules[shapes]

    def _lower(self, given: Shapes) -> bytes:
        import jax
        import jax.numpy as jnp
        from jax._src.pallas import pallas_call

        parameters = self.parameters | {"interpret": True}
        if "backend" in inspect.signature(pallas_call._pallas_call_lowering).parameters:
            parameters["backend"] = None

        def interpreted(*operands: Any) -> Any:
            operands = tuple(map(_fit, operands, self.operands))
            results = pallas_call.pallas_call_p.bind(*operands, **parameters)
            results = [r.astype(jnp.int32) if r.dtype == bool else r for r in results]
            return results[0] if len(results) == 1 else tuple(results)

        if len(given) != len(self.operands):
            raise ValueError(f"it takes {len(self.operands)} operands, the call gives {len(given)}")
        shapes = [
            # Mosaic's custom call takes and gives booleans as integers.
            jax.ShapeDtypeStruct(shape, jnp.int32 if o.dtype == bool else o.dtype)
            for shape, o in zip(given, self.operands, strict=True)
        ]
        with _x64(on=self.x64):
            lowered = _lower_for_cpu(jax.jit(interpreted, keep_unused=True), shapes)
        module: bytes = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
        return module


def _x64(*, on: bool) -> Any:
    import jax

    if jax.__version_info__ >= (0, 8):
        return jax.enable_x64(on)
    from jax.experimental import enable_x64

    return enable_x64(on)


def _lower_for_cpu(function: Any, shapes: Sequence[Any]) -> Any:
    import jax
    from jax.interpreters import mlir

    if jax.__version_info__ >= (0, 4, 31):
        return function.trace(*shapes).lower(lowering_platforms=("cpu",))
    parameters = mlir.LoweringParameters(platforms=("cpu",))
    return function.lower(*shapes, _experimental_lowering_parameters=parameters)


def _raiser(error: Exception) -> str:
    """The place at which an error without a text was raised."""
    return f"in {traceback.extract_tb(error.__traceback__)[-1].name}"


def _fit(operand: Any, expected: Any) -> Any:
    """``operand`` with the dtype and shape that the kernel was lowered for.

    torch_xla passes some operands narrower or wider than JAX lowered them. What is too much is cut
    off; what is missing becomes NaN, so that a kernel that reads it has NaN in its result.
    """
    import jax.numpy as jnp

    if operand.ndim != len(expected.shape):
        raise ValueError(f"it takes an operand {expected.shape}, the call gives {operand.shape}")
    operand = operand[tuple(slice(size) for size in expected.shape)]
    missing = [(0, size - n) for size, n in zip(expected.shape, operand.shape, strict=True)]
    if any(after for _, after in missing):
        if not jnp.issubdtype(operand.dtype, jnp.inexact):
            raise ValueError(f"it takes {expected.shape} integers, the call gives {operand.shape}")
        operand = jnp.pad(operand, missing, constant_values=jnp.nan)
    return operand != 0 if expected.dtype == bool else operand


_KERNELS: dict[bytes, Kernel] = {}


def record_kernels() -> None:
    """Remember every kernel that JAX lowers for a TPU from now on, once JAX is imported."""
    wrapt.register_post_import_hook(_wrap_rule, _RULE)


def _wrap_rule(module: Any) -> None:
    from jax._src.pallas import core

    rule = module.pallas_call_tpu_lowering_rule
    wrapt.wrap_function_wrapper(module, "pallas_call_tpu_lowering_rule", _record)
    # Newer JAX finds the rule of a call with compiler parameters by their class.
    for parameters, (found, platform) in getattr(core, "_backend_lowering_rules", {}).items():
        if found is rule:
            core.register_lowering_rule(parameters, module.pallas_call_tpu_lowering_rule, platform)


def _record(
    rule: Callable[..., Any], _: object, arguments: tuple[Any, ...], parameters: dict[str, Any]
) -> Any:
    import jax

    results, context = rule(*arguments, **parameters), arguments[0]
    payload = _payload(results, context.module_context.module)
    if payload is not None and payload not in _KERNELS:
        _KERNELS[payload] = Kernel(
            _name(parameters), dict(parameters), list(context.avals_in), jax.config.jax_enable_x64
        )
    return results


def _payload(results: Any, module: Any) -> bytes | None:
    """The payload of the custom call that the first result comes from; None without a result."""
    while isinstance(results, list | tuple):
        if not results:
            return None
        results = results[0]
    operation = results.owner
    while operation.name != "stablehlo.custom_call":
        if operation.name == "func.call":  # JAX of 2024 puts the custom call in a function
            operation = _last_operation(module, operation.attributes["callee"].value)
        operation = operation.operands[0].owner
    value = operation.attributes["backend_config"].value
    return value.encode() if isinstance(value, str) else bytes(value)


def _last_operation(module: Any, function: str) -> Any:
    (callee,) = (f for f in module.body.operations if f.attributes["sym_name"].value == function)
    *_, last = callee.regions[0].blocks[0].operations
    return last


def _name(parameters: dict[str, Any]) -> str:
    """The kernel's name, which each JAX keeps elsewhere; if it was given none, its function's."""
    info = parameters.get("name_and_src_info")
    if info is not None:
        return str(info.name)
    if parameters.get("name") is not None:
        return str(parameters["name"])
    jaxpr = parameters["jaxpr"]
    debug = jaxpr.debug_info if hasattr(jaxpr, "debug_info") else jaxpr._debug_info
    return str(debug.func_name if hasattr(debug, "func_name") else debug)


def interpret(form: str, program: bytes) -> tuple[bytes, list[str]]:
    """``program`` as a serialised HloModuleProto in which no kernel is left, and their names.

    Args:
        form: ``hlo`` for a serialised HloModuleProto, ``mlir`` for a StableHLO portable artifact.
        program: what the framework submits to PJRT's compiler.

    Raises:
        CannotInterpretError: a kernel was not lowered in this process, or JAX can't interpret it.
    """
    module = _hlo(program) if form == "mlir" else program
    replaced, payloads = replace_custom_calls(
        module, TARGET, lambda p, shapes: _kernel(p).module(shapes)
    )
    return replaced, [_kernel(payload).name for payload in payloads]


def _kernel(payload: bytes) -> Kernel:
    try:
        return _KERNELS[payload]
    except KeyError:
        raise CannotInterpretError(
            "a Pallas kernel can't be interpreted: JAX did not lower it in this process, so only "
            f"its Mosaic payload is known ({len(payload)} bytes)"
        ) from None


def _hlo(artifact: bytes) -> bytes:
    from jax._src.interpreters.mlir import make_ir_context, module_to_bytecode
    from jax._src.lib import xla_client

    mlir = xla_client._xla.mlir
    with make_ir_context():
        module = mlir.deserialize_portable_artifact(artifact)
        if not isinstance(module, str | bytes):  # since JAX 0.10
            module = module_to_bytecode(module)
        computation = mlir.mlir_module_to_xla_computation(
            module, use_tuple_args=False, return_tuple=False
        )
    serialized: bytes = computation.as_serialized_hlo_module_proto()
    return serialized


class _Interpreted(ctypes.Structure):
    """``Interpreted`` in ``plugin/programs.c``."""

    _fields_ = (
        ("format", ctypes.c_char_p),
        ("code", ctypes.c_char_p),
        ("kernels", ctypes.c_char_p),
        ("error", ctypes.c_char_p),
        ("code_size", ctypes.c_size_t),
    )


_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.POINTER(_Interpreted),
)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep cyclic garbage for later: TorchTPU compiles in a thread in which no tensor may die."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# What the plugin still reads after the callback has returned, by thread. Not a threading.local:
# TorchTPU compiles in threads that Python did not start, whose locals end with the callback.
_alive: dict[int, tuple[bytes, bytes]] = {}


def _keep(code: bytes, kernels: bytes = b"") -> tuple[bytes, bytes]:
    _alive[threading.get_ident()] = kept = code, kernels
    return kept


@_CALLBACK  # type: ignore[untyped-decorator]
def _callback(form: int, form_size: int, code: int, code_size: int, out: Any) -> int:
    answer = out.contents
    try:
        program = ctypes.string_at(code, code_size)
        with _no_collection():
            replaced, names = interpret(ctypes.string_at(form, form_size).decode(), program)
    except CannotInterpretError as error:
        answer.error = _keep(str(error).encode())[0]
        return 0
    except BaseException as error:
        answer.error = _keep(f"interpretation failed: {error!r}".encode())[0]
        return 0
    if not names:
        return 0
    answer.format = b"hlo"
    answer.code, answer.kernels = _keep(replaced, "\n".join(names).encode())
    answer.code_size = len(replaced)
    return 1


def attach(library: ctypes.CDLL) -> None:
    """Have the plugin ask this process for the interpretation of the kernels in its programs."""
    library.virtual_tpu_set_interpreter(_callback)
