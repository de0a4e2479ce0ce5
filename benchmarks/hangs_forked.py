"""The jobs of ``hangs.py`` in forked ranks, where what they import has been imported once.

pytest runs this file, one case a job; ``hangs.py --forked`` writes the jobs and reads the results.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hangs import Job, judged, script

from harness.isolation.ranks import RankError
from harness.job.ranks import run_ranks
from harness.lanes.events import EventLog
from harness.messages.ports import free_port
from harness.model.topology import Topology

JOBS = [Job(**each) for each in json.loads(Path(os.environ["HANGS"]).read_text())]
RESULTS = Path(os.environ["HANGS"]).with_suffix(".results")
pytestmark = [pytest.mark.lanes("virtual-tpu"), pytest.mark.deadline(200)]


def check(job: Job, topology: Topology, log: EventLog, folder: Path) -> None:
    os.environ["ADDRESS"] = f"127.0.0.1:{free_port()}"
    file, out = folder / "train.py", folder / "out"
    file.write_text(script(job), encoding="utf-8")

    def work(_: int) -> None:
        os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        exec(compile(file.read_text(), file, "exec"), {"__name__": "train"})

    started, code, first = time.monotonic(), 0, ""
    try:
        run_ranks(work, topology, deadline=150)
    except RankError as error:
        code, first = 1, str(error).partition("\n")[0]
    lines = [(0.0, line) for line in out.read_text().splitlines()]
    if failed := log.read().of("failed"):
        summary, *rest = (failed[0].stack or "").splitlines()
        lines.append((failed[0].time, f"xla-harness: {summary}"))
        lines += [(failed[0].time, line) for line in rest]
    elif job.hangs and first.startswith(f"rank {job.who} of "):
        # The first rank to end badly ends the job, before its executor has to say anything.
        lines.append(
            (0.0, f"xla-harness: virtual TPU: the job can't go on: rank {job.who}, {first}")
        )
    result = judged(job, lines, code, time.monotonic() - started)
    with RESULTS.open("a") as results:
        results.write(json.dumps({"job": job.__dict__, "result": result.__dict__}) + "\n")
    assert not result.wrong, result


def cases(name: str) -> list[int]:
    return [number for number, job in enumerate(JOBS) if job.topology == name]


def _test(name: str) -> object:
    @pytest.mark.topologies(name)
    @pytest.mark.parametrize("number", cases(name))
    def test(number: int, topology: Topology, tpu_events: EventLog, tmp_path: Path) -> None:
        check(JOBS[number], topology, tpu_events, tmp_path)

    return test


for index, name in enumerate(sorted({job.topology for job in JOBS})):
    globals()[f"test_{index}"] = _test(name)
