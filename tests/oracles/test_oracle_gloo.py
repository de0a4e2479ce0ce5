"""The gloo oracle returns what every rank computed, and says which rank did not and why.

One fresh interpreter runs all scenarios: torch is not to be imported where other tests fork.
"""

import json
import os
import sys

import pytest
from support.commands import run_program
from support.paths import ROOT

PROGRAM = """
import json, os, signal, sys, time
import torch
import torch._dynamo  # of which DTensor's first call is part: 0.9 s in each rank
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard

from harness.oracles import dtensor
from harness.oracles.gloo import RankError, run_ranks

def error(fn, world_size=3, **options):
    try:
        run_ranks(fn, world_size, **options)
    except RankError as failure:
        message = str(failure)
    else:
        message = "no error"
    try:
        os.waitpid(-1, os.WNOHANG)
        return message + "\\na process is left"
    except ChildProcessError:
        return message

def total(rank, factor):
    tensor = torch.tensor([rank, 1])
    dist.all_reduce(tensor)
    return rank, (tensor * factor).tolist()

def raising(rank):
    if rank == 1:
        raise KeyError("the cause")
    dist.barrier()

def crashing(rank):
    if rank == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    dist.barrier()

def leaving(rank):
    if rank == 0:
        os._exit(7)
    dist.barrier()

def waiting(rank):
    if rank == 0:
        time.sleep(60)
    dist.barrier()

def deaf(rank):
    signal.signal(signal.SIGABRT, signal.SIG_IGN)
    time.sleep(60)

def orphaned():
    notes = os.pipe()
    if os.fork() == 0:
        def fn(rank):
            os.write(notes[1], f"{os.getpid()}\\n".encode())
            if rank == 0:
                time.sleep(0.5)
                os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        run_ranks(fn, 2)
    os.wait()
    pids = os.read(notes[0], 100).split()
    patience = time.monotonic() + 10  # of the 60 s that they would live; a full core kills late
    while True:
        states = [state(int(pid)) for pid in pids]
        if set(states) <= {"gone", "Z"} or time.monotonic() > patience:
            return states
        time.sleep(0.05)

def state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "gone"

def held(placements):
    held = dtensor.distribute(torch.arange(10).reshape(5, 2), torch.arange(4), placements)
    return [shard.tolist() for shard in held.shards], str(held.placements)

mesh = torch.tensor([[0, 1], [2, 3]])
moved = dtensor.redistribute(
    torch.arange(8), mesh, (Shard(0), Replicate()), (Replicate(), Shard(0))
)
rows, backwards = torch.arange(10).reshape(5, 2), torch.tensor([3, 1, 2, 0])

def own_rows(ranks):
    return {"rows": dtensor.own_shard(rows, ranks, (Shard(0),))}

def lists(held):
    return [shard.tolist() for shard in held.shards], str(held.placements)

results = {
    "own": lists(dtensor.run_program(own_rows, backwards)["rows"]),
    "own, by PyTorch": lists(
        dtensor.distribute(rows, backwards, (Shard(0),), source_rank=None)
    ),
    "values": run_ranks(total, 4, 10),
    "alone": run_ranks(lambda rank: dist.get_world_size(), 1),
    "large": [len(value) for value in run_ranks(lambda rank: bytes(10_000_000), 2)],
    "raised": error(raising),
    "crashed": error(crashing),
    "left": error(leaving),
    "unpicklable": error(lambda rank: (lambda: 0), world_size=1),
    "late": error(waiting, deadline=1),
    "deaf": error(deaf, world_size=1, deadline=1),
    "orphans": orphaned(),
    "sharded": held((Shard(0),)),
    "replicated": held(None),
    "redistributed": [shard.tolist() for shard in moved.shards],
}
json.dump(results, sys.stderr)
"""


@pytest.fixture(scope="module")
def results():
    done = run_program(
        sys.executable, "-c", PROGRAM, cwd=ROOT, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stderr.splitlines()[-1])


@pytest.mark.measures_coverage
def test_results_come_in_rank_order(results):
    assert results["values"] == [[rank, [60, 40]] for rank in range(4)]
    assert results["alone"] == [1]


def test_a_large_result_arrives_whole(results):
    assert results["large"] == [10_000_000, 10_000_000]


def test_the_rank_that_raised_is_named_not_those_that_lost_it(results):
    assert results["raised"].startswith("rank 1 of 3 raised KeyError: 'the cause'\nTraceback")
    assert results["raised"].rstrip().endswith("KeyError: 'the cause'")


def test_a_crash_has_its_signal_and_stack(results):
    assert results["crashed"].startswith("rank 2 of 3 was killed by SIGSEGV")
    assert " in crashing" in results["crashed"]


def test_a_rank_that_leaves_without_a_result(results):
    assert results["left"] == "rank 0 of 3 left with exit status 7 and no result"


def test_a_result_that_cannot_travel(results):
    assert results["unpicklable"].startswith("rank 0 of 1 raised")
    assert "pickle" in results["unpicklable"]


def test_the_deadline_ends_all_ranks_with_their_stacks(results):
    assert results["late"].startswith("rank 0, 1, 2 of 3 still running after 1 s\nrank 0:")
    assert " in waiting" in results["late"]


def test_a_rank_that_ignores_the_first_signal_is_killed(results):
    assert results["deaf"].startswith("rank 0 of 1 still running after 1 s")


@pytest.mark.parametrize("scenario", ["raised", "crashed", "left", "unpicklable", "late", "deaf"])
def test_no_rank_is_left(results, scenario):
    assert "a process is left" not in results[scenario]


def test_ranks_die_with_the_process_that_started_them(results):
    assert len(results["orphans"]) == 2
    assert set(results["orphans"]) <= {"gone", "Z"}


def test_dtensor_shards_come_in_rank_order(results):
    shards, placements = results["sharded"]
    assert shards == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9]], []]
    assert placements == "(Shard(dim=0),)"


def test_dtensor_replicates_without_placements(results):
    shards, placements = results["replicated"]
    assert shards == [[[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]] * 4
    assert placements == "(Replicate(),)"


def test_dtensor_redistributes(results):
    assert results["redistributed"] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2


def test_dtensor_shard_of_a_ranks_own_copy(results):
    """As old releases cut it, and by PyTorch's own argument."""
    shards, placements = results["own"]
    assert shards == [[], [[4, 5], [6, 7]], [[8, 9]], [[0, 1], [2, 3]]]
    assert placements == "(Shard(dim=0),)"
    assert results["own"] == results["own, by PyTorch"]
