"""What hangs a job of several processes on hardware is an outcome that says who, where and why."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.isolation.ranks import RankError
from harness.job.ranks import run_ranks
from harness.model.topology import Topology

pytestmark = [
    pytest.mark.measures_coverage,
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.environment(VIRTUAL_TPU_DEADLINE="4"),
    pytest.mark.deadline(90),
]
Work = Callable[[int], Any]


def on(devices: int, rows: int = 0) -> tuple[Any, Any]:
    """A mesh of the first devices, and an array of ones with a row on each."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:devices]), "x")
    full = np.ones((devices, 2 + rows), np.float32)
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    return mesh, jax.make_array_from_callback(full.shape, sharding, lambda index: full[index])


def program(mesh: Any, body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    import jax
    from jax.sharding import PartitionSpec

    part = PartitionSpec("x")
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=part, out_specs=part, check_vma=False))


def reduce(kind: str = "psum", **options: Any) -> Callable[[Any], Any]:
    from jax import lax

    return lambda value: getattr(lax, kind)(value, "x", **options)


def endless(array: Any) -> Any:
    """Sums over devices that follow each other without end."""
    from jax import lax

    return lax.while_loop(lambda v: v[0, 0] > 0, reduce(), array)


def sum_of_ones(_: int) -> list[list[float]]:
    mesh, ones = on(4)
    return value(program(mesh, reduce())(ones))


def value(array: Any) -> list[list[float]]:
    import numpy as np

    return [np.asarray(shard.data).tolist() for shard in array.addressable_shards]


def hangs(work: Work, topology: Topology, deadline: float = 60) -> str:
    """Why the job of ranks that do ``work`` can't go on."""
    with pytest.raises(RankError) as raised:
        run_ranks(work, topology, deadline=deadline)
    return str(raised.value)


def test_ranks_that_match_compute(topology: Topology) -> None:
    """The control: what the others do wrong, done right."""

    assert run_ranks(sum_of_ones, topology) == [[[[4.0, 4.0]]]] * 4


def test_programs_in_flight_run_in_one_order_on_all_devices(topology: Topology) -> None:
    """They need nothing of each other; two devices that run them in two orders never meet."""

    def work(_: int) -> list[float]:
        import jax

        mesh, ones = on(4, rows=398)
        small = jax.jit(lambda array: array / 400)(ones)
        together = reduce()

        def part(rows: Any) -> Any:
            square = rows.T @ rows
            for _ in range(4):
                square = together(square @ square) / 4
            return square[:1, :2]

        step = program(mesh, part)
        results = [step(small) for _ in range(16)]
        return [row[0][0] for row in map(value, results)]

    first, *others = run_ranks(work, topology)
    assert len(first) == 16
    assert others == [first] * 3


@pytest.mark.parametrize(
    ("other", "pattern"),
    [
        (partial(reduce, "pmax"), r"rank 2: all-reduce max of f32\[1, 2\] over {0, 1, 2, 3}"),
        (partial(reduce, "all_gather", tiled=True), r"rank 2: all-gather"),
        (
            partial(reduce, axis_index_groups=[[0, 1], [2, 3]]),
            r"rank 2: all-reduce sum of f32\[1, 2\] over {0, 1}, {2, 3}",
        ),
    ],
    ids=["reducer", "kind", "group"],
)
def test_collectives_that_do_not_match(
    topology: Topology, other: Callable[[], Callable[[Any], Any]], pattern: str
) -> None:
    def work(number: int) -> list[list[float]]:
        mesh, ones = on(4)
        return value(program(mesh, other() if number == 2 else reduce())(ones))

    report = hangs(work, topology)
    differs = "rank 2 runs a program whose collectives do not match those of ranks 0, 1, 3"
    assert f"{differs}, at collective 1 of program 1" in report
    assert re.search(r"ranks 0, 1, 3: all-reduce sum of f32\[1, 2\] over {0, 1, 2, 3}", report)
    assert re.search(pattern, report)
    assert re.search(rf"ranks 0-3 came from {__file__}:\d+ work", report)
    # One that does not wait for the value yet has a stack of its own.
    heads = re.findall(
        r"^ranks? ([\d, -]+) \(process [\d, -]+\):\n  thread MainThread:", report, re.MULTILINE
    )
    ranges = [each.split("-") for each in ", ".join(heads).split(", ")]
    shown = [number for each in ranges for number in range(int(each[0]), int(each[-1]) + 1)]
    assert sorted(shown) == [0, 1, 2, 3]


def test_shapes_that_do_not_match(topology: Topology) -> None:
    def work(number: int) -> list[list[float]]:
        mesh, ones = on(4, rows=1 if number == 3 else 0)
        return value(program(mesh, reduce())(ones))

    report = hangs(work, topology)
    assert "rank 3: all-reduce sum of f32[1, 3] over" in report
    assert "ranks 0-2: all-reduce sum of f32[1, 2] over" in report


def test_another_order(topology: Topology) -> None:
    """Rank 0 reduces over all and then over two of them, rank 1 the other way round."""

    def work(number: int) -> list[list[float]]:
        mesh, ones = on(4)
        everybody = partial(program(mesh, reduce()), ones)
        if number >= 2:
            return value(everybody())
        pair_mesh, pair_ones = on(2)
        pair = partial(program(pair_mesh, reduce("pmax")), pair_ones)
        first, second = (everybody, pair) if number == 0 else (pair, everybody)
        first()
        return value(second())

    report = hangs(work, topology)
    order = "rank 1 comes to programs in another order than ranks 0, 2, 3: they wait for each other"
    assert f"{order}, each with another program" in report
    assert "ranks 2, 3: a program over devices 0-3" in report
    assert "rank 1: a program over devices 0, 1" in report


