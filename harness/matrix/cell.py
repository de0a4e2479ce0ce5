"""A cell of the matrix: one stack, one lane, one pytest run in the stack's environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from harness import frameworks
from harness.errors import BadInputError
from harness.isolation import libc
from harness.junit import completed, report
from harness.junit.properties import STACK_VARIABLE
from harness.junit.report import Report
from harness.lanes import LANES, lane_named
from harness.matrix.home import (
    RESULTS,
    deciding_variables,
    home_of,
    is_path,
    paths_in,
    python_path,
    seen_from,
)
from harness.matrix.sizes import for_lane
from harness.matrix.source_digests import data_digest, source_digests
from harness.model.case_id import file_of
from harness.session.progress_file import PROGRESS_FILE, read_progress
from harness.session.selection import Shard
from harness.stacks.environments import Environment, plugin_path
from harness.stacks.stack import Stack

Question = Mapping[str, object]
# A run that has these codes has an answer: passed, failed, nothing to run.
_ANSWERS = (0, 1, 5)
_TAIL = 12
_CHECKED = 10  # one in so many reused results is measured again


@dataclass(frozen=True)
class Cell:
    """Task of one pytest run: only ``cases``, or all except ``unless_cases``; both are ids."""

    stack: Stack
    lane: str
    folder: Path  # where its report and log go, a file of the lane's name each
    arguments: tuple[str, ...] = ("suites",)
    cases: tuple[str, ...] | None = None
    unless_cases: tuple[str, ...] = ()
    part: str = ""  # of its lane's cases, for the names of its files
    shard: Shard | None = None
    workers: int = 1
    label: str = ""  # which of several runs of one stack and lane it is
    first: tuple[str, ...] = ()  # cases that run before others, after those that were bad
    elsewhere: tuple[str, ...] = ()  # lanes to which it leaves the cases that they can run
    only: tuple[str, ...] = ()  # test files that run; its former report has those of all others

    def __str__(self) -> str:
        return " ".join(filter(None, (self.stack.name, self._name, self.label)))

    @property
    def report(self) -> Path:
        """JUnit report, which exists only once it is complete."""
        return self.folder / f"{self._name}.xml"

    @property
    def log(self) -> Path:
        """Log of pytest's output."""
        return self.folder / f"{self._name}.log"

    @property
    def cause(self) -> Path:
        """File that says why there is no report; it exists only then."""
        return self.folder / f"{self._name}.died"

    def asks(self, environment: Environment) -> Question:
        """Return the question that its report answers: these packages, sources and arguments."""
        digests = source_digests(self.arguments, self._files)
        return {
            "environment": environment.folder.name,
            "arguments": list(self.arguments),
            "python_path": python_path(os.environ),
            "variables": deciding_variables(frameworks.without_lanes(os.environ)),
            "cases": None if self.cases is None else sorted(self.cases),
            "unless_cases": sorted(self.unless_cases),
            "shard": str(self.shard or ""),
            "elsewhere": list(self.elsewhere),
            "sources": digests.shared,
            "tests": digests.by_test_file,
            "data": data_digest(self.arguments, self.folder),
        }

    def answers(self, question: Question) -> bool:
        """Return whether there is a report that answers exactly this question."""
        return self._recorded() == question

    def changed(self, question: Question) -> tuple[str, ...]:
        """Return the test files to run again; none if all have to, or the report is no help.

        They are those that were edited, and those with bad cases: a failure may be gone.
        """
        recorded, now = self._recorded(), cast("Mapping[str, str]", question["tests"])
        if self.label or self.shard or any("::" in text for text in self.arguments):
            return ()
        if {**recorded, "tests": now} != question:
            return ()
        try:
            before = self.read()
        except BadInputError:
            return ()
        reported = {file_of(result.id) for result in before.results.values()}
        if before.faults or not reported <= recorded["tests"].keys():
            return ()
        again = {file_of(case) for case in self.bad_cases()} | before.uncollected.keys()
        again |= {file for file in now if recorded["tests"].get(file) != now[file]}
        return tuple(sorted(again & now.keys())) if len(again) < len(now) else ()

    def check(self) -> None:
        """Raise BadInputError if none of its arguments is a file or folder of tests."""
        if not paths_in(self.arguments):
            raise BadInputError(
                f"{' '.join(self.arguments)}: expected a folder or file of tests: name your own "
                "after --, as in -- tests/"
            )

    def start(
        self, environment: Environment, cache_folder: Path, *, fresh: bool
    ) -> subprocess.Popen[bytes]:
        """Start its pytest, which dies with this thread; with ``fresh`` it reuses no result."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = self._command(environment, cache_folder, fresh=fresh)
        if self.only:
            self.report.replace(self._former)
        for path in (self.report, self._question, self._new, self.cause, self._progress):
            path.unlink(missing_ok=True)
        with self.log.open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._home,
                env={
                    **variables(self.stack.name, cache_folder),
                    "COLUMNS": "80",
                    PROGRESS_FILE: str(self._progress.absolute()),
                },
                start_new_session=True,
                preexec_fn=libc.DieWithParent(),  # noqa: PLW1509 - two system calls
            )

    def finish(self, question: Question, code: int) -> Report:
        """Put the report of a pytest that ended with ``code`` in place, and read it.

        ``question`` is what was asked before that pytest started: sources may have changed since.

        Raises BadInputError, with the end of the log, when pytest had no answer, and with the
        reason for a report that can't be read.
        """
        if code not in _ANSWERS or not self._new.exists():
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise BadInputError(f"{self}: no answer ({how}), {self.log} ends:\n{self._tail()}")
        finished = report.read(self._new)
        if wrong := self.stack.contradiction(finished.versions):
            raise BadInputError(
                f"{self}: not what the stack pins was imported: {wrong}: does PYTHONPATH name it?"
            )
        if self.only:
            others = cast("Mapping[str, str]", question["tests"]).keys() - set(self.only)
            completed.complete(self._new, self._former, others)
            self._former.unlink()
            finished = replace(report.read(self._new), path=self.report)
        self._new.replace(self.report)
        part = self._question.with_suffix(".part")
        part.write_text(json.dumps(question, indent=1), encoding="utf-8")
        part.replace(self._question)
        return finished

    def progress(self) -> tuple[int, int] | None:
        """Return how many of its tests are done, and of how many; None before the first."""
        return read_progress(self._progress)

    def read(self) -> Report:
        """Read the cell's report."""
        return report.read(self.report)

    def bad_cases(self) -> list[str]:
        """Return the cases that are bad in the cell's report, if there is one."""
        try:
            results = self.read().results.values()
        except BadInputError:
            return []
        return [result.id for result in results if result.outcome.is_bad]

    @property
    def _home(self) -> Path:
        return home_of(self.arguments, Path.cwd())

    @property
    def _name(self) -> str:
        shard = f"-{self.shard.number}of{self.shard.count}" if self.shard else ""
        part = f"-{self.part}" if self.part else ""
        return f"{self.lane}{part}{shard}"

    @property
    def _new(self) -> Path:
        return self.folder / f".{self._name}.xml"

    @property
    def _former(self) -> Path:
        return self.folder / f".{self._name}.former.xml"

    @property
    def _progress(self) -> Path:
        return self.folder / f".{self._name}.progress"

    @property
    def _question(self) -> Path:
        return self.folder / f"{self._name}.json"

    def _command(self, environment: Environment, cache_folder: Path, *, fresh: bool) -> list[str]:
        command = [str(environment.python), "-m", "pytest", "--lane", self.lane]
        command += ["--color=no", "-p", "no:cacheprovider", f"--junitxml={self._new.absolute()}"]
        if self.cases is not None:
            # In one word: pytest takes a path alone for an argument when it looks for its rootdir.
            cases = [case for case in self.cases if not self.only or file_of(case) in self.only]
            command.append(f"--cases={self._written(cases).absolute()}")
        if self.unless_cases:
            command.append(f"--unless-cases={self._written(self.unless_cases).absolute()}")
        if self.elsewhere:
            command += ["--unless-lane", ",".join(self.elsewhere)]
        if self.shard is not None:
            command += ["--shard", str(self.shard)]
        if not self.label:  # what runs again is to be measured again
            command += [f"--reuse={cache_folder / RESULTS}", f"--reuse-seed={time.time_ns()}"]
            command += [f"--reuse-check={1 if fresh else _CHECKED}"]
        if first := [*dict.fromkeys((*self.bad_cases(), *self.first))]:
            command.append(f"--first={self._written(first, 'first').absolute()}")
        # Other cells have the other cores, whatever the project's ini says. It is set for several
        # workers, too: what one run measured is reused in another only if such options agree.
        command += ["-o", "xla_workers=0", *(["-n", str(self.workers)] if self.workers > 1 else [])]
        return [*command, *self._places()]

    def _recorded(self) -> dict[str, Any]:
        """Return the question of its report; empty if there is none."""
        try:
            recorded: dict[str, Any] = json.loads(self._question.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return recorded if self.report.exists() else {}

    def _written(self, cases: Sequence[str], suffix: str = "cases") -> Path:
        names = self.folder / f"{self._name}.{suffix}"
        names.write_text("".join(f"{case}\n" for case in cases), encoding="utf-8")
        return names

    def _places(self) -> Sequence[str]:
        """Return the arguments; for chosen cases only their files, which is quicker to collect."""
        home = self._home
        given = for_lane(seen_from(home, self.arguments, Path.cwd()), lane_named(self.lane))
        if not (files := self.only or self._files):
            return given
        return [*files, *(text for text in given if not is_path(text, home))]

    @property
    def _files(self) -> tuple[str, ...]:
        """The files of chosen cases, seen from home; none if other files may be meant."""
        files = tuple(sorted({file_of(case) for case in self.cases or ()}))
        # ids are relative to pytest's rootdir
        return files if all(is_path(file, self._home) for file in files) else ()

    def _tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-_TAIL:])


