"""The JobSet that `ci jobset` prints, compared with the types of Kubernetes and of JobSet."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import kubernetes_validate
import pytest
from support.manifests import KUBERNETES, Json, check, items_of, job_of
from support.paths import ROOT

from harness import cli
from harness.model.topology import Topology
from harness.platforms.tpu import TPU

BASE = ["--accelerator", "tpu-v6e-slice", "--grid", "2x2", "--image", "registry.example/x:1"]
TOKEN = "XLA_HARNESS_JOB_TOKEN"


@pytest.fixture
def both(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Json, Json]]:
    """The Secret and the JobSet that are printed."""

    def run(*arguments: str) -> tuple[Json, Json]:
        assert cli.main(["ci", "jobset", *arguments]) == 0
        secret, manifest = items_of(json.loads(capsys.readouterr().out))
        return secret, manifest

    return run


@pytest.fixture
def printed(both: Callable[..., tuple[Json, Json]]) -> Callable[..., Json]:
    """The JobSet that is printed."""
    return lambda *arguments: both(*arguments)[1]


def pod_of(manifest: Json) -> Json:
    return job_of(manifest)["template"]["spec"]


def container_of(manifest: Json) -> Json:
    (container,) = pod_of(manifest)["containers"]
    return container


def environment_of(manifest: Json) -> dict[str, str]:
    """Values as they stand in the manifest; a field's path in its place, without the token's."""
    return {
        entry["name"]: entry.get("value") or entry["valueFrom"]["fieldRef"]["fieldPath"]
        for entry in container_of(manifest)["env"]
        if entry["name"] != TOKEN
    }


SLICES = [
    (generation.gke, grid)
    for generation in TPU.generations
    for grid in (generation.grids[1], generation.grids[-1])
]


@pytest.mark.parametrize("lane", ["tpu", "virtual-tpu"])
@pytest.mark.parametrize("slices", ["1", "2", "32"])
@pytest.mark.parametrize(("accelerator", "grid"), SLICES)
def test_types_of_jobset_and_kubernetes(
    printed: Callable[..., Json], accelerator: str, grid: str, slices: str, lane: str
) -> None:
    options = ["--accelerator", accelerator, "--grid", grid, "--slices", slices]
    check(printed(*options, "--lane", lane, "--image", "a/b", "--stack", "2.9.0"))


def test_the_token_is_a_secret(both: Callable[..., tuple[Json, Json]]) -> None:
    secret, manifest = both(*BASE, "--name", "night", "--namespace", "ci")
    kubernetes_validate.validate(secret, KUBERNETES, strict=True)
    assert secret["metadata"]["name"] == "night-token"
    assert secret["metadata"]["namespace"] == manifest["metadata"]["namespace"] == "ci"
    assert secret["metadata"]["labels"] == manifest["metadata"]["labels"]
    assert secret["immutable"]  # of one job all workers have the same
    (token,) = secret["stringData"].values()
    assert re.fullmatch(r"[0-9a-f]{64}", token)
    assert token not in json.dumps(manifest)
    (entry,) = (entry for entry in container_of(manifest)["env"] if entry["name"] == TOKEN)
    (key,) = secret["stringData"]
    assert entry["valueFrom"] == {"secretKeyRef": {"name": "night-token", "key": key}}
    other, _ = both(*BASE, "--name", "night")
    assert other["stringData"][key] != token


@pytest.mark.parametrize(
    ("key", "value"), [("strings", {}), ("immutable", "yes"), ("stringData", {"token": 1})]
)
def test_what_is_wrong_with_a_secret_shows(
    both: Callable[..., tuple[Json, Json]], key: str, value: Any
) -> None:
    secret, _ = both(*BASE)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(secret | {key: value}, KUBERNETES, strict=True)


def plant(manifest: Json, *path: str | int, value: Any) -> None:
    at: Any = manifest
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value


JOB = ("spec", "replicatedJobs", 0, "template", "spec")
POD = (*JOB, "template", "spec")
FAULTS = {
    "unknown field of a JobSet": (("spec", "maxRestarts"), 0),
    "unknown field of its policy": (("spec", "failurePolicy", "restarts"), 0),
    "a number as text": (("spec", "ttlSecondsAfterFinished"), "60"),
    "unknown field of a Job": ((*JOB, "replicas"), 2),
    "text for a number": ((*JOB, "parallelism"), "two"),
    "unknown field of a pod": ((*POD, "nodeSelectors"), {}),
    "unknown field of a container": ((*POD, "containers", 0, "cmd"), []),
    "a variable that is no text": ((*POD, "containers", 0, "env", 0, "value"), 2),
    "no list of volumes": ((*POD, "volumes"), {"name": "reports"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_shows(printed: Callable[..., Json], fault: str) -> None:
    manifest = printed(*BASE)
    check(manifest)
    path, value = FAULTS[fault]
    plant(manifest, *path, value=value)
    with pytest.raises((AssertionError, ValueError, kubernetes_validate.ValidationError)):
        check(manifest)


# Chips of a host, and hosts of a slice, from the machine types that GKE has for each.
HOSTS = [
    ("tpu-v4-podslice", "2x2x1", 1, 4),
    ("tpu-v4-podslice", "2x2x2", 2, 4),
    ("tpu-v5p-slice", "4x4x4", 16, 4),
    ("tpu-v5-lite-podslice", "1x1", 1, 1),
    ("tpu-v5-lite-podslice", "2x4", 2, 4),
    ("tpu-v6e-slice", "2x2", 1, 4),
    ("tpu-v6e-slice", "16x16", 64, 4),
]


@pytest.mark.parametrize(("accelerator", "grid", "hosts", "chips"), HOSTS)
def test_a_pod_for_each_host(
    printed: Callable[..., Json], accelerator: str, grid: str, hosts: int, chips: int
) -> None:
    manifest = printed("--accelerator", accelerator, "--grid", grid, "--image", "a")
    job = job_of(manifest)
    assert (job["parallelism"], job["completions"], job["completionMode"]) == (
        hosts,
        hosts,
        "Indexed",
    )
    assert container_of(manifest)["resources"] == {"limits": {"google.com/tpu": str(chips)}}
    assert pod_of(manifest)["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": grid,
    }
    names = environment_of(manifest)["TPU_WORKER_HOSTNAMES"].split(",")
    assert names == [f"xla-harness-slice-0-{n}.xla-harness" for n in range(hosts)]


def test_chips_of_a_larger_host(printed: Callable[..., Json]) -> None:
    """ct5lp-hightpu-8t and ct6e-standard-8t have a whole slice of 2x4."""
    options = ["--accelerator", "tpu-v6e-slice", "--grid", "2x4", "--image", "a"]
    manifest = printed(*options, "--chips-per-host", "8")
    assert job_of(manifest)["completions"] == 1
    assert container_of(manifest)["resources"]["limits"] == {"google.com/tpu": "8"}


def test_a_job_of_two_slices(printed: Callable[..., Json]) -> None:
    manifest = printed(
        *BASE, "--slices", "2", "--name", "night", "--namespace", "ci", "--deadline", "90"
    )
    assert manifest["metadata"]["name"] == "night"
    assert manifest["metadata"]["namespace"] == "ci"
    assert manifest["metadata"]["labels"]["app.kubernetes.io/instance"] == "night"
    assert manifest["spec"]["replicatedJobs"][0]["replicas"] == 2
    annotation = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    assert manifest["metadata"]["annotations"][annotation] == "cloud.google.com/gke-nodepool"
    job, pod = job_of(manifest), pod_of(manifest)
    assert (job["backoffLimit"], manifest["spec"]["failurePolicy"]) == (0, {"maxRestarts": 0})
    assert (job["activeDeadlineSeconds"], manifest["spec"]["ttlSecondsAfterFinished"]) == (90, 90)
    assert pod["restartPolicy"] == "Never"
    assert not pod["automountServiceAccountToken"]
    assert environment_of(manifest) == {
        "MEGASCALE_SLICE_ID": "metadata.annotations['jobset.sigs.k8s.io/job-index']",
        "TPU_WORKER_ID": "metadata.annotations['batch.kubernetes.io/job-completion-index']",
        "TPU_WORKER_HOSTNAMES": "night-slice-$(MEGASCALE_SLICE_ID)-0.night",
        "TPU_ACCELERATOR_TYPE": "v6e-4",
        "TPU_TOPOLOGY": "2x2",
        "XLA_HARNESS_RENDEZVOUS": "night-slice-0-0.night:8479",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_COORDINATOR_ADDRESS": "night-slice-0-0.night",
    }


def test_one_slice_has_no_megascale(printed: Callable[..., Json]) -> None:
    assert not [name for name in environment_of(printed(*BASE)) if name.startswith("MEGASCALE")]


def test_a_rehearsal_asks_for_no_tpu(printed: Callable[..., Json]) -> None:
    manifest = printed(*BASE, "--slices", "2", "--lane", "virtual-tpu")
    text = json.dumps(manifest)
    assert "google.com/tpu" not in text
    assert "gke" not in text
    command, same = (
        container_of(m)["command"] for m in (manifest, printed(*BASE, "--slices", "2"))
    )
    assert command == [*same[:-1], "virtual-tpu"]
    assert environment_of(manifest) == environment_of(printed(*BASE, "--slices", "2"))


def test_the_environment_is_of_the_generation(printed: Callable[..., Json]) -> None:
    for generation in TPU.generations:
        grid = generation.grids[2]
        manifest = printed("--accelerator", generation.gke, "--grid", grid, "--image", "a")
        chips = Topology.parse(f"{generation.name}:{grid}").chips
        variables = environment_of(manifest)
        assert variables["TPU_ACCELERATOR_TYPE"] == generation.accelerator_type(chips)
        assert variables["TPU_TOPOLOGY"] == grid


def test_pytests_arguments_come_last_and_as_they_are(printed: Callable[..., Json]) -> None:
    command = container_of(printed(*BASE, "--", "suites/x.py", "-k", "a; $(rm) $HOME `b`"))[
        "command"
    ]
    assert command[:4] == ["xla-harness", "ci", "jobset", "work"]
    # Kubernetes reads $$ as one $, and starts no shell.
    at = command.index("--")
    assert command[at + 1 :] == ["suites/x.py", "-k", "a; $$(rm) $$HOME `b`", "--lane", "tpu"]


BAD = {
    "--accelerator v6e": "did you mean tpu-v6e-slice?",
    "--accelerator nvidia-h100": "expected one of tpu-v4-podslice",
    "--grid 3x3": "no slice of v6e: expected the chips of one, as",
    "--grid 2x2x1": "no slice of v6e",
    "--name Night": "name 'Night': expected a DNS label",
    "--name a-": "expected a DNS label",
    "--name 9a": "a letter first",
    "--name a.b": "expected a DNS label",
    f"--name {'a' * 50}": "characters at most: pods are",
    "--namespace a_b": "--namespace 'a_b'",
    "--image a;b": "--image 'a;b'",
    "--slices 0": "--slices 0: expected at least 1",
    "--deadline 0": "--deadline 0",
    "--lane cpu": "--lane 'cpu': expected one of tpu, virtual-tpu",
    "--chips-per-host 3": "no whole number of hosts",
    "--chips-per-host 8": "expected 1 to 4",
    "-- --junitxml=x": "--junitxml: every worker's report has its own place",
    "-- --lane=cpu": "--lane: expected in front of --",
}


@pytest.mark.parametrize("wrong", BAD)
def test_bad_input_is_named(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ci", "jobset", *BASE, *wrong.split(" ")]) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert re.sub(r"\s+", " ", BAD[wrong]) in captured.err


def test_every_option_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "gke.md").read_text()
    for action in ([], ["work"], ["fetch"], ["merge"]):
        with pytest.raises(SystemExit):
            cli.main(["ci", "jobset", *action, "--help"])
        options = set(re.findall(r"--[a-z-]{2,}", capsys.readouterr().out)) - {"--help"}
        assert {option for option in options if option not in text} == set()


@pytest.mark.parametrize("missing", ["--accelerator", "--grid", "--image"])
def test_what_is_needed_is_named(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    at = BASE.index(missing)
    assert cli.main(["ci", "jobset", *BASE[:at], *BASE[at + 2 :]]) == 2
    assert f"{missing} is missing" in capsys.readouterr().err


def test_a_slice_of_one_host_is_said_to_be_undocumented(
    printed: Callable[..., Json], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["ci", "jobset", *BASE, "--slices", "2"]) == 0
    assert "slices of several hosts only" in capsys.readouterr().err
    assert cli.main(["ci", "jobset", *BASE]) == 0
    assert not capsys.readouterr().err
