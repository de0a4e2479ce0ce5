"""The few questions to a cluster that collecting needs, each a call of kubectl without a shell."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import BadInputError
from harness.jobset.manifest import CONTAINER, REPORTS
from harness.jobset.work import COLLECTED, DONE

_SECONDS = 60  # for one call
_NAME = "jobset.sigs.k8s.io/jobset-name"
_INDEX = "jobset.sigs.k8s.io/job-index"
_COMPLETION = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True)
class Pod:
    """A worker's pod as the cluster tells it; ``ended`` is why its container is over, or ""."""

    name: str
    worker: str  # slice-host
    phase: str
    ended: str


@dataclass(frozen=True)
class KubernetesCluster:
    """Namespace of the cluster that kubectl is configured for."""

    namespace: str

    def jobset(self, name: str) -> dict[str, Any]:
        """Return the JobSet; raise BadInputError, with kubectl's message, if there is none."""
        done = self._run("get", "jobset", name, "--output=json")
        if done.returncode:
            raise BadInputError(f"jobset {name}: {_said(done)}")
        jobset = _object(done.stdout)
        if jobset is None:
            raise BadInputError(f"jobset {name}: expected JSON of kubectl, found something else")
        return jobset

    def pods(self, name: str) -> list[Pod] | None:
        """Return the JobSet's pods; None if the cluster did not answer, or not with pods."""
        done = self._run("get", "pods", f"--selector={_NAME}={name}", "--output=json")
        items = (_object(done.stdout) or {}).get("items")
        if done.returncode or not isinstance(items, list):
            return None
        return [pod for item in items if (pod := _pod(item)) is not None]

    def done(self, pod: str) -> int | None:
        """Pytest's exit code, once the worker has written all it has to."""
        done = self._run("exec", pod, f"--container={CONTAINER}", "--", "cat", f"{REPORTS}/{DONE}")
        code = (_object(done.stdout) or {}).get("exit")
        return code if type(code) is int else None

    def copy(self, pod: str, folder: Path) -> str:
        """Copy the worker's reports to ``folder``; what went wrong, or "".

        The archive is a pod's: nothing of it may come to stand outside of the folder.
        """
        done = self._run(
            "exec", pod, f"--container={CONTAINER}", "--", "tar", "-cf-", "-C", REPORTS, "."
        )
        if done.returncode:
            return _said(done)
        try:
            with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
                archive.extractall(folder, filter="data")
        except (tarfile.TarError, OSError) as error:
            return f"its archive can't be read: {error}"
        return ""

    def release(self, pod: str) -> None:
        """Tell the worker that it may end."""
        self._run("exec", pod, f"--container={CONTAINER}", "--", "touch", f"{REPORTS}/{COLLECTED}")

    def follow(self, pod: str, log: Path) -> subprocess.Popen[bytes]:
        """Write the pod's output to ``log``, as long as there is any."""
        with log.open("wb") as file:
            return subprocess.Popen(
                self._command("logs", "--follow", pod, f"--container={CONTAINER}"),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def _command(self, *arguments: str) -> list[str]:
        return ["kubectl", f"--namespace={self.namespace}", *arguments]

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = self._command(*arguments)
        try:
            return subprocess.run(
                command,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=_SECONDS,
                check=False,
            )
        except FileNotFoundError:
            raise BadInputError("kubectl is missing: expected it on PATH") from None
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 1, b"", b"kubectl did not answer")


def _object(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object that kubectl printed, or None for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _part(data: Any, key: str) -> dict[str, Any]:
    """Return an object within another one, empty if it is missing."""
    part = data.get(key) if isinstance(data, dict) else None
    return part if isinstance(part, dict) else {}


def _pod(item: Any) -> Pod | None:
    metadata, status = _part(item, "metadata"), _part(item, "status")
    labels = _part(metadata, "annotations") | _part(metadata, "labels")
    if not isinstance(metadata.get("name"), str):
        return None
    return Pod(
        name=metadata["name"],
        worker=f"{labels.get(_INDEX, '?')}-{labels.get(_COMPLETION, '?')}",
        phase=str(status.get("phase", "")),
        ended=_ended(status),
    )


def _ended(status: dict[str, Any]) -> str:
    containers = status.get("containerStatuses")
    for container in containers if isinstance(containers, list) else ():
        over = _part(_part(container, "state"), "terminated")
        if over and container.get("name") == CONTAINER:
            return f"{over.get('reason', 'ended')}, exit code {over.get('exitCode')}"
    if status.get("phase") in ("Failed", "Succeeded"):
        return str(status.get("reason") or status["phase"])
    return ""


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"kubectl ended with {done.returncode}"
