"""What a JobSet's manifest is made of, and the types that it must have."""

from __future__ import annotations

import copy
from typing import Any

import kubernetes_validate

Json = dict[str, Any]
KUBERNETES = "1.32"


def items_of(manifests: Json) -> list[Json]:
    """What a list has for kubectl: the Secret and the JobSet."""
    assert (manifests["apiVersion"], manifests["kind"]) == ("v1", "List")
    assert [item["kind"] for item in manifests["items"]] == ["Secret", "JobSet"]
    return manifests["items"]


def job_of(manifest: Json) -> Json:
    (replicated,) = manifest["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def check(manifest: Json) -> None:
    """Raise unless JobSet's types have each field, and Kubernetes' schemas the Job with its pod."""
    # Here, as every worker imports this module to collect tests, and the types take seconds.
    from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

    model = JobsetV1alpha2JobSet.from_dict(copy.deepcopy(manifest))
    assert model.to_dict() == manifest
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
    kubernetes_validate.validate({**job, "spec": job_of(manifest)}, KUBERNETES, strict=True)
