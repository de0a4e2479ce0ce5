"""What a person sees while cases run and after: counts, causes, and the command to type next."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.project import Project, Ran

from harness.session.progress_file import read_progress

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
    start = next(n for n, line in enumerate(lines) if " unexpected: 5, " in line)
    end = next(n for n, line in enumerate(lines) if "generated xml" in line or "short test" in line)
    return lines[start:end]


def test_unexpected_come_first_with_their_issue(ran: Ran) -> None:
    lines = summary(ran)
    places = [n for n, line in enumerate(lines) if line.startswith("--")]
    first = "\n".join(lines[: places[1]])
    for name in ("fails[cpu-4-a b]", "crashes[cpu-4]", "hangs[cpu-4]", "passes_unexpectedly"):
        assert f"\n  suites/area/test_inner.py::test_{name}" in first
    assert first.count("watches pytorch/xla#1") == 4
    assert "test_fails_as_expected" not in first


def test_failures_of_one_cause_are_one(ran: Ran) -> None:
    """Two of the five have the same text; all five are in the report."""
    text = ran.stdout
    assert " unexpected: 5, 4 causes " in text
    counted = next(line for line in summary(ran) if line.startswith("    2  "))
    assert counted.startswith("    2  failed at verification: AssertionError: sums differ")
    assert text.count("E       AssertionError: sums differ") + text.count("E   Assert") == 1
    failed = [name for name, case in ran.cases.items() if case.result]
    assert sum("test_fails[" in name for name in failed) == 2


def test_summary_counts(ran: Ran) -> None:
    text = " ".join(" ".join(summary(ran)).split())
    assert "3 pytorch/xla#8854: an extra scalar is an argument of the exported function" in text
    assert "2 skipped: no use without a second machine" in text
    assert "ok 12/12 sums are right" in text
    assert "wrong 1/4 signatures are right" in text


IDS = ("  python -m pytest ", "  pytest ", "  xla-harness ", "  suites/", "  test_")


def test_summary_fits_80_columns(ran: Ran) -> None:
    assert [line for line in summary(ran) if len(line) > 80 and not line.startswith(IDS)] == []


LONG = """\
pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.upstream("pytorch/xla#1")]
@pytest.mark.parametrize("n", range(14), ids=lambda n: f"{n}-" + "-".join(["a-long-parameter"] * 6))
def test_fails(n): raise ValueError(f"{n} words " + "and words " * 40)
def test_other(): raise TypeError("another cause, in " + __file__)
def test_fails_twice(late): raise ValueError("1 words " + "and words " * 40)
@pytest.fixture
def late():
    yield
    raise OSError("in teardown")
