"""What the plugin wrote down: clients, compilations, executions and kernels of all processes."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.model.mismatch import DiscoveryError

VARIABLE = "XLA_HARNESS_EVENTS"  # names the file that the plugin of a case's processes appends to
KINDS_VARIABLE = "XLA_HARNESS_EVENT_KINDS"  # lists the kinds that it writes; all, if unset


_FAULTS = {
    "race": "data race in Pallas kernel {}",
    "error": "error in Pallas kernel {}",
    "nan": "NaN out of Pallas kernel {}, which was given none",
}


@dataclass(frozen=True)
class Event:
    """One thing that a process asked of the plugin.

    ``kind`` is ``client``, ``discovered``, ``undiscovered``, ``compile``, ``reuse`` (of what
    another rank has compiled), ``option`` (one that has no effect on the virtual TPU),
    ``kernel``, ``fault`` (of a kernel, while it ran), ``rewrite`` (of what the CPU's compiler
    lacks), ``plant`` (of a fault, for those who ask which tests see it), ``execute``, ``meet`` (a
    process's first program over several processes), ``failed`` (its job can't go on: ``stack`` is
    the whole diagnosis), ``aot`` or ``aot_refused``; ``by`` the library that asked: ``torch_xla``,
    ``jax``, ``torch_tpu`` or a file's name; ``guard`` the value of ``SKIP_MEGASCALE_PJRT_CLIENT``
    then, None if unset; ``time`` in seconds of the machine's monotonic clock.
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
    facts: Mapping[str, Any] = field(default_factory=dict)  # of a compilation ahead of time


@dataclass(frozen=True)
class Events:
    """Events in the order in which they happened, over all processes."""

    all: tuple[Event, ...] = ()

    def of(self, kind: str, *, by: str | None = None) -> list[Event]:
        """The events of that kind, asked for by that library if one is named."""
        return [e for e in self.all if e.kind == kind and by in (None, e.by)]

    def after(self, earlier: Events) -> Events:
        """What came after ``earlier`` was read from the same log."""
        return Events(self.all[len(earlier.all) :])

    @property
    def kernel_fault(self) -> str:
        """What a Pallas kernel did wrong while it ran, the worst thing first; "" for nothing."""
        worst = min(
            self.of("fault"), key=lambda event: list(_FAULTS).index(event.fault), default=None
        )
        return "" if worst is None else _FAULTS[worst.fault].format(worst.kernel)

    @property
    def planted(self) -> dict[str, str]:
        """How many programs had a fault, and were compiled, refused or executed with it."""
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
                    client = open_.pop(who)
                    if event.process in discovered:
                        hung = hung or client
        unfinished = (e for e in open_.values() if e.process in discovered)
        return hung or next(unfinished, None)


class EventLog:
    """What the plugin appends to a file from now on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start = path.stat().st_size if path.exists() else 0

    def read(self) -> Events:
        """All events so far."""
        return Events(tuple(self._lines()))

    def expect_discoveries(self, count: int) -> None:
        """Raise DiscoveryError with each client's stack unless there were ``count``."""
        found = self.read().discoveries
        if len(found) == count:
            return
        told = "\n".join(
            f"{number}. by {event.by} in process {event.process}, "
            f"SKIP_MEGASCALE_PJRT_CLIENT={event.guard}:\n{event.stack or '  (no Python stack)'}"
            for number, event in enumerate(found, 1)
        )
        raise DiscoveryError(f"{len(found)} discoveries, expected {count}\n{told}")

    def _lines(self) -> Iterator[Event]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._start)
            for line in file:
                if line.endswith(b"\n"):
                    yield _event(json.loads(line.decode(errors="replace")))


def _event(data: dict[str, object]) -> Event:
    kind = data.pop("event")
    known = {name: value for name, value in data.items() if name in Event.__dataclass_fields__}
    return Event(kind=kind, **known)  # type: ignore[arg-type]


def write(kind: str, facts: Mapping[str, Any], *, stage: str = "") -> None:
    """Append an event of this process to the file that the plugin's go to."""
    event = {
        "event": kind,
        "stage": stage,
        "by": "xla-harness",
        "process": os.getpid(),
        "thread": threading.get_native_id(),
        "time": time.monotonic(),
        "guard": None,
        "facts": facts,
    }
    line = json.dumps(event, separators=(",", ":")) + "\n"
    with Path(os.environ[VARIABLE]).open("ab", buffering=0) as file:
        file.write(line.encode())
