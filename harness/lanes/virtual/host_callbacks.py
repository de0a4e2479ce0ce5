"""Python functions that a program on the virtual TPU calls while it runs.

JAX's own host callbacks belong to a client of JAX, and look for its CPU devices first, for which
JAX starts every platform that it knows. Here a callback is a custom call that the plugin answers by
asking this module: no client is involved, so it works in programs of torch_xla too.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

TARGET = "virtual_tpu_host_callback"


class _HostCall(ctypes.Structure):
    """``HostCall`` in ``plugin/host/host_callbacks.c``."""

    _fields_ = (
        ("process", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("run", ctypes.c_int64),
        ("device", ctypes.c_int64),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("results", ctypes.POINTER(ctypes.c_void_p)),
        ("error", ctypes.c_void_p),
        ("error_size", ctypes.c_size_t),
    )


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_HostCall))


class _Kind(NamedTuple):
    """Shape and type of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class _HostCallback:
    """A function of arrays, and what it takes and returns.

    Attributes:
        function: is called with arrays of its own, and returns as many as ``results``.
        arguments: what each operand of the custom call is; None for a token.
        results: the same of each result.
    """

    function: Callable[..., Sequence[Any]]
    arguments: Sequence[_Kind | None]
    results: Sequence[_Kind | None]

    def call(self, arguments: Any, results: Any) -> None:
        """Call it with the arrays at those addresses, and leave its results at the others."""
        import numpy as np

        given = [
            _array(arguments[n], *kind).copy()
            for n, kind in enumerate(self.arguments)
            if kind is not None
        ]
        places = [
            _array(results[n], *kind) for n, kind in enumerate(self.results) if kind is not None
        ]
        for place, value in zip(places, self.function(*given), strict=True):
            array = np.asarray(value)
            if array.shape != place.shape:
                raise ValueError(f"a callback returns {array.shape}, expected {place.shape}")
            place[...] = array


# By the process that has lowered it, which may have forked this one, and its number there. Programs
# keep these, so that none is ever forgotten.
_callbacks: dict[tuple[int, int], _HostCallback] = {}
_lowering = threading.local()
_calling = threading.local()
_attached: list[ctypes.CDLL] = []


@cache
def _process() -> int:
    """Return a number that no other process has: executables may be loaded in another one."""
    return int.from_bytes(os.urandom(8)) >> 1


os.register_at_fork(after_in_child=_process.cache_clear)


