"""A plan as what kubectl takes: the JobSet, and a Secret with the token of its workers.

What GKE's own webhook sets for a JobSet (TPU_WORKER_ID, TPU_WORKER_HOSTNAMES and MEGASCALE_*) is
written out with the same values: slices of one host are outside of what it does, a cluster without
TPUs has no webhook, and a reader sees what a worker is told.
https://jobset.sigs.k8s.io/docs/tasks/tpu_multislice/
"""

from __future__ import annotations

import math
from typing import Any

from harness.job import job
from harness.jobset.job_plan import REPLICATED, JobPlan
from harness.junit.properties import STACK_VARIABLE
from harness.messages import new_token
from harness.platforms.description import Generation
from harness.platforms.tpu import TPU

Json = dict[str, Any]

CONTAINER = "worker"
REPORTS = "/reports"
RENDEZVOUS_PORT = 8479
_KEY = "token"  # of the Secret
_JOB_INDEX = "metadata.annotations['jobset.sigs.k8s.io/job-index']"
_COMPLETION_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_PORTS = {"tpu": 8471, "megascale": 8080, "rendezvous": RENDEZVOUS_PORT}
_CPU = {"cpu": "2", "memory": "16Gi"}  # of a rehearsal's pod: torch, and a case's own 8 GiB


def manifest(plan: JobPlan) -> Json:
    """Return the Secret and the JobSet as one list. Each manifest has its own token."""
    return {"apiVersion": "v1", "kind": "List", "items": [_secret(plan), _jobset(plan)]}


def _labels(plan: JobPlan) -> dict[str, str]:
    return {"app.kubernetes.io/name": "xla-harness", "app.kubernetes.io/instance": plan.name}


def _secret(plan: JobPlan) -> Json:
    """Return the Secret with the token, immutable because all workers must have the same."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": _secret_name(plan),
            "namespace": plan.namespace,
            "labels": _labels(plan),
        },
        "type": "Opaque",
        "immutable": True,
        "stringData": {_KEY: new_token()},
    }


def _secret_name(plan: JobPlan) -> str:
    return f"{plan.name}-token"


def _jobset(plan: JobPlan) -> Json:
    """Return the JobSet. A failed pod ends the job, since no slice can be replaced."""
    labels = _labels(plan)
    annotations = {
        "xla-harness/topology": plan.topology,
        "xla-harness/hosts": str(plan.hosts),
        "xla-harness/stack": plan.stack,
    }
    if plan.on_hardware:  # a slice is a node pool, and no other job's
        annotations["alpha.jobset.sigs.k8s.io/exclusive-topology"] = "cloud.google.com/gke-nodepool"
    each = {
        "completionMode": "Indexed",
        "parallelism": plan.hosts,
        "completions": plan.hosts,
        "backoffLimit": 0,
        "activeDeadlineSeconds": plan.deadline,
        "template": {"metadata": {"labels": labels}, "spec": _pod(plan)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": plan.name,
            "namespace": plan.namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            # Workers look for each other before any is ready.
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0},
            "ttlSecondsAfterFinished": plan.deadline,
            "replicatedJobs": [
                {
                    "name": REPLICATED,
                    "replicas": plan.slices,
                    "template": {"metadata": {"labels": labels}, "spec": each},
                }
            ],
        },
    }


def _pod(plan: JobPlan) -> Json:
    pod: Json = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        # A worker that is told to end, since another one died, still waits to be collected.
        "terminationGracePeriodSeconds": plan.wait,
        "containers": [_container(plan)],
        "volumes": [{"name": "reports", "emptyDir": {}}],
    }
    if plan.on_hardware:
        pod["nodeSelector"] = {
            "cloud.google.com/gke-tpu-accelerator": plan.generation.gke,
            "cloud.google.com/gke-tpu-topology": plan.grid,
        }
    return pod


def _container(plan: JobPlan) -> Json:
    work = ["xla-harness", "ci", "jobset", "work", "--out", REPORTS, "--wait", str(plan.wait), "--"]
    tpus = {"google.com/tpu": str(plan.chips)}
    return {
        "name": CONTAINER,
        "image": plan.image,
        # Kubernetes reads $(NAME) in it, and $$ as one $.
        "command": work + [argument.replace("$", "$$") for argument in plan.arguments],
        "env": _environment(plan),
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"}
            for name, port in _PORTS.items()
        ],
        "resources": {"limits": tpus} if plan.on_hardware else {"requests": _CPU, "limits": _CPU},
        "volumeMounts": [{"name": "reports", "mountPath": REPORTS}],
    }


def _environment(plan: JobPlan) -> list[Json]:
    """Return the variables in order: Kubernetes finds only earlier ones for ``$(NAME)``."""
    hosts = range(plan.hosts)
    # A slice's own workers, wherever the pod is.
    launch = TPU.launch
    index = f"$({launch.slice})" if plan.slices > 1 else "0"
    values = {
        launch.hostnames: ",".join(plan.host(index, worker) for worker in hosts),
        "TPU_ACCELERATOR_TYPE": plan.generation.accelerator_type(_chips(plan)),
        "TPU_TOPOLOGY": plan.grid,
        job.RENDEZVOUS: f"{plan.host(0, 0)}:{RENDEZVOUS_PORT}",
        **({STACK_VARIABLE: plan.stack.replace("$", "$$")} if plan.stack else {}),
    }
    fields = {launch.worker: _COMPLETION_INDEX}
    if plan.slices > 1:
        fields = {launch.slice: _JOB_INDEX, **fields}
        values[launch.slices] = str(plan.slices)
        values[launch.coordinator] = plan.host(0, 0)
    return [
        *({"name": k, "valueFrom": {"fieldRef": {"fieldPath": v}}} for k, v in fields.items()),
        *({"name": k, "value": v} for k, v in values.items()),
        {
            "name": job.TOKEN,
            "valueFrom": {"secretKeyRef": {"name": _secret_name(plan), "key": _KEY}},
        },
    ]


def _chips(plan: JobPlan) -> int:
    return plan.hosts * plan.chips


def unsupported(plan: JobPlan) -> str:
    """Return what GKE's documentation says against the plan, or ""."""
    if plan.on_hardware and plan.slices > 1 and plan.hosts == 1:
        return (
            f"note: a slice {_grid(plan.generation, plan.grid)} is one host, and GKE documents "
            "Multislice for slices of several hosts only; the manifest sets what its webhook "
            "would not"
        )
    return ""


def _grid(generation: Generation, grid: str) -> str:
    return f"{generation.name}:{grid} of {math.prod(map(int, grid.split('x')))} chips"
