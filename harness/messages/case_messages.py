"""Between a case's process and its supervisor.

The supervisor sends a command, and takes each answer with ``Taken``: what the process writes to its
streams between two answers belongs to the later one. A ``LastAnswer`` ends a command.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.messages.typed import Message, Vocabulary


@dataclass(frozen=True)
class RunItem(Message):
    """Run the session's item of that index; ``following`` is the next one in this process."""

    index: int
    following: int | None


@dataclass(frozen=True)
class ListTests(Message):
    """Import the file that the process was made for, and say which tests it has."""


@dataclass(frozen=True)
class Taken(Message):
    """The last answer has been read, together with all output before it."""


@dataclass(frozen=True)
class PhaseReported(Message):
    """A phase, or a subtest, is over: pytest's own serialisation of its report."""

    report: dict[str, Any]


@dataclass(frozen=True)
class Warned(Message):
    """pytest recorded a warning; ``category`` is its class's name."""

    category: str
    text: str
    filename: str
    lineno: int
    when: str
    nodeid: str


@dataclass(frozen=True)
class LastAnswer(Message):
    """The command is done, and its process awaits the next one."""


@dataclass(frozen=True)
class ItemDone(LastAnswer):
    """The item has run. Its test may have asked for the end of the whole run."""

    runtime_start: dict[str, float]  # seconds, by the phase that they were spent in
    interrupted: bool  # as by Ctrl-C
    exit_reason: str | None  # of pytest.exit
    exit_code: int | None
    used: list[str]  # as harness.reuse.recorder writes it; empty unless it records


@dataclass(frozen=True)
class TestsListed(LastAnswer):
    """The file's tests, as ``harness.isolation.foreign.describe`` writes them.

    ``loaded`` are names of packages that its import has loaded, for the process that forks.
    """

    tests: str
    loaded: list[str]


@dataclass(frozen=True)
class NotListed(LastAnswer):
    """The file can't be imported, or skips itself as a whole."""

    reason: str
    skipped: bool


COMMANDS = Vocabulary(RunItem, ListTests, Taken)
ANSWERS = Vocabulary(PhaseReported, Warned, ItemDone, TestsListed, NotListed)
