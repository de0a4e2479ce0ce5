"""A JobSet without a cluster: its workers as processes, with the environment and the command that
the manifest gives, on a network and with host names of their own; what they leave, merged.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.manifests import items_of
from support.paths import ROOT
from support.project import OURS

from harness.junit import report

pytestmark = pytest.mark.long

Json = dict[str, Any]
# The first process of the job's own network: brings it up, and starts a process for each pod.
LAUNCHER = """
import fcntl, json, os, socket, struct, subprocess, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    fcntl.ioctl(probe, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
pods = json.load(open(sys.argv[1]))
started = [
    subprocess.Popen(p["command"], env=p["environment"], stdout=open(p["log"], "w"), stderr=-2)
    for p in pods
]
with open(sys.argv[1] + ".pids", "w") as file:
    json.dump([process.pid for process in started], file)
sys.exit(json.dumps([process.wait() for process in started]))
"""


def expanded(text: str, known: dict[str, str]) -> str:
    """``$(NAME)`` as Kubernetes puts values in its place, and ``$$`` as one ``$``."""
    pattern = re.compile(r"\$\$|\$\((\w+)\)")
    return pattern.sub(lambda m: "$" if m[0] == "$$" else known.get(m[1], m[0]), text)


def field(path: str, annotations: dict[str, str]) -> str:
    """The downward API: what a field of the pod says."""
    match = re.fullmatch(r"metadata\.annotations\['([^']+)'\]", path)
    assert match is not None, path
    return annotations[match[1]]


def value(entry: Json, known: dict[str, str], annotations: dict[str, str], secret: Json) -> str:
    """A variable's value, wherever it comes from."""
    match entry:
        case {"value": text}:
            return expanded(text, known)
        case {"valueFrom": {"fieldRef": {"fieldPath": path}}}:
            return field(path, annotations)
        case {"valueFrom": {"secretKeyRef": {"name": name, "key": key}}}:
            assert name == secret["metadata"]["name"]
            return secret["stringData"][key]
    raise AssertionError(entry)


def pods(secret: Json, manifest: Json, folder: Path) -> Iterator[Json]:
    """What the JobSet and Job controllers and the kubelet make of the manifests."""
    (replicated,) = manifest["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    (mount,) = container["volumeMounts"]
    for slice_ in range(replicated["replicas"]):
        for index in range(job["completions"]):
            annotations = {
                "jobset.sigs.k8s.io/job-index": str(slice_),
                "batch.kubernetes.io/job-completion-index": str(index),
            }
            values: dict[str, str] = {}
            for entry in container["env"]:
                values[entry["name"]] = value(entry, values, annotations, secret)
            volume = folder / f"{slice_}-{index}"
            volume.mkdir()
            command = [expanded(word, values) for word in container["command"]]
            yield {
                "name": f"{manifest['metadata']['name']}-{replicated['name']}-{slice_}-{index}",
                "worker": f"{slice_}-{index}",
                "volume": str(volume),
                "command": [str(volume) if w == mount["mountPath"] else w for w in command],
                "environment": values,
                "log": str(folder / f"{slice_}-{index}.log"),
            }


class Job:
    """The processes of a manifest."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "harness", "ci", "jobset", *arguments]
        printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        secret, manifest = items_of(json.loads(printed.stdout))
        self.token = secret["stringData"]["token"]
        self.pods = list(pods(secret, manifest, folder))
        self._plan = folder / "plan.json"
        hosts = folder / "hosts"
        subdomain = manifest["metadata"]["name"]
        names = [f"127.0.0.1 {pod['name']}.{subdomain} {pod['name']}" for pod in self.pods]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *names]) + "\n")
        clean = {k: v for k, v in os.environ.items() if not k.startswith((*OURS, "COVERAGE"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}"
        for pod in self.pods:
            pod["environment"] = clean | {"PATH": path} | pod["environment"]
        self._plan.write_text(json.dumps(self.pods))
        launch = [sys.executable, "-c", LAUNCHER, str(self._plan)]
        inside = f'mount --bind "{hosts}" /etc/hosts && exec "$@"'
        space = ["unshare", "--mount", "--net", "sh", "-c", inside, "sh", *launch]
        self._process = subprocess.Popen(
            space, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE, text=True
        )

    def pid(self, number: int) -> int:
        path = Path(f"{self._plan}.pids")
        while not path.exists() or not path.read_text():
            assert self._process.poll() is None
            time.sleep(0.05)
        return json.loads(path.read_text())[number]

    def volume(self, number: int) -> Path:
        return Path(self.pods[number]["volume"])

    def await_text(self, number: int, text: str) -> None:
        """Until a worker has printed the text."""
        log = Path(self.pods[number]["log"])
        end = time.monotonic() + 100
        while not log.exists() or text not in log.read_text():
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)

    def codes(self) -> list[int]:
        """The workers' exit codes, once all have ended."""
        _, output = self._process.communicate(timeout=300)
        assert output.strip(), "\n".join(Path(pod["log"]).read_text() for pod in self.pods)
        return json.loads(output.splitlines()[-1])

    def end(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Start a job of two slices of one host on the virtual TPU."""
    can = (
        shutil.which("unshare")
        and not subprocess.run(
            ["unshare", "--mount", "--net", "true"], check=False, capture_output=True
        ).returncode
    )
    if not can:
        pytest.skip("a network and host names of one's own need root")
    started: list[Job] = []

    def run(*arguments: str) -> Job:
        options = ["--lane", "virtual-tpu", "--slices", "2", "--image", "image", "--name", "flow"]
        options += ["--accelerator", "tpu-v6e-slice", "--grid", "1x1", "--wait", "1"]
        started.append(Job(tmp_path, *options, "--", *arguments))
        return started[-1]

    yield run
    for job in started:
        job.end()


def merged(job: Job, out: Path) -> report.Report:
    """The workers' reports as one, by the command."""
    folders = [str(job.volume(number)) for number in range(len(job.pods))]
    command = [
        sys.executable,
        "-m",
        "harness",
        "ci",
        "jobset",
        "merge",
        *folders,
        "--out",
        str(out),
    ]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True)
    whole = report.read(out)
    assert done.returncode == any(result.outcome.is_bad for result in whole.results.values())
    return whole


TRAINING = "suites/multislice_flash_attention/test_training.py"
DISCOVERY = "suites/multislice_flash_attention/test_discovery.py"


def test_two_slices_discover_each_other_in_the_workers_themselves(
    start: Any, tmp_path: Path
) -> None:
    """A case of processes takes each worker for its slice."""
    names = "(of_processes and 2x1-forward) or losses_of_two_processes"
    job = start(DISCOVERY, TRAINING, "-k", names)
    assert job.codes() == [0, 0], [Path(pod["log"]).read_text() for pod in job.pods]
    left = [job.volume(number).rglob("*") for number in range(2)]
    files = [file for folder in left for file in folder if file.is_file()]
    files += [Path(pod["log"]) for pod in job.pods]
    assert not [file for file in files if job.token.encode() in file.read_bytes()]
    own = [report.read(job.volume(number) / "report.xml") for number in range(2)]
    for each in own:
        results = {r.id.partition("::")[2]: r for r in each.results.values()}
        processes = results["test_one_discovery_of_processes[virtual-tpu-2x1-forward]"]
        # Of two slices here: one worker's own client, which waited for the other worker's.
        assert processes.properties["discoveries"] == "1"
        assert processes.properties["clients"] == "2"  # torch_xla's, and JAX's under the guard
        # Gradients are averaged over both workers, and the losses are one process's.
        assert results["test_losses_of_two_processes[virtual-tpu-2x1]"].works
        assert len(results) == 2
    whole = merged(job, tmp_path / "whole.xml")
    assert set(whole.results) == set(own[0].results) == set(own[1].results)
    assert {str(result.outcome) for result in whole.results.values()} == {"passed"}
    assert all(
        result.properties["workers"] == "0-0 passed, 1-0 passed"
        for result in whole.results.values()
    )


SHORT = """
import pytest, time
from harness.lanes import events
@pytest.mark.lanes("virtual-tpu")
@pytest.mark.parametrize("n", range(20))
def test_a(n):
    events.write("client", {})
    time.sleep(0.3)
"""


def test_a_worker_that_is_killed_is_named_and_nothing_is_lost(start: Any, tmp_path: Path) -> None:
    file = tmp_path / "test_short.py"
    file.write_text(SHORT)
    job = start(str(file), "-v", "-o", "xla_preload=")
    job.await_text(1, "PASSED")
    (pytest_pid,) = Path(f"/proc/{job.pid(1)}/task/{job.pid(1)}/children").read_text().split()
    os.kill(int(pytest_pid), signal.SIGKILL)
    assert job.codes() == [1, 128 + signal.SIGKILL]
    died = job.volume(1)
    assert not (died / "report.xml").exists()
    assert json.loads((died / "done.json").read_text()) == {"exit": -signal.SIGKILL}
    assert "PASSED" in (died / "log.txt").read_text()
    whole = merged(job, tmp_path / "whole.xml")
    first = report.read(job.volume(0) / "report.xml")
    assert set(whole.results) == set(first.results)
    assert len(whole.results) == 20
    assert {str(result.outcome) for result in whole.results.values()} == {"crashed"}
    for result in whole.results.values():
        assert "worker 1-0 has no result" in result.failure
    workers = {result.properties["workers"] for result in whole.results.values()}
    assert "0-0 passed, 1-0 no report" in workers
    # What its cases had asked of the plugin: a file each, that of the last one perhaps empty yet.
    kept = [log.read_text() for log in (died / "events").glob("*.jsonl")]
    assert any("client" in text for text in kept)
