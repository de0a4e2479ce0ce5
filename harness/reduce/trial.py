"""How a program ends: compiled and executed in a process of its own, by jaxlib's XLA for CPUs.

Its numbers are right if they are those of the reference interpreter, which shares no code with XLA.
What the interpreter does not know is computed on one device, if the program is for several.
"""

from __future__ import annotations

import os
import pickle
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from harness.diagnosis.signature import generalised
from harness.model.topology import Topology
from harness.reduce.compiled import Executed, Flags, OnlyCompiled, Size
from harness.reduce.stablehlo import devices, replicas_and_partitions, whole

SEEDS = range(1, 9)
_DIVIDED = ("spmd-cleanup", "after_spmd-partitioning")  # in the name of the first dump that is
_PADDED = ", of a padded argument"
_LIMIT = 20.0  # seconds of one program
_INTERPRETED = 1 << 16  # bytes of arguments: the interpreter takes microseconds for each element
_ALONE = 1 << 20  # of a program of one device, for which there is nobody else to say it
_ROUNDING = 1e-3  # of the largest number: what is wrong is wrong by more
_NAMES = re.compile(r"%[\w.-]+|\"[^\"]*\"|'[^']*'|[\w./-]+\.(?:cc|h):\d+")


@dataclass(frozen=True)
class ProgramEnding:
    """How a program ended.

    Attributes:
        kind: ``right``, ``wrong``, ``refused`` by the compiler, ``failed`` while it ran, ``crash``,
            ``hang``, or ``invalid``, which is no program; ``ran``, where nobody knows the right
            numbers; ``has``, if the compiled program has what is looked for; ``larger`` than with
            another stack.
        text: the error's first line, the signal, how the numbers differ, or what it has.
        seed: of the arguments with which they do.
        size: what it needs, of a program that does not fail, if that is to be measured.
    """

    kind: str
    text: str = ""
    seed: int = 0
    size: Size | None = field(default=None, compare=False)

    @property
    def fails(self) -> bool:
        """Return whether something is wrong with it, as far as is known."""
        return self.kind not in ("right", "ran")

    @property
    def signature(self) -> tuple[str, str]:
        """Return what is equal for equal failures: an error without its names and numbers.

        JAX divides arguments evenly, so it could not submit a program that needs padding.
        """
        if self.kind == "has":
            return self.kind, ""
        if self.kind == "larger":
            return self.kind, self.text.partition(" ")[0]
        if self.kind == "wrong":
            return self.kind, _PADDED if self.text.endswith(_PADDED) else ""
        if self.kind not in ("refused", "failed"):
            return self.kind, self.text
        return self.kind, generalised(_NAMES.sub("", self.text))[:80]


@dataclass(frozen=True)
class TrialTarget:
    """What a program is compiled for, and what of the compiled one counts as its failure.

    Attributes:
        topology: for which a vendor's compiler compiles it; "" for CPUs, which execute it.
        has: an expression; a compiled program that it matches fails, and none is executed.
        is_measured: whether endings say what the program needs.
    """

    topology: str = ""
    has: str = ""
    is_measured: bool = False


class Endings(Protocol):
    """Return how programs end; see ``endings``."""

    def __call__(
        self, texts: Sequence[str], flags: Sequence[Flags] = (), seeds: Sequence[int] = SEEDS, /
    ) -> list[ProgramEnding]: ...


def endings(
    texts: Sequence[str],
    flags: Sequence[Flags] = (),
    seeds: Sequence[int] = SEEDS,
    limit: float = _LIMIT,
    target: TrialTarget = TrialTarget(),
) -> list[ProgramEnding]:
    """Return how programs end that run at the same time, each in a fork of this process.

    ``flags`` are XLA's for each program, without ``--``. This process must have started no client.
    """
    load(target)
    each = flags or [{}] * len(texts)
    computed = [partial(_ended, *pair, seeds, target) for pair in zip(texts, each, strict=True)]
    children = list(map(_Child, computed))
    until = time.monotonic() + limit
    return [
        ProgramEnding(kind, *detail) if isinstance(detail, tuple) else ProgramEnding(kind, detail)
        for kind, detail in (child.answer(until) for child in children)
    ]