@pytest.mark.parametrize("n", [1, 2])
def test_asserts(n): assert n == 0
@pytest.mark.parametrize("n", [1, 2])
def test_asserts_too(n): assert n == 0
"""


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("long"))
    project.write("test_inner.py", LONG)
    return project


@pytest.mark.parametrize("columns", [80, 160])
def test_the_summary_takes_the_width_of_the_terminal(long: Project, columns: int) -> None:
    ran = long.run("-n2", COLUMNS=str(columns))
    lines = ran.stdout.partition(" unexpected: ")[2].partition("short test summary")[0].splitlines()
    titles = [line for line in lines if line.startswith("---")]
    assert titles
    assert {len(line) for line in titles} == {columns}
    plain = [line for line in lines[1:] if not line.startswith((*IDS, "---"))]
    plain = [line for line in plain if "generated xml file" not in line]  # pytest's own
    assert [line for line in plain if len(line) > columns] == []
    assert max(map(len, plain)) > columns - 12
    ids = [line.strip() for line in lines if line.startswith("  test_inner.py::test_fails[")]
    assert len(ids) == 3
    assert set(ids) <= {f"test_inner.py::{name}" for name in ran.junit_names}


@pytest.mark.parametrize("how", [(), ("-n2",), ("-q",), ("--tb=native",)], ids=" ".join)
def test_one_traceback_for_each_cause(long: Project, how: tuple[str, ...]) -> None:
    ran = long.run(*how)
    failures = ran.stdout.partition(" FAILURES ")[2].partition(" unexpected: ")[0]
    assert failures.count("ValueError: ") == 2  # one of test_fails, and the case that fails twice
    assert failures.count("TypeError: ") == 1
    assert failures.count("13 more with this cause") == 1
    # Bare assertions with the same text are one cause only within one function.
    assert failures.count("1 more with this cause") == 2
    for name in ran.junit_names:
        assert name in ran.stdout, name  # in a headline or below one
    assert "OSError: in teardown" in ran.stdout
    assert ran.shows("20 failed, 1 error")
    texts = [str(case.result[0].text) for case in ran.cases.values() if case.result]
    assert len(texts) == 20
    assert all("test_inner.py" in text for text in texts)  # JUnit has every traceback


@pytest.mark.measures_coverage
@pytest.mark.parametrize("how", ["--full", "-vv"])
def test_all_failures_can_be_shown(long: Project, how: str) -> None:
    ran = long.run(how)
    failures = ran.stdout.partition(" FAILURES ")[2].partition(" unexpected: ")[0]
    assert failures.count("ValueError: ") == 15
    assert "more with this cause" not in ran.stdout
    text = ran.stdout.partition(" unexpected: ")[2]
    assert all(f"\n  test_inner.py::{name}\n" in text for name in ran.junit_names)


@pytest.mark.measures_coverage
def test_subtests_are_all_shown(project: Project) -> None:
    project.write(
        "test_inner.py",
        """\
        pytestmark = pytest.mark.lanes("cpu")
        @pytest.mark.parametrize("n", [1, 2])
        def test_some(n, subtests):
            for text in ("one", "two"):
                with subtests.test(text):
                    raise ValueError(text)
        """,
    )
    failures = project.run().stdout.partition(" FAILURES ")[2]
    for text in ("one", "two"):
        assert failures.partition(" unexpected: ")[0].count(f"ValueError: {text}") == 2


def test_plain_tests_keep_their_tracebacks(project: Project) -> None:
    project.write("test_inner.py", CASES)
    project.write("test_plain.py", "@pytest.mark.parametrize('n', [1, 2])\ndef test_x(n): assert 0")
    failures = project.run().stdout.partition(" FAILURES ")[2]
    assert failures.count("def test_x(n): assert 0") == 2


@pytest.mark.parametrize("how", ["", "-q"])
def test_numpys_differing_values_are_shown(project: Project, how: str) -> None:
    project.write(
        "test_inner.py",
        """\
        import numpy as np
        @pytest.mark.lanes("cpu")
        @pytest.mark.parametrize("n", [1, 2])
        def test_values(n): np.testing.assert_allclose(np.ones(4) + [0, 0, 0, n / 2], np.ones(4))
        """,
    )
    ran = project.run("-o", "console_output_style=classic", *how.split())
    summary, _, short = ran.stdout.partition("short test summary")
    summary = " ".join(summary.rpartition("unexpected: 2 ")[2].split())
    assert "2 failed at numbers: AssertionError: Not equal to tolerance" in summary
    assert "Mismatched elements: 1 / 4 (25%)" in summary
    assert "Max absolute difference among violations: 0.5" in summary
    assert "AssertionError: \n" not in short
    messages = re.findall('<failure message="([^&]*)&#10;', ran.junit.read_text())
    assert [text.startswith("AssertionError: Not equal to") for text in messages] == [True, True]


def test_torchs_trace_is_no_log(project: Project) -> None:
    project.write(
        "test_inner.py",
        """\
        import logging
        torchs = logging.getLogger("torch.__trace")
        torchs.propagate = False
        torchs.setLevel(logging.DEBUG)
        own = logging.StreamHandler()
        torchs.addHandler(own)
        @pytest.fixture
        def compiled():
            torchs.debug("")
        @pytest.mark.lanes("cpu")
        def test_case(compiled):
            torchs.debug("")
            logging.getLogger("other").warning("kept")
            assert torchs.handlers == [own]
            assert 0
        def test_plain():
            torchs.debug("")
            assert 0
        """,
    )
    ran = project.run("-o", "junit_logging=all")
    case, plain = ran.stdout.partition(" test_plain ")[::2]
    assert "WARNING  other:" in case
    assert "torch.__trace" not in case
    assert "torch.__trace" in plain  # which is not ours to change
    assert ran.junit.read_text().count("torch.__trace") == 1


RANKS = '@pytest.mark.topologies("4@chip")'


@pytest.mark.measures_coverage
@pytest.mark.parametrize(
    ("body", "offered"),
    [
        ('@pytest.mark.lanes("cpu")\ndef test_x(): raise ValueError', True),
        ('@pytest.mark.lanes("virtual-tpu")\ndef test_x(): raise ValueError', True),
        (f'@pytest.mark.lanes("virtual-tpu")\n{RANKS}\ndef test_x(): raise ValueError', True),
        ("def test_x(): raise ValueError", False),
    ],
    ids=["cpu", "virtual-tpu", "ranks", "plain"],
)
def test_a_script_is_offered_where_there_can_be_one(
    project: Project, body: str, *, offered: bool
) -> None:
    project.write("test_inner.py", body)
    ran = project.run("--lane=virtual-tpu" if "virtual" in body else "--lane=cpu")
    assert ran.shows("reproduce the first with:")
    assert ran.shows("xla-harness repro 'test_inner.py::test_x[") == offered
    assert ran.shows("xla-harness repro") == offered


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


MIXED = {
    "cases first": ("test_a.py", "test_b.py"),
    "plain tests first": ("test_b.py", "test_a.py"),
}
PLAIN = """\
@pytest.mark.parametrize("n", range(90))
def test_plain(n): pass
def test_fails(): assert 0, "plainly"
def test_skips(): pytest.skip("plain")
@pytest.mark.xfail
def test_fails_as_marked(): assert 0
@pytest.fixture
def broken():
    yield
    raise OSError("in teardown")
