"""Whether the collectives of programs that met can all be met, and what is said when not."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from harness.lanes.virtual.executor import executable
from harness.lanes.virtual.executor.connected_ranks import (
    MOST_MESSAGE,
    Execution,
    Rank,
    SharedSegment,
)
from harness.lanes.virtual.executor.diagnosis import Diagnosis, type_name
from harness.lanes.virtual.executor.matching import Mismatch, mismatch
from harness.lanes.virtual.executor.meeting_history import MeetingHistory
from harness.lanes.virtual.executor.programs import Groups, RankProgram
from harness.lanes.virtual.executor.queues import Queues
from harness.lanes.virtual.executor.stuck_report import MOST_LINES, report

F32, BF16 = 11, 16


def thunk(  # noqa: PLR0913 - the fields of one message
    kind: str = "all_reduce",
    shape: Sequence[int] = (2,),
    *,
    of: int = F32,
    reduction: str = "sum",
    groups: Groups = (),
    channel: int | None = None,
    everywhere: bool = False,
    pairs: Sequence[tuple[int, int]] = (),
    name: str = "",
) -> executable.Thunk:
    """One collective as XLA's CPU compiler writes it."""
    made = executable.Thunk()
    made.info.op_name = name or kind
    collective = made.collective
    getattr(collective, kind).SetInParent()
    if kind in ("all_reduce", "reduce_scatter"):
        getattr(collective, kind).kind = reduction
    for source, target in pairs:
        collective.collective_permute.pairs.add(source=source, target=target)
    params = collective.op_params
    for group in groups:
        params.groups.add(ids=group)
    params.use_global_device_ids.value = everywhere
    params.has_channel_id = channel is not None
    params.op_id = channel or 0
    collective.op_buffers.sources.add().shape.element_type = of
    collective.op_buffers.sources[0].shape.dimensions.extend(shape)
    return made


def program(*thunks: executable.Thunk, devices: int = 2, partitions: int = 1) -> RankProgram:
    made = executable.Executable()
    made.result.thunk_sequence.thunks.extend(thunks)
    return RankProgram(made.SerializeToString(), devices, partitions)


def test_programs_that_differ_but_match() -> None:
    """Another name, and work of its own in between, as TorchTPU's scatter has on the root."""
    own = executable.Thunk()
    own.info.op_name = "copy"
    assert mismatch([program(thunk(name="a"), own), program(own, thunk(name="b"))]) is None


@pytest.mark.parametrize(
    "other",
    [
        thunk("all_gather"),
        thunk(shape=(3,)),
        thunk(shape=(2, 1)),
        thunk(of=BF16),
        thunk(reduction="max"),
        thunk(groups=((0,), (1,))),
        thunk(channel=7),
        thunk("reduce_scatter"),
    ],
    ids=["kind", "shape", "rank", "type", "reducer", "groups", "channel", "scatter"],
)
def test_what_must_be_equal(other: executable.Thunk) -> None:
    difference = mismatch([program(thunk()), program(other)])
    assert difference is not None
    assert difference.number == 0
    first = difference.reached[0]
    assert first is not None
    assert first.kind == "all-reduce"


def permute(*pairs: tuple[int, int], devices: int = 2) -> RankProgram:
    exchange = thunk("collective_permute", channel=1, pairs=pairs)
    return program(exchange, devices=devices, partitions=devices)


def test_both_ends_of_a_pair_must_know_it() -> None:
    both, half = permute((0, 1), (1, 0)), permute((0, 1))
    assert mismatch([both, both]) is None
    assert mismatch([both, half]) is not None
    assert mismatch([half, both]) is not None


def test_pairs_of_others_may_be_unknown() -> None:
    """The programs of send and recv know of their own two ranks only."""
    front, back = permute((0, 2), devices=4), permute((1, 3), devices=4)
    assert mismatch([front, back, front, back]) is None
    around = [permute((rank, (rank + 1) % 4), devices=4) for rank in range(4)]
    difference = mismatch(around)
    assert difference is not None
    assert set(difference.reached) == {0, 1, 2, 3}


def test_the_first_one_that_does_not_match_is_named() -> None:
    first_program = program(thunk(), thunk(shape=(4,), name="second"), thunk())
    two = program(thunk(), thunk(shape=(5,), name="other"), thunk())
    difference = mismatch([first_program, two])
    assert difference is not None
    assert difference.number == 1
    assert [reached and reached.name for reached in difference.reached.values()] == [
        "second",
        "other",
    ]


