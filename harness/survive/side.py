"""One side of the comparison: pytest in an environment, and what its processes have recorded."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.diagnosis.cause import signature_of
from harness.diagnosis.frames import frames
from harness.diagnosis.layers import classify
from harness.isolation import libc
from harness.junit.case import error_lines
from harness.junit.result import MOST_MESSAGE, Result
from harness.model.outcome import Kind
from harness.stacks.environments import Say
from harness.survive import recording_plugin as recording

_PLUGIN = "xla_harness_recording"
# A module that can't be imported must not stop the others, nor must the first failure. The short
# style names functions, by which failures are told apart.
_OURS = ("-p", _PLUGIN, "--continue-on-collection-errors")
_LAST = ("--maxfail=0", "--tb=short")
_HEARTBEAT = 60.0  # seconds
_DUMP = 5.0  # seconds, in which faulthandler writes the stacks
_MOST_ENDS = 50  # of processes, each of which a test has ended
_LAST_LINES = 8


@dataclass
class SideRun:
    """What the tests did there."""

    results: dict[str, Result] = field(default_factory=dict)  # by id
    uncollected: dict[str, Result] = field(default_factory=dict)  # modules, by their file
    processes: Sequence[Mapping[str, Any]] = ()  # what each had loaded and computed on
    seconds: float = 0.0
    cut: str = ""  # why it ended before its last test
    code: int | None = None  # pytest's
    output: str = ""
    endings: Sequence[Mapping[str, Any]] = ()  # what the last process of pytest recorded
    reused: str = ""  # when it was measured, of a stored result

    @classmethod
    def of(cls, recorded: Mapping[str, Any], reused: str) -> SideRun:
        """Return the run that ``recorded`` had."""
        run = cls(**recorded, reused=reused)
        _read(run, is_late=False)
        return run

    @property
    def recorded(self) -> dict[str, Any]:
        """Return what is recorded, of a run that one process of pytest brought to its end."""
        names = ("processes", "seconds", "output", "endings")
        return {name: getattr(self, name) for name in names}

    @property
    def platforms(self) -> list[str]:
        """Return the platforms on which jax computed."""
        return sorted({name for each in self.processes for name in each["platforms"]})

    @property
    def passed(self) -> int:
        """Number of tests that work."""
        return sum(result.works for result in self.results.values())

    def agrees_with(self, rerun: SideRun) -> bool:
        """Return whether the tests that ran again work and fail as before."""
        both = self.results.keys() & rerun.results
        return all(self.results[each].works == rerun.results[each].works for each in both)

    @property
    def last_lines(self) -> str:
        """Return the end of pytest's output, for a message."""
        lines = [line for line in self.output.splitlines() if line.strip()]
        return "\n".join(f"  {line}" for line in lines[-_LAST_LINES:])


@dataclass(frozen=True)
class SideProcess:
    """Runs the tests of one side, again without those that ended if one of them ends pytest."""

    name: str  # base or candidate
    python: Path
    folder: Path  # for the log and the records
    arguments: Sequence[str]  # for pytest
    say: Say

    def run(self, only: Collection[str] | None = None, limit: float = math.inf) -> SideRun:
        """Run pytest with its arguments, or of its tests ``only`` some, at most ``limit`` s."""
        run, start = SideRun(), time.monotonic()
        folder = self._emptied("run" if only is None else "rerun")
        shutil.copy(recording.__file__, folder / f"{_PLUGIN}.py")
        for _ in range(_MOST_ENDS):
            settings = {"only": only and sorted(only), "done": sorted(run.results)}
            (folder / recording.SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
            (folder / recording.ENDINGS).write_text("", encoding="utf-8")
            is_late = self._wait(folder, start + limit)
            run.output = (folder / "log").read_text(encoding="utf-8", errors="replace")
            before = len(run.results)
            run.endings = list(_lines(folder / recording.ENDINGS))
            _read(run, is_late=is_late)
            if is_late:
                run.cut = f"stopped after {limit:.0f} s, ten times what the base took"
            if is_late or run.code is not None or len(run.results) == before:
                break
        processes = {entry["pid"]: entry for entry in _lines(folder / recording.LOADED)}
        run.processes = list(processes.values())
        run.seconds = time.monotonic() - start
        return run

    def show(self, run: SideRun) -> None:
        """Leave the output of a stored run where that of a new one would be."""
        (self._emptied("run") / "log").write_text(run.output, encoding="utf-8")

    def _emptied(self, name: str) -> Path:
        folder = self.folder.absolute() / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def _wait(self, folder: Path, until: float) -> bool:
        """Run pytest once; return whether it had to be stopped."""
        words = [str(self.python), "-m", "pytest", *_OURS, *self.arguments, *_LAST]
        start = time.monotonic()
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._variables(folder),
                start_new_session=True,
                preexec_fn=libc.DieWithParent(),  # noqa: PLW1509 - two system calls
            )
            try:
                while (left := until - time.monotonic()) > 0:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(min(left, _HEARTBEAT))
                        return False
                    tests = {each.get("id") for each in _lines(folder / recording.ENDINGS)}
                    seconds = time.monotonic() - start
                    self.say(f"{self.name}: {len(tests - {None})} tests after {seconds:.0f} s")
                return True
            finally:
                if process.poll() is None:
                    _kill(process, signal.SIGABRT)  # faulthandler writes where it is
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_DUMP)
                _kill(process, signal.SIGKILL)  # what the tests left, too
                process.wait()

    def _variables(self, folder: Path) -> Mapping[str, str]:
        def before(name: str, *first: Path) -> str:
            return os.pathsep.join([*map(str, first), *filter(None, [os.environ.get(name)])])

        return os.environ | {
            recording.FOLDER: str(folder),
            "VIRTUAL_ENV": str(self.python.parents[1]),
            "PATH": before("PATH", self.python.parent),
            "PYTHONPATH": before("PYTHONPATH", folder),
        }


