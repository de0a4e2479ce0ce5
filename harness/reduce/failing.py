"""The program to reduce: in a file, or the smallest of a test that fails alone as the test."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.output import say
from harness.errors import BadInputError, nearest
from harness.lanes import LANES, lane_named
from harness.model.outcome import Kind
from harness.reduce.base import AgainstBase, Base
from harness.reduce.compiled import Flags
from harness.reduce.stablehlo import bare, count
from harness.reduce.trial import SEEDS, Endings, ProgramEnding, TrialTarget, endings

if TYPE_CHECKING:
    from harness.junit.result import Result

_OF_NUMBERS = ("numbers", "verification")  # the layers of a case that says what it got
_FILES = (".mlir", ".hlo", ".txt", ".pb")
# Of a file alone, whose arguments may be indices that have to be unusual ones.
_MORE_SEEDS = range(max(SEEDS) + 1, 49)
_WHY = {
    "right": "XLA computes what the operations say.",
    "ran": "It compiles, and nothing here can say what its numbers should be.",
    "invalid": "It is no valid StableHLO.",
}


@dataclass(frozen=True)
class Question:
    """What makes a program fail, as the options say it."""

    lane: str = ""
    has: str = ""
    base: tuple[str, Mapping[str, str]] | None = None  # Python of a stack, and its variables

    def check(self) -> None:
        """Raise BadInputError for an unknown lane, or an expression that is none."""
        if self.lane and self.lane not in LANES:
            raise BadInputError(f"--lane {self.lane!r}: {nearest(self.lane, LANES)}")
        try:
            re.compile(self.has)
        except re.error as error:
            raise BadInputError(f"--has {self.has!r}: expected an expression: {error}") from None


@dataclass(frozen=True)
class FailingProgram:
    """A program that fails, and how to see that another one does.

    Attributes:
        text: in StableHLO.
        ending: how it ends.
        source: the file or the case that it is of.
        failure: of the case, "" of a file.
        target: what it is compiled for.
        ask: returns how programs end.
        base: the stack on which it does not fail, if that was asked.
    """

    text: str
    ending: ProgramEnding
    source: str
    failure: str
    target: TrialTarget
    ask: Endings
    base: Base | None


def failing(source: str, question: Question, topology: str = "") -> FailingProgram:
    """Return a program that fails, and always so. Raises BadInputError if there is none."""
    question.check()
    path = Path(source)
    if path.suffix in _FILES and "::" not in source:
        from harness.reduce.program_files import read

        if not path.is_file():
            raise BadInputError(f"{path}: expected a program, there is no such file")
        return _smallest([read(path)], question, _Source(source, question.lane, topology))
    from harness.reduce.recording import record

    say(f"running {source} ...")
    recorded = record(source, question.lane, topology)
    result = recorded.result
    if not (result.signature or question.has or question.base):
        raise BadInputError(f"{result.key}: nothing to reduce: {result.outcome}")
    if not recorded.programs:
        raise BadInputError(
            f"{result.key}: no program to reduce: it failed before it compiled one\n"
            f"  {_failure(result)}"
        )
    return _smallest(
        recorded.programs, question, _Source(result.key, result.lane, result.topology, result)
    )


@dataclass(frozen=True)
class _Source:
    """Where programs come from, and where they are compiled."""

    name: str
    lane: str
    topology: str
    result: Result | None = None


def _smallest(programs: Sequence[str], question: Question, source: _Source) -> FailingProgram:
    """Return the smallest program that fails as its source does."""
    compiles_only = bool(source.lane) and lane_named(source.lane).compiles_only
    topology = source.topology if compiles_only else ""
    target = TrialTarget(topology, question.has, is_measured=question.base is not None)
    ask: Endings = partial(endings, target=target)
    base = Base(*question.base, target) if question.base else None
    if base:
        ask = AgainstBase(ask, base)
    own = [ask([text])[0] for text in programs]
    if source.result is None and own[0].kind == "right":
        own = ask(programs, (), _MORE_SEEDS)
        if own[0].seed:
            ask = _with_seeds(ask, [own[0].seed, *SEEDS])
    alike = [pair for pair in zip(programs, own, strict=True) if _is_like(source.result, pair[1])]
    if alike:
        text, ending = min(alike, key=lambda pair: count(bare(pair[0])))
        (again,) = ask([text])
        if again.signature != ending.signature:
            raise BadInputError(
                f"{source.name}: expected a program that always fails in one way, it is flaky: "
                f"first {ending.kind}, then {again.kind}"
            )
        failure = _failure(source.result) if source.result else ""
        return FailingProgram(text, ending, source.name, failure, target, ask, base)
    raise BadInputError(_no_program(source, own))


def _with_seeds(ask: Endings, chosen: Sequence[int]) -> Endings:
    """Return what asks with these seeds where no others are given."""

    def ask_chosen(
        texts: Sequence[str], flags: Sequence[Flags] = (), seeds: Sequence[int] = chosen, /
    ) -> list[ProgramEnding]:
        return ask(texts, flags, seeds)

    return ask_chosen


def _is_like(result: Result | None, ending: ProgramEnding) -> bool:
    """Return whether a program's ending can be the failure of its case, None for a file.

    A case whose numbers are wrong does not fail because XLA for CPUs refuses another device's call.
    One that crashes may do so wherever it waits for a result.
    """
    if ending.kind in _WHY:
        return False
    if result is None or not result.layer or ending.kind in ("has", "larger"):
        return True
    if result.actual in (Kind.CRASHED, Kind.HUNG):
        return ending.kind in ("crash", "hang")
    return (ending.kind == "wrong") == (result.layer in _OF_NUMBERS)


def _no_program(source: _Source, own: Sequence[ProgramEnding]) -> str:
    reasons = sorted({_WHY.get(e.kind, "") if not e.text else f"{e.kind}: {e.text}" for e in own})
    if source.result is None:
        return f"{source.name}: nothing to reduce: {reasons[0]}"
    return (
        f"{source.name}: none of its {len(own)} programs fails alone as the case does\n  "
        + "\n  ".join([_failure(source.result), *reasons])
        + "\nWhat builds the programs, another plugin, or what the test expects decides: "
        "xla-harness repro writes a case as a script"
    )


def _failure(result: Result) -> str:
    return f"{result.layer}: {result.signature}" if result.signature else result.outcome
