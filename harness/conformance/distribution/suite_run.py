"""Cases of this project's suites that divide a program over the plugin's devices.

They are run by pytest sessions on lane ``pjrt``, one for each area, and each case of the report is
an answer. The suites are in a clone only.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import harness
from harness.conformance.answer import STACK_MARK, CheckAnswer
from harness.conformance.asker import Asker, Servers, python_of
from harness.conformance.choose import hand_on
from harness.conformance.plugin_check import Conformity, has, named
from harness.conformance.plugin_file import JAXLIBS_CLIENT
from harness.errors import BadInputError, nearest
from harness.isolation import libc
from harness.junit import report
from harness.junit.result import Result
from harness.lanes import lane_named
from harness.matrix.cell import variables
from harness.model.outcome import DECLARABLE, Kind
from harness.session.progress_file import PROGRESS_FILE, read_progress
from harness.stacks.environments import cache_folder

NUMBER, FOLDER = 3, "distribution"
HOME = Path(harness.__file__).resolve().parent.parent  # of a clone
_STARTED = "jax_programs/client_in_jax/started"
_SWITCH = "JAX_USE_SHARDY_PARTITIONER"
_ASK = """
import jax
from importlib.util import find_spec
switch = hasattr(jax.config, "jax_use_shardy_partitioner")
shardy = find_spec("jaxlib.mlir.dialects.sdy") is not None
print(*(["gspmd", "shardy"] if switch and shardy else ["shardy"] if shardy else ["gspmd"]))
"""
_LEAST_DEADLINE = 60.0  # seconds: pytest's own for a case
_ANSWERS = (0, 1, 5)  # exit codes of a pytest that has an answer: passed, failed, nothing to run
_TICK = 0.2  # seconds
_TAIL = 12  # lines
_COMMON = re.compile(r"^test_(jax_)?")

Note = Callable[[int, int], None]


@dataclass(frozen=True)
class SuiteArea:
    """Cases of the suites that one session runs.

    ``unless`` are words of pytest's ``-k`` that choose those which say nothing of a plugin, or
    which another area runs.
    """

    name: str
    files: tuple[str, ...]
    unless: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def words(self) -> list[str]:
        """The arguments of pytest that choose them."""
        return ["-k", " and ".join(f"not ({each})" for each in self.unless), *self.files]

    @property
    def prefix(self) -> str:
        """What the ids of its answers begin with."""
        return f"{FOLDER}/{self.name}/"

    def id(self, case: str) -> str:
        """Return an answer's id: the area, the case's file without what all have, and its test."""
        file, _, test = case.partition("::")
        return f"{self.prefix}{_COMMON.sub('', Path(file).stem)}/{test}"


_SPECS = tuple(
    f"suites/spmd_specs/test_{name}.py"
    for name in (
        *("jax_specs", "jax_explicit", "jax_history", "jax_shard_map_history"),
        "jaxlib_history",
    )
)
AREAS = (
    SuiteArea(
        "collectives",
        ("suites/collectives/test_jax_collectives.py",),
        (
            "test_started_and_done",  # by a function of JAX that is nobody's to call
            "test_index_groups and (ppermute or pshuffle)",  # which have pairs
            "test_gradients and (pmax or pmin)",  # which have none
        ),
    ),
    SuiteArea("gspmd", _SPECS, ("shardy",), {_SWITCH: "false"}),
    SuiteArea("shardy", _SPECS, ("gspmd",), {_SWITCH: "true"}),
)


def may_match(pattern: str, begin: str = f"{FOLDER}/") -> bool:
    """Return whether an id that begins so can have the pattern."""
    fixed = re.split(r"[*?[]", pattern, maxsplit=1)[0]
    return begin.startswith(fixed) or fixed.startswith(begin)


@dataclass(frozen=True)
class SuiteRun:
    """The level under one JAX: that of ``stack``, or of this environment.

    ``request`` are the options that choose the plugin, of which jaxlib's own client needs none;
    ``about`` is what it says of itself.
    """

    asker: Asker
    about: Mapping[str, Any]
    request: tuple[str, ...]
    pattern: str
    stack: str
    workers: int

    @property
    def lane(self) -> str:
        """Where the cases run: jaxlib's own client, which needs no request, has a lane."""
        return "pjrt" if self.request else "cpu"

    def answers(self, note: Note) -> Iterator[CheckAnswer]:
        """Yield the answers, area by area; ``note`` gets how many of how many cases are done.

        Raises BadInputError when no case has an id of the pattern.
        """
        if why := self.why_not():
            yield self._instead(f"{FOLDER}/session/started", why)
            return
        with tempfile.TemporaryDirectory(prefix="xla-harness-") as folder:
            for area, words in self.sessions():
                if words:
                    yield from self._run(area, words, Path(folder), note)
                else:
                    yield self._instead(f"{area.prefix}started", "this JAX does not have it")

    def sessions(self) -> Iterator[tuple[SuiteArea, Sequence[str]]]:
        """Yield the chosen areas, each with pytest's arguments; none if this JAX does not have it.

        Raises BadInputError when no case has an id of the pattern.
        """
        partitioners = self._partitioners()
        for area, cases in self._chosen().items():
            is_missing = area.variables and area.name not in partitioners
            yield area, [] if is_missing else self._words(cases or area.words)

    def why_not(self) -> str:
        """Return why no case can run here, or ""."""
        if not (HOME / "suites" / "spmd_specs").is_dir():
            return "the suites are in a clone of xla-harness only"
        if self.request:
            is_registered = "=" not in self.request[1] and not self.stack
            hand_on(self.asker.plugin, self.about, self.request, is_registered=is_registered)
        if missing := lane_named(self.lane).missing():
            return missing
        with Servers(1, self.stack) as servers:
            (started,) = self.asker.all([named(_STARTED)], servers)
        return "" if started.result is Conformity.CONFORMS else started.detail

    def _partitioners(self) -> list[str]:
        python, environment = self._python
        return subprocess.check_output([python, "-c", _ASK], env=environment, text=True).split()

    @cached_property
    def _python(self) -> tuple[str, Mapping[str, str]]:
        return python_of(self.stack)

    def _chosen(self) -> dict[SuiteArea, list[str]]:
        """Return the cases that the pattern has, by area; none stands for all of the area."""
        whole = "*", f"{FOLDER}*", f"{FOLDER}/*"
        areas = [area for area in AREAS if may_match(self.pattern, area.prefix)]
        chosen, known = dict[SuiteArea, list[str]](), list[str]()
        for area in areas:
            if self.pattern in (*whole, f"{area.prefix}*"):
                chosen[area] = []
                continue
            by_id = {area.id(case): case for case in self._collected(area)}
            known += by_id
            if cases := [case for id_, case in by_id.items() if has(self.pattern, id_)]:
                chosen[area] = cases
        if not chosen:
            names = known or [area.prefix for area in AREAS]
            raise BadInputError(f"--check {self.pattern!r}: {nearest(self.pattern, names)}")
        return chosen

    def _collected(self, area: SuiteArea) -> list[str]:
        done = subprocess.run(
            [*self._pytest(), *self._words(area.words), "--collect-only", "-q"],
            env=self._environment(area),
            cwd=HOME,
            capture_output=True,
            text=True,
            check=False,
        )
        return [line for line in done.stdout.splitlines() if "::" in line]

    def _run(
        self, area: SuiteArea, words: Sequence[str], folder: Path, note: Note
    ) -> Iterator[CheckAnswer]:
        """Run an area's session with those arguments, and yield the answers of its cases."""
        written, log, progress = (folder / f"{area.name}.{end}" for end in ("xml", "log", "done"))
        command = [*self._pytest(), *words, f"--junitxml={written}", "-o", "xla_workers=0"]
        command += ["-n", str(self.workers)] if self.workers > 1 else []
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env={**self._environment(area), PROGRESS_FILE: str(progress)},
                cwd=HOME,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=libc.DieWithParent(),  # noqa: PLW1509 - two system calls
            )
        while process.poll() is None:
            note(*(read_progress(progress) or (0, 0)))
            time.sleep(_TICK)
        note(0, 0)  # from here on the answers count
        if process.returncode not in _ANSWERS or not written.exists():
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL:])
            why = f"its pytest ended with {process.returncode}"
            yield replace(self._instead(f"{area.prefix}started", why), output=tail)
            return
        for result in report.read(written).results.values():
            yield self._answer(area, result)

    def _pytest(self) -> list[str]:
        return [self._python[0], "-m", "pytest"]

    def _words(self, chosen: Sequence[str]) -> list[str]:
        deadline = str(max(self.asker.deadline, _LEAST_DEADLINE))
        own = ["--color=no", "-p", "no:cacheprovider", "--deadline", deadline]
        return [*own, "--lane", self.lane, *self.request, *chosen]

    def _environment(self, area: SuiteArea) -> dict[str, str]:
        return {**variables(self.stack, cache_folder()), "COLUMNS": "80", **area.variables}

    def _answer(self, area: SuiteArea, result: Result) -> CheckAnswer:
        """Return what a case's result says of the plugin."""
        answer = CheckAnswer(
            self._id(area.id(result.id)), result.id, conformity(result), seconds=result.duration
        )
        if answer.result is Conformity.CONFORMS:
            return answer
        if answer.result is Conformity.FAILS:
            kind = str(result.outcome) if result.outcome in DECLARABLE else str(Kind.FAILED)
            again = self._again(area, result.id)
            return replace(answer, kind=kind, detail=result.message, program=again)
        cause = f"known of this JAX: {result.expectation}\n" if result.expectation else ""
        return replace(answer, detail=cause + result.message)

    def _again(self, area: SuiteArea, case: str) -> str:
        """Return the command that runs a case again, in the clone's folder."""
        if self.stack:  # whose environment lacks what asks the plugin first
            words = ["xla-harness", "conformance", *(self.request[1:] or [JAXLIBS_CLIENT])]
            return shlex.join([*words, "--check", area.id(case), "--stack", self.stack])
        set_ = [f"{name}={value}" for name, value in area.variables.items()]
        return shlex.join([*set_, "pytest", "--lane", self.lane, *self.request, case])

    def _instead(self, id_: str, why: str) -> CheckAnswer:
        """Return the answer that stands for cases that can't be asked."""
        title = "The suites run on the plugin"
        return CheckAnswer(self._id(id_), title, Conformity.NOT_MEASURABLE, detail=why)

    def _id(self, id_: str) -> str:
        return f"{id_}{STACK_MARK}{self.stack}" if self.stack else id_


def conformity(result: Result) -> Conformity:
    """Return what a case's result says of a plugin.

    A case is skipped for want of devices, or for what its JAX lacks, and a failure is expected
    of that JAX: neither is the plugin's.
    """
    if result.works:
        return Conformity.CONFORMS
    if result.outcome in (Kind.SKIPPED, Kind.EXPECTED_FAILURE):
        return Conformity.NOT_MEASURABLE
    return Conformity.FAILS