def test_one_more_on_a_rank() -> None:
    difference = mismatch([program(thunk()), program(thunk(), thunk(name="more"))])
    assert difference is not None
    assert difference.reached[0] is None
    assert difference.reached[1] is not None
    assert difference.reached[1].name == "more"


def test_groups_go_on_independently() -> None:
    halves = ((0, 1), (2, 3))
    pair = program(thunk(groups=halves), devices=4)
    longer = program(thunk(groups=halves), thunk(groups=halves), devices=4)
    assert mismatch([pair, pair, longer, longer]) is None
    difference = mismatch([pair, pair, longer, pair])
    assert difference is not None
    assert set(difference.reached) == {2, 3}


def test_groups_in_another_order_wait_for_each_other() -> None:
    """As ranks that enter two overlapping groups in another order: each is before its first one."""
    left, middle, right = (
        thunk(groups=groups, name=name)
        for groups, name in [(((0, 1),), "left"), (((1, 2),), "middle"), (((0, 2),), "right")]
    )
    orders = [(left, right), (middle, left), (right, middle)]
    difference = mismatch([program(*order, devices=3) for order in orders])
    assert difference is not None
    assert [
        collective and collective.name for _, collective in sorted(difference.reached.items())
    ] == [
        "left",
        "middle",
        "right",
    ]
    ordered = [(left, right), (left, middle), (right, middle)]
    assert mismatch([program(*order, devices=3) for order in ordered]) is None


@pytest.mark.parametrize(
    ("made", "partitions", "expected"),
    [
        (thunk(), 1, ((0, 1, 2, 3),)),
        (thunk(), 2, ((0, 2), (1, 3))),
        (thunk(channel=1), 2, ((0, 2, 1, 3),)),
        (thunk(channel=1, everywhere=True), 2, ((0, 1, 2, 3),)),
        (thunk(channel=1, everywhere=True, groups=((0, 3), (1, 2))), 2, ((0, 3), (1, 2))),
        (thunk("all_to_all", channel=1), 4, ((0, 1, 2, 3),)),
        (thunk("all_to_all", channel=1), 2, ((0, 1), (2, 3))),
        (thunk("all_to_all", channel=1, groups=((0,), (1,))), 2, ((0,), (1,), (2,), (3,))),
        (thunk("collective_permute", pairs=[(0, 1)]), 1, ((0, 1, 2, 3),)),
        (thunk(groups=((0, 1),)), 2, ((0, 2), (1, 3))),
    ],
)
def test_groups_are_those_of_xla(made: executable.Thunk, partitions: int, expected: Groups) -> None:
    (collective,) = program(made, devices=4, partitions=partitions).collectives
    assert {frozenset(group) for group in collective.groups} == set(map(frozenset, expected))


def test_collectives_of_calls_loops_and_branches() -> None:
    called, branch, loop = executable.Thunk(), executable.Thunk(), executable.Thunk()
    called.call.called.thunks.append(thunk(name="called"))
    branch.conditional.branches.add().thunks.append(thunk(name="branch"))
    loop.loop.condition.SetInParent()
    loop.loop.body.thunks.append(thunk(name="body"))
    assert [collective.name for collective in program(called, branch, loop).collectives] == [
        "called",
        "branch",
        "body",
    ]
    assert not program(called).decides
    assert program(branch).decides
    assert program(loop).decides
    inner = executable.Thunk()
    inner.call.called.thunks.append(loop)
    assert program(inner).decides


def test_different_programs_meet_by_equal_ids() -> None:
    """XLA's runtime takes the program's number for a collective that has no channel."""
    halves: Groups = ((0,), (1,))
    left = program(thunk(), thunk(groups=halves), thunk(), thunk(channel=5))
    right = program(thunk(groups=halves), thunk(), thunk(channel=5), thunk())
    ids: dict[tuple[Groups, int], int] = {}
    (first, split, second, channel), (other_split, other_first, other_channel, other_second) = (
        [
            thunk.collective.op_params.op_id
            for thunk in executable.Executable.FromString(
                made.meeting(ids)
            ).result.thunk_sequence.thunks
        ]
        for made in (left, right)
    )
    assert (first, second, split) == (other_first, other_second, other_split)
    assert len({first, second, split}) == 3
    assert channel == other_channel == 5


