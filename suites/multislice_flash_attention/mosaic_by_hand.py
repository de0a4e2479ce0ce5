"""Lowered Pallas kernels, computed operation by operation in NumPy.

The virtual TPU executes what JAX's interpreter makes of a kernel, so that Mosaic which is valid but
wrong gives right numbers there. This is the other half: what the lowered module itself computes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import jax
import numpy as np
import pytest
from jax import export
from jax.interpreters import mlir
from jaxlib.mlir import ir as _ir

from suites.multislice_flash_attention.mosaic_operations import (
    DTYPES,
    FLOAT_ORDERS,
    ORDERS,
    PLAIN,
    REDUCERS,
    Array,
    bitcast,
    garbage,
    matmul,
    numbers,
    unsigned,
)

ir: Any = _ir  # its stubs leave out what attributes are


class Module:
    """A kernel's module as JAX prints it, and what it computes on a device."""

    def __init__(self, text: str, device: int = 0) -> None:
        from jaxlib.mosaic.python import tpu

        context = mlir.make_ir_context()
        tpu.register_dialect(context)
        with context, ir.Location.unknown():
            self.module = ir.Module.parse(text)
        self.functions = {op.attributes["sym_name"].value: op for op in self.module.body}
        self.bounds: tuple[int, ...] = ()
        self.device = device
        self.reached: list[int] = []  # devices that it signals or copies to
        self.copies: list[tuple[int, ...]] = []  # the shape of each
        self.semaphores: list[Array] = []

    def run(self, operands: Sequence[Array], results: Sequence[Array]) -> None:
        """Compute the kernel's results in place, one step of its grid after the other."""
        main = next(iter(self.functions.values()))
        attributes = main.attributes
        ahead = attributes["scalar_prefetch"].value
        prefetched, refs = list(operands[:ahead]), [*operands[ahead:], *results]
        has_grid = "iteration_bounds" in attributes
        self.bounds = tuple(numbers(attributes["iteration_bounds"])) if has_grid else ()
        windows = list(attributes["window_params"]) if "window_params" in attributes else [{}] * 99
        entry = main.regions[0].blocks[0]
        steps = len(self.bounds)
        kept = list(entry.arguments)[steps + ahead + len(refs) :]
        scratch = [self._memory(argument.type) for argument in kept]
        for step in np.ndindex(*self.bounds):
            indices = [np.int32(n) for n in step]
            places = [
                self._place(window, ref, [*indices, *prefetched])
                for window, ref in zip(windows, refs, strict=False)
            ]
            blocks = []
            for ref, (start, shape) in zip(refs, places, strict=True):
                block = np.full(shape, 0, ref.dtype)
                inside = ref[tuple(map(slice, start, np.add(start, shape)))]
                block[tuple(map(slice, inside.shape))] = inside
                blocks.append(block if self.bounds else ref)
            self._block(entry, [*indices, *prefetched, *blocks, *scratch], {})
            for ref, block, (start, shape) in zip(refs, blocks, places, strict=True):
                inside = ref[tuple(map(slice, start, np.add(start, shape)))]
                inside[...] = block[tuple(map(slice, inside.shape))]
        assert not any(map(np.any, self.semaphores)), "the kernel ends before all that it started"

    def _place(self, window: Any, ref: Array, given: list[Array]) -> tuple[Any, Any]:
        """Return where a step's block begins, and its shape."""
        if "transform_indices" not in window:
            return (0,) * ref.ndim, ref.shape
        function = self.functions[window["transform_indices"].value]
        indices = self._block(function.regions[0].blocks[0], given, {})
        shape = numbers(window["window_bounds"])
        return (indices if "window_kind" in window else np.multiply(indices, shape)), shape

    def _memory(self, type_: Any) -> Array:
        ref = ir.MemRefType(type_)
        dtype = DTYPES.get(str(ref.element_type), np.int32)  # semaphores count
        if "sem" in str(ref.element_type):
            self.semaphores.append(np.zeros(ref.shape, dtype))
            return self.semaphores[-1]
        return garbage(ref.shape, dtype)

    def _block(
        self, block: Any, arguments: Sequence[Array], outer: dict[Any, Array]
    ) -> list[Array]:
        """Compute a block's operations; return what it yields."""
        env = dict(outer) | dict(zip(block.arguments, arguments, strict=True))
        for op in block.operations:
            op = op.operation  # noqa: PLW2901 - the same without its class
            given = [env[operand] for operand in op.operands]
            if op.name in ("func.return", "scf.yield", "tpu.yield", "scf.condition"):
                return given
            for result, value in zip(op.results, self._values(op, given, env), strict=True):
                env[result] = self._typed(value, result.type)
        return []

    def _typed(self, value: Array, type_: Any) -> Array:
        if str(type_).startswith("memref"):
            return value
        if str(type_).startswith("vector"):
            vector = ir.VectorType(type_)
            assert list(value.shape) == list(vector.shape), (value.shape, str(type_))
            type_ = vector.element_type
        return np.asarray(value).astype(DTYPES[str(type_)])[()]

    def _values(self, op: Any, given: list[Array], env: dict[Any, Array]) -> list[Array]:
        with np.errstate(all="ignore"):
            if op.name in PLAIN:
                return [PLAIN[op.name](*given)]
            method = getattr(self, "_" + op.name.replace(".", "_"), None)
            if method is None:
                pytest.skip(f"{op.name} is not among the operations that are computed here")
            values = method(op, *given, **({"env": env} if op.regions else {}))
        if not op.results:
            return []
        return values if isinstance(values, list) else [values]

    # Each operation that needs its attributes, its result's type or a region.

    def _arith_constant(self, op: Any) -> Array:
        attribute, type_ = op.attributes["value"], op.results[0].type
        if str(attribute).startswith("dense"):
            splat = ir.DenseElementsAttr(attribute).get_splat_value().value
            return np.full(ir.VectorType(type_).shape, splat)
        return attribute.value

    def _arith_cmpi(self, op: Any, x: Array, y: Array) -> Array:
        order = op.attributes["predicate"].value
        return ORDERS[order](x, y) if order < 6 else ORDERS[order - 4](unsigned(x), unsigned(y))

    def _arith_cmpf(self, op: Any, x: Array, y: Array) -> Array:
        order, nan = op.attributes["predicate"].value, np.isnan(x) | np.isnan(y)
        if order in (7, 14):
            return nan == (order == 14)
        ordered = FLOAT_ORDERS[(order - 1) % 7](x, y)
        return ordered & ~nan if order < 7 else ordered | nan

    def _shaped(self, op: Any, x: Array) -> Array:
        return np.reshape(x, ir.ShapedType(op.results[0].type).shape)

    _vector_shape_cast = _tpu_reshape = _shaped

    def _vector_broadcast(self, op: Any, x: Array) -> Array:
        return np.broadcast_to(x, ir.VectorType(op.results[0].type).shape)

    def _vector_extract(self, op: Any, x: Array) -> Array:
        return x[tuple(numbers(op.attributes["static_position"]))]

    def _vector_extract_strided_slice(self, op: Any, x: Array) -> Array:
        start, size, stride = (numbers(op.attributes[n]) for n in ("offsets", "sizes", "strides"))
        return x[tuple(slice(a, a + n * s, s) for a, n, s in zip(start, size, stride, strict=True))]

    def _vector_multi_reduction(self, op: Any, x: Array, start: Array) -> Array:
        kind = re.findall(r"<(\w+)>", str(op.attributes["kind"]))[0]
        dimensions = tuple(numbers(op.attributes["reduction_dims"]))
        wide = x.astype(np.float32) if x.dtype.kind not in "iu" else x
        return REDUCERS[kind](REDUCERS[kind].reduce(wide, axis=dimensions), start)

    def _tpu_reduce_index(self, op: Any, x: Array) -> Array:
        is_greatest = "arg_max" in str(op.attributes["kind"])
        return (np.argmax if is_greatest else np.argmin)(x, op.attributes["axis"].value)

    def _tpu_transpose(self, op: Any, x: Array) -> Array:
        return np.transpose(x, numbers(op.attributes["permutation"]))

    _vector_transpose = _tpu_transpose

    def _tpu_concatenate(self, op: Any, *parts: Array) -> Array:
        return np.concatenate(parts, op.attributes["dimension"].value)

    def _tpu_iota(self, op: Any) -> Array:
        (dimension,) = numbers(op.attributes["dimensions"])
        return np.indices(ir.VectorType(op.results[0].type).shape)[dimension]

    def _tpu_dynamic_gather(self, op: Any, x: Array, places: Array) -> Array:
        (dimension,) = numbers(op.attributes["dimensions"])
        return np.take_along_axis(x, places, dimension)

    def _tpu_repeat(self, op: Any, x: Array) -> Array:
        times, dimension = op.attributes["times"].value, op.attributes["dimension"].value
        return np.concatenate([x] * times, dimension)

    def _tpu_dynamic_rotate(self, op: Any, x: Array, amount: Array) -> Array:
        dimension = op.attributes["dimension"].value
        if "stride" not in op.attributes:
            return np.roll(x, amount, dimension)
        along, stride = (op.attributes[n].value for n in ("stride_dimension", "stride"))
        result = np.empty_like(x)
        for n in range(x.shape[along]):
            part = (slice(None),) * along + (slice(n, n + 1),)
            result[part] = np.roll(x[part], amount + n * stride, dimension)
        return result

    def _tpu_bitcast(self, op: Any, x: Array) -> Array:
        type_ = ir.VectorType(op.results[0].type)
        return bitcast(x, DTYPES[str(type_.element_type)], type_.shape)

    def _tpu_matmul(self, op: Any, x: Array, y: Array, start: Array) -> Array:
        return matmul(x, y, start, str(op.attributes["dimension_numbers"]))

    def _tpu_iteration_bound(self, op: Any) -> Array:
        return self.bounds[op.attributes["dim"].value]

    # Memory: references are views of NumPy's arrays.

    def _memref_load(self, _: Any, ref: Array, *indices: Array) -> Array:
        return ref[indices]

    def _memref_store(self, _: Any, value: Array, ref: Array, *indices: Array) -> None:
        ref[indices] = value

    def _memref_alloca(self, op: Any) -> Array:
        return self._memory(op.results[0].type)

    _tpu_sem_alloc = _memref_alloca

    def _part(self, op: Any, indices: Sequence[Array], shape: Sequence[int]) -> tuple[slice, ...]:
        strides = numbers(op.attributes["strides"]) if "strides" in op.attributes else None
        parts = zip(indices, shape, strides or [1] * len(shape), strict=True)
        return tuple(slice(int(a), int(a) + n * s, s) for a, n, s in parts)

    def _vector_load(self, op: Any, ref: Array, *indices: Array) -> Array:
        return ref[self._part(op, indices, ir.VectorType(op.results[0].type).shape)].copy()

    _tpu_vector_load = _tpu_strided_load = _vector_load

    def _vector_store(self, op: Any, value: Array, ref: Array, *indices: Array) -> None:
        indices, masks = indices[: ref.ndim], indices[ref.ndim :]
        part = ref[self._part(op, indices, value.shape)]
        part[...] = np.where(masks[0], value, part) if masks else value

    _tpu_vector_store = _tpu_strided_store = _vector_store

    def _tpu_memref_slice(self, op: Any, ref: Array, *indices: Array) -> Array:
        shape, sizes = ir.MemRefType(op.results[0].type).shape, iter(indices[ref.ndim :])
        shape = [int(next(sizes)) if size < 0 else size for size in shape]
        return ref[self._part(op, indices[: ref.ndim], shape)]

    def _tpu_memref_squeeze(self, op: Any, ref: Array) -> Array:
        view, shape = ref.view(), tuple(ir.MemRefType(op.results[0].type).shape)
        if any(size < 0 for size in shape):  # it is known only here, behind dimensions of one
            first = ref.ndim - len(shape)
            assert set(ref.shape[:first]) <= {1}
            shape = ref.shape[first:]
        view.shape = shape
        return view

    _tpu_memref_reshape = _tpu_memref_squeeze

    def _tpu_memref_bitcast(self, op: Any, ref: Array) -> Array:
        return ref.view(DTYPES[str(ir.MemRefType(op.results[0].type).element_type)])

    def _tpu_enqueue_dma(self, op: Any, *given: Array) -> None:
        source, sent, target, done, device = self._segments(op, given)[:5]
        target[...] = source
        self.copies.append(source.shape)
        done[...] += source.nbytes
        if device is not None:  # what arrives here is what such a device sends
            sent[...] += source.nbytes
            self.reached.append(int(device))

    def _tpu_wait_dma2(self, _: Any, done: Array, source: Array, target: Array, *__: Array) -> None:
        assert done >= target.nbytes == source.nbytes
        done[...] -= target.nbytes

    def _tpu_wait_dma(self, op: Any, *given: Array) -> None:
        source, sent, target, done = self._segments(op, given)[:4]
        is_target = "wait_target" not in op.attributes or op.attributes["wait_target"].value
        self._tpu_wait_dma2(op, done if is_target else sent, source, target)

    def _tpu_sem_signal(self, op: Any, *given: Array) -> None:
        count, amount, device = self._segments(op, given)[:3]
        count[...] += amount
        if device is not None:
            self.reached.append(int(device))

    def _segments(self, op: Any, given: Sequence[Array]) -> list[Array]:
        """Return an operation's operands, None for each that is left out."""
        rest = iter(given)
        return [next(rest) if n else None for n in numbers(op.attributes["operandSegmentSizes"])]

    def _tpu_device_id(self, _: Any) -> int:
        return self.device

    def _tpu_sem_wait(self, _: Any, count: Array, amount: Array) -> None:
        assert count >= amount, "the kernel would wait forever"
        count[...] -= amount

    def _tpu_sem_read(self, _: Any, count: Array) -> Array:
        return count[()]

    def _tpu_trace_start(self, _: Any) -> None:
        """Compute nothing: it is a name in a profile."""

    _tpu_trace_stop = _tpu_trace_start

    # Regions.

    def _tpu_region(self, op: Any, env: dict[Any, Array]) -> list[Array]:
        return self._block(op.regions[0].blocks[0], [], env)

    def _scf_if(self, op: Any, chosen: Array, env: dict[Any, Array]) -> list[Array]:
        blocks = list(op.regions[0 if chosen else 1].blocks)  # none without an else
        return self._block(blocks[0], [], env) if blocks else []

    def _scf_for(
        self, op: Any, low: Array, high: Array, by: Array, *carry: Array, env: dict[Any, Array]
    ) -> list[Array]:
        for n in range(low, high, by):
            carry = tuple(self._block(op.regions[0].blocks[0], [np.int32(n), *carry], env))
        return list(carry)

    def _scf_while(self, op: Any, *carry: Array, env: dict[Any, Array]) -> list[Array]:
        before, after = (region.blocks[0] for region in op.regions)
        while True:
            goes_on, *values = self._block(before, carry, env)
            if not goes_on:
                return values
            carry = tuple(self._block(after, values, env))


