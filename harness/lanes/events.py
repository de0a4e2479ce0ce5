"""Read the plugin's event log: clients, compilations, executions and kernels of all processes."""

from __future__ import annotations

import errno
import json
import mmap
import os
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any, BinaryIO

from harness.model.mismatch import DiscoveryError

VARIABLE = "XLA_HARNESS_EVENTS"  # names the file that the plugin of a case's processes appends to
# Lists the kinds that are written besides those that decide an outcome. If unset, all are.
KINDS_VARIABLE = "XLA_HARNESS_EVENT_KINDS"
CASE_FOLDER = "XLA_HARNESS_CASE_FOLDER"  # a folder of the case's own, which ends with it
# Names the memory, of the format LEDGER, in which all who write to the file count what they wrote.
WRITTEN_VARIABLE = "XLA_HARNESS_EVENTS_WRITTEN"
LEDGER = struct.Struct("=QQi")  # the file's inode, bytes written, errno of a failed write or 0
_ERROR_OFFSET = 16

_MOST_READ = 1 << 28  # bytes of a log
_LONGEST_LINE = 1 << 20  # bytes; the plugin's have at most 40,000
_MOST_STRAY = 1000  # lines that are no event: what follows them is not looked at

_FAULTS = {
    "race": "data race in Pallas kernel {}",
    "error": "error in Pallas kernel {}",
    "nan": "NaN out of Pallas kernel {}, which was given none",
}


@dataclass(frozen=True)
class Event:
    """Entry of the plugin's event log, such as a compilation that a process requested.

    ``kind`` is ``client``, ``discovered``, ``undiscovered``, ``compile``, ``reuse`` (of what
    another rank has compiled), ``option`` (one that has no effect on the virtual TPU),
    ``kernel``, ``fault`` (of a kernel, while it ran), ``rewrite`` (of what the CPU's compiler
    lacks), ``plant`` (of a fault, for those who ask which tests see it), ``execute``, ``meet`` (a
    process's first program over several processes), ``communicator`` (a set of a job's devices is
    about to exchange something for the first time: ``facts`` has them), ``failed`` (its job can't
    go on: ``stack`` is the whole diagnosis), ``stand_in`` (ran in the place of a program that can
    only be compiled: ``stack`` says why), ``error`` (ended what was submitted at ``since``:
    ``stack`` is its text), ``seen`` (an error that the test was given: ``stack`` is its text),
    ``aot``, ``aot_refused`` or ``aot_left`` (processes whose programs libtpu was not given);
    ``by`` the library that asked: ``torch_xla``, ``jax``, ``torch_tpu`` or a file's name; ``guard``
    the value of ``SKIP_MEGASCALE_PJRT_CLIENT`` then, None if unset; ``time`` in seconds of the
    machine's monotonic clock.
    """

    kind: str
    by: str
    process: int
    thread: int
    time: float
    guard: str | None
    stack: str | None = None
    slice: int = 0
    discovery: bool = False  # of a client: it discovers all slices
    waits: bool = False  # of a client: the other slices are other processes
    fingerprint: str = ""  # of a compilation: equal for equal programs
    kernel: str = ""
    mode: str = ""  # of a kernel: JAX's interpret mode that takes its place, "tpu" or "hlo"
    fault: str = ""  # "race", "nan" (a result has one, no operand has) or "error"
    option: str = ""
    rewrite: str = ""
    stage: str = ""  # of a planted fault: "given" to the compiler, then "taken" or "refused" by it
    devices: int = 0  # of an execution
    program: int = 0  # of an execution: which its process has compiled, from 1; 0 if another did
    since: float = 0.0  # of an error: when what it ended was submitted
    facts: Mapping[str, Any] = field(default_factory=dict)  # of a compilation ahead of time


@dataclass(frozen=True)
class Events:
    """Events in the order in which they happened, over all processes."""

    all: tuple[Event, ...] = ()
    damage: str = ""  # what of their log can't be read, or was never written; "" for nothing

    def of(self, kind: str, *, by: str | None = None) -> list[Event]:
        """Return the events of that kind, requested by that library if one is named."""
        return [e for e in self.all if e.kind == kind and by in (None, e.by)]

    def after(self, earlier: Events) -> Events:
        """Return the events since ``earlier`` was read from the same log."""
        return Events(self.all[len(earlier.all) :], self.damage)

    @property
    def kernel_fault(self) -> str:
        """Describe the worst fault of a Pallas kernel while it ran; return "" if there was none."""
        worst = min(
            self.of("fault"), key=lambda event: list(_FAULTS).index(event.fault), default=None
        )
        return "" if worst is None else _FAULTS[worst.fault].format(worst.kernel)

    @property
    def planted(self) -> dict[str, str]:
        """Return how many programs with a planted fault were compiled, refused and executed."""
        stages = Counter(event.stage for event in self.of("plant"))
        return {
            "faults_planted": str(stages["taken"] or ""),
            "faults_executed": str(stages["executed"] or ""),
            "faults_refused": str(stages["given"] - stages["taken"] or ""),
        }

    @property
    def discoveries(self) -> list[Event]:
        """Clients created without the guard in a multi-slice job: one discovery each.

        In a job of several processes the first clients of all slices are one discovery together,
        and so are their second ones.
        """
        rounds: Counter[int] = Counter()  # a process's discoveries, where slices are processes
        counted: list[Event] = []
        for client in self.of("client"):
            if not client.discovery:
                continue
            if client.waits:
                met = max(rounds.values(), default=0)
                rounds[client.process] += 1
                if rounds[client.process] <= met:
                    continue
            counted.append(client)
        return counted

    @property
    def hung(self) -> Event | None:
        """The client, not its process's first to discover, whose discovery never completed."""
        open_: dict[tuple[int, int], Event] = {}
        discovered: set[int] = set()
        hung = None
        for event in self.all:
            who = (event.process, event.thread)
            match event.kind:
                case "client" if event.discovery:
                    open_[who] = event
                case "discovered":
                    open_.pop(who, None)
                    discovered.add(event.process)
                case "undiscovered":
                    client = open_.pop(who, None)
                    if event.process in discovered:
                        hung = hung or client
        unfinished = (e for e in open_.values() if e.process in discovered)
        return hung or next(unfinished, None)