def in_a_fork(compute: Callable[[], tuple[str, Any]]) -> tuple[str, Any]:
    """Return what a function returns in a fork, or how that ended: a kind and a detail."""
    load(TrialTarget())
    return _Child(compute).answer(time.monotonic() + _LIMIT)


def values_of(text: str) -> list[Any]:
    """Return the results of a program without arguments as lists; none if it does not run."""
    kind, values = in_a_fork(partial(_values, text))
    return values if kind == "values" else []


def _values(text: str) -> tuple[str, Any]:
    return "values", [value.tolist() for value in Executed(text, 1, {}).results([])]


class _Child:
    """A fork of this process that computes an answer: a kind, and what belongs to it."""

    def __init__(self, compute: Callable[[], tuple[str, Any]]) -> None:
        self._read, write = os.pipe()
        sys.stdout.flush()
        self._pid = os.fork()
        if not self._pid:
            try:
                os.close(self._read)
                _say_nothing()
                os.write(write, _answered(compute))
            finally:
                os._exit(0)
        os.close(write)

    def answer(self, until: float) -> tuple[str, Any]:
        """Wait for the answer, or say how the process ended without one; end it at a time."""
        answer = b""
        while select.select([self._read], [], [], max(0.0, until - time.monotonic()))[0]:
            part = os.read(self._read, 4096)
            if not part:
                break
            answer += part
        else:
            os.kill(self._pid, signal.SIGKILL)
            answer = b""  # a part of one is none
        _, status = os.waitpid(self._pid, 0)
        os.close(self._read)
        if answer:
            kind, detail = pickle.loads(answer)  # noqa: S301 - of this module
            return kind, detail
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if number == signal.SIGKILL:
            return "hang", ""
        return "crash", signal.Signals(number).name if number else "exit"


def _answered(compute: Callable[[], tuple[str, Any]]) -> bytes:
    try:
        return pickle.dumps(compute())
    except Exception as error:
        return pickle.dumps(("failed", f"{type(error).__name__}: {_first_line(error)}"))


def load(target: TrialTarget) -> None:
    """Import what each fork needs, and start nothing."""
    import jax
    from jax._src.interpreters import mlir  # noqa: F401
    from jaxlib import xla_client  # noqa: F401

    jax.config.update("jax_platforms", "cpu")
    if target.topology:
        from harness.lanes.aot import compiler, vendor  # noqa: F401 - compiler for the forks

        chosen = vendor.vendor_for(Topology.parse(target.topology))
        os.environ.update(chosen.ENVIRONMENT)
        chosen.preload()


def _say_nothing() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)


def _ended(text: str, flags: Flags, seeds: Sequence[int], target: TrialTarget) -> tuple[str, Any]:
    program: Executed | OnlyCompiled
    try:
        if target.topology:
            program = OnlyCompiled(text, Topology.parse(target.topology), flags)
        else:
            program = Executed(text, devices(text), flags)
    except Exception as error:
        kind = "invalid" if "parse" in str(error).lower()[:60] else "refused"
        return kind, _first_line(error)
    if target.has and (match := re.search(target.has, program.text)):
        return "has", _first_line(match[0])
    size = program.size if target.is_measured else None
    if target.has or isinstance(program, OnlyCompiled):
        return "ran", ("", 0, size)
    is_judged = False
    try:
        for seed in seeds:
            given = program.arguments(seed)
            own = program.results(given)
            if (right := _right(text, given)) is None:
                continue
            is_judged = True
            for place, (a, b) in enumerate(zip(right, own, strict=True)):
                if difference := _difference(a, b):
                    padded = "" if program.is_even(given) else _PADDED
                    return "wrong", (f"result {place}: {difference}{padded}", seed)
    except Exception as error:
        return "failed", _first_line(error)
    return "right" if is_judged else "ran", ("", 0, size)


