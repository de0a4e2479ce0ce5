"""Waits for the workers of a JobSet and copies what each of them left."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import BadInputError
from harness.jobset.kubectl import KubernetesCluster, Pod
from harness.jobset.work import REPORT

POD_LOG = "pod.log"
_POLL = 2.0  # seconds
_REST = 5.0  # seconds for a pod's last lines
_GONE = 5  # looks at the cluster after which a pod that was there counts as deleted

_MOST = 10_000  # slices, or hosts of one


@dataclass
class Worker:
    """Worker of a job. ``exit`` is pytest's code; without one it is 1, and ``status`` says why."""

    name: str  # slice-host
    folder: Path
    status: str = "its pod never came"
    exit: int = 1
    over: bool = False
    pod: str = ""
    missed: int = 0
    log: subprocess.Popen[bytes] | None = field(default=None, repr=False)


def collect(
    name: str, namespace: str, out: Path, timeout: float, say: Callable[[str], None]
) -> list[Worker]:
    """Copy each worker's folder to ``out``, as soon as it is done; at most ``timeout`` seconds.

    A worker that died, or whose pod never came, is told; its output up to then is in ``pod.log``.
    Raises BadInputError without the JobSet, or when it is none of ours.
    """
    cluster = KubernetesCluster(namespace)
    workers = {worker: Worker(worker, out / worker) for worker in _expected(cluster, name)}
    for worker in workers.values():
        worker.folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + timeout
    try:
        while any(not worker.over for worker in workers.values()):
            if time.monotonic() >= end:
                _give_up(list(workers.values()), timeout)
                break
            for pod in _look(cluster, name, workers):
                if not (worker := workers[pod.worker]).over:
                    _visit(cluster, pod, worker, say)
            if any(not worker.over for worker in workers.values()):
                time.sleep(_POLL)
    finally:
        for worker in workers.values():
            _end_log(worker)
    return list(workers.values())


def _expected(cluster: KubernetesCluster, name: str) -> list[str]:
    jobset = cluster.jobset(name)
    try:
        (job,) = jobset["spec"]["replicatedJobs"]
        slices, hosts = int(job["replicas"]), int(job["template"]["spec"]["completions"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadInputError(
            f"jobset {name}: expected one that xla-harness ci jobset has printed: {error}"
        ) from error
    if not (0 < slices <= _MOST and 0 < hosts <= _MOST):
        raise BadInputError(f"jobset {name}: expected slices of hosts, it has {slices} of {hosts}")
    return [f"{slice_}-{host}" for slice_ in range(slices) for host in range(hosts)]


def _look(cluster: KubernetesCluster, name: str, workers: dict[str, Worker]) -> list[Pod]:
    """Return the pods; end a worker whose pod is gone, as those of a failed job are."""
    pods = cluster.pods(name)
    if pods is None:
        return []
    there = {pod.worker for pod in pods}
    for worker in workers.values():
        worker.missed = 0 if worker.name in there or not worker.pod else worker.missed + 1
        if worker.missed >= _GONE and not worker.over:
            worker.over, worker.status = True, f"died: pod {worker.pod} was deleted"
    return [pod for pod in pods if pod.worker in workers]


def _visit(
    cluster: KubernetesCluster, pod: Pod, worker: Worker, say: Callable[[str], None]
) -> None:
    worker.pod = pod.name
    if pod.phase == "Pending" and not pod.ended:
        worker.status = f"pod {pod.name} never ran"
        return
    if worker.log is None:
        worker.log = cluster.follow(pod.name, worker.folder / POD_LOG)
    if pod.ended:
        worker.over, worker.status = True, f"died: {pod.ended}"
        say(f"{worker.name}: {worker.status}")
        return
    worker.status = f"pod {pod.name} was still running"
    code = cluster.done(pod.name)
    if code is None:
        return
    wrong = cluster.copy(pod.name, worker.folder)
    if wrong:
        worker.status = f"its files can't be copied: {wrong}"
        say(f"{worker.name}: {worker.status}")
        return  # and tried again
    cluster.release(pod.name)
    worker.over, worker.exit = True, code
    worker.status = _told(code, worker.folder / REPORT)
    say(f"{worker.name}: {worker.status}")


def _told(code: int, report: Path) -> str:
    how = f"pytest ended with {code}" if code >= 0 else f"pytest was killed by signal {-code}"
    return how if report.exists() else f"{how} and left no report"


def _give_up(workers: list[Worker], timeout: float) -> None:
    for worker in workers:
        if not worker.over:
            worker.status = f"{worker.status} after {timeout:g} s"


def _end_log(worker: Worker) -> None:
    """Wait for the end of the log, and stop it if the pod still runs and the log goes on."""
    if worker.log is None:
        return
    try:
        worker.log.wait(timeout=_REST)
    except subprocess.TimeoutExpired:
        worker.log.kill()
        worker.log.wait()
