"""Each collective of torch.distributed over all ranks, and within subgroups."""

from __future__ import annotations

import pytest

from harness.model.topology import Target
from suites.process_groups.asking import ask
from suites.process_groups.jobs import Question
from suites.process_groups.programs import COLLECTIVES, question
from suites.shared.groups import Groups, layout
from suites.shared.values import ranks_of

pytestmark = [
    pytest.mark.lanes("virtual-*"),
    pytest.mark.frameworks("torch_xla", "torch_tpu"),
    pytest.mark.upstream("pytorch/xla#9315"),
]


def _questions(collective: str, world: int, groups: Groups = ()) -> dict[str, Question]:
    return {
        dtype: question(collective, ranks_of(world, (8, 3), dtype), groups)
        for dtype in ("float32", "int32")
    }


@pytest.mark.topologies("4@chip")
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_world(xla_target: Target, subtests: pytest.Subtests, collective: str) -> None:
    ask(subtests, xla_target, _questions(collective, xla_target.topology.total))


@pytest.mark.topologies("2x2@chip")
@pytest.mark.parametrize(
    "collective", ["all_reduce", "all_gather_into_tensor", "all_to_all_single"]
)
def test_slices(xla_target: Target, subtests: pytest.Subtests, collective: str) -> None:
    """The ranks of all slices are one world."""
    ask(subtests, xla_target, _questions(collective, xla_target.topology.total))


@pytest.mark.topologies("3@chip", "5@chip", "7@chip")
def test_any_number_of_chips(xla_target: Target, subtests: pytest.Subtests) -> None:
    """Numbers that neither a host nor torch_tpu's tables of slices have."""
    questions = {
        collective: question(collective, ranks_of(xla_target.topology.total, (8, 3)))
        for collective in ("all_reduce", "all_gather_into_tensor", "broadcast")
    }
    ask(subtests, xla_target, questions)


@pytest.mark.topologies("4@chip")
@pytest.mark.parametrize(
    ("collective", "groups"),
    [
        *((collective, "strided") for collective in COLLECTIVES),
        *((collective, "pairs") for collective in ("all_reduce", "broadcast")),
    ],
)
def test_subgroups(
    xla_target: Target, subtests: pytest.Subtests, collective: str, groups: str
) -> None:
    """Groups that are created with the framework's own option, if it has one.

    torch_xla derives all groups from one.
    """
    of = layout(groups, xla_target.topology.total)
    ask(subtests, xla_target, _questions(collective, xla_target.topology.total, of), of)


@pytest.mark.topologies("4@chip")
@pytest.mark.upstream("pytorch/xla#8271")
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather_into_tensor", "broadcast"])
def test_plain_subgroups(xla_target: Target, subtests: pytest.Subtests, collective: str) -> None:
    """Groups as programs for other backends create them."""
    of = layout("pairs", xla_target.topology.total)
    ask(subtests, xla_target, _questions(collective, xla_target.topology.total, of), of, {})


@pytest.mark.long
@pytest.mark.topologies("4@chip")
def test_subgroups_of_any_size(xla_target: Target, subtests: pytest.Subtests) -> None:
    """Three ranks and one, which torch_xla has to be told in full."""
    of: Groups = ((0, 1, 2), (3,))
    mesh_options = {"xla_pg_options": {"mesh": [list(ranks) for ranks in of]}}
    options = mesh_options if xla_target.framework == "torch_xla" else None
    ask(subtests, xla_target, _questions("all_reduce", xla_target.topology.total, of), of, options)
