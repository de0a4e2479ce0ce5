"""Pallas kernels on the CPU: JAX's own interpretation takes the place of Mosaic's compilation.

JAX hands each ``pallas_call`` to one lowering rule, whoever asked for it: torch_xla's tracing or a
program of JAX's own. The custom call that comes out carries the kernel as an opaque payload, which
names the ``pallas_call`` again when a program with that payload reaches the compiler. Its place is
then taken by the HLO that JAX makes of the same call for its TPU interpret mode, which has DMA,
semaphores, memory spaces and other devices (``tpu_interpret``), or else for ``interpret=True``.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import wrapt

from harness.lanes import events
from harness.lanes.hlo import Module
from harness.lanes.virtual import (
    generator_state,
    kernel_cores,
    kernel_operands,
    kernel_primitives,
    kernel_random,
    kernel_reports,
    kernel_semaphores,
    tpu_interpret,
)
from harness.lanes.virtual.custom_calls import Shapes, replace_custom_calls
from harness.lanes.virtual.kernel_jaxprs import equations, jaxprs_of
from harness.lanes.virtual.kernel_semaphores import Passed
from harness.lanes.virtual.lowering import as_hlo, lower_by_hand, lower_for_cpu
from harness.lanes.virtual.pinned_buffers import leave_out_pinning

TARGET = "tpu_custom_call"
_RULE = "jax._src.pallas.mosaic.pallas_call_registration"


# What JAX's own message may be about, by interpret mode: it tells users to do what they did.
_LIMITS = {
    "tpu": "",
    "hlo": " (in HLO interpret mode, as in a job of several processes or with random keys, a kernel"
    " reaches other devices only by copies, and only over a mesh of one axis)",
}


class CannotInterpretError(RuntimeError):
    """A kernel that has no interpretation; the message names it and says why."""


@dataclass(eq=False)
class LoweredKernel:
    """Kernel of a lowered ``pallas_call`` or ``mpmd_map``: its parameters and operands' types.

    Attributes:
        call: JAX's primitive.
        mesh: that the kernel's program is divided over by hand, if it is.
        types: of the operands and results that it was lowered for.
    """

    name: str
    call: Any
    parameters: dict[str, Any]
    operands: Sequence[Any]
    x64: bool
    mesh: Any = None
    types: Sequence[str] = ()
    _modules: dict[tuple[Shapes, bool], bytes] = field(default_factory=dict)

    def module(self, shapes: Shapes, divided: bool) -> bytes:  # noqa: FBT001 - of a program
        """Return the interpreted kernel for operands of those shapes, a serialised HloModuleProto.

        Mosaic reads blocks of its operands and does not check how large they are. torch_xla's flash
        attention relies on that: backward it passes 128 columns of ``di`` where JAX passes more.
        Raises CannotInterpretError.
        """
        key = shapes, divided
        if key not in self._modules:
            import jax

            try:
                with jax.enable_checks(False):  # of effects, which interpretation does not read
                    self._modules[key] = self._interpreted(*key)
            except Exception as error:
                why = why_not_interpreted(self.name, error, _LIMITS[self.mode])
                raise CannotInterpretError(why) from error
        return self._modules[key]

    @property
    def mode(self) -> str:
        """The interpret mode of JAX that takes its place in this process: ``tpu`` or ``hlo``."""
        return "tpu" if self._tpu_interpret_mode() else "hlo"

    def _tpu_interpret_mode(self) -> Any:
        """Return the options of the TPU interpret mode, or None where the kernel can't use it.

        The mode's memories hold numbers; it has no random keys but those of a TPU's generator.
        """
        import jax

        keys = [each for each in self.operands if kernel_operands.is_key(each)]
        are_a_tpus = all(kernel_random.generator(key) == kernel_random.KEY for key in keys)
        if keys and (jax.__version_info__ < (0, 10) or not are_a_tpus):
            return None
        return tpu_interpret.mode()

    def _interpreted(self, shapes: Shapes, divided: bool) -> bytes:  # noqa: FBT001
        mode, parameters = self._tpu_interpret_mode(), self.parameters
        shared: Sequence[int] = ()
        if mode is not None:
            parameters = kernel_operands.without_keys(parameters)
            parameters, shared = kernel_cores.on_one_mesh(parameters)
        kernel_primitives.lower_for_a_cpu()
        all_equations = (e for jaxpr in jaxprs_of(self.parameters) for e in equations(jaxpr))
        has_keys = any(kernel_random.generator(e) == kernel_random.KEY for e in self.operands)
        is_random = has_keys or any(map(kernel_random.is_random, all_equations))
        if is_random:
            events.note("rewrite", rewrite="random numbers of a TPU")
        jaxprs = jaxprs_of(parameters)
        cores = dict(i for mesh in self.parameters.get("meshes", ()) for i in mesh.shape.items())
        reaches = self.mesh is not None and any(
            tpu_interpret.reaches_others(jaxpr, cores) for jaxpr in jaxprs
        )
        axes = tuple(self.mesh.shape.items()) if reaches else ()
        if mode is None:
            with tpu_interpret.over_mesh(axes), kernel_reports.interpreting():
                if is_random:
                    parameters = generator_state.with_state(
                        kernel_operands.without_keys(parameters)
                    )
                function, given, _ = self._with(parameters, True, shapes)
                if reaches and not divided:
                    return lower_by_hand(function, given, self.mesh, x64=self.x64)
                return lower_for_cpu(function, given, x64=self.x64)
        for jaxpr in jaxprs:
            tpu_interpret.check(jaxpr)
        function, given, passed = self._with(parameters, mode, shapes)
        reports = kernel_reports.interpreting()
        with tpu_interpret.lowering(self.name, axes, shared) as kernel, reports:
            return lower_for_cpu(kernel.between_ends(function, passed), given, x64=self.x64)

    def _with(
        self, parameters: dict[str, Any], mode: Any, given: Shapes
    ) -> tuple[Callable[..., Any], list[Any], Passed]:
        """Return the kernel as a function in an interpret mode, what it takes, and its semaphores.

        The function takes and gives no semaphores; the shapes are those of all operands.
        """
        import jax
        from jax._src.pallas import pallas_call

        parameters = parameters | {"interpret": mode}
        takes = inspect.signature(pallas_call._pallas_call_lowering).parameters
        if self.call is pallas_call.pallas_call_p and "backend" in takes:
            parameters["backend"] = None

        passed = Passed()
        if mode is not True:  # the other mode has no counts
            parameters, passed = kernel_semaphores.taken_apart(parameters, len(self.operands))
            if passed.results:
                parameters["interpret"] = tpu_interpret.for_starts(mode)
        avals, _ = passed.split(self.operands)
        if any(map(kernel_semaphores.is_semaphore, [*avals, *parameters.get("out_avals", ())])):
            raise NotImplementedError("semaphores that go from one kernel to another")

        grid = parameters.get("grid_mapping")
        bounds = grid.num_dynamic_grid_bounds if grid else 0
        parameters = kernel_operands.in_one_buffer(parameters, len(avals))
        if "out_avals" in parameters:
            parameters["out_avals"] = tuple(map(kernel_operands.unpinned, parameters["out_avals"]))

        def interpreted(*operands: Any) -> Any:
            operands = tuple(map(kernel_operands.as_operand, operands, avals))
            # Mosaic takes a bound of the grid in an array of one number too.
            operands = (*(bound.reshape(()) for bound in operands[:bounds]), *operands[bounds:])
            if "jaxprs" in parameters:  # over cores
                operands = tuple(map(kernel_operands.in_its_memory, operands, avals))
            results = self.call.bind(*operands, **parameters)
            results = [kernel_operands.as_result(result) for result in results]
            return results[0] if len(results) == 1 else tuple(results)

        taken = [kernel_operands.numbers(operand) for operand in self.operands]
        if len(given) != len(taken):
            raise ValueError(f"it takes {len(taken)} operands, the call gives {len(given)}")
        shapes = [
            jax.ShapeDtypeStruct(shape, operand.dtype)
            for shape, operand in zip(given, taken, strict=True)
        ]
        return interpreted, shapes, passed


def why_not_interpreted(name: str, error: Exception, limit: str) -> str:
    """Describe why JAX can't interpret the kernel of that name."""
    text = str(error).strip().split("\n")[0] or _raiser(error)
    return (
        f"Pallas kernel {name!r} can't be interpreted by JAX: {type(error).__name__}: {text}{limit}"
    )


