"""Devices that evaluate programs of operators: a plugin's by its table, and jaxlib's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from harness.conformance.c_api.api import UNIMPLEMENTED, ApiError
from harness.conformance.c_api.client import Client
from harness.conformance.operators.element_types import TYPES, Array, of
from harness.conformance.plugin_check import NonconformanceError, NotMeasurableError


class OperatorDevice(Protocol):
    """The first device of a plugin, as the checks of operators use it."""

    def note_program(self, text: str, /) -> None:
        """Keep a program, before it is compiled."""

    def evaluate(self, code: str, operands: Sequence[Array], kinds: Sequence[str]) -> list[Array]:
        """Return a program's results, of these element types; raises ApiError if it is refused."""


@dataclass(frozen=True)
class TableDevice:
    """The first device of a client that has a table of functions."""

    client: Client
    note_program: Callable[[str], None]

    def evaluate(self, code: str, operands: Sequence[Array], kinds: Sequence[str]) -> list[Array]:
        loaded = self.client.compiled(code)
        buffers = [self._buffer(operand) for operand in operands]
        outputs = self.client.run(loaded, buffers, len(kinds))
        return [self._array(output, kind) for output, kind in zip(outputs, kinds, strict=True)]

    def _buffer(self, operand: Array) -> int:
        it = self.client.from_host(operand.tobytes(), operand.shape, of(operand).buffer)
        handle = self.client.owned(it.buffer, "PJRT_Client_BufferFromHostBuffer: buffer")
        if it.done_with_host_buffer:
            self.client.settle(it.done_with_host_buffer)
        return handle

    def _array(self, output: int, name: str) -> Array:
        """Return an output as an array, of the type that the program declares."""
        it = self.client.api.call("PJRT_Buffer_Dimensions", buffer=output)
        shape = self.client.api.integers(it.dims, it.num_dims, "dims")
        kind, data = TYPES[name].dtype, self.client.content(output)
        if len(data) != kind.itemsize * int(np.prod(shape, dtype=np.int64)):
            raise NonconformanceError(f"a result of shape {shape} has {len(data)} bytes")
        return np.frombuffer(data, kind).reshape(shape)


@dataclass(frozen=True)
class JaxlibDevice:
    """The first device of jaxlib's own client, which has no table."""

    note_program: Callable[[str], None]

    @cached_property
    def _client(self) -> Any:
        try:
            import jax
        except ImportError as error:
            raise NotMeasurableError(f"JAX is not installed: {error}") from error
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", True)
        return jax.devices("cpu")[0].client

    def evaluate(self, code: str, operands: Sequence[Array], kinds: Sequence[str]) -> list[Array]:
        device = self._client.devices()[0]
        try:
            results = self._compiled(code, device).execute_sharded(
                [[self._client.buffer_from_pyval(operand, device)] for operand in operands]
            )
        except RuntimeError as error:  # XlaRuntimeError, whose text begins with the code's name
            code_name = re.match(r"UNIMPLEMENTED\b", str(error))
            raise ApiError("jaxlib", UNIMPLEMENTED if code_name else 2, str(error)) from error
        arrays = [np.asarray(part) for (part,) in results.disassemble_into_single_device_arrays()]
        return [_as(array, name) for array, name in zip(arrays, kinds, strict=True)]

    def _compiled(self, code: str, device: Any) -> Any:
        """Return a loaded program."""
        from jaxlib import xla_client

        options = xla_client.CompileOptions()
        if hasattr(self._client, "compile_and_load"):  # of jaxlib 0.7 and newer
            devices = xla_client.DeviceList((device,))
            return self._client.compile_and_load(code, devices, options)
        return self._client.compile(code, options)


def _as(array: Array, name: str) -> Array:
    """Return an array of the type that a program declares, whose integers may have no sign."""
    kind = TYPES[name].dtype
    same = array.dtype == kind or (array.dtype.kind + kind.kind in ("ui", "iu"))
    if not same or array.dtype.itemsize != kind.itemsize:
        raise NonconformanceError(f"a result is of type {array.dtype}, not {name}")
    return array.view(kind)
