"""Errors: what they say, and how long they live."""

from __future__ import annotations

import ctypes

from harness.conformance.c_api.client import Client
from harness.conformance.plugin_check import NonconformanceError, UnsupportedError, check, expect

_CODES = range(1, 17)  # absl's, without OK


def _error(client: Client) -> int:
    """Return an error that the plugin has made: of a program that is none."""
    arguments = client.api.arguments(
        "PJRT_Client_Compile",
        client=client.handle,
        program=client.program("this is no program"),
        compile_options=client.compile_options(),
    )
    error = client.api.submit("PJRT_Client_Compile", arguments)
    if not error:
        raise NonconformanceError("a program that is none was compiled")
    return error


def _message(client: Client, error: int) -> bytes:
    it = client.api.arguments("PJRT_Error_Message", error=error)
    client.api.submit("PJRT_Error_Message", it)
    return client.api.content(it.message, it.message_size, "an error's message")


def _free(client: Client, error: int | None) -> None:
    client.api.submit("PJRT_Error_Destroy", client.api.arguments("PJRT_Error_Destroy", error=error))


@check
def message(client: Client) -> None:
    """Give an error a message, the same each time it is read."""
    error = _error(client)
    first = _message(client, error)
    expect(first, "an error has no message")
    expect(_message(client, error) == first, "an error's message changed")
    _free(client, error)


@check
def code(client: Client) -> None:
    """Give an error one of absl's codes, and not OK."""
    error = _error(client)
    it = client.api.call("PJRT_Error_GetCode", error=error)
    expect(int(it.code) in _CODES, f"an error has code {it.code}")
    again = client.api.call("PJRT_Error_GetCode", error=error)
    expect(again.code == it.code, f"an error's code changed from {it.code} to {again.code}")
    _free(client, error)


@check
def two_errors(client: Client) -> None:
    """Keep one error readable after another was freed."""
    first, other = _error(client), _error(client)
    expect(first != other, "two calls returned one and the same error")
    text = _message(client, other)
    _free(client, first)
    expect(_message(client, other) == text, "an error's message changed when another was freed")
    _free(client, other)


@check
def many_errors(client: Client) -> None:
    """Make and free an error a thousand times."""
    for _ in range(1000):
        it = client.api.arguments("PJRT_Client_LookupDevice", client=client.handle, id=-12345)
        error = client.api.submit("PJRT_Client_LookupDevice", it)
        expect(error, "a device with id -12345 was found")
        _free(client, error)


@check
def free_nothing(client: Client) -> None:
    """Accept null where an error is freed."""
    _free(client, None)


@check
def after_an_error(client: Client) -> None:
    """Compile and run a program after another was refused."""
    _free(client, _error(client))
    loaded, value = client.compiled(), client.buffer()
    (output,) = client.run(loaded, [value, value])
    expect(client.values(output) == [2, 4, 6, 8], "a program's result is wrong after an error")


@check
def payload(client: Client) -> None:
    """Visit what an error carries besides its message."""
    visitor = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
    )(lambda *_: None)
    error = _error(client)
    if why := client.api.lacks("PJRT_Error_ForEachPayload"):
        raise UnsupportedError(why)
    it = client.api.arguments("PJRT_Error_ForEachPayload", error=error)
    it.visitor = ctypes.cast(visitor, ctypes.c_void_p).value
    client.api.finish("PJRT_Error_ForEachPayload", it)
    _free(client, error)
