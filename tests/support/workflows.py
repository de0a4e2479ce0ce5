"""The project's workflows, run here by act, with folders in place of GitHub's own actions."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from support.commands import run_program
from support.paths import ROOT

from harness.stacks.environments import cache_folder

STAND_INS = Path(__file__).parent / "actions"
RUNNER = "ubuntu-24.04"
_LIMIT = 1200  # seconds: jobs that check all of a clone, on a machine that others use

# Of steps inside an action act's own fields name the action only.
_ENDED = re.compile(r"\W*(Success|Failure) - Main (.+?)(?: \[[\d.a-zµ]+\])?$", re.DOTALL)


@dataclass(frozen=True)
class Step:
    """One step of a job as it ran. ``outcome`` is success, failure or skipped."""

    job: str
    name: str
    outcome: str


@dataclass
class Ran:
    """What act said."""

    code: int
    steps: list[Step] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def names(self, outcome: str = "success") -> list[str]:
        return [step.name for step in self.steps if step.outcome == outcome]


def clone(to: Path) -> Path:
    """A clean clone of what is committed here."""
    subprocess.run(["git", "clone", "--quiet", ROOT, to], check=True)
    return to


def used_actions(folder: Path = ROOT / ".github") -> set[str]:
    """Every action of others, as OWNER/NAME@COMMIT, that workflows and actions use."""
    actions = set()
    for path in [*folder.glob("workflows/*.yml"), *folder.glob("actions/*/action.yml")]:
        for step in _steps(yaml.safe_load(path.read_text())):
            action, at, commit = str(step.get("uses", "./")).partition("@")
            if not action.startswith("./"):
                actions.add("/".join(action.split("/")[:2]) + at + commit)
    return actions


def _steps(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    jobs = data.get("jobs", {"action": data.get("runs", {})})
    return [step for job in jobs.values() for step in job.get("steps", [])]


def run_steps(path: Path) -> list[str]:
    """The names of a workflow's ``run:`` steps."""
    return [s["name"] for s in _steps(yaml.safe_load(path.read_text())) if "run" in s]


def act(  # noqa: PLR0913, PLR0917 - act's own
    folder: Path,
    event: str,
    workflow: str,
    artifacts: Path,
    options: Sequence[str] = (),
    variables: Mapping[str, str] = {},
    environment: Mapping[str, str] = {},
) -> Ran:
    """Run a workflow of the clone ``folder`` on this machine."""
    shutil.rmtree(artifacts, ignore_errors=True)
    artifacts.mkdir(parents=True)
    cache = run_program("uv", "cache", "dir", check=True)
    caches = {"XLA_HARNESS_CACHE": str(cache_folder()), "UV_CACHE_DIR": cache.stdout.strip()}
    given = caches | {"ARTIFACTS": str(artifacts), "CLONE": str(folder), **environment}
    command = [
        str(Path(sys.executable).parent / "act"),
        event,
        "--json",
        "--strict",
        "--no-skip-checkout",
    ]
    command += ["-W", f".github/workflows/{workflow}", "-P", f"{RUNNER}=-self-hosted"]
    for pin in sorted(used_actions(folder / ".github")):
        name = pin.partition("@")[0].rpartition("/")[2]
        command += ["--local-repository", f"{pin}={STAND_INS / name}"]
    for option, pairs in (("--var", variables), ("--env", given)):
        for name, text in pairs.items():
            command += [option, f"{name}={text}"]
    home = os.environ | {"XDG_CACHE_HOME": str(artifacts.parent / "act")}
    done = run_program(*command, *options, cwd=folder, env=home, timeout=_LIMIT)
    return _parsed(done)


def _parsed(done: subprocess.CompletedProcess[str]) -> Ran:
    ran = Ran(done.returncode)
    for line in (*done.stdout.splitlines(), *done.stderr.splitlines()):
        try:
            data = json.loads(line)
        except ValueError:
            ran.lines.append(line)
            continue
        ran.lines.append(f"[{data.get('job', '')}] {data.get('msg', '').rstrip()}")
        if match := _ENDED.match(data.get("msg", "").strip()):
            outcome = "success" if match[1] == "Success" else "failure"
            ran.steps.append(Step(data["job"].strip(), match[2], outcome))
    return ran