def collected(
    environment: Environment, cache_folder: Path, file: str, lane: str | None
) -> list[str]:
    """Return the ids of a file's cases, as that environment collects them on a lane.

    Without a lane they are those of all lanes, which only tests that name theirs can have. Raises
    BadInputError with pytest's message if it can't collect them.
    """
    command = [str(environment.python), "-m", "pytest", "-p", "no:cacheprovider"]
    lanes = ",".join(name for name, lane in LANES.items() if not lane.runs_cases_of)
    command += ["--collect-only", "-q", "--lane", lane or lanes, file]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**variables("", cache_folder), "COLUMNS": "80"},
    )
    if done.returncode:
        raise BadInputError(f"{file} can't be collected:\n{done.stdout}{done.stderr}")
    return [line for line in done.stdout.splitlines() if "::" in line]


def variables(stack: str, cache_folder: Path) -> Mapping[str, str]:
    """Return the environment variables of a process that runs the harness with a stack's Python.

    Modules of a project that the caller's PYTHONPATH names can be imported there, too.
    """
    own = {
        "PYTHONPATH": os.pathsep.join([str(plugin_path(cache_folder)), *python_path(os.environ)]),
        STACK_VARIABLE: stack,
    }
    dropped = ("PYTEST_ADDOPTS", "VIRTUAL_ENV", "PYTHONHOME")
    inherited = frameworks.without_lanes(os.environ)
    return {k: v for k, v in inherited.items() if k not in dropped} | own
