"""What a person sees while cases run and after: counts, causes, and the command to type next."""

from __future__ import annotations

import re
import shlex

import pytest
from support.project import Project, Ran

CASES = """\
pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.upstream("pytorch/xla#1")]
@pytest.mark.parametrize("n", range(12))
def test_passes(n): pass
@pytest.mark.parametrize("text", ["a b", "it's"])
def test_fails(text): assert 0, "sums differ " * 20
def test_crashes(): os.abort()
@pytest.mark.deadline(0.3)
def test_hangs(): time.sleep(60)
@pytest.mark.parametrize("n", [1, 2])
def test_skips(n): pytest.skip("no use without a second machine, " * 4)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_fails_as_expected(n): assert 0, "known"
def test_passes_unexpectedly(): pass
"""
EXPECTED = """\
[[expectation]]
cases = ["*::test_fails_as_*", "*::test_passes_unexpectedly[cpu-4]"]
issue = "pytorch/xla#8854"
reason = "an extra scalar is an argument of the exported function, and nobody asked for it"
signature = "known"
"""
ROWS = """\
[[row]]
title = "sums are right"
issues = ["pytorch/xla#1"]
cases = ["*::test_passes[*"]
[[row]]
title = "signatures are right"
issues = ["pytorch/xla#8854"]
cases = ["*::test_fails_as_*", "*::test_passes[cpu-4-1]"]
"""


@pytest.fixture(scope="module", params=["", "-n2", "-q", "-v"])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    project = Project(tmp_path_factory.mktemp("terminal"))
    project.write("suites/area/test_inner.py", CASES)
    project.write("expected/area.toml", EXPECTED)
    project.write("upstream.toml", ROWS)
    arguments = ["--expectations=expected", "-o", "xla_upstream=upstream.toml", "--topology=4"]
    return project.run(*arguments, *request.param.split())


def summary(ran: Ran) -> list[str]:
    """The lines of our summary."""
    lines = ran.stdout.splitlines()
    start = next(n for n, line in enumerate(lines) if " unexpected: 5 " in line)
    end = next(n for n, line in enumerate(lines) if "generated xml" in line or "short test" in line)
    return lines[start:end]


def test_unexpected_come_first_with_their_issue(ran: Ran) -> None:
    lines = summary(ran)
    places = [n for n, line in enumerate(lines) if line.startswith("--")]
    first = "\n".join(lines[: places[1]])
    for name in ("fails[cpu-4-a b]", "crashes[cpu-4]", "hangs[cpu-4]", "passes_unexpectedly"):
        assert f": suites/area/test_inner.py::test_{name}" in first
    assert first.count("watches pytorch/xla#1") == 5
    assert "test_fails_as_expected" not in first


def test_summary_counts(ran: Ran) -> None:
    text = " ".join(" ".join(summary(ran)).split())
    assert "3 pytorch/xla#8854: an extra scalar is an argument of the exported function" in text
    assert "2 skipped: no use without a second machine" in text
    assert "ok 12/12 sums are right" in text
    assert "wrong 1/4 signatures are right" in text


def test_summary_fits_80_columns(ran: Ran) -> None:
    ids = ("reproduce", "  pytest ", "failed: ", "crashed: ", "hung: ", "unexpected pass: ")
    assert [line for line in summary(ran) if len(line) > 80 and not line.startswith(ids)] == []


@pytest.mark.parametrize("how", ["", "-n2"])
@pytest.mark.parametrize(
    ("expectations", "counts"),
    [
        ((), "13 passed  5 failed  1 crashed  1 hung  2 skipped"),
        (("--expectations=expected",), "12 ok 2 fail 1 crash 1 hung 2 skip 3 exp 1 xpass"),
    ],
    ids=["words", "short-words"],
)
def test_progress_counts_by_outcome(
    project: Project, how: str, expectations: tuple[str, ...], counts: str
) -> None:
    project.write("test_inner.py", CASES)
    project.write("expected/area.toml", EXPECTED)
    ran = project.run(*how.split(), *expectations)
    lines = [line for line in ran.stdout.splitlines() if re.match(r"\[ *\d+/\d+ ", line)]
    total = counts.split()[::2]
    assert re.fullmatch(rf"\[(\d+)/\1 100% \d:\d\d\] +{counts}", lines[-1]), lines[-1]
    assert sum(map(int, total)) == int(lines[-1].split("/")[0][1:])
    assert len(lines) >= 10
    assert max(map(len, lines)) <= 80


def test_the_command_reproduces_the_first(project: Project) -> None:
    project.write("test_inner.py", CASES)
    ran = project.run("-k", "test_fails and it")
    line = ran.stdout.partition("reproduce the first with:\n")[2].splitlines()[0]
    program, *arguments = shlex.split(line)
    assert program == "pytest"
    again = project.run(*arguments)
    assert list(again.cases) == ["test_fails[cpu-4-it's]"]
    assert again.code == 1


def test_the_command_names_the_place_of_a_plain_test(project: Project) -> None:
    project.write("test_plain.py", "def test_x(): assert os.environ.get('CPU_NUM_DEVICES') != '2'")
    ran = project.run("--lane=cpu", "--topology=2")
    assert ran.shows("pytest --lane cpu --topology 2 test_plain.py::test_x")


def test_text_of_a_case_steers_no_terminal_and_no_job(project: Project) -> None:
    project.write(
        "test_inner.py",
        """\
        pytestmark = pytest.mark.lanes("cpu")
        def test_skips(): pytest.skip("::stop-commands::x \\x9b2J \\u202e ##[error]")
        def test_fails(): raise ValueError("  ::error::no \\x1b[2J")
        """,
    )
    lines = project.run("-n0", "--tb=no", "-rN").stdout.splitlines()
    assert all(line.isprintable() for line in lines)
    assert [line for line in lines if line.lstrip().startswith("::") or "##[" in line] == []
    assert any("skipped: ::stop-commands::x \\x9b2J \\u202e #\\#[error]" in line for line in lines)
