"""Between the workers of a job: a greeting, then a rendezvous or an exchange of values.

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
    """Who connects, the proof of it, and the digest of what both sides must agree on."""

    token: str = field(repr=False)
    worker: int
    about: str


@dataclass(frozen=True)
class Welcome(Message):
    """The worker takes part."""


@dataclass(frozen=True)
class Refused(Message):
    """The token is another job's."""


@dataclass(frozen=True)
class At(Message):
    """This worker is at the case of that number, and waits."""

    case: int


@dataclass(frozen=True)
class Left(Message):
    """This worker has given up waiting at that case."""

    case: int


@dataclass(frozen=True)
class Go(Message):
    """All are at that case: start it."""

    case: int


@dataclass(frozen=True)
class No(Message):
    """That case can't start, and counts as broken in that way."""

    case: int
    why: str
    kind: Kind


@dataclass(frozen=True)
class Late(Message):
    """The others are at that later case already."""

    case: int


@dataclass(frozen=True)
class WorkerLost(Message):
    """A worker has died, so that nobody waits any more."""

    why: str


@dataclass(frozen=True)
class Stop(Message):
    """A worker has other cases than the first one."""

    why: str


@dataclass(frozen=True)
class Value(Message):
    """What a worker has computed, or the traceback of what it raised instead."""

    worker: int
    value: Any
    raised: str | None


@dataclass(frozen=True)
class All(Message):
    """The values of all workers have been told."""


TO_FIRST = Vocabulary(Hello, At, Left, Value)
FROM_FIRST = Vocabulary(Welcome, Refused, Go, No, Late, WorkerLost, Stop, Value, All)
