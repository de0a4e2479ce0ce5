"""The upstream issues: what an engineer asks, and which cases watch which issue."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

from harness.expectations import Expectations
from harness.render.github_markup import link
from harness.verdicts import upstream_file

_ROOT = Path(__file__).parents[2]


def page() -> str:
    """Two tables, from ``fixtures/upstream.toml`` and from the markers of all cases."""
    rows = upstream_file.load(_ROOT / "fixtures" / "upstream.toml")
    return "\n".join(
        [
            "# Upstream issues\n",
            "What this project cites: each case names the issues it watches. Credit for finding",
            "and describing them is their authors'.\n",
            "## What a run answers first\n",
            "| question | issues |",
            "| --- | --- |",
            *(f"| {row.title} | {', '.join(map(link, row.issues))} |" for row in rows),
            "\n## Issues and their cases\n",
            "*Expected* counts the [expectations](../expectations.md) that name the issue.\n",
            "| issue | cases | areas | expected |",
            "| --- | --- | --- | --- |",
            *_issues(),
            "",
        ]
    )


def _issues() -> list[str]:
    cases: dict[str, Counter[str]] = defaultdict(Counter)
    for case in _collected():
        for issue in case["upstream"]:
            cases[issue][case["area"]] += 1
    entries = Expectations.load(_ROOT / "fixtures" / "expectations").entries
    expected = Counter(entry.cause for entry in entries)
    ordered = sorted(cases, key=lambda i: (i.partition("#")[0], int(i.partition("#")[2])))
    return [
        f"| {link(i)} | {cases[i].total()} | {', '.join(sorted(cases[i]))} | {expected[i] or ''} |"
        for i in ordered
    ]


def _collected() -> list[dict[str, object]]:
    """In a process of its own: the markers are where the suites are, and these import torch."""
    command = [sys.executable, "-m", "harness", "ci", "list", "--json"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