def _memory_of(dtype: Any) -> Any:
    """Return the dtype in memory: booleans are integers there, and integers have no sign."""
    dtype = np.dtype(dtype)
    return np.dtype({"b": "i4", "u": f"i{dtype.itemsize}"}.get(dtype.kind, dtype))


def printed(fn: Callable[..., Any], *operands: Array, exported: bool = False) -> tuple[Any, str]:
    """Lower a function of a ``pallas_call`` with ``debug=True``; also return the call's module.

    What is exported is lowered for releases of libtpu that are older than this JAX, too.
    """
    output = StringIO()
    with redirect_stdout(output):
        jitted = jax.jit(fn)
        if exported:
            lowered = export.export(jitted, platforms=["tpu"])(*operands)
        else:
            lowered = jitted.lower(*operands)
    text = output.getvalue()
    return lowered, text[text.rindex("\nmodule") :]


def computed(text: str, operands: Sequence[Array], likes: Sequence[Any]) -> list[Array]:
    """Compute a module; its results have the shapes and dtypes of ``likes``."""
    given = [np.asarray(array) for array in jax.tree.leaves(operands)]
    results = [garbage(like.shape, _memory_of(like.dtype)) for like in likes]
    Module(text).run([array.astype(_memory_of(array.dtype)) for array in given], results)
    return [memory.astype(like.dtype) for memory, like in zip(results, likes, strict=True)]


def lower(fn: Callable[..., Any], *operands: Array) -> tuple[Any, Callable[[], list[Array]]]:
    """Compile a ``pallas_call`` with ``debug=True``.

    Returns it, and a function that computes the results of the module that it was lowered to.
    """
    lowered, text = printed(fn, *operands)
    likes = jax.tree.leaves(lowered.out_info)
    return lowered.compile(), lambda: computed(text, operands, likes)


def ways(
    fn: Callable[..., Any], *operands: Array, interpret: bool = False
) -> Iterator[tuple[str, list[Array]]]:
    """Yield each way to compute a ``pallas_call`` with ``debug=True``, and its results."""
    if interpret:
        yield "interpreted", jax.tree.leaves(jax.jit(fn)(*operands))
        return
    compiled, compute = lower(fn, *operands)
    yield "executed", jax.tree.leaves(compiled(*operands))
    yield "as it was lowered", compute()