def test_a_rank_that_leaves_one_out(topology: Topology) -> None:
    """It ends one program early; before that it came to each from another line."""

    def work(number: int) -> list[list[float]]:
        mesh, ones = on(4)
        step = program(mesh, reduce())

        def helper(array: Any) -> Any:
            return step(array)

        total = step(ones)
        if number != 3:
            total = helper(total)
        total = step(total)
        return value(step(total))

    report = hangs(work, topology)
    assert re.search(r"rank 3 \(process \d+\) has ended, and ranks 0-2 wait for it", report)
    assert "from program 2 of 3 on ranks came from different lines: rank 3: " in report
    assert re.search(r"ranks 0-2: \S+:\d+ helper, called from \S+:\d+ work", report)
    assert "ranks 0-2: 4 programs over several ranks, of which the last one waits" in report


def test_the_first_client_waits_for_all_ranks(topology: Topology, tmp_path: Path) -> None:
    """As libtpu's does; a launcher's worker that is done at once would take another's place."""
    came = tmp_path / "came"

    def work(number: int) -> bool:
        import jax

        if number == 3:
            time.sleep(1)
            came.touch()
        jax.devices()
        return came.exists()

    assert run_ranks(work, topology) == [True] * 4


def test_a_rank_that_dies_before_its_client(topology: Topology) -> None:
    def work(number: int) -> list[list[float]]:
        import jax

        jax.devices() if number else os._exit(3)
        return []

    with pytest.raises(RankError, match="rank 0 of 4 left with exit status 3"):
        run_ranks(work, topology)
    assert run_ranks(sum_of_ones, topology) == [[[[4.0, 4.0]]]] * 4


def test_a_rank_that_never_comes(topology: Topology) -> None:
    def work(number: int) -> list[list[float]]:
        if number == 2:
            time.sleep(600)
        mesh, ones = on(4)
        return value(program(mesh, reduce())(ones))

    report = hangs(work, topology)
    assert "the rank of device 2 has never come, and ranks 0, 1, 3 wait for it" in report
    assert "3 of 4 processes have created theirs" in report


def test_a_rank_that_comes_once_only(topology: Topology) -> None:
    def work(number: int) -> list[list[float]]:
        mesh, ones = on(4)
        step = program(mesh, reduce())
        total = step(ones)
        value(total)
        if number == 2:
            time.sleep(600)
        return value(step(total))

    report = hangs(work, topology)
    assert "rank 2 does nothing, for 4 s, and ranks 0, 1, 3 wait for it" in report
    assert "time.sleep(600)" in report


def test_a_rank_that_is_stopped(topology: Topology) -> None:
    def work(number: int) -> list[list[float]]:
        mesh, ones = on(4)
        step = program(mesh, reduce())
        total = step(ones)
        value(total)
        if number == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return value(step(total))

    report = hangs(work, topology)
    assert "rank 1 is stopped by a signal, for 4 s, and ranks 0, 2, 3 wait for it" in report
    assert re.search(r"rank 1 \(process \d+\):\n  it did not say where it is", report)


def test_a_collective_on_one_branch_only(topology: Topology) -> None:
    """All run one program; what it does, only running it says."""

    def work(number: int) -> list[list[float]]:
        from jax import lax

        mesh, ones = on(4)
        sums = reduce()

        def body(array: Any) -> Any:
            return lax.cond(lax.axis_index("x") < 3, sums, lambda same: same, array)

        return value(program(mesh, body)(ones))

    report = hangs(work, topology)
    assert "rank 3 did not come to a collective that ranks 0-2 hang in, for 4 s" in report
    assert "the program's collectives: psum" in report


def test_programs_that_differ_but_match(topology: Topology) -> None:
    """Rank 0 does something of its own besides, as TorchTPU's scatter does on the root."""

    def work(number: int) -> list[list[float]]:
        mesh, ones = on(4)
        sums = reduce()
        body = (lambda array: sums(array * 3) - 8) if number == 0 else sums
        return value(program(mesh, body)(ones))

    assert run_ranks(work, topology) == [[[[-2.0, -2.0]]], *[[[[6.0, 6.0]]]] * 3]


@pytest.mark.parametrize("when", ["first", "waiting", "running", "after"])
def test_a_rank_that_is_killed(topology: Topology, tmp_path: Path, when: str) -> None:
    """The others end with it, no process is left, and the next job computes."""

    def work(number: int) -> list[list[float]]:
        (tmp_path / str(os.getpid())).touch()
        kill = partial(os.kill, os.getpid(), signal.SIGKILL)
        while len(list(tmp_path.iterdir())) < 4:  # all have been started
            time.sleep(0.01)
        if number == 2 and when == "first":
            kill()
        mesh, ones = on(4)
        step = program(mesh, reduce())
        if number == 2 and when == "waiting":
            step(ones)
            kill()
        if number == 3 and when == "waiting":
            time.sleep(600)
        if when == "running":
            result = program(mesh, endless)(ones)
            if number == 2:
                time.sleep(1)
                kill()
            value(result)
        total = step(ones)
        value(total)
        if number == 2:
            kill()
        return value(step(total))

    report = hangs(work, topology)
    assert "rank 2 of 4 was killed by SIGKILL" in report
    for started in tmp_path.iterdir():
        assert not Path("/proc", started.name).exists()
    assert run_ranks(sum_of_ones, topology) == [[[[4.0, 4.0]]]] * 4
