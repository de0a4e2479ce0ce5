"""Variables of launchers that say which job this process is of."""

from __future__ import annotations

import pytest

from harness.errors import BadInputError
from harness.job.launched import launched_job

MPIRUN = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-1@1",
}


def test_job_of_mpirun() -> None:
    job = launched_job(MPIRUN)
    assert job is not None
    assert (job.launcher, job.number, job.count, job.is_here) == ("mpirun", 3, 4, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"PMIX_NAMESPACE": None}, "variable PMIX_NAMESPACE is not set"),
        (
            {"OMPI_COMM_WORLD_SIZE": "four"},
            "variable OMPI_COMM_WORLD_SIZE='four': expected a number",
        ),
        ({"OMPI_COMM_WORLD_RANK": ""}, "variable OMPI_COMM_WORLD_RANK='': expected a number"),
    ],
)
def test_incomplete_variables(change: dict[str, str | None], words: str) -> None:
    variables = {name: text for name, text in {**MPIRUN, **change}.items() if text is not None}
    with pytest.raises(BadInputError, match=words):
        launched_job(variables)
