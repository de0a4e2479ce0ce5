"""Kernels over the cores of a device, which run at once and wait for each other.

JAX's TPU interpret mode knows the cores of one mesh of TensorCores, which run one function. Here a
kernel over any cores becomes one over such a mesh: those of its first mesh are the first, and each
takes the branch that has its function. JAX would run each core as a program of its own default
device, which waits for that very program: jaxlib's own client runs them instead.
"""

from __future__ import annotations

import inspect
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from harness.lanes.virtual import host_callbacks
from harness.lanes.virtual.kernel_calls import InPython
from harness.lanes.virtual.kernel_jaxprs import (
    Meaning,
    jaxprs_of,
    known,
    with_inner_jaxprs,
)
from harness.lanes.virtual.lowering import lower_for_cpu

AXIS = "core of any kind"
_OF_AN_OWN_THREAD = 1337  # a token of JAX's interpreter


@dataclass(frozen=True)
class CoreMeshes:
    """Meshes of the cores that run a kernel together."""

    meshes: Sequence[Any]

    @property
    def total(self) -> int:
        return sum(map(_size, self.meshes))

    def first(self, mesh: Any) -> int:
        """Return the number of a mesh's first core."""
        return sum(map(_size, self.meshes[: self.meshes.index(mesh)]))

    def first_with_same_memory(self) -> list[int]:
        """Return for each core the first of its SparseCore, with the same VMEM_SHARED.

        A TensorCore has its own. Without a SparseCore the list is empty.
        """
        firsts: dict[Any, int] = {}
        numbers = []
        for mesh in self.meshes:
            count = next(iter(mesh.shape.values()))
            for core in range(_size(mesh)):
                number = self.first(mesh) + core
                place = core * count // _size(mesh) if _is_sparse(mesh) else (number,)
                numbers.append(firsts.setdefault(place, number))
        return numbers if any(map(_is_sparse, self.meshes)) else []

    def place(self, mesh: Any) -> dict[Any, Any]:
        """Return, in a kernel, where the core that runs it is on its mesh."""
        from jax import lax

        return _place(mesh, lax.axis_index(AXIS) - self.first(mesh))

    def number(self, target: Any, own: Any, place: Mapping[Any, Any]) -> Any:
        """Return the number of the core at a place; axes left out are those of ``own``."""
        own_place, number = self.place(own), 0
        for axis, size in target.shape.items():
            number = number * size + place.get(axis, own_place.get(axis, 0))
        return self.first(target) + number

    def meaning(self, mesh: Any, equation: Any) -> Meaning | None:
        """Return what takes the place of an equation of a function that a mesh's cores run."""
        name, parameters = equation.primitive.name, equation.params
        if name == "axis_index" and parameters["axis_name"] in mesh.shape:
            return lambda axis_name: self.place(mesh)[axis_name]
        if name == "barrier":  # of the subcores of a core
            *_, size = mesh.shape.values()
            return InPython(partial(_wait, size, self.first(mesh)))
        if name == "sc_fetch_and_add":
            *_, size = mesh.shape.values()
            return InPython(partial(_fetch_and_add, size, self.first(mesh)))
        if name == "semaphore_signal":
            *_, core = parameters["args_tree"].unflatten(equation.invars)
            if core is None:
                return partial(self._signal, mesh, _mesh_of(equation.invars[0].aval) or mesh)
        if name == "dma_start":
            *_, device = parameters["tree"].unflatten(equation.invars)
            if isinstance(device, dict) and device.keys() & self._axes():
                _, target, *_ = parameters["tree"].unflatten(equation.invars)
                aval = getattr(target, "ref", target).aval
                return partial(self._copy, mesh, _mesh_of(aval) or mesh)
        return None

    def _axes(self) -> set[Any]:
        return {axis for mesh in self.meshes for axis in mesh.shape}

    def _divided(self, device: Any) -> tuple[Any, dict[Any, Any]]:
        """Return the device that a kernel names, and the place of the core."""
        if not isinstance(device, dict):
            return device, {}
        axes = self._axes()
        others = {axis: n for axis, n in device.items() if axis not in axes}
        return others or None, {axis: n for axis, n in device.items() if axis in axes}

    def _signal(self, own: Any, target: Any, *flat: Any, args_tree: Any, **how: Any) -> Any:
        from jax import tree
        from jax._src.pallas import primitives

        semaphore, transforms, count, device, _ = args_tree.unflatten(flat)
        device, place = self._divided(device)
        core = self.number(target, own, place)
        operands, own_tree = tree.flatten([semaphore, transforms, count, device, core])
        return primitives.semaphore_signal_p.bind(*operands, args_tree=own_tree, **how)

    def _copy(self, own: Any, target: Any, *flat: Any, tree: Any, **how: Any) -> Any:
        from jax._src.pallas.mosaic import primitives
        from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter

        *given, device = tree.unflatten(flat)
        device, place = self._divided(device)
        if self.total > 1:
            if "dst_local_core_id" not in inspect.signature(interpreter.dma_start).parameters:
                raise NotImplementedError("a copy to another core, with a JAX before 0.12")
            device = {**(device or {}), AXIS: self.number(target, own, place)}
        operands, own_tree = primitives._dma_flatten(*given, device)
        return primitives.dma_start_p.bind(*operands, tree=own_tree, **how)