def _right(text: str, given: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """Return the right results: of the interpreter, else of XLA on one device, else None."""
    size, number = sum(value.nbytes for value in given), devices(text)
    if size <= (_INTERPRETED if number > 1 else _ALONE):
        until = time.monotonic() + _LIMIT / 4
        kind, values = _Child(partial(_interpreted, text, given)).answer(until)
        if kind == "values":
            return list(values)
    replicas, _ = replicas_and_partitions(text)
    # Replicas have values of their own, and a program of one device would be its own judge.
    alone = whole(text) if replicas == 1 < number else ""
    return Executed(alone, 1, {}).results(given) if alone else None


def _interpreted(text: str, given: Sequence[np.ndarray]) -> tuple[str, Any]:
    from harness.reduce import oracle

    replicas, partitions = replicas_and_partitions(text)
    if replicas == 1:
        return "values", oracle.results(text, given)
    if partitions > 1:
        return "unknown", ""
    columns = oracle.parts(text, [list(value) for value in given], replicas)
    return "values", [np.stack(column) for column in columns]


def placement(text: str, seed: int) -> tuple[str, Any]:
    """Return the arguments of a seed, what is expected of them, and who has which parts."""
    program = Executed(text, devices(text), {})
    given = program.arguments(seed)
    return "values", {
        "arguments": given,
        "parts": program.argument_tiles(given),
        "result_parts": program.result_tiles(),
        "expected": _right(text, given),
    }


def wrong_dump(text: str, seed: int, paths: Sequence[str]) -> tuple[str, str]:
    """Return the first dump of XLA's passes that says something wrong, "" for none.

    The interpreter computes each, so neither the passes behind it nor the machine code matter. Once
    a program is divided, that is each device's part. What it can't compute is left out.
    """
    program = Executed(text, number := devices(text), {})
    given = program.arguments(seed)
    if (right := _right(text, given)) is None:
        return "dump", ""
    parts, is_divided = program.divided(given), False
    for path in paths:
        is_divided = is_divided or (number > 1 and any(each in path for each in _DIVIDED))
        until = time.monotonic() + _LIMIT / 4
        if is_divided:
            compute = partial(_parts_of, path, parts, number)
        else:
            compute = partial(_results_of, path, given)
        kind, own = _Child(compute).answer(until)
        if kind != "values":
            continue  # what can't be computed says nothing
        own = program.put_together(own) if is_divided else own
        if any(_difference(a, b) for a, b in zip(right, own, strict=True)):
            return "dump", path
    return "dump", ""


def _parts_of(path: str, given: Sequence[list[np.ndarray]], count: int) -> tuple[str, Any]:
    from harness.reduce import oracle, program_files

    return "values", oracle.parts(program_files.read(Path(path)), given, count)


def _results_of(path: str, given: Sequence[np.ndarray]) -> tuple[str, Any]:
    from harness.reduce import oracle, program_files

    return "values", oracle.results(program_files.read(Path(path)), given)


def _difference(right: np.ndarray, own: np.ndarray) -> str:
    """Describe the first value that differs by more than rounding, "" for none."""
    if right.dtype.kind in "biu":
        wrong = right != own
    else:
        wide = np.complex128 if right.dtype.kind == "c" else np.float64
        x, y = right.astype(wide), own.astype(wide)
        largest = np.abs(x[np.isfinite(x)]).max(initial=0.0)
        wrong = ~np.isclose(y, x, rtol=_ROUNDING, atol=_ROUNDING * largest, equal_nan=True)
    if not wrong.any():
        return ""
    place = tuple(map(int, np.argwhere(wrong)[0]))
    return f"{list(place)} is {own[place]}, expected {right[place]}"


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]
