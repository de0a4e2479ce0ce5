"""Events: awaited, asked, called back, made by the caller, and freed."""

from __future__ import annotations

import ctypes
import threading
import time

from harness.conformance.c_api.at_once import in_threads
from harness.conformance.c_api.client import SECONDS, Client
from harness.conformance.plugin_check import check, expect

_INTERNAL = 13
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
# A second of work for a CPU, so that the event is asked for before it is over.
LONG = """module @long {
  func.func public @main(%a: tensor<256x256xf32>) -> tensor<256x256xf32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %most = stablehlo.constant dense<300> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %0:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, tensor<256x256xf32>
      cond {
        %c = stablehlo.compare LT, %i, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %y = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
          : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
        %z = stablehlo.tanh %y : tensor<256x256xf32>
        %n = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %n, %z : tensor<i32>, tensor<256x256xf32>
      }
    return %0#1 : tensor<256x256xf32>
  }
}
"""


def _ready(client: Client) -> int:
    """Return the event of a buffer that is there."""
    it = client.api.call("PJRT_Buffer_ReadyEvent", buffer=client.buffer())
    return client.owned(it.event, "PJRT_Buffer_ReadyEvent: event")


def _running(client: Client) -> int:
    """Return the event of a program that has just been started."""
    loaded = client.compiled(LONG)
    value = client.buffer([0.01] * 65536, (256, 256))
    request = client.execution(loaded, [value])
    client.api.finish("PJRT_LoadedExecutable_Execute", request)
    return client.owned(request.events[0], "PJRT_LoadedExecutable_Execute: event")


def _is_ready(client: Client, event: int) -> bool:
    return bool(client.api.call("PJRT_Event_IsReady", event=event).is_ready)


class _Calls:
    """What an event has called back: its errors, and the argument it was given."""

    def __init__(self, client: Client, event: int, number: int = 7) -> None:
        self.calls: list[tuple[int | None, int | None]] = []
        self.arrived = threading.Event()
        self._kept = _CALLBACK(self._note)
        it = client.api.arguments("PJRT_Event_OnReady", event=event, user_arg=number)
        it.callback = ctypes.cast(self._kept, ctypes.c_void_p).value
        client.api.finish("PJRT_Event_OnReady", it)

    def _note(self, error: int | None, argument: int | None) -> None:
        self.calls.append((error, argument))
        self.arrived.set()

    def expect_one(self, number: int = 7) -> None:
        """Raise NonconformanceError unless there was one call, without an error."""
        expect(self.arrived.wait(SECONDS), f"the callback was not called within {SECONDS:.0f} s")
        time.sleep(0.05)
        expect(len(self.calls) == 1, f"the callback was called {len(self.calls)} times")
        expect(self.calls == [(None, number)], f"the callback was given {self.calls[0]}")


@check
def awaited(client: Client) -> None:
    """Have an event ready, without an error, once it was awaited."""
    event = _running(client)
    client.api.call("PJRT_Event_Await", event=event)
    expect(_is_ready(client, event), "an event that was awaited is not ready")
    client.api.call("PJRT_Event_Error", event=event)
    client.api.call("PJRT_Event_Await", event=event)
    client.api.call("PJRT_Event_Destroy", event=event)


@check
def polled(client: Client) -> None:
    """Have an event ready at some time though nobody awaits it."""
    event, end = _running(client), time.monotonic() + SECONDS
    while not _is_ready(client, event) and time.monotonic() < end:
        time.sleep(0.01)
    expect(_is_ready(client, event), f"an event is not ready after {SECONDS:.0f} s")
    client.api.call("PJRT_Event_Destroy", event=event)


@check
def called_back(client: Client) -> None:
    """Call an event's callback once when the event becomes ready."""
    event = _running(client)
    _Calls(client, event).expect_one()
    client.api.call("PJRT_Event_Destroy", event=event)


@check
def called_back_when_ready(client: Client) -> None:
    """Call an event's callback once if the event is ready already."""
    event = _ready(client)
    client.api.call("PJRT_Event_Await", event=event)
    _Calls(client, event).expect_one()
    client.api.call("PJRT_Event_Destroy", event=event)