def _wait(count: int, first: int, memory: Any, place: tuple[int, int]) -> Any:
    """Wait for the other subcores of a core.

    Args:
        count: of them.
        first: number of the first of them, or of those of all cores.
        memory: the interpreter's, which keeps the barriers of a kernel.
        place: the device and the core.
    """
    device, number = place
    with _making:
        barrier = barriers(memory).setdefault(
            (device, (number - first) // count), threading.Barrier(count)
        )
    try:
        barrier.wait()
    except threading.BrokenBarrierError:
        memory.check_failed()  # raises what has failed
        raise
    import numpy as np

    return np.int32(0)


def _fetch_and_add(
    count: int, first: int, memory: Any, place: tuple[int, int], *operands: Any
) -> Any:
    """Add to a number in the SMEM of a subcore of the same core, and return what was there.

    Args:
        count: of the subcores of a core.
        first: number of the first of them, or of those of all cores.
        memory: the interpreter's.
        place: the device and the core.
        operands: the number of the buffer, what is added, its place there, and the subcore.
    """
    import numpy as np

    number, value, *indices, subcore = map(int, operands)
    device, core = place
    core += subcore - (core - first) % count
    with memory.lock:
        content = memory.mem["smem", number, device, core].content
        position = np.ravel_multi_index(indices, content.shape)  # raises if out of bounds
        before = content.flat[position]
        content.flat[position] = before + value
    return before


_making = threading.Lock()


def barriers(memory: Any) -> dict[tuple[int, int], threading.Barrier]:
    """Return the barriers at which a kernel's cores wait."""
    own: dict[tuple[int, int], threading.Barrier] = vars(memory).setdefault("barriers", {})
    return own


def _is_sparse(mesh: Any) -> bool:
    return type(mesh).__module__.endswith("sc_core")  # JAX 0.9 has no type of core


def _size(mesh: Any) -> int:
    return math.prod(mesh.shape.values())


def _place(mesh: Any, number: Any) -> dict[Any, Any]:
    place = {}
    for axis, size in reversed(mesh.shape.items()):
        place[axis] = number % size
        number = number // size
    return place


def _mesh_of(aval: Any) -> Any:
    """Return the mesh that a reference's memory space names (``SMEM(...) @ mesh``), or None."""
    return getattr(getattr(aval, "memory_space", None), "mesh", None)


def on_one_mesh(parameters: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Return a kernel's call in which all of its cores are those of one mesh of TensorCores.

    Also return for each core the first that has the same VMEM_SHARED. A call of a kernel that is
    for no cores in particular keeps its meaning, in operations that JAX's interpreter knows.
    """
    import jax
    from jax._src import core
    from jax._src.effects import JaxprInputEffect
    from jax._src.lax.control_flow.conditionals import cond_p

    meshes = CoreMeshes(parameters.get("meshes", ()))
    if not meshes.meshes:
        (jaxpr,) = jaxprs_of(parameters)
        grid = parameters["grid_mapping"]
        blocks = [
            block.replace(index_map_jaxpr=with_inner_jaxprs(block.index_map_jaxpr, _known))
            for block in grid.block_mappings
        ]
        grid = grid.replace(block_mappings=tuple(blocks))
        return {**parameters, "jaxpr": _known(jaxpr), "grid_mapping": grid}, []

    with core.extend_axis_env_nd([(AXIS, meshes.total)]):
        functions = [
            known(jaxpr, partial(meshes.meaning, mesh))
            for mesh, jaxpr in zip(meshes.meshes, parameters["jaxprs"], strict=True)
        ]
        kind = jax.make_jaxpr(
            lambda: (
                sum(
                    (jax.lax.axis_index(AXIS) >= meshes.first(mesh)).astype("int32")
                    for mesh in meshes.meshes[1:]
                )
                + jax.numpy.int32(0)
            )
        )()
    first, *_ = functions
    references = [_of_any_core(v) for v in first.invars]
    closed = getattr(core, "ClosedJaxpr", core.Jaxpr)
    own = core.new_jaxpr_eqn(
        [*kind.jaxpr.outvars, *references],
        [],
        cond_p,
        {"branches": tuple(closed(each, ()) for each in functions)},
        set(),
    )
    together = first.replace(
        invars=references,
        eqns=[*kind.jaxpr.eqns, own],
        effects={
            e for each in functions for e in each.effects if not isinstance(e, JaxprInputEffect)
        },
    )
    return {
        **parameters,
        "jaxprs": (together,),
        "meshes": (_tensorcores(meshes.total),),
        **({"external_meshes": ()} if "external_meshes" in parameters else {}),
    }, meshes.first_with_same_memory()


def _known(jaxpr: Any) -> Any:
    return known(jaxpr, lambda _: None)


def _tensorcores(count: int) -> Any:
    from jax._src.pallas.mosaic import core

    if "num_cores" in inspect.signature(core.TensorCoreMesh).parameters:  # since JAX 0.12
        return core.TensorCoreMesh(axis_name=AXIS, num_cores=count)
    return core.create_tensorcore_mesh(AXIS, num_cores=count)


def _of_any_core(variable: Any) -> Any:
    """Return a variable for a reference whose memory space names no mesh."""
    from jax._src import core
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter

    if _mesh_of(variable.aval) is None:
        return variable
    space = variable.aval.memory_space
    numbers = interpreter.TPU_MEMORY_SPACE_IDXS
    numbers[space] = numbers[space.memory_space]
    return core.Var(variable.aval.update(memory_space=space.memory_space))


# --- Running cores

_lowered = threading.local()


@contextmanager
def lowering(interpreter: Any, call: Callable[..., Any], *, together: bool) -> Iterator[None]:
    """Have what JAX's interpreter lowers in this thread run each core by jaxlib's own client.

    Args:
        interpreter: JAX's module.
        call: calls one of the interpreter's functions on a core, with its arguments.
        together: whether devices that wait for each other run the kernel.
    """
    _replace_thread_map(interpreter)
    _lowered.call, _lowered.together = call, together
    try:
        yield
    finally:
        _lowered.call = None


@cache
def _replace_thread_map(interpreter: Any) -> None:
    name = "thread_map" if hasattr(interpreter, "thread_map") else "_thread_map"
    theirs = getattr(interpreter, name)

    def thread_map(f: Callable[..., Any], count: int, *operands: Any, **options: Any) -> Any:
        if count == 1 or getattr(_lowered, "call", None) is None:
            return theirs(f, count, *operands, **options)
        if not operands:
            raise NotImplementedError("a kernel on several cores, with a JAX before 0.9")
        return _map_cores(f, count, *operands)

    setattr(interpreter, name, thread_map)


def _map_cores(f: Callable[..., Any], count: int, token: Any) -> Any:
    """Call ``f`` with the number of each core and a token, all at the same time."""
    import jax
    import jax.numpy as jnp
    from jax._src import core
    from jax.experimental import io_callback

    traced = jax.make_jaxpr(lambda number: f(number, jnp.int32(_OF_AN_OWN_THREAD)))(jnp.int32(0))
    constants = [jnp.asarray(each) for each in traced.consts]

    def one(number: Any, *given: Any) -> Any:
        return core.eval_jaxpr(getattr(traced, "jaxpr", traced), given, number[0])

    own = jax.ShapeDtypeStruct((1,), jnp.int32)
    shapes = [own, *(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in constants)]
    with host_callbacks.lowering(_lowered.call):
        program = lower_for_cpu(one, shapes, x64=jax.config.jax_enable_x64)
    executable, together = cache(partial(_executable, program, count)), _lowered.together
    shape = jax.ShapeDtypeStruct(token.shape, token.dtype)

    def run(token: Any, *given: Any) -> Any:
        _, device = host_callbacks.execution()
        place = device if together else 0
        with _making:
            own = executable(place)
        _run(own, _client(count, place), given)
        return token

    return io_callback(run, shape, token, *constants)


def _executable(program: bytes, count: int, place: int) -> Any:
    """Compile a program for jaxlib's own client, once for all cores."""
    import numpy as np
    from jaxlib import xla_client

    host_callbacks.register_with_jaxlib()
    options = xla_client.CompileOptions()
    options.num_replicas = count
    grid = np.arange(count).reshape(count, 1)
    options.device_assignment = xla_client.DeviceAssignment.create(grid)
    mlir = xla_client._xla.mlir
    module = mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(program))
    client = _client(count, place)
    devices = xla_client.DeviceList(tuple(client.local_devices()))
    return client.compile_and_load(module, devices, options)


@cache
def _client(count: int, place: int) -> Any:
    """Return the client of a device for so many cores, each with a thread: one that waits keeps it.

    The devices of a client run one program after another.
    """
    del place
    from jaxlib import xla_client

    before = os.environ.get("PJRT_NPROC")
    os.environ["PJRT_NPROC"] = str(2 * count + 2)
    try:
        return xla_client.make_cpu_client(num_devices=count)
    finally:
        if before is None:
            del os.environ["PJRT_NPROC"]
        else:
            os.environ["PJRT_NPROC"] = before


def _run(executable: Any, client: Any, constants: Sequence[Any]) -> None:
    import numpy as np
    from jax._src.core import ShapedArray
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from jaxlib import xla_client

    devices = client.local_devices()
    count = len(devices)
    mesh = Mesh(np.array(devices), "core")
    numbers = np.arange(count, dtype=np.int32)
    arrays = [
        xla_client.batched_device_put(
            ShapedArray(array.shape, array.dtype), NamedSharding(mesh, spec), parts, devices, True
        )
        for array, spec, parts in [
            (numbers, PartitionSpec("core"), np.split(numbers, count)),
            *((array, PartitionSpec(), [array] * count) for array in constants),
        ]
    ]
    results = executable.execute_sharded(arrays)
    for result in results.disassemble_into_single_device_arrays():
        for each in result:
            each.block_until_ready()
