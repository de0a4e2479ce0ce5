"""Many threads, and a process that forks."""

from __future__ import annotations

import os
import signal
import time

from harness.conformance.c_api.at_once import in_threads
from harness.conformance.c_api.client import ADD, SECONDS, Client
from harness.conformance.plugin_check import NotMeasurableError, check, expect


@check
def copies(client: Client) -> None:
    """Copy to the device and back from eight threads at once."""
    client.handle, client.device  # noqa: B018 - created before, by one thread

    def work(number: int) -> None:
        for turn in range(25):
            values = [float(number), float(turn)] * 64
            buffer = client.buffer(values)
            expect(client.values(buffer) == values, f"thread {number} got another one's numbers")
            client.api.call("PJRT_Buffer_Destroy", buffer=buffer)

    in_threads(8, work)


@check
def executions(client: Client) -> None:
    """Run one program from eight threads at once."""
    loaded = client.compiled()
    client.device  # noqa: B018 - asked for before, by one thread

    def work(number: int) -> None:
        value = client.buffer([float(number)] * 4)
        for _ in range(25):
            (output,) = client.run(loaded, [value, value])
            expect(client.values(output) == [2.0 * number] * 4, f"thread {number}: wrong result")

    in_threads(8, work)


@check
def compilations(client: Client) -> None:
    """Compile four programs from four threads at once."""
    client.handle, client.device  # noqa: B018 - created before, by one thread
    names = "add", "subtract", "multiply", "maximum"
    results = [20, 22], [0, 0], [100, 121], [10, 11]

    def work(number: int) -> None:
        program = ADD.replace("stablehlo.add", f"stablehlo.{names[number]}")
        value = client.buffer([10, 11, 10, 11])
        (output,) = client.run(client.compiled(program), [value, value])
        expect(client.values(output) == results[number] * 2, f"{names[number]} is wrong")

    in_threads(4, work)


@check
def freed_by_another(client: Client) -> None:
    """Free a buffer on another thread than the one that made it."""
    buffers = [client.buffer() for _ in range(32)]

    def work(number: int) -> None:
        for each in buffers[number::8]:
            client.api.call("PJRT_Buffer_Destroy", buffer=each)

    in_threads(8, work)
    client.values(client.buffer())


@check
def forked(client: Client) -> None:
    """Go on after the process has forked, and let the forked one end."""
    loaded, value = client.compiled(), client.buffer()
    child = os.fork()
    if child == 0:
        os._exit(0)
    expect(_ended(child), f"a forked process that only ends has not after {SECONDS:.0f} s")
    (output,) = client.run(loaded, [value, value])
    expect(client.values(output) == [2, 4, 6, 8], "its result is wrong after a fork")


@check
def forked_before(client: Client) -> None:
    """Create a client in a forked process, if this one has none."""
    if client.missing:
        raise NotMeasurableError(f"no client: {client.missing}")
    client.api.call("PJRT_Plugin_Attributes")
    child = os.fork()
    if child == 0:
        try:
            value = client.buffer()
            (output,) = client.run(client.compiled(), [value, value])
            os._exit(0 if client.values(output) == [2, 4, 6, 8] else 3)
        finally:
            os._exit(4)
    expect(_ended(child), f"it was not done after {SECONDS:.0f} s")
    status = _STATUS[child]
    if status == 4:
        raise NotMeasurableError("the client can't be created in a forked process")
    expect(status == 0, f"the forked process ended with {status}")


_STATUS: dict[int, int] = {}


def _ended(child: int) -> bool:
    """Wait for a process; end it if that takes too long. Return whether it ended by itself."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            _STATUS[child] = os.waitstatus_to_exitcode(status)
            return True
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False
