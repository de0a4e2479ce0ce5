"""How the plugin asks for a kernel's interpretation, in whichever thread a framework compiles."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from harness.lanes.virtual import callbacks, host_callbacks, pallas


class Tracked(bytes):
    """Bytes that tell when they are freed."""

    freed = False

    def __del__(self) -> None:
        type(self).freed = True


def ask(change: Any, answer: callbacks._Changed) -> None:
    callbacks._callback(change)(0, 0, 0, 0, ctypes.pointer(answer))


def in_a_foreign_thread(function: Any) -> None:
    """Run ``function`` in a thread that Python did not start, and wait until it has ended."""
    start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: function())
    threads, number = ctypes.CDLL(None), ctypes.c_ulong()
    assert threads.pthread_create(ctypes.byref(number), None, start, None) == 0
    assert threads.pthread_join(number, None) == 0


def test_an_answer_outlives_a_foreign_thread() -> None:
    def change(*_: object) -> tuple[bytes, list[tuple[str, str]]]:
        return Tracked(b"code" * 10), [("kernel", "tpu"), ("other", "hlo")]

    address = ctypes.create_string_buffer(ctypes.sizeof(callbacks._Changed))  # C's: owns nothing
    in_a_foreign_thread(lambda: ask(change, callbacks._Changed.from_buffer(address)))
    gc.collect()
    assert not Tracked.freed
    answer = callbacks._Changed.from_buffer(address)
    assert answer.code == b"code" * 10
    assert (answer.names, answer.modes) == (b"kernel\nother", b"tpu\nhlo")


def test_a_long_error_keeps_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's interpreter ends its tracebacks with what went wrong."""
    text = ctypes.create_string_buffer(256)
    call = host_callbacks._HostCall(error=ctypes.addressof(text), error_size=len(text))

    def fail(*_: object) -> None:
        raise ValueError("first " + "frame " * 200 + "out of bounds")

    monkeypatch.setitem(host_callbacks._callbacks, (0, 0), SimpleNamespace(call=fail))
    assert host_callbacks._answer(ctypes.pointer(call)) == 0
    assert text.value.startswith(b"ValueError: first")
    assert text.value.endswith(b"out of bounds")


@pytest.mark.parametrize("error", [None, pallas.CannotInterpretError("no"), ValueError("no")])
def test_no_garbage_is_collected_during_an_interpretation(error: Exception | None) -> None:
    """TorchTPU ends the process when a tensor dies in the thread in which it compiles."""
    states = []

    def interpret(*_: object) -> tuple[bytes, list[tuple[str, str]]]:
        states.append(gc.isenabled())
        if error is not None:
            raise error
        return b"", []

    assert gc.isenabled()
    ask(interpret, callbacks._Changed())
    assert (states, gc.isenabled()) == ([False], True)


@pytest.mark.parametrize("key", ["debug_info", "_debug_info"])
def test_a_kernel_without_a_name_has_its_functions(key: str) -> None:
    jaxpr = SimpleNamespace(**{key: SimpleNamespace(func_name="double")})
    assert pallas.name_of({"name": None, "jaxpr": jaxpr}) == "double"  # JAX 0.12
    assert pallas.name_of({"jaxpr": jaxpr}) == "double"
    assert pallas.name_of({"name": "given", "jaxpr": jaxpr}) == "given"


@pytest.mark.parametrize("absent", ["jax", "ml_dtypes", "numpy"])
def test_what_comes_with_jax_alone_may_be_absent(absent: str) -> None:
    """A process whose programs the CPU's compiler takes needs none of it."""
    program = f"import sys; sys.modules[{absent!r}] = None; import {callbacks.__name__}"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_program_that_another_process_compiled() -> None:
    """As from a cache of executables: the callbacks that are here are others."""
    call = host_callbacks._HostCall(process=1, number=0)
    message = ctypes.create_string_buffer(200)
    call.error, call.error_size = ctypes.addressof(message), len(message)
    assert host_callbacks._answerer(ctypes.pointer(call)) == 0
    assert message.value == (
        b"RuntimeError: another process compiled this program, and has its callbacks"
    )