def _array(address: int | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    import numpy as np

    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    assert address is not None
    data = (ctypes.c_char * size).from_address(address)
    return np.frombuffer(memoryview(data), dtype).reshape(shape)


def execution() -> tuple[int, int]:
    """Return, in a callback, the run that calls it and which of the run's devices does."""
    execution_ids: tuple[int, int] = _calling.execution
    return execution_ids


def _answer(address: Any) -> int:
    call = address.contents
    _calling.execution = call.run, call.device
    try:
        _callback_of(call).call(call.arguments, call.results)
    except BaseException as raised:
        text = f"{type(raised).__name__}: {raised}".encode()
        if len(text) >= call.error_size:  # the cause is at its end, if the text has a traceback
            part = call.error_size // 2 - 4
            text = text[:part] + b"\n...\n" + text[-part:]
        ctypes.memmove(call.error, text + b"\0", len(text) + 1)
        return 0
    return 1


def _callback_of(call: _HostCall) -> _HostCallback:
    try:
        return _callbacks[call.process, call.number]
    except KeyError:
        raise RuntimeError("another process compiled this program, and has its callbacks") from None


_answerer = _CALLBACK(_answer)


def attach(library: ctypes.CDLL) -> None:
    """Have the plugin ask this module when a program calls."""
    _attached[:] = [library]
    library.virtual_tpu_set_host_callback(_answerer)


def plugin() -> ctypes.CDLL:
    """Return the plugin that this process has loaded and attached."""
    return _attached[0]


@cache
def register_with_jaxlib() -> None:
    """Have programs that jaxlib's own CPU client runs in this process call them, too."""
    import jax

    handler = jax.ffi.pycapsule(plugin().virtual_tpu_host_call)
    jax.ffi.register_ffi_target(TARGET, handler, platform="cpu")


def record_fault(fault: str, kernel: str) -> None:
    """Record an event of that kind, which names the kernel."""
    plugin().virtual_tpu_record_fault(fault.encode(), kernel.encode())


@contextmanager
def lowering(call: Callable[..., Any]) -> Iterator[None]:
    """Lower JAX's ``io_callback`` in this thread to what the plugin answers, for a CPU.

    Args:
        call: calls a function that is lowered in here, with its arguments.
    """
    _register_lowering()
    around, _lowering.call = getattr(_lowering, "call", None), call
    try:
        yield
    finally:
        _lowering.call = around


@cache
def _register_lowering() -> None:
    from jax._src import callback
    from jax.interpreters import mlir

    theirs = callback.io_callback_lowering

    def lower(context: Any, *operands: Any, **parameters: Any) -> Any:
        if getattr(_lowering, "call", None) is None:
            return theirs(context, *operands, **parameters)
        return _lower(context, operands, parameters["callback"], ordered=parameters["ordered"])

    mlir.register_lowering(callback.io_callback_p, lower, platform="cpu", cacheable=False)


def _lower(context: Any, operands: Sequence[Any], function: Any, *, ordered: bool) -> Any:
    import jax
    import numpy as np
    from jax._src import callback, core
    from jax._src.interpreters import mlir

    avals_in, avals_out = map(_unpacked, context.avals_in), map(_unpacked, context.avals_out)
    inner = context.replace(avals_in=list(avals_in), avals_out=list(avals_out))
    operands = [_converted(each, aval) for each, aval in zip(operands, inner.avals_in, strict=True)]
    arguments: list[_Kind | None] = [_kind(aval) for aval in inner.avals_in]
    results: list[_Kind | None] = [_kind(aval) for aval in inner.avals_out]
    if ordered:
        effect = callback._OrderedIOEffect
        operands = [context.tokens_in.get(effect), *operands]
        inner = inner.replace(
            avals_in=[core.abstract_token, *inner.avals_in],
            avals_out=[core.abstract_token, *inner.avals_out],
        )
        arguments, results = [None, *arguments], [None, *results]

    call = _lowering.call

    def flat(*given: Any) -> Sequence[Any]:
        given = tuple(
            array.astype(aval.dtype, copy=False)
            for array, aval in zip(given, context.avals_in, strict=True)
        )
        leaves: Sequence[Any] = jax.tree.leaves(call(function, *given))
        return leaves

    process, number = _process(), len(_callbacks)
    _callbacks[process, number] = _HostCallback(flat, arguments, results)
    numbers = {"process": np.uint64(process), "number": np.uint64(number)}
    # Without effects in XLA's eyes, as GSPMD takes none that happen on all devices: so each must
    # have a token, or a result that is used.
    rule = jax.ffi.ffi_lowering(TARGET)
    outputs = list(rule(inner, *operands, **numbers))
    if ordered:
        token, *outputs = outputs
        context.set_tokens_out(context.tokens_in.update_tokens(mlir.TokenSet({effect: token})))
    return [_converted(each, aval) for each, aval in zip(outputs, context.avals_out, strict=True)]


# XLA packs several of these numbers into a byte, NumPy keeps each in its own: a program converts
# them to a wider dtype for its calls.
_UNPACKED = {
    "int1": "int8",
    "uint1": "uint8",
    "int2": "int8",
    "uint2": "uint8",
    "int4": "int8",
    "uint4": "uint8",
    "float4_e2m1fn": "float32",
}


def _unpacked(aval: Any) -> Any:
    """Return the type in which a call passes an array: of another dtype if XLA packs this one."""
    import numpy as np

    return aval.update(dtype=np.dtype(_UNPACKED.get(str(aval.dtype), aval.dtype)))


def _converted(value: Any, aval: Any) -> Any:
    """Return a value of a program as an array of that type."""
    import numpy as np
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir.dialects import hlo

    element = mlir.dtype_to_ir_type(np.dtype(aval.dtype))
    expected = mlir.ir.RankedTensorType.get(aval.shape, element)
    return value if value.type == expected else hlo.convert(expected, value)


def _kind(aval: Any) -> _Kind:
    import numpy as np

    return _Kind(tuple(aval.shape), np.dtype(aval.dtype))
