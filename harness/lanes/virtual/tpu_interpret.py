"""JAX's TPU interpret mode, in which a kernel's memories, copies and semaphores are simulated.

Its HLO calls Python for each load, store, copy and signal, and Python holds the simulated memory.
JAX keeps one such memory in a process. Here each execution of a kernel has its own, which takes the
place of JAX's while a call lasts; a kernel that reaches other devices has it until all have left.

https://docs.jax.dev/en/latest/pallas/tpu/index.html, jax-ml/jax#25097
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from harness.lanes.virtual import (
    copied_views,
    host_callbacks,
    kernel_cores,
    reference_views,
)
from harness.lanes.virtual.kernel_jaxprs import equations
from harness.lanes.virtual.kernel_semaphores import Counts, Passed

Axes = Sequence[tuple[Any, int]]  # of a mesh: names and sizes

_HAS_IT = (0, 7, 1)  # under this name and with all that is used here
_WHERE = {"dma_start": -1, "semaphore_signal": 3}  # the device among what a primitive takes


class RaceError(RuntimeError):
    """A kernel reads or writes memory while another device or copy does."""


def mode() -> Any:
    """Return the interpret mode in which kernels are lowered to run here; None where it can't.

    In a job of several processes a program may run in another process, without these callbacks.
    """
    import jax

    if jax.__version_info__ < _HAS_IT or host_callbacks.plugin().virtual_tpu_process_count() > 1:
        return None
    from jax.experimental.pallas import tpu

    # A race that raised at once would leave the other devices waiting: it is looked for at the end.
    known = {field.name for field in dataclasses.fields(tpu.InterpretParams)}
    options = {"detect_races": True, "on_race": "warn"}
    return tpu.InterpretParams(**{key: options[key] for key in options.keys() & known})


def for_starts(mode: Any) -> Any:
    """Return the mode for a kernel that starts copies for which another one waits.

    Copies are made when they start. Races are not looked for: until the other kernel waits, the
    end of this one would be one with each copy.
    """
    return dataclasses.replace(mode, dma_execution_mode="eager", detect_races=False)


def mesh_of(context: Any) -> Any:
    """Return the mesh over which the program around a kernel is divided by hand, or None."""
    return getattr(context.module_context.axis_context, "mesh", None)


def check(jaxpr: Any) -> None:
    """Check that a kernel does nothing that JAX's TPU interpret mode lacks and is not added here.

    Raises:
        NotImplementedError: it copies through a view of some kind that is not known here, or asks
            how many steps a pipeline has.
    """
    import jax
    from jax._src.core import jaxprs_in_params

    for equation in equations(jaxpr):
        name = equation.primitive.name
        if name == "dma_start":
            given = jax.tree.unflatten(equation.params["tree"], equation.invars)
            # Semaphores follow its source and target; what is done to them JAX interprets itself.
            if reason := copied_views.refused(given[: len(given) // 2]):
                raise NotImplementedError(reason)
        inner = jaxprs_in_params(equation.params) if name == "emit_pipeline" else ()
        if any(e.primitive.name == "num_programs" for each in inner for e in equations(each)):
            raise NotImplementedError(
                "pl.num_programs in a pipeline, of which JAX's interpreter has another number: set"
                " jax_use_emit_pipeline_primitive=False"
            )


def reaches_others(jaxpr: Any, cores: Collection[Any] = ()) -> bool:
    """Return whether a kernel copies to or signals other devices, or asks which one it is on.

    Args:
        jaxpr: the kernel's.
        cores: axes of a device's cores.
    """
    return any(
        _names_device(equation, cores)
        for equation in equations(jaxpr)
        if equation.params.get("axis_name") not in cores
    )


def _names_device(equation: Any, cores: Collection[Any]) -> bool:
    import jax

    name = equation.primitive.name
    if name not in _WHERE:
        return name in {"axis_index", "get_barrier_semaphore"}
    tree = equation.params.get("tree", equation.params.get("args_tree"))
    device = jax.tree.unflatten(tree, equation.invars)[_WHERE[name]]
    return bool(device.keys() - set(cores) if isinstance(device, dict) else device is not None)


@contextmanager
def lowering(name: str, axes: Axes, shared: Sequence[int]) -> Iterator[Kernel]:
    """Lower what calls Python in this thread so that the plugin answers, for one kernel.

    Args:
        name: of the kernel.
        axes: of the mesh whose devices run it together; empty when each runs one of its own.
        shared: for each core of a device, the first that has the same VMEM_SHARED.
    """
    kernel = Kernel(name, math.prod(size for _, size in axes), shared)
    copied_views.interpret(_interpreter())
    _take_any_memory()
    _see_through_pipelines()
    _share_memory()
    _leave_unset()
    together = kernel.devices > 1
    cores = kernel_cores.lowering(_interpreter(), kernel.call_on_core, together=together)
    with over_mesh(axes), cores, host_callbacks.lowering(kernel.call):
        yield kernel


# --- Memories

# JAX's callbacks in which the semaphores that go to other kernels are looked at: one that allocates
# some, one at both ends of the kernel on each device, and the last one before JAX forgets all.
_ALLOCATE, _CLOCKS = "_allocate_semaphores", "_update_clocks_for_device_barrier"
_FIRST, _LAST = "_initialize_shared_memory", "_validate"

_STATE = ("_shared_memory", "races", "dma_id_counter")  # JAX's globals, which are of one memory

# Whose memory JAX's globals are: a callback's, or that of a kernel on several devices to its end.
_memory = threading.Lock()
_turn = threading.Condition()
_inside: list[tuple[Kernel, int]] = []  # such a kernel and its run, once for each device in it


@dataclasses.dataclass(eq=False)
class Kernel:
    """Kernel that is lowered, and its memory in each execution that runs it now.

    On several devices, each of which waits for what others do, it has JAX's memory for itself.
    Otherwise nothing may wait: the next instruction of a device that is in a kernel may be a
    collective, which other devices reach only after the same kernel.

    Attributes:
        name: as the kernel's author has named it.
        devices: how many run it together; 1 if each runs one of its own.
        shared: for each core of a device, the first that has the same VMEM_SHARED.
    """

    name: str
    devices: int
    shared: Sequence[int] = ()
    _memories: dict[tuple[int, int], dict[str, Any]] = dataclasses.field(default_factory=dict)
    _came: Counter[int] = dataclasses.field(default_factory=Counter)  # by run
    _passed: Passed = dataclasses.field(default_factory=Passed)
    _counts: dict[tuple[int, int], Counts] = dataclasses.field(default_factory=dict)
    _together: threading.Barrier = dataclasses.field(default_factory=lambda: threading.Barrier(1))

    def between_ends(self, function: Callable[..., Any], passed: Passed) -> Callable[..., Any]:
        """Return ``function``, which calls the kernel, with a callback before and one after it.

        Args:
            function: takes and returns no semaphores.
            passed: those that the kernel takes and returns, which the result passes as counts.
        """
        import jax
        import jax.numpy as jnp
        from jax.experimental import io_callback

        self._passed = passed

        def whole(*operands: Any) -> Any:
            others, counts = passed.split(operands)
            if self.devices > 1 or passed:
                io_callback(self._begin, (), *counts, ordered=True)
            leaves = jax.tree.leaves(function(*others))
            nan = _has_nan(leaves) & ~_has_nan(others)
            shapes = [passed.shapes[source] for source in passed.sources]
            result = [*leaves, *(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes)]
            results = io_callback(self._end, result, nan, *leaves, ordered=True)
            merged = passed.merge(results[: len(leaves)], results[len(leaves) :])
            return merged[0] if len(merged) == 1 else tuple(merged)

        return whole

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call one of the kernel's callbacks, with its memory in the place of JAX's."""
        try:
            if self.devices > 1:
                return self._called(function, *arguments)
            with _memory, self._in_place(host_callbacks.execution()):
                return self._called(function, *arguments)
        except BaseException as error:
            race = isinstance(error, RaceError)
            host_callbacks.record_fault("race" if race else "error", self.name)
            self._leave()
            self._together.abort()
            raise

    def call_on_core(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call one of the kernel's callbacks on one of several cores, within a callback."""
        _on_core.shared, _on_core.number = self.shared, int(arguments[2])
        try:
            return self._shared(function, *arguments)
        except BaseException as error:  # others may wait for this core
            memory = _interpreter()._get_shared_memory()
            memory.set_failed(error, top_level=False)
            for barrier in list(kernel_cores.barriers(memory).values()):
                barrier.abort()
            raise

    def _shared(self, function: Any, *flat: Any) -> Any:
        """Call it; what several cores share, they allocate once, and until the kernel's end."""
        name, interpreter = reference_views.name_of(function.callback_func), _interpreter()
        if name not in {"_allocate_buffer", "_deallocate_buffer"}:
            return reference_views.called(function, *flat)
        token, device, core, space, _ = flat
        space_name = interpreter.TPU_MEMORY_SPACE_NAMES[int(space)]
        if space_name != _SHARED:
            return function(*flat)
        if name == "_deallocate_buffer":
            return token
        token, number = function(*flat)
        memory = interpreter._get_shared_memory()
        cores = int(core), self.shared[int(core)]
        own, first = ((_SHARED, int(number), int(device), n) for n in cores)
        if own != first:
            with memory.lock:
                memory.mem.setdefault(first, memory.mem.pop(own))
        return token, number

    def _called(self, function: Any, *flat: Any) -> Any:
        """Call it, and take and give the counts of semaphores at the kernel's ends."""
        import jax
        import numpy as np

        counts = self._counts.get(host_callbacks.execution()) if self._passed else None
        name = reference_views.name_of(function.callback_func)
        if counts is None:  # until it has begun
            answer = reference_views.called(function, *flat)
            if name == _FIRST and self.shared:
                _look_for_races_within_cores()
            return answer
        if name == _CLOCKS and self.devices > 1:
            self._together.wait()  # for what the others copy to this device
        if name == _LAST:
            memory, (*_, device) = _interpreter()._get_shared_memory(), flat
            counts.take_results(memory, int(device) * memory.num_cores_per_device)
        answer = reference_views.called(function, *flat)
        if name == _ALLOCATE:
            (*token, device, _, _), _ = jax.tree.unflatten(function.in_tree, flat)
            signal = partial(_interpreter().semaphore_signal, *token, device, 0)
            counts.allocate(
                np.asarray(answer[-1]), lambda number, count: signal(number, count, None, None)
            )
        return answer

    @contextmanager
    def _in_place(self, execution: tuple[int, int]) -> Iterator[None]:
        module = _interpreter()
        vars(module).update(self._memories.get(execution, dict.fromkeys(_STATE)))
        self._memories[execution] = {}
        try:
            yield
        finally:
            if execution in self._memories:
                self._memories[execution] = {name: vars(module).get(name) for name in _STATE}

    def _begin(self, *counts: Any) -> tuple[()]:
        """Wait for the other devices, which may be at an earlier kernel, and enter with them.

        Args:
            counts: of the semaphores that it takes.
        """
        import numpy as np

        if self._passed:
            given = Counts(self._passed, [np.asarray(each) for each in counts])
            self._counts[host_callbacks.execution()] = given
        if self.devices == 1:
            return ()
        run, _ = host_callbacks.execution()
        with _turn:
            self._came[run] += 1
            last = self._came[run] == self.devices
            if not last:
                _turn.wait_for(lambda: (self, run) in _inside)
        if last:
            _memory.acquire()
            vars(_interpreter()).update(dict.fromkeys(_STATE))
            self._together = threading.Barrier(self.devices)
            with _turn:
                del self._came[run]
                _inside[:] = [(self, run)] * self.devices
                _turn.notify_all()
        return ()

    def _end(self, nan: Any, *results: Any) -> tuple[Any, ...]:
        """Say what was seen in this execution, and hand on its results and counts.

        Raises RaceError.
        """
        counts = self._counts.get(host_callbacks.execution())
        if nan:
            host_callbacks.record_fault("nan", self.name)
        races = _interpreter().races
        if races is not None and races.races_found:
            raise RaceError(f"Pallas kernel {self.name!r} has a data race: see standard output")
        self._leave()
        return (*results, *(counts.results if counts else ()))

    def _leave(self) -> None:
        self._counts.pop(host_callbacks.execution(), None)
        if self.devices == 1:
            self._memories.pop(host_callbacks.execution(), None)
            return
        with _turn:
            if _inside:
                _inside.pop()
                if not _inside:
                    _memory.release()


def _has_nan(arrays: Sequence[Any]) -> Any:
    import jax.numpy as jnp

    floats = [a for a in arrays if jnp.issubdtype(a.dtype, jnp.inexact)]
    return sum((jnp.isnan(a).any() for a in floats), jnp.bool_(False)) > 0


def _interpreter() -> Any:
    """Return the module of JAX that holds the simulated memory."""
    import jax

    if jax.__version_info__ < (0, 8):
        from jax._src.pallas.mosaic import interpret
    else:
        from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpret
    return interpret


# --- Which device it is, and what others have

_lowered = threading.local()


@contextmanager
def over_mesh(axes: Axes) -> Iterator[None]:
    """Lower in this thread, outside of any program, what a program does on each device of a mesh.

    The devices are the program's partitions, in the mesh's order.
    """
    from jax._src import core

    if not hasattr(core, "extend_axis_env_nd"):  # JAX before 0.4.36
        yield
        return
    _register_lowerings()
    _lowered.axes = axes
    try:
        with _outside_of_axes(core), core.extend_axis_env_nd(list(axes)):
            yield
    finally:
        _lowered.axes = None


@contextmanager
def _outside_of_axes(core: Any) -> Iterator[None]:
    """Forget the axes around: a shard_map outside of jit compiles while its own are known."""
    context = getattr(core, "trace_ctx", None)
    if context is None:  # JAX 0.4.33, whose shard_map does not
        yield
        return
    around = context.axis_env
    context.set_axis_env(core.top_axis_env)
    try:
        yield
    finally:
        context.set_axis_env(around)


@cache
def _register_lowerings() -> None:
    """Register lowerings that need the mesh of the program around them, but not that program."""
    import numpy as np
    from jax._src.lax import parallel
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import hlo
    from jax.interpreters import mlir

    def index(context: Any, *, axis_name: Any) -> Any:
        axes = getattr(_lowered, "axes", None)
        if axes is None:
            return parallel._axis_index_lowering(context, axis_name=axis_name)
        names, sizes = [name for name, _ in axes], [size for _, size in axes]
        position = names.index(axis_name)
        inner, size = (
            mlir.ir_constant(np.array(number, np.int32))
            for number in (math.prod(sizes[position + 1 :]), sizes[position])
        )
        partition = hlo.convert(size.type, hlo.partition_id())
        return [hlo.remainder(hlo.divide(partition, inner), size)]

    def gather(context: Any, x: Any, **given: Any) -> Any:
        axes = getattr(_lowered, "axes", None)
        if axes is None:
            return parallel._all_gather_lowering(context, x, **given)
        names, sizes = [name for name, _ in axes], [size for _, size in axes]
        axis, dimension = given["axis_name"], given["all_gather_dimension"]
        position = names.index(axis[0] if isinstance(axis, tuple) else axis)
        devices = np.arange(math.prod(sizes)).reshape(sizes)
        groups = np.moveaxis(devices, position, -1).reshape(-1, sizes[position])
        own, whole = context.avals_in[0].shape, context.avals_out[0].shape
        element = ir.RankedTensorType(x.type).element_type
        if not given["tiled"]:  # the devices' parts are gathered along a dimension of their own
            part = [*own[:dimension], 1, *own[dimension:]]
            x = hlo.reshape(ir.RankedTensorType.get(part, element), x)
        gathered = hlo.all_gather(
            [ir.RankedTensorType.get(whole, element)],
            [x],
            all_gather_dim=dimension,
            replica_groups=mlir.dense_int_elements(groups),
            channel_handle=hlo.ChannelHandle.get(1, mlir.DEVICE_TO_DEVICE_TYPE),
            use_global_device_ids=True,
        )
        return [gathered] if not isinstance(gathered, list) else gathered

    mlir.register_lowering(parallel.axis_index_p, index, platform="cpu")
    mlir.register_lowering(parallel.all_gather_p, gather, platform="cpu")


@cache
def _take_any_memory() -> None:
    """Let the interpreter's operands be in any memory: it copies each into one of its own.

    Keys of a TPU's generator are numbers here, and they and the errors of checks are in SMEM.
    """
    from jax._src import core
    from jax._src.pallas.core import MemorySpace
    from jax.experimental.pallas import tpu

    numbers = getattr(_interpreter(), "TPU_MEMORY_SPACE_IDXS", {})
    if tpu.SMEM in numbers:
        names = {"KEY", "ERROR"} & set(MemorySpace.__members__)
        numbers |= {MemorySpace[name]: numbers[tpu.SMEM] for name in names}

    _interpreter().remove_memory_space_p.def_abstract_eval(
        lambda x: core.ShapedArray(x.shape, x.dtype) if isinstance(x, core.ShapedArray) else x
    )


@cache
def _see_through_pipelines() -> None:
    """Have the interpreter take a block of another pipeline's block for a part of one buffer."""
    from jax._src.pallas.mosaic import primitives
    from jax._src.state.types import TransformedRef

    theirs = primitives._get_ref_and_transforms

    def whole(reference: Any) -> Any:
        inner, transforms = theirs(reference)
        while isinstance(inner, TransformedRef):
            inner, transforms = inner.ref, (*inner.transforms, *transforms)
        return inner, transforms

    primitives._get_ref_and_transforms = whole


@cache
def _leave_unset() -> None:
    """Say what is in memory that nothing was written to, for keys too."""
    import jax.numpy as jnp

    name, module = "get_uninitialized_value", getattr(_interpreter(), "interpret_utils", None)
    if module is None:  # JAX before 0.8
        name, module = "_uninitialized_value", _interpreter()
    theirs = getattr(module, name)

    def value(dtype: Any, kind: Any) -> Any:
        if getattr(_lowered, "axes", None) is None:  # a kernel that users interpret themselves
            return theirs(dtype, kind)
        if jnp.issubdtype(dtype, jnp.signedinteger):  # as a TPU fills a pipeline's buffers
            return jnp.iinfo(dtype).min
        return float("nan") if jnp.issubdtype(dtype, jnp.complexfloating) else theirs(dtype, kind)

    setattr(module, name, value)


_on_core = threading.local()


class _OfThisCore(defaultdict[Any, list[Any]]):
    """Accesses to a buffer, of which each core has those that it has made, by copies too."""

    def __getitem__(self, buffer: Any) -> list[Any]:
        return super().__getitem__((buffer, getattr(_on_core, "number", 0)))


def _look_for_races_within_cores() -> None:
    """Let the cores of SparseCores do the same at the same time, as many of JAX's kernels do."""
    races = _interpreter().races
    if not isinstance(races.writes, _OfThisCore):
        races.reads, races.writes = _OfThisCore(list), _OfThisCore(list)


_SHARED = "vmem_shared"


@cache
def _share_memory() -> None:
    """Have the cores of a SparseCore use the VMEM_SHARED of the first of them."""
    interpreter = _interpreter()
    theirs = getattr(interpreter, "_local_core_id_or_zero_if_hbm", None)
    if theirs is None:  # JAX before 0.8 has no kernels of SparseCores
        return

    def core(number: int, space: str) -> int:
        shared = getattr(_on_core, "shared", ())
        return int(shared[number] if shared and space == _SHARED else theirs(number, space))

    interpreter._local_core_id_or_zero_if_hbm = core
