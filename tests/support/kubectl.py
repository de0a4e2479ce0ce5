"""A script in the place of kubectl, whose pods are folders, and the reports in them."""

from __future__ import annotations

from typing import Any

KUBECTL = """\
#!/usr/bin/env python3
import json, os, pathlib, subprocess, sys
state = pathlib.Path(os.environ["CLUSTER"])
namespace, verb, *rest = sys.argv[1:]
with (state / "calls").open("a") as calls:
    print(json.dumps(sys.argv[1:]), file=calls)
assert namespace == "--namespace=ci"
def fail(text):
    sys.exit(print(text, file=sys.stderr) or 1)
if verb == "get" and rest[0] == "jobset":
    path = state / f"{rest[1]}.json"
    print(path.read_text()) if path.exists() else fail(f'jobsets "{rest[1]}" not found')
elif verb == "get":
    looks = json.loads((state / "pods.json").read_text())  # one a look; the last one stays
    (state / "pods.json").write_text(json.dumps(looks[1:] or looks))
    fail("no answer") if looks[0] is None else print(json.dumps({"items": looks[0]}))
elif verb == "logs":
    print(f"log of {rest[1]}")
elif verb == "exec":
    pod, container, dashes, *command = rest
    assert (container, dashes) == ("--container=worker", "--")
    sys.exit(subprocess.call([word.replace("/reports", str(state / pod)) for word in command]))
"""
REPORT = """\
<testsuites><testsuite name="pytest" tests="2" timestamp="2026-01-01T00:00:00+00:00" time="1">
<properties><property name="xla_harness_report" value="3"/><property name="torch" value="2.9.0"/>
</properties>{cases}</testsuite></testsuites>
"""
CASE = """\
<testcase classname="a" name="{name}" time="0.1"><properties>
<property name="id" value="a.py::{name}"/><property name="lane" value="tpu"/>
<property name="topology" value="4"/><property name="outcome" value="{outcome}"/>
<property name="actual" value="{outcome}"/>
<property name="outcome_detail" value="{detail}"/>
</properties>{result}<system-out>{output}</system-out></testcase>
"""
RESULTS = {
    "failed": '<failure message="{detail}">trace of {detail}</failure>',
    "hung": '<failure message="{detail}">stack of {detail}</failure>',
    "skipped": '<skipped message="{detail}"/>',
}


def reported(**cases: str) -> str:
    """A worker's report: each case is ``outcome`` or ``outcome: detail``."""
    texts = []
    for name, reported_outcome in cases.items():
        outcome, _, detail = reported_outcome.partition(": ")
        result = RESULTS.get(outcome, "").format(detail=detail)
        values = {"outcome": outcome, "detail": detail, "result": result, "output": f"out {detail}"}
        texts.append(CASE.format(name=name, **values))
    return REPORT.format(cases="".join(texts))


def pod(worker: str, phase: str = "Running", **terminated: Any) -> dict[str, Any]:
    slice_, index = worker.split("-")
    state = {"terminated": terminated} if terminated else {"running": {}}
    return {
        "metadata": {
            "name": f"pod-{worker}",
            "labels": {"jobset.sigs.k8s.io/job-index": slice_},
            "annotations": {"batch.kubernetes.io/job-completion-index": index},
        },
        "status": {"phase": phase, "containerStatuses": [{"name": "worker", "state": state}]},
    }