def test_equal_programs_have_one_digest() -> None:
    assert program(thunk()).digest == program(thunk()).digest
    assert program(thunk()).digest != program(thunk(), devices=4).digest
    assert program(thunk()).digest != program(thunk(shape=(3,))).digest


# --- Queues


@pytest.fixture
def ranks() -> Iterator[list[Rank]]:
    pairs = [socket.socketpair() for _ in range(4)]
    yield [Rank(mine, number, 1000 + number, (number,)) for number, (mine, _) in enumerate(pairs)]
    for pair in pairs:
        for end in pair:
            end.close()


def execution(
    rank: Rank, *devices: int, of: RankProgram | None = None, site: str = "train.py:1 step"
) -> Execution:
    memory = SharedSegment.__new__(SharedSegment)  # nothing runs here
    return Execution(rank, 1, memory, of or program(thunk()), devices, rank.devices, site)


def test_a_program_waits_for_all_of_its_devices(ranks: list[Rank]) -> None:
    queues = Queues()
    made = [execution(rank, 0, 1) for rank in ranks[:2]]
    queues.add(made[0])
    assert queues.ready() == []
    queues.add(made[1])
    assert queues.ready() == made
    queues.take(made)
    assert queues.ready() == queues.waiting() == []


def test_a_device_runs_what_it_has_in_order(ranks: list[Rank]) -> None:
    queues = Queues()
    queues.add(execution(ranks[0], 0, 1))
    queues.add(execution(ranks[0], 0, 2))
    late = execution(ranks[2], 0, 2)
    queues.add(late)
    assert queues.ready() == []
    assert queues.stuck([]) == []  # rank 1 may still come
    queues.remove(ranks[2])
    assert late not in queues.waiting()


def test_another_order_is_a_circle(ranks: list[Rank]) -> None:
    queues = Queues()
    queues.add(execution(ranks[0], 0, 1))
    queues.add(execution(ranks[1], 0, 1, 2))
    assert queues.stuck([]) == []
    queues.add(execution(ranks[2], 0, 1, 2))
    assert queues.stuck([]) == [0, 1, 2]
    assert queues.stuck([0]) == []  # one that runs may bring another one afterwards
    assert queues.ready() == []


def test_groups_of_their_own_run_while_others_wait(ranks: list[Rank]) -> None:
    queues = Queues()
    queues.add(execution(ranks[0], 0, 1))
    pair = [execution(rank, 2, 3) for rank in ranks[2:]]
    for execution_ in pair:
        queues.add(execution_)
    assert queues.ready() == pair


# --- What is said


def said(ranks: list[Rank], waiting: Sequence[Execution]) -> Diagnosis:
    return Diagnosis({rank.number: rank for rank in ranks}, {}, waiting, MeetingHistory())


def whole(why: Diagnosis, ranks: list[Rank]) -> str:
    return report(why, {rank.number: rank for rank in ranks}, MeetingHistory(), [])


def test_a_mismatch_names_ranks_and_collectives(ranks: list[Rank]) -> None:
    added, two = program(thunk(name="sum.1")), program(thunk(reduction="max", name="max.1"))
    met = [execution(ranks[1], 1, 0, of=added), execution(ranks[0], 1, 0, of=two, site="b.py:2 f")]
    difference = mismatch([added, two])
    assert isinstance(difference, Mismatch)
    ranks[0].stacks = "  in f\n"
    text = whole(said(ranks[:2], met).mismatch(met, difference), ranks[:2])
    assert "ranks 0, 1 run programs whose collectives do not match, at collective 1" in text
    assert "rank 1: all-reduce sum of f32[2] over {0, 1} (sum.1)" in text
    assert "rank 0: all-reduce max of f32[2] over {0, 1} (max.1)" in text
    assert "rank 0 came from b.py:2 f" in text
    assert "rank 0 (process 1000):\n  in f" in text
    assert "rank 1 (process 1001):\n  it did not say where it is" in text


