"""How programs end with another stack: a process in its environment says so.

``AgainstBase`` keeps a program only if what fails here does not fail there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.errors import BadInputError
from harness.isolation import libc
from harness.reduce.compiled import Flags, Size
from harness.reduce.trial import SEEDS, Endings, ProgramEnding, TrialTarget, endings

_LARGER = 1.25  # times as many bytes of temporaries: layouts and alignment differ, too
_SLACK = 1024  # bytes that count as none


class Base:
    """A process in the environment of another stack, which answers how programs end there."""

    def __init__(self, python: str, variables: Mapping[str, str], target: TrialTarget) -> None:
        self._python, self._target = python, target
        self._process = subprocess.Popen(
            [python, "-m", "harness.reduce.base"],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=libc.DieWithParent(),  # noqa: PLW1509 - no thread has started
            start_new_session=True,  # Ctrl-C ends the search, which still asks for the end
        )
        self.versions: dict[str, str] = self._answer()

    def __call__(
        self, texts: Sequence[str], flags: Sequence[Flags] = (), seeds: Sequence[int] = SEEDS, /
    ) -> list[ProgramEnding]:
        """Return how programs end there."""
        assert self._process.stdin is not None
        question = [list(texts), list(map(dict, flags)), list(seeds), asdict(self._target)]
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return [
            ProgramEnding(kind, text, seed, size and Size(*size))
            for kind, text, seed, size in self._answer()
        ]

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return json.loads(line)
        raise BadInputError(
            f"--base: {self._python}: its process ended with {self._process.wait()}"
        )


@dataclass(frozen=True)
class AgainstBase:
    """Says how programs end that do not fail with ``base``; of others, that they are invalid."""

    here: Endings
    base: Endings

    def __call__(
        self, texts: Sequence[str], flags: Sequence[Flags] = (), seeds: Sequence[int] = SEEDS, /
    ) -> list[ProgramEnding]:
        """Return the endings. One that does not fail is ``larger`` if it needs more than there."""
        own = self.here(texts, flags, seeds)
        places = [n for n, e in enumerate(own) if e.fails or e.size]
        there = self.base([texts[n] for n in places], (), seeds) if places else []
        for n, ending in zip(places, there, strict=True):
            own[n] = _compared(own[n], ending)
        return own


def _compared(own: ProgramEnding, there: ProgramEnding) -> ProgramEnding:
    if there.fails:
        return ProgramEnding("invalid", f"on the base it is {there.kind}, too: {there.text}")
    if own.fails or own.size is None or there.size is None:
        return own
    if own.size.exchanged > there.size.exchanged:
        return ProgramEnding("larger", _more("exchanges", own.size.exchanged, there.size.exchanged))
    if own.size.memory > _LARGER * there.size.memory + _SLACK:
        return ProgramEnding("larger", _more("needs", own.size.memory, there.size.memory))
    return own


def _more(verb: str, own: int, there: int) -> str:
    return f"{verb} {own} bytes on each device, {there} on the base"


def _serve() -> None:
    """Answer a line of JSON for each line of input, until it ends."""
    from harness.model.versions import installed

    answers = sys.stdout
    versions = {name: installed(name) for name in ("jax", "jaxlib")}
    print(json.dumps(versions), file=answers, flush=True)
    for line in sys.stdin:
        texts, flags, seeds, target = json.loads(line)
        own = endings(texts, flags, seeds, target=TrialTarget(**target))
        rows = [[e.kind, e.text, e.seed, e.size and [*asdict(e.size).values()]] for e in own]
        print(json.dumps(rows), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
