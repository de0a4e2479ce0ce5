"""Messages between the workers of a job: a greeting, then a rendezvous or exchanged values.

Each connection starts with ``Hello``, which the first worker answers. All others talk to the first
worker only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.messages.typed import Message, Vocabulary
from harness.model.outcome import Kind


@dataclass(frozen=True)
class Hello(Message):
    """Greeting of a worker: its token, and the digest of what both sides must agree on."""

    token: str = field(repr=False)
    worker: int
    about: str


@dataclass(frozen=True)
class Welcome(Message):
    """Reply that the worker takes part."""


@dataclass(frozen=True)
class Refused(Message):
    """Reply that the token is another job's."""


@dataclass(frozen=True)
class At(Message):
    """Report that this worker is at the case of that number, and waits."""

    case: int


@dataclass(frozen=True)
class Left(Message):
    """Report that this worker has given up waiting at that case."""

    case: int


@dataclass(frozen=True)
class Go(Message):
    """Reply that all workers are at the case, so the worker starts it."""

    case: int


@dataclass(frozen=True)
class No(Message):
    """Reply that the case cannot start, with the outcome to record."""

    case: int
    why: str
    kind: Kind


@dataclass(frozen=True)
class Late(Message):
    """Reply that the other workers are already at that later case."""

    case: int


@dataclass(frozen=True)
class WorkerLost(Message):
    """Notice that a worker has died, so that nobody waits any more."""

    why: str


@dataclass(frozen=True)
class Stop(Message):
    """Notice that a worker has other cases than the first worker."""

    why: str


@dataclass(frozen=True)
class Value(Message):
    """Value that a worker has computed, or the traceback of what it raised instead."""

    worker: int
    value: Any
    raised: str | None


@dataclass(frozen=True)
class All(Message):
    """Notice that the values of all workers have been sent."""


TO_FIRST = Vocabulary(Hello, At, Left, Value)
FROM_FIRST = Vocabulary(Welcome, Refused, Go, No, Late, WorkerLost, Stop, Value, All)