class EventLog:
    """Events that the plugin appends to a file from now on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start = path.stat().st_size if path.exists() else 0

    def read(self) -> Events:
        """Return all events so far."""
        try:
            # Neither a pipe nor a device of that name is waited for.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return Events()
        except OSError as error:
            return Events(damage=f"{self.path} can't be read: {error.strerror}")
        try:
            return read_events(descriptor, self._start)
        finally:
            os.close(descriptor)

    def expect_discoveries(self, count: int) -> None:
        """Raise DiscoveryError with each client's stack unless there were ``count``."""
        discoveries = self.read().discoveries
        if len(discoveries) == count:
            return
        listed = "\n".join(
            f"{number}. by {event.by} in process {event.process}, "
            f"SKIP_MEGASCALE_PJRT_CLIENT={event.guard}:\n{event.stack or '  (no Python stack)'}"
            for number, event in enumerate(discoveries, 1)
        )
        raise DiscoveryError(f"{len(discoveries)} discoveries, expected {count}\n{listed}")


def read_events(descriptor: int, start: int = 0) -> Events:
    """Return the events of an open file from the offset ``start`` on, and what is damaged there.

    A last line without an end is still being written. Raises nothing: whatever a case has done to
    the file is damage.
    """
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return Events(damage="it is no regular file any more")
        # Opened anew, for an offset that no other process moves.
        with Path(f"/proc/self/fd/{descriptor}").open("rb") as file:
            file.seek(start)
            return _parse(file)
    except OSError as error:
        return Events(damage=f"it can't be read: {error.strerror}")


def _parse(file: BinaryIO) -> Events:
    events, damage, number, stray, read = list[Event](), "", 0, 0, 0
    while line := file.readline(_LONGEST_LINE):
        number, read = number + 1, read + len(line)
        if read > _MOST_READ:
            damage = damage or f"it has more than {_MOST_READ:,} bytes"
            break
        if not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
            break
        try:
            events.append(_event(line))
        except ValueError as error:
            damage = damage or f"line {number} is no event: {error}"
            stray += 1
            if stray > _MOST_STRAY:
                break
    return Events(tuple(events), damage)


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, NoneType),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "Mapping[str, Any]": (dict,),
}
_MEMBERS = {each.name: _TYPES[str(each.type)] for each in fields(Event) if each.name != "kind"}
_NEEDED = {"event"} | {
    each.name
    for each in fields(Event)
    if each.default is MISSING and each.default_factory is MISSING and each.name != "kind"
}


def _event(line: bytes) -> Event:
    """Return the event of a line; raise ValueError if it has none."""
    try:
        data = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON: {str(error)[:100]}") from None
    if not isinstance(data, dict) or (missing := _NEEDED - data.keys()):
        members = "an object" if not isinstance(data, dict) else ", ".join(sorted(missing))
        raise ValueError(f"expected {members}")
    kind = data.pop("event")
    known = {name: value for name, value in data.items() if name in _MEMBERS}
    wrong = [name for name, value in known.items() if not isinstance(value, _MEMBERS[name])]
    if wrong or not isinstance(kind, str):
        raise ValueError(f"wrong type of {', '.join(sorted(wrong)) or 'event'}")
    return Event(kind=kind, **known)


def write(
    kind: str, facts: Mapping[str, Any], *, stage: str = "", stack: str | None = None, **more: str
) -> None:
    """Append an event of this process to the file that the plugin's go to; raise OSError.

    ``more`` are members of ``Event`` that its kind has.
    """
    event = {
        "event": kind,
        "stage": stage,
        "by": "xla-harness",
        "process": os.getpid(),
        "thread": threading.get_native_id(),
        "time": time.monotonic(),
        "guard": None,
        "stack": stack,
        "facts": facts,
        **more,
    }
    line = (json.dumps(event, separators=(",", ":")) + "\n").encode()
    try:
        with Path(os.environ[VARIABLE]).open("ab") as file:  # flushed with one write
            file.write(line)
    except OSError as error:
        _note_loss(error.errno or errno.EIO)
        raise


def note(kind: str, facts: Mapping[str, Any] | None = None, **members: str) -> None:
    """Write an event, as :func:`write` does, in a process whose events are read; else nothing."""
    if VARIABLE in os.environ:
        write(kind, facts or {}, **members)


def _note_loss(error: int) -> None:
    """Have the reader know, though the caller of the framework may pass over the exception."""
    with (
        suppress(OSError, KeyError),
        Path(os.environ[WRITTEN_VARIABLE]).open("r+b") as file,
        # In memory: a limit of the size of files does not count there.
        mmap.mmap(file.fileno(), LEDGER.size) as ledger,
    ):
        ledger[_ERROR_OFFSET : LEDGER.size] = struct.pack("=i", error)
