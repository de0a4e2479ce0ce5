"""What a failure comes down to: its reduced program, what decides it, and a known issue."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.diagnosis.signature import generalised
from harness.fuzz.random_program import DTENSOR
from harness.fuzz.searching import RandomFailure
from harness.fuzz.subjects import Subject

_KNOWN = Path(__file__).parent / "known.toml"


@dataclass(frozen=True)
class ReducedCause:
    """What a failure comes down to.

    Attributes:
        kind: how the smallest program ends, "" if no program fails on CPUs as it did.
        detail: the error, or how the numbers differ.
        was: the number of the program's instructions before.
        count: and of the smallest one.
        operations: which these are, each once.
        brought_by: the pass after which the program is wrong, "" if none is known.
        flags: with which there is no failure, each alone.
        program: the smallest one, as StableHLO.
        script: which shows that it fails, for an upstream issue.
    """

    kind: str
    detail: str = ""
    was: int = 0
    count: int = 0
    operations: Sequence[str] = ()
    brought_by: str = ""
    flags: Sequence[str] = ()
    program: str = ""
    script: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """Return what is equal for failures with one cause."""
        detail = "" if self.kind == "wrong" else generalised(self.detail)[:100]
        return self.kind, detail, self.brought_by, frozenset(self.operations)


def reduced(failure: RandomFailure, subjects: Sequence[Subject], budget: str) -> ReducedCause:
    """Reduce a failure to the smallest StableHLO program: ``xla-harness reduce``.

    The program is compiled by the subject's jaxlib for CPUs, whatever the lane. One that is right
    on the base stays right there. One of DTensor is many programs, and only runs on CPUs, too.
    """
    subject = subjects[failure.place]
    if subject.framework in DTENSOR:
        return ReducedCause("", _on_cpus(failure, subject))
    text = failure.ending.stablehlo or subject.run(failure.program, only_lower=True).stablehlo
    if not text or failure.ending.kind in ("not lowered", "larger"):
        return ReducedCause("")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        program, script, facts = (Path(folder, name) for name in ("a.mlir", "b.py", "c.json"))
        program.write_text(text)
        stacks = ["--stack", subject.stack] if subject.stack else []
        if failure.place:
            stacks += ["--base", subjects[0].stack]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "harness", "reduce", str(program), "--budget", budget),
                *("--out", str(script), "--json", str(facts), *stacks),
            ],
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,  # Ctrl-C ends the search; this has a budget
        )
        if not facts.exists():
            return ReducedCause("", done.stderr.strip().rpartition("\n")[2])
        return ReducedCause(
            **json.loads(facts.read_text()),
            program=script.with_suffix(".mlir").read_text(),
            script=script.read_text(),
        )


def _on_cpus(failure: RandomFailure, subject: Subject) -> str:
    """Describe how a program that fails on TPUs ends on CPUs, with PyTorch's own backend."""
    if subject.framework == "torch":
        return ""
    cpus = Subject(subject.stack, "cpu", subject.topology, "torch")
    text = failure.program.text.replace('DEVICE = "tpu"', 'DEVICE = "cpu"')
    cpus.start()
    ending = cpus.run(replace(failure.program, text=text))
    cpus.end()
    return f"on CPUs: {ending.kind}{f': {ending.detail}' if ending.detail else ''}"


def known_issue(failure: RandomFailure, cause: ReducedCause) -> str:
    """Return the issue or finding that describes the cause, "" if none is known here."""
    entries = tomllib.loads(_KNOWN.read_text())["known"]
    return next((entry["issue"] for entry in entries if _is(entry, failure, cause)), "")


def _is(entry: Mapping[str, Any], failure: RandomFailure, cause: ReducedCause) -> bool:
    ending = failure.ending
    return (
        entry["kind"] == ending.kind
        and entry.get("text", "") in f"{ending.detail}\n{cause.detail}"
        and entry.get("pass", cause.brought_by) == cause.brought_by
        and set(entry.get("operations", ())) <= set(cause.operations)
        and re.search(entry.get("program", ""), cause.program) is not None
        and set(entry.get("features", ())) <= failure.program.features
    )
