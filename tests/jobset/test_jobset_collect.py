"""Collecting from a cluster: what comes out of the pods, and who died.

There is no cluster: a script stands in for kubectl, whose pods are folders.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support.kubectl import KUBECTL, pod, reported

from harness import cli
from harness.history.run import RunMetadata, read_run
from harness.jobset import kubectl, workers
from harness.junit import report


class Cluster:
    """The folder that the stand-in looks at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        job = {"replicas": 2, "template": {"spec": {"completions": 1}}}
        (folder / "night.json").write_text(json.dumps({"spec": {"replicatedJobs": [job]}}))

    def look(self, *looks: list[dict[str, Any]] | None) -> None:
        (self.folder / "pods.json").write_text(json.dumps(looks))

    def worker(self, name: str, text: str | None = None, exit_: int | None = 0) -> Path:
        """A pod's folder; without an exit code the worker is still at it."""
        folder = self.folder / f"pod-{name}"
        folder.mkdir()
        (folder / "log.txt").write_text(f"pytest of {name}")
        if text is not None:
            (folder / "report.xml").write_text(text)
        if exit_ is not None:
            (folder / "done.json").write_text(json.dumps({"exit": exit_}))
        return folder


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    folder, programs = tmp_path / "cluster", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    (programs / "kubectl").write_text(KUBECTL)
    (programs / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/local/bin:/usr/bin:/bin")
    monkeypatch.setenv("CLUSTER", str(folder))
    monkeypatch.setattr(workers, "_POLL", 0.05)
    return Cluster(folder)


def run(out: Path, *more: str) -> int:
    return cli.main(
        ["ci", "jobset", "fetch", "night", "--namespace", "ci", "--out", str(out), *more]
    )


def outcomes(path: Path) -> dict[str, str]:
    return {r.id.partition("::")[2]: str(r.outcome) for r in report.read(path).results.values()}


def test_all_workers_are_collected_released_and_merged(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = [pod("0-0"), pod("1-0")]
    cluster.look([], None, [pod("0-0", "Pending")], both)
    folders = [cluster.worker(name, reported(a="passed", b="passed")) for name in ("0-0", "1-0")]
    out = tmp_path / "out"
    assert run(out) == 0
    for name, folder in zip(("0-0", "1-0"), folders, strict=True):
        assert (folder / "collected").exists()
        assert (out / name / "log.txt").read_text() == f"pytest of {name}"
        assert (out / name / "pod.log").read_text() == f"log of pod-{name}\n"
    assert outcomes(out / "report.xml") == {"a": "passed", "b": "passed"}
    captured = capsys.readouterr()
    assert "0-0  pytest ended with 0" in captured.err
    assert "2 cases of 2 workers: 2 passed" in captured.out


def test_a_case_is_as_bad_as_on_its_worst_worker(cluster: Cluster, tmp_path: Path) -> None:
    cluster.look([pod("0-0"), pod("1-0")])
    first = {"a": "passed", "b": "hung: late", "c": "skipped: no 4", "d": "passed", "e": "passed"}
    other = {"a": "failed: oh", "b": "failed: no", "c": "skipped: no 8", "d": "skipped: why"}
    cluster.worker("0-0", reported(**first), 1)
    cluster.worker("1-0", reported(**other, e="passed"), 1)
    out = tmp_path / "out"
    assert run(out) == 1
    assert outcomes(out / "report.xml") == {
        "a": "failed",
        "b": "hung",
        "c": "skipped",
        "d": "passed",
        "e": "passed",
    }
    results = {r.id[-1]: r for r in report.read(out / "report.xml").results.values()}
    assert results["a"].properties["workers"] == "0-0 passed, 1-0 failed"
    assert results["c"].properties["skipped_on"] == "0-0: no 4; 1-0: no 8"
    assert results["d"].properties["skipped_on"] == "1-0: why"
    assert "skipped_on" not in results["e"].properties
    recorded = read_run(out / "report.xml", RunMetadata())  # as a history takes it
    assert {case.id[-1]: str(case.outcome) for case in recorded.cases} == outcomes(
        out / "report.xml"
    )
    text = (out / "report.xml").read_text()
    assert ">worker 1-0: trace of oh</" in text
    assert ">worker 0-0: stack of late\n\nworker 1-0: trace of no</" in text
    assert "--- worker 0-0 ---\nout late\n--- worker 1-0 ---\nout no" in text


def test_a_worker_that_died_is_named_and_its_cases_count_as_crashed(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.look([pod("0-0"), pod("1-0", "Failed", reason="OOMKilled", exitCode=137)])
    cluster.worker("0-0", reported(a="passed", b="failed: oh"), 1)
    out = tmp_path / "out"
    assert run(out, "--json", str(tmp_path / "out.json")) == 1
    assert json.loads((tmp_path / "out.json").read_text()) == {
        "report": str(out / "report.xml"),
        "workers": 2,
        "missing": {"1-0": "died: OOMKilled, exit code 137"},
        "faults": [],
        "skew": [],
        "counts": {"crashed": 2},
        "exits": {"0-0": 1, "1-0": 1},
    }
    captured = capsys.readouterr()
    assert "1-0  died: OOMKilled, exit code 137" in captured.err
    assert "worker 1-0 has no report: died: OOMKilled, exit code 137" in captured.out
    assert outcomes(out / "report.xml") == {"a": "crashed", "b": "crashed"}
    results = {r.id[-1]: r for r in report.read(out / "report.xml").results.values()}
    assert results["a"].failure == "worker 1-0 has no result: died: OOMKilled, exit code 137"
    assert "trace of oh" in (out / "report.xml").read_text()
    assert (out / "1-0" / "pod.log").read_text() == "log of pod-1-0\n"


def test_a_case_that_only_one_worker_has_is_not_lost(cluster: Cluster, tmp_path: Path) -> None:
    cluster.look([pod("0-0"), pod("1-0")])
    cluster.worker("0-0", reported(a="passed"))
    cluster.worker("1-0", reported(a="passed", z="passed"))
    assert run(tmp_path / "out") == 1
    assert outcomes(tmp_path / "out" / "report.xml") == {"a": "passed", "z": "crashed"}


def test_a_pod_that_is_deleted_is_over(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As all others of a job are, when one of its pods failed."""
    cluster.look([pod("0-0"), pod("1-0")], [pod("0-0")])
    cluster.worker("0-0", reported(a="passed"))
    cluster.worker("1-0", None, None)
    assert run(tmp_path / "out", "--timeout", "20") == 1
    assert "1-0  died: pod pod-1-0 was deleted" in capsys.readouterr().err


def test_waiting_is_bounded(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.look([pod("0-0"), pod("1-0", "Pending")])
    cluster.worker("0-0", None, None)
    assert run(tmp_path / "out", "--timeout", "1") == 2
    captured = capsys.readouterr()
    assert "0-0  pod pod-0-0 was still running after 1 s" in captured.err
    assert "1-0  pod pod-1-0 never ran after 1 s" in captured.err
    assert "no worker left a report: 0-0: pod pod-0-0 was still running" in captured.err


def test_a_killed_pytest_is_told(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.look([pod("0-0"), pod("1-0")])
    cluster.worker("0-0", reported(a="passed"))
    cluster.worker("1-0", None, -9)
    assert run(tmp_path / "out") == 1
    assert "1-0  pytest was killed by signal 9 and left no report" in capsys.readouterr().err


def test_a_pods_archive_stays_in_its_folder(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../../escaped"), io.BytesIO())
    monkeypatch.setattr(
        kubectl.KubernetesCluster,
        "_run",
        lambda *_: subprocess.CompletedProcess([], 0, stream.getvalue(), b""),
    )
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    assert "can't be read" in kubectl.KubernetesCluster("ci").copy("pod", folder)
    assert not (tmp_path / "escaped").exists()


BAD = {
    "gone": 'jobset gone: jobsets "gone" not found',
    "Night;rm": "name 'Night;rm': expected a DNS label",
    "foreign": "expected one that xla-harness ci jobset has printed",
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(
    cluster: Cluster, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (cluster.folder / "foreign.json").write_text('{"spec": {"replicatedJobs": []}}')
    command = ["ci", "jobset", "fetch", name, "--namespace", "ci", "--out", str(tmp_path / "out")]
    assert cli.main(command) == 2
    assert BAD[name] in capsys.readouterr().err


def test_without_kubectl_it_says_so(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(cluster.folder))
    assert run(tmp_path / "out") == 2
    assert "kubectl is missing" in capsys.readouterr().err


def test_reports_of_other_versions_are_told(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.look([pod("0-0"), pod("1-0")])
    cluster.worker("0-0", reported(a="passed"))
    cluster.worker("1-0", reported(a="passed").replace("2.9.0", "2.8.0"))
    assert run(tmp_path / "out") == 0
    assert "worker 1-0 ran torch 2.8.0, worker 0-0 2.9.0" in capsys.readouterr().out


JOBSETS = {
    "no JSON": "Error from server",
    "cut off": '{"spec": {"replicated',
    "deep": "[" * 100_000,
    "a list": "[]",
    "nothing in it": "{}",
    "endless": '{"spec": {"replicatedJobs": [{"replicas": 1e999, "template": {}}]}}',
    "huge": '{"spec": {"replicatedJobs": [{"replicas": 1000000000, '
    '"template": {"spec": {"completions": 1000000000}}}]}}',
}


@pytest.mark.parametrize("kind", JOBSETS)
def test_a_jobset_that_is_none(
    cluster: Cluster, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (cluster.folder / "night.json").write_text(JOBSETS[kind])
    assert run(tmp_path / "out") == 2
    assert "xla-harness: jobset night: expected" in capsys.readouterr().err


def test_pods_that_are_none_cost_only_themselves(cluster: Cluster, tmp_path: Path) -> None:
    odd: list[Any] = [None, 5, {}, {"metadata": 5}, {"metadata": {"name": []}}]
    half = {"metadata": {"name": "x", "labels": 5}, "status": {"containerStatuses": [5, {}]}}
    good = [pod("0-0"), pod("1-0")]
    cluster.look([*odd, half, *good])
    for name in ("0-0", "1-0"):
        cluster.worker(name, reported(a="passed"))
    assert run(tmp_path / "out") == 0


@pytest.mark.parametrize("text", ["null", "[]", '{"exit": "x"}', '{"exit": 1e999}', "[" * 100_000])
def test_an_exit_code_that_is_none(
    cluster: Cluster, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubectl, "REPORTS", "/reports")
    (cluster.worker("0-0") / "done.json").write_text(text)
    assert kubectl.KubernetesCluster("ci").done("pod-0-0") is None


@pytest.mark.parametrize("text", ["null", "[]", "x", '{"items": 5}'])
def test_a_list_of_pods_that_is_none(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 0, text.encode(), b"")
    monkeypatch.setattr(kubectl.KubernetesCluster, "_run", lambda *_: done)
    assert kubectl.KubernetesCluster("ci").pods("night") is None