def _kill(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a record, without a last one that was not written to its end."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def _read(run: SideRun, *, is_late: bool) -> None:
    """Add what the last process of pytest recorded; what it had begun when it died is broken."""
    phases: dict[str, list[Mapping[str, Any]]] = {}
    begun: dict[str, None] = {}
    run.code = None
    for entry in run.endings:
        if "start" in entry:
            begun[entry["start"]] = None
        elif "exit" in entry:
            run.code = entry["exit"]
        elif "file" in entry:
            kind = Kind.FAILED if entry["outcome"] == "failed" else Kind.SKIPPED
            run.uncollected[entry["file"]] = result_of(entry["file"], kind, 0, entry)
        elif entry["outcome"] == "rerun":  # of pytest-rerunfailures: a later attempt counts
            phases.pop(entry["id"], None)
        else:
            phases.setdefault(entry["id"], []).append(entry)
            if entry["when"] not in ("setup", "call"):
                begun.pop(entry["id"], None)
    run.results |= {each: _merged(each, phases[each]) for each in phases if each not in begun}
    if run.code is None:
        kind, reason = (Kind.HUNG, "did not end") if is_late else (Kind.CRASHED, "ended pytest")
        dump = {"message": f"the test {reason}", "text": run.output[-MOST_MESSAGE * 5 :]}
        run.results |= {each: result_of(each, kind, 0, dump) for each in begun}


def _merged(each: str, phases: Sequence[Mapping[str, Any]]) -> Result:
    """Return the result of a test from its phases and subtests: the worst counts."""
    seconds = sum(phase["seconds"] for phase in phases)
    for phase in phases:
        if phase["outcome"] == "failed":
            message = phase["message"] or phase["text"]
            kind = Kind.CRASHED if message.startswith("worker '") else Kind.FAILED
            kind = Kind.UNEXPECTED_PASS if message.startswith("[XPASS(strict)]") else kind
            return result_of(each, kind, seconds, phase)
    for phase in phases:
        if phase["xfail"]:
            is_pass = phase["outcome"] == "passed"
            kind = Kind.UNEXPECTED_PASS if is_pass else Kind.EXPECTED_FAILURE
            return result_of(each, kind, seconds, phase)
    skips = [phase for phase in phases if phase["outcome"] == "skipped"]
    # A subtest that is skipped leaves its test one that ran.
    if skips and not any(p["outcome"] == "passed" and p["when"] == "call" for p in phases):
        return result_of(each, Kind.SKIPPED, seconds, skips[0])
    return result_of(each, Kind.PASSED, seconds, {})


def result_of(each: str, kind: Kind, seconds: float, entry: Mapping[str, Any]) -> Result:
    """Return a result with the layer and the signature of its failure."""
    text = entry.get("text", "")
    message = (entry.get("message") or "\n".join(error_lines(text)) or text)[:MOST_MESSAGE]
    is_broken = kind not in (Kind.PASSED, Kind.SKIPPED)
    return Result(
        each,
        outcome=kind,
        duration=seconds,
        message=message,
        layer=classify(kind, message, text),
        signature=signature_of(each, message) if is_broken else "",
        properties={"places": "\n".join(frame.place for frame in frames(text))},
    )