def test_teardown(broken): pass
def test_subtests(subtests):
    with subtests.test("a"): pass
"""
HEAD = re.compile(r"\[ *\d+/(\d+) +\d+% \d+:\d\d\] ")


@pytest.mark.parametrize("how", ["", "-n2"])
@pytest.mark.parametrize("order", MIXED)
def test_plain_tests_and_cases_share_one_line(project: Project, order: str, how: str) -> None:
    cases, plain = MIXED[order]
    project.write(cases, CASES)
    project.write(plain, PLAIN)
    lines = project.run("--topology=4", *how.split()).stdout.splitlines()
    progress = [line for line in lines if HEAD.match(line)]
    counts = "104 ok 7 fail 1 crash 1 hung 3 skip 1 exp"
    assert re.fullmatch(rf"\[117/117 100% \d:\d\d\] {counts}", progress[-1]), progress[-1]
    assert len(progress) >= 3
    start = next(n for n, line in enumerate(lines) if re.search(r"\b117 items", line))
    run = lines[start : lines.index(progress[-1])]
    assert [line for line in run if len(line) > 80] == []
    dots = [line for line in run if re.match(r"[.sxFE]{2}", line)]
    assert [line for line in dots if not re.search(r"\[ *\d+%\]$", line)] == dots[-1:]
    assert "failed: test_" in "\n".join(run)
    # pytest-xdist's controller does not know that there are cases before the first one has run.
    if order == "cases first" or not how:
        assert dots == []
        assert any("plainly" in line for line in run)


@pytest.mark.parametrize("how", ["", "-n2"])
def test_without_cases_the_progress_is_pytests(project: Project, how: str) -> None:
    project.write("test_plain.py", PLAIN)
    lines = project.run(*how.split()).stdout.splitlines()
    dots = [line for line in lines if re.search(r"\.{9}", line)]
    assert len(dots) >= 2
    assert [line for line in dots if not re.search(r"\[ *\d+%\]$", line)] == []
    assert max(map(len, dots)) <= 80
    assert [line for line in lines if HEAD.match(line)] == []


def test_the_command_reproduces_the_first(project: Project) -> None:
    project.write("test_inner.py", CASES)
    ran = project.run("-k", "test_fails and it")
    line = ran.stdout.partition("reproduce the first with:\n")[2].splitlines()[0]
    python, module, program, *arguments = shlex.split(line)
    assert (python, module, program) == ("python", "-m", "pytest")
    again = project.run(*arguments)
    assert list(again.cases) == ["test_fails[cpu-4-it's]"]
    assert again.code == 1


def test_the_command_imports_what_the_run_did(project: Project) -> None:
    """Unlike ``pytest``, ``python -m pytest`` imports modules of the current folder."""
    project.write("test_plain.py", "def test_x(): raise ValueError")
    ran = project.run("--lane=cpu", "--topology=2")
    script = [str(Path(sys.executable).with_name("pytest")), "--lane=cpu", "--topology=2"]
    by_script = subprocess.check_output(["sh", "-c", '"$@"; true', "sh", *script], cwd=project.path)
    command = "  python -m pytest --lane cpu --topology 2 test_plain.py::test_x\n"
    assert command in ran.stdout
    assert command.replace("python -m ", "") in by_script.decode()


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


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["alone", "xdist"])
def test_another_process_can_read_how_far_a_run_is(
    project: Project, workers: tuple[str, ...]
) -> None:
    project.write(
        "test_inner.py",
        """
        @pytest.mark.lanes("cpu")
        @pytest.mark.parametrize("n", range(4))
        def test_case(n): assert "XLA_HARNESS_PROGRESS" not in os.environ
        def test_plain(): pass
        """,
    )
    path = project.path / "progress"
    assert read_progress(path) is None
    assert project.run(*workers, XLA_HARNESS_PROGRESS=str(path)).code == 0
    assert read_progress(path) == (5, 5)
