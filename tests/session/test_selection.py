"""Shards and chosen cases: nothing twice, nothing lost, the same everywhere."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.project import Project

from harness.errors import BadInputError
from harness.session.selection import Shard, read_durations, recorded, shards

BODY = """
pytestmark = [pytest.mark.lanes("cpu", "virtual-tpu"), pytest.mark.topologies(1)]
@pytest.mark.parametrize("n", range(10))
def test_short(n): pass
def test_long(): pass
"""
CASES = st.lists(
    st.tuples(st.integers(0, 9).map(lambda n: f"a.py::test_{n}"), st.integers(0, 99)), unique=True
)


@given(CASES, st.integers(1, 7), st.dictionaries(st.integers(0, 9), st.floats(0, 60)))
def test_every_case_is_in_one_shard(
    cases: list[tuple[str, int]], count: int, known: dict[int, float]
) -> None:
    pairs = [(f"{function}[{n}]", "cpu") for function, n in cases]
    durations = {"cpu": {f"a.py::test_{n}": seconds for n, seconds in known.items()}}
    parts = shards(pairs, durations, count)
    assert len(parts) == count
    assert sorted(case for part in parts for case in part) == sorted(case for case, _ in pairs)
    mixed = random.Random(len(cases)).sample(pairs, len(pairs))
    assert shards(mixed, durations, count) == parts
    # No shard is later than another one by more than one case.
    loads = [sum(part.values()) for part in parts]
    longest = max((s for part in parts for s in part.values()), default=0)
    assert max(loads) - min(loads) <= longest + 1e-6


def test_recorded_durations_are_means_of_a_function_and_lane() -> None:
    durations = recorded([("a::f[1]", "cpu", 1.0), ("a::f[2]", "cpu", 3.0), ("a::f[1]", "x", 5.0)])
    assert durations == {"cpu": {"a::f": 2.0}, "x": {"a::f": 5.0}}


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2"])
def test_no_shard(text: str) -> None:
    with pytest.raises(BadInputError, match=r"expected NUMBER/COUNT, as 2/5"):
        Shard.parse(text)


@pytest.mark.parametrize("text", ["[]", "{", '{"cpu": 1}', '{"cpu": {"f": "long"}}'])
def test_no_durations(tmp_path: Path, text: str) -> None:
    path = tmp_path / "durations.json"
    path.write_text(text)
    with pytest.raises(BadInputError, match=r"durations\.json: expected seconds"):
        read_durations(path)


def test_a_run_is_shared_out(project: Project) -> None:
    project.write("test_inner.py", BODY)
    durations = {"cpu": {"test_inner.py::test_short": 1.0, "test_inner.py::test_long": 10.0}}
    (project.path / "durations.json").write_text(json.dumps(durations))
    args = ("--lane", "cpu", "-o", "xla_durations=durations.json")
    first = project.run(*args, "--shard", "1/2")
    assert list(first.cases) == ["test_long[cpu-1]"]
    assert first.shows("left out: other shards than 1/2")
    second = project.run(*args, "--shard", "2/2", "-n", "2")
    assert sorted(second.cases) == sorted(f"test_short[cpu-1-{n}]" for n in range(10))


def test_chosen_cases(project: Project) -> None:
    project.write("test_inner.py", BODY)
    ids = project.path / "ids"
    ids.write_text("test_inner.py::test_long[cpu-1]\n\ntest_inner.py::test_gone[cpu-1]\n")
    ran = project.run("--lane", "cpu", "--cases", "ids", "test_inner.py")
    assert ran.code == 0
    assert list(ran.cases) == ["test_long[cpu-1]"]


PATTERN = """
@pytest.mark.lanes("virtual-*")
@pytest.mark.topologies("2", "2xv6e:2x2", "gb200:8@host", "8@host", "2x4@chip")
def test_case(topology): pass

