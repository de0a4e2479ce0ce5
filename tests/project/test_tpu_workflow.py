"""``tpu.yml``: what its steps call, run here without a cluster, and who may run it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commands import run_program
from support.kubectl import KUBECTL, pod, reported
from support.manifests import check, items_of
from support.paths import ROOT

WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "tpu.yml").read_text())
SLICES = WORKFLOW["jobs"]["slices"]
RUNS = {step["name"]: step["run"] for step in SLICES["steps"] if "run" in step}
INPUTS = {
    "NAME": "xla-1-1",
    "NAMESPACE": "ci",
    "ACCELERATOR": "tpu-v6e-slice",
    "TOPOLOGY": "2x2",
    "SLICES": "2",
    "IMAGE": "registry.example/x:1",
    "STACK": "2.9.0",
    "LANE": "virtual-tpu",
}
# The same, of kubectl's calls that change something.
CHANGES = """
import shutil
if verb in ("apply", "delete"):
    (state / verb).write_text(open(rest[rest.index("--filename") + 1]).read())
    sys.exit()
"""


def test_no_pull_request_reaches_it() -> None:
    assert set(WORKFLOW[True]) == {"workflow_call", "workflow_dispatch"}  # YAML 1.1 reads "on" so
    for job in WORKFLOW["jobs"].values():
        assert "!startsWith(github.event_name, 'pull_request')" in job["if"]


def test_rights_are_least() -> None:
    assert WORKFLOW["permissions"] == {}
    assert WORKFLOW["jobs"]["host"]["permissions"] == {"contents": "read"}
    assert SLICES["permissions"] == {"contents": "read", "id-token": "write"}


@pytest.mark.parametrize("job", WORKFLOW["jobs"])
def test_actions_are_pinned_and_leave_no_credentials(job: str) -> None:
    steps: list[dict[str, Any]] = WORKFLOW["jobs"][job]["steps"]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used
    assert [u for u in used if not re.fullmatch(r"\./.+|[\w-]+/[\w-]+@[0-9a-f]{40}", u)] == []
    checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout")]
    assert [step["with"]["persist-credentials"] for step in checkouts] == [False]
    assert not [step["run"] for step in steps if "${{" in step.get("run", "")]


def test_its_job_is_deleted_whatever_happens() -> None:
    (delete,) = (step for step in SLICES["steps"] if step.get("name") == "Delete")
    assert "always()" in delete["if"]
    assert delete["timeout-minutes"] < SLICES["timeout-minutes"]
    names = [step.get("name") for step in SLICES["steps"]]
    assert names.index("Apply") < names.index("Collect") < names.index("Delete")


def test_its_steps_run_here(tmp_path: Path) -> None:
    """In order, each the line of the file, with its variables."""
    cluster, programs = tmp_path / "cluster", tmp_path / "bin"
    for folder in (cluster, programs):
        folder.mkdir()
    stand_in = KUBECTL.replace(
        "namespace, verb, *rest = sys.argv[1:]\n",
        "namespace, verb, *rest = sys.argv[1:]\n"
        'if namespace in ("apply", "delete"):\n'
        "    verb, rest, namespace = namespace, sys.argv[2:], '--namespace=ci'\n" + CHANGES,
    )
    (programs / "kubectl").write_text(stand_in)
    (programs / "uv").write_text(f'#!/bin/sh\nshift 3\nexec {sys.executable} -m harness "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "CLUSTER": str(cluster), **INPUTS}
    environment |= {"PYTHONPATH": str(ROOT), "HOME": os.environ.get("HOME", "/")}

    def run(step: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-euo", "pipefail", "-c", RUNS[step]]
        return run_program(*command, cwd=tmp_path, env=environment)

    printed = run("Manifest")
    assert printed.returncode == 0
    manifests = json.loads((tmp_path / "jobset.json").read_text())
    secret, manifest = items_of(manifests)
    check(manifest)
    assert secret["stringData"]["token"] not in printed.stdout + printed.stderr  # the job's log
    assert run("Apply").returncode == 0
    assert json.loads((cluster / "apply").read_text()) == manifests
    (cluster / "xla-1-1.json").write_text(json.dumps(manifest))  # what the cluster knows then
    (cluster / "pods.json").write_text(json.dumps([[pod("0-0"), pod("1-0")]]))
    for worker in ("0-0", "1-0"):
        folder = cluster / f"pod-{worker}"
        folder.mkdir()
        (folder / "report.xml").write_text(reported(a="passed"))
        (folder / "done.json").write_text('{"exit": 0}')
    collected = run("Collect")
    assert collected.returncode == 0, collected.stderr
    assert (tmp_path / "reports" / "workers" / "report.xml").exists()
    assert run("Delete").returncode == 0
    assert json.loads((cluster / "delete").read_text()) == manifests
    assert set(RUNS) == {"Manifest", "Apply", "Collect", "Delete"}
