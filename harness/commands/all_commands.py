"""The registry of commands: the module below ``harness`` that defines each, and its line of help.

A feature that only its command uses is a folder and its entry here. The help keeps the order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Command(NamedTuple):
    """A command: the module whose ``add`` defines its options, and what the help says about it."""

    module: str
    about: str


COMMANDS: Mapping[str, Command] = {
    "known": Command("commands.known", "the defects that expectations declare; update them"),
    "stacks": Command("commands.stacks", "stacks, their environments, what they compile for"),
    "run": Command(
        "commands.run", "run a command on a lane: run --topology 2x4 -- python train.py"
    ),
    "matrix": Command("commands.matrix", "run the suites on several stacks and lanes, and compare"),
    "qualify": Command("commands.qualify", "decide on moving to a stack; name what is responsible"),
    "survive": Command("survive.command", "which of your tests break when a package moves"),
    "bisect": Command("commands.bisect", "find the stack that broke a case, or fixed it"),
    "since": Command("commands.since", "first bad, last bad and first good stack of an issue"),
    "repro": Command("repro.command", "write a case as one script, without the harness and pytest"),
    "reduce": Command("reduce.command", "the smallest program that fails as a case does"),
    "fuzz": Command("fuzz.command", "random sharded programs: find what nobody wrote a case for"),
    "sensitivity": Command("sensitivity.command", "plant faults; count which of them tests see"),
    "conformance": Command(
        "conformance.command", "ask a PJRT plugin whether it does what frameworks rely on"
    ),
    "record": Command("commands.record", "add JUnit reports, ours or any pytest's, to a history"),
    "verdict": Command(
        "commands.verdict", "what regressed, was fixed, is flaky, missing or slower"
    ),
    "dashboard": Command("dashboard.command", "publish a history as a static site"),
}
# What workflows and scripts call, as `xla-harness ci NAME`.
CI: Mapping[str, Command] = {
    "list": Command("commands.list", "areas with their cases, lanes, topologies and issues"),
    "plan": Command("commands.plan", "stacks and cells of a workflow, as KEY=JSON lines"),
    "wheels": Command("commands.wheels", "download nightly wheels of one day"),
    "collect": Command("commands.collect", "add a night's cells to a history, lost cases too"),
    "history": Command("commands.history", "fetch a history from a git branch, or push it there"),
    "query": Command("commands.query", "query a history in SQL: the views cases and outcomes"),
    "durations": Command("commands.durations", "record how long cases take, for --shard"),
    "issues": Command("issues.command", "keep one GitHub issue for each regression"),
    "comment": Command("commands.comment", "keep one comment on a pull request"),
    "jobset": Command("jobset.command", "a JobSet that runs cases on TPU slices; its reports"),
    "completion": Command("commands.completion", "print a script that completes commands"),
}
ABOUT_CI = "commands that workflows and scripts call"