@pytest.mark.lanes("virtual-*")
def test_plain(topology): pass
"""


def test_a_pattern_names_lanes_that_can_have_the_topology(project: Project) -> None:
    project.write("test_inner.py", PATTERN)
    ran = project.run("--lane", "virtual-tpu,virtual-gpu", "--collect-only", "-q")
    names = {line.partition("::")[2] for line in ran.stdout.splitlines() if "::" in line}
    assert names == {
        *(f"test_case[virtual-tpu-{size}]" for size in ("2", "2xv6e:2x2", "8@host", "2x4@chip")),
        # A node of GPUs has eight of them, and so one process.
        *(f"test_case[virtual-gpu-{size}]" for size in ("2", "gb200:8@node", "2x4@chip")),
        *("test_plain[virtual-tpu-4]", "test_plain[virtual-gpu-4]"),
    }
    assert set(project.run().outcomes) == {
        *(f"test_case[virtual-tpu-{size}]" for size in ("2", "2xv6e:2x2", "8@host", "2x4@chip")),
        "test_plain[virtual-tpu-4]",
    }


def test_a_pattern_that_names_no_lane(project: Project) -> None:
    project.write("test_inner.py", PATTERN.replace("virtual-*", "virtul-*"))
    ran = project.run()
    assert ran.code == 2
    assert ran.shows("lanes('virtul-*'): expected a pattern of cpu, virtual-tpu, tpu-aot")


def test_cases_left_out_by_their_ids(project: Project) -> None:
    project.write("test_inner.py", BODY)
    ids = project.path / "ids"
    ids.write_text("test_inner.py::test_long[cpu-1]\ntest_inner.py::test_gone[cpu-1]\n")
    ran = project.run("--lane", "cpu", "--unless-cases", "ids", "test_inner.py")
    assert ran.code == 0
    assert sorted(ran.cases) == sorted(f"test_short[cpu-1-{n}]" for n in range(10))


def test_cases_are_left_to_another_lane(project: Project) -> None:
    project.write("test_inner.py", BODY)
    project.write("test_other.py", "@pytest.mark.lanes('cpu')\ndef test_here(): pass\n")
    project.write("test_plain.py", "def test_runs_on_any_lane(): pass\n")
    ran = project.run("--lane", "cpu", "--unless-lane", "virtual-tpu,tpu-aot")
    assert ran.code == 0
    assert list(ran.cases) == ["test_here"]
    assert ran.shows("lane cpu: left to lane virtual-tpu")


@pytest.mark.parametrize(
    ("lane", "message"),
    [
        ("cpu", "--unless-lane cpu: --lane asks for that lane"),
        ("cpv", "lane 'cpv': expected one of cpu, "),
    ],
)
def test_a_lane_that_cases_can_not_be_left_to(project: Project, lane: str, message: str) -> None:
    ran = project.run("--lane", "cpu", "--unless-lane", lane)
    assert ran.code == 2
    assert ran.shows(message)


@pytest.mark.parametrize("option", ["--cases", "--unless-cases"])
def test_chosen_cases_of_no_file(project: Project, option: str) -> None:
    project.write("test_inner.py", BODY)
    ran = project.run("--lane", "cpu", option, "nowhere")
    assert ran.code == 2
    assert ran.shows("file of cases: nowhere:")


QUICK = """
@pytest.mark.lanes("cpu", "virtual-tpu")
@pytest.mark.topologies(1)
@pytest.mark.parametrize("number", range(3))
def test_programs(number):
    import jax

    assert jax.devices()
"""


def test_the_quick_cases_run_where_they_were_measured(project: Project) -> None:
    project.write("test_inner.py", QUICK)
    chosen = ["test_programs[virtual-tpu-1-2]", "test_programs[virtual-tpu-1-0]"]
    (project.path / "quick.txt").write_text("".join(f"test_inner.py::{name}\n" for name in chosen))
    ran = project.run("--quick", "-o", "xla_quick=quick.txt")
    assert ran.code == 0
    assert list(ran.cases) == chosen


FIRST = """
@pytest.mark.parametrize("number", range(160))
def test_case(number):
    with open("ran", "a") as file:
        file.write(f"{number}\\n")
"""


def test_workers_share_the_first_cases(project: Project) -> None:
    project.write("test_inner.py", FIRST)
    first = range(159, 139, -1)
    lines = (f"test_inner.py::test_case[{number}]\n" for number in first)
    (project.path / "first.txt").write_text("".join(lines))
    assert project.run("-n", "2", "--first", "first.txt").code == 0
    ran = [*map(int, (project.path / "ran").read_text().split())]
    # Each worker holds two cases, so other cases may come before those of a slower worker.
    assert set(ran[: len(first) - 4]) < set(first)
    assert sorted(ran) == [*range(160)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cases=ids"], "--quick: expected no --cases beside it"),
        ([], "--quick: expected ini xla_quick, a file of cases"),
        (["-o", "xla_quick=nowhere"], "file of cases: "),
    ],
)
def test_quick_without_its_file(project: Project, options: list[str], message: str) -> None:
    project.write("test_inner.py", QUICK)
    ran = project.run("--quick", *options)
    assert ran.code == 2
    assert ran.shows(message)


LONG = """
@pytest.mark.long
@pytest.mark.lanes("cpu")
@pytest.mark.topologies(1)
def test_slow(topology): pass

@pytest.mark.lanes("cpu")
@pytest.mark.topologies(1)
@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.long)])
def test_sizes(topology, size): pass

@pytest.mark.long
def test_plain(): pass
"""
SHORT = {"test_sizes[cpu-1-1]"}
SLOW = {"test_slow[cpu-1]", "test_sizes[cpu-1-2]", "test_plain"}


@pytest.mark.parametrize(
    ("args", "names"),
    [
        ((), SHORT),
        (("-m", "long"), SLOW),
        (("--lane", "cpu"), SHORT | SLOW),
        (("--cases", "ids"), {"test_slow[cpu-1]"}),
        (("test_inner.py::test_slow",), {"test_slow[cpu-1]"}),
    ],
    ids=["alone", "marked", "lane", "cases", "id"],
)
def test_long_cases_are_left_out(project: Project, args: tuple[str, ...], names: set[str]) -> None:
    project.write("test_inner.py", LONG)
    (project.path / "ids").write_text("test_inner.py::test_slow[cpu-1]\n")
    ran = project.run("-o", "xla_long=long", "-o", "markers=long: slow", *args)
    assert set(ran.cases) == names
    assert ran.shows("left out: long: run with -m long") == (names == SHORT)