def test_a_long_stack_leaves_room_for_the_others(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.stacks = f"  of {rank.number}" + "x" * MOST_MESSAGE
    text = whole(said(ranks, [execution(ranks[0], 0, 1)]).absent([1], 3), ranks)
    assert len(text) < MOST_MESSAGE
    assert all(f"of {rank.number}" in text for rank in ranks)


@pytest.mark.parametrize("alike", [True, False])
def test_a_report_has_few_lines_and_the_culprit_first(ranks: list[Rank], *, alike: bool) -> None:
    many = [replace(ranks[0], number=n, pid=1000 + n, devices=(n,)) for n in range(128)]
    for rank in many:
        frames = range(24 if alike else 24 + rank.number)
        rank.stacks = "".join(f'  File "train.py", line {line}\n' for line in frames)
    many[77].stacks = '  File "train.py", line 1000, in sleep\n'
    waiting = [execution(rank, *range(128)) for rank in many if rank.number != 77]
    text = whole(said(many, waiting).absent([77], 3), many)
    first, *lines = text.splitlines()
    assert "rank 77 does nothing, for 3 s, and ranks 0-76, 78-127 wait for it" in first
    assert len(lines) < MOST_LINES
    assert "rank 77 (process 1077):" in lines
    assert lines[lines.index("rank 77 (process 1077):") + 1].endswith("line 1000, in sleep")


def test_who_does_nothing_is_named(ranks: list[Rank]) -> None:
    text = said(ranks, [execution(ranks[0], 0, 3)]).absent([3], 3).reason
    assert "rank 3 does nothing, for 3 s, and rank 0 waits for it: all_reduce" in text


def test_who_is_missing_before_all_have_come_is_named(ranks: list[Rank]) -> None:
    text = said(ranks[:2], []).incomplete([2, 3], [], 20).reason
    assert "the rank of devices 2, 3 has never come, and ranks 0, 1 wait for it in" in text
    assert "2 of 4 processes have created theirs" in text
    text = said(ranks[:2], []).unfinished(ranks[3]).reason
    assert "rank 3 (process 1003) has ended before all ranks had come, and ranks 0, 1" in text


def test_a_type_has_its_name() -> None:
    assert [type_name(number) for number in (F32, BF16, 99)] == ["f32", "bf16", "type 99"]


def test_ranks_diverge_at_the_program_that_one_left_out(ranks: list[Rank]) -> None:
    history = MeetingHistory()
    lines = ["a.py:1", "a.py:2", "a.py:3"]
    for number, line in enumerate(lines):
        left_out = lines[min(number + 1, 2)] if number else line
        history.met(
            [execution(rank, 0, site=left_out if rank.number == 3 else line) for rank in ranks]
        )
        if number == 1:
            (report,) = history.parted
    assert "from program 2 of 2 on ranks came from different lines" in report
    assert "rank 3: a.py:3; ranks 0-2: a.py:2" in report
    assert history.parted == []  # they have come together again


def test_ranks_that_are_only_near_a_line_do_not_diverge(ranks: list[Rank]) -> None:
    """torch_xla runs a program in a thread while the script goes on to other lines."""
    history = MeetingHistory()
    history.met([execution(rank, 0, 1, site=f"near a.py:{rank.number}") for rank in ranks[:2]])
    assert history.parted == []


def test_a_rank_that_does_not_say_where_it_is_diverges_from_nobody(ranks: list[Rank]) -> None:
    history = MeetingHistory()
    history.met([execution(ranks[0], 0, site="a.py:1"), execution(ranks[1], 0, site="")])
    assert history.parted == []


def test_ranks_part_where_they_run_different_programs(ranks: list[Rank]) -> None:
    """Also when nobody knows which lines they come from."""
    history = MeetingHistory()
    for name in ("sum.1", "sum.2"):
        of = program(thunk(name=name)), program(thunk(reduction="max", name="max.1"))
        late = name == "sum.2"
        met = [execution(r, 0, of=of[late and r.number == 3], site="") for r in ranks]
        for execution_ in met:
            history.queued(execution_)
        history.met(met)
    assert history.parted == [
        "  from program 2 of 2 on ranks ran different programs: rank 3: max.1; ranks 0-2: sum.2"
    ]
    assert [history.come(number) for number in range(4)] == [2] * 4


def test_a_rank_that_takes_nothing_in_holds_nobody(ranks: list[Rank]) -> None:
    for _ in range(1000):
        ranks[0].send("done 1", "x" * 1000)
    assert ranks[0].unsent
    ranks[0].connection.close()
    ranks[0].flush()
    assert not ranks[0].unsent