@check
def two_callbacks(client: Client) -> None:
    """Call each of two callbacks once, with its own argument."""
    event = _running(client)
    first, other = _Calls(client, event, 1), _Calls(client, event, 2)
    first.expect_one(1)
    other.expect_one(2)
    client.api.call("PJRT_Event_Destroy", event=event)


@check
def freed_before_callback(client: Client) -> None:
    """Call an event's callback although the event was freed before it was ready."""
    event = _running(client)
    calls = _Calls(client, event)
    client.api.call("PJRT_Event_Destroy", event=event)
    calls.expect_one()


@check
def callback_calls_the_api(client: Client) -> None:
    """Allow a callback to call the API itself."""
    event, names = _running(client), list[str]()
    arrived = threading.Event()

    def ask(error: int | None, argument: int | None) -> None:
        del error, argument
        it = client.api.call("PJRT_Client_PlatformName", client=client.handle)
        names.append(client.api.text(it.platform_name, it.platform_name_size, "platform_name"))
        arrived.set()

    kept = _CALLBACK(ask)
    it = client.api.arguments("PJRT_Event_OnReady", event=event)
    it.callback = ctypes.cast(kept, ctypes.c_void_p).value
    client.api.finish("PJRT_Event_OnReady", it)
    expect(arrived.wait(SECONDS), "a callback that calls the API did not return")
    expect(names and names[0], "a callback got no name of the platform")


@check
def awaited_by_threads(client: Client) -> None:
    """Let eight threads await one event at once."""
    event = _running(client)
    in_threads(8, lambda _: client.api.call("PJRT_Event_Await", event=event))
    client.api.call("PJRT_Event_Destroy", event=event)


@check
def free_nothing(client: Client) -> None:
    """Accept null where an event is freed."""
    client.initialize()
    client.api.call("PJRT_Event_Destroy", event=None)


@check
def error_of_a_deleted_buffer(client: Client) -> None:
    """Tell the error of an event each time it is asked for, as an error of its own."""
    buffer = client.buffer()
    client.api.call("PJRT_Buffer_Delete", buffer=buffer)
    request = client.api.arguments("PJRT_Buffer_ReadyEvent", buffer=buffer)
    refused = client.api.refusal("PJRT_Buffer_ReadyEvent", request)
    if refused is not None:
        return  # the other way to say it
    event = client.owned(request.event, "PJRT_Buffer_ReadyEvent: event")
    first = client.error_of(event)
    expect(first is not None, "the event of a deleted buffer has no error")
    again = client.api.refusal(
        "PJRT_Event_Error", client.api.arguments("PJRT_Event_Error", event=event)
    )
    expect(again is not None, "PJRT_Event_Error has none where PJRT_Event_Await had an error")
    assert first is not None
    assert again is not None
    expect(first.code == again.code, f"its code is {first.code}, then {again.code}")
    client.api.call("PJRT_Event_Destroy", event=event)


@check
def made_by_the_caller(client: Client) -> None:
    """Make an event for the caller, and have it ready once the caller has set it."""
    client.initialize()
    event = client.owned(client.api.call("PJRT_Event_Create").event, "PJRT_Event_Create: event")
    expect(not _is_ready(client, event), "an event is ready that nobody has set")
    client.api.call("PJRT_Event_Set", event=event, error_code=0)
    expect(_is_ready(client, event), "an event is not ready that was set")
    client.settle(event)


@check
def made_with_an_error(client: Client) -> None:
    """Make an event for the caller, and hand on the error that it was set with."""
    client.initialize()
    event = client.owned(client.api.call("PJRT_Event_Create").event, "PJRT_Event_Create: event")
    client.api.call(
        "PJRT_Event_Set", event=event, error_code=_INTERNAL, error_message=b"planted by the caller"
    )
    error = client.error_of(event)
    expect(error is not None, "an event that was set with an error has none")
    assert error is not None
    expect(
        (error.code, "planted by the caller" in error.message) == (_INTERNAL, True),
        f"it has code {error.code} and says {error.message!r}",
    )