def _raiser(error: Exception) -> str:
    """Return the function that raised an error without a text."""
    return f"in {traceback.extract_tb(error.__traceback__)[-1].name}"


_KERNELS: dict[bytes, LoweredKernel] = {}


def record_kernels() -> None:
    """Remember every kernel that JAX lowers for a TPU from now on, once JAX is imported."""
    wrapt.register_post_import_hook(_record_by, _RULE)
    wrapt.register_post_import_hook(_inline_pipelines, "jax._src.pallas.mosaic.pipeline")


def _inline_pipelines(module: Any) -> None:
    """Have a kernel do what a pipeline does, without an operation for all of it.

    JAX's TPU interpret mode knows the operation since JAX 0.11.2.
    """
    from jax.version import __version_info__

    if hasattr(module, "emit_pipeline_p") and __version_info__ < (0, 11, 2):
        module.config = _WithoutPipelines(module.config)


class _WithoutPipelines(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """JAX's configuration, whatever users say about that operation."""

    use_emit_pipeline_primitive = SimpleNamespace(value=False)


def _record_by(module: Any) -> None:
    from jax._src.pallas import core, pallas_call

    _record_rule(module, "pallas_call_tpu_lowering_rule", pallas_call.pallas_call_p)
    if hasattr(module, "mpmd_map_tpu_lowering_rule"):  # since JAX 0.10
        from jax._src.pallas import mpmd

        _record_rule(module, "mpmd_map_tpu_lowering_rule", mpmd.mpmd_map_p)
    # Since JAX 0.12 a call with compiler parameters finds the rule by their class.
    rules = getattr(core, "_backend_lowering_rules", {})
    rule = module.pallas_call_tpu_lowering_rule
    own = rule.__wrapped__
    rules |= {of: (rule, platform) for of, (recorded, platform) in rules.items() if recorded is own}


def _record_rule(module: Any, name: str, call: Any) -> None:
    def record(
        rule: Callable[..., Any], _: object, arguments: tuple[Any, ...], parameters: dict[str, Any]
    ) -> Any:
        import jax

        results, context = rule(*arguments, **parameters), arguments[0]
        payload = _payload(results, context.module_context.module)
        types = [str(aval) for aval in [*context.avals_in, *context.avals_out]]
        # Mosaic's integers have no sign: kernels over int8 and uint8 have one payload, and a
        # program is compiled after it was lowered.
        if payload is not None and (payload not in _KERNELS or _KERNELS[payload].types != types):
            _KERNELS[payload] = LoweredKernel(
                name_of(parameters),
                call,
                {name: value for name, value in parameters.items() if name != "num_scratch"},
                list(context.avals_in),
                jax.config.jax_enable_x64,
                tpu_interpret.mesh_of(context),
                types,
            )
        return results

    setattr(module, name, wrapt.FunctionWrapper(getattr(module, name), record))


def _payload(results: Any, module: Any) -> bytes | None:
    """Return the payload of the custom call that a rule has just written; None if there is none.

    The first result comes from it. Without results it is the last operation that was written.
    """
    while isinstance(results, list | tuple) and results:
        results = results[0]
    operation = _last_written() if isinstance(results, list | tuple) else results.owner
    if operation is None:
        return None
    while operation.name != "stablehlo.custom_call":
        if operation.name == "func.call":  # JAX of 2024 puts the custom call in a function
            operation = _last_operation(module, operation.attributes["callee"].value)
        operation = operation.operands[0].owner
    value = operation.attributes["backend_config"].value
    return value.encode() if isinstance(value, str) else bytes(value)


def _last_written() -> Any:
    """Return the custom call that stands last where JAX writes now; None if another one does."""
    from jaxlib.mlir import ir

    written: Any = ir.InsertionPoint.current.block.operations
    *_, last = written
    is_call = last.operation.name == "stablehlo.custom_call"
    target = last.attributes["call_target_name"].value if is_call else ""
    return last.operation if target == TARGET else None


def _last_operation(module: Any, function: str) -> Any:
    (callee,) = (f for f in module.body.operations if f.attributes["sym_name"].value == function)
    *_, last = callee.regions[0].blocks[0].operations
    return last


def name_of(parameters: dict[str, Any]) -> str:
    """Return the kernel's name, which each JAX keeps elsewhere, or else its function's."""
    info = parameters.get("name_and_src_info")
    if info is not None:
        return str(info.name)
    if parameters.get("name") is not None:
        return str(parameters["name"])
    return "_".join(map(_function_of, jaxprs_of(parameters)))


def _function_of(jaxpr: Any) -> str:
    debug = jaxpr.debug_info if hasattr(jaxpr, "debug_info") else jaxpr._debug_info
    return str(debug.func_name if hasattr(debug, "func_name") else debug)


def interpret(form: str, program: bytes) -> tuple[bytes, list[tuple[str, str]]]:
    """``program`` as a serialised HloModuleProto in which no kernel is left.

    Args:
        form: ``hlo`` for a serialised HloModuleProto, ``mlir`` for a StableHLO portable artifact.
        program: what the framework submits to PJRT's compiler.

    Returns:
        The module, and of each kernel's call the name and JAX's interpret mode, "tpu" or "hlo".

    Raises:
        CannotInterpretError: a kernel was not lowered in this process, or JAX can't interpret it.
    """
    module = Module.FromString(as_hlo(form, program))
    leave_out_pinning(module)
    payloads = replace_custom_calls(module, TARGET, lambda p, *of_call: _kernel(p).module(*of_call))
    kernels = map(_kernel, payloads)
    return module.SerializeToString(), [(kernel.name, kernel.mode) for kernel in kernels]


def _kernel(payload: bytes) -> LoweredKernel:
    try:
        return _KERNELS[payload]
    except KeyError:
        raise CannotInterpretError(
            "a Pallas kernel can't be interpreted: JAX did not lower it in this process, so only "
            f"its Mosaic payload is known ({len(payload)} bytes)"
        ) from None
