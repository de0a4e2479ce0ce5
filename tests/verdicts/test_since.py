"""``xla-harness since``: an upstream issue over stacks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.commands import xla_harness
from support.project import Project

from harness.errors import BadInputError
from harness.expectations.entry_files import parse
from harness.verdicts.since import Declarations, timelines
from harness.verdicts.upstream import Row

SUITE = """\
pytestmark = pytest.mark.lanes("cpu")
BAD = os.environ["BAD"].split()
@pytest.mark.upstream("pytorch/xla#1", "openxla/xla#7")
def test_row():
    if "skip" in BAD: pytest.skip("no use")
    assert "row" not in BAD, "numbers: 1"
@pytest.mark.upstream("pytorch/xla#2", "pytorch/xla#7")
def test_watched(): assert "watched" not in BAD, "sums differ"
@pytest.mark.upstream("pytorch/xla#2")
def test_watched_too(): pass
@pytest.mark.upstream("pytorch/xla#3")
def test_skipped(): pytest.skip("never")
"""
ROWS = (
    '[[row]]\ntitle = "sums"\nissues = ["pytorch/xla#1"]\ncases = ["test_inner.py::test_row[*]"]\n'
)
EXPECTED = """\
[[expectation]]
cases = ["test_inner.py::test_watched[*]"]
issue = "pytorch/xla#2"
reason = "known"
signature = "differ"
"""
# By the order of the directory it would be 2.10.0, 2.5.1, 2.5.1rc1.
STACKS = {"2.5.1rc1": "skip", "2.5.1": "row watched", "2.6.0": "", "2.10.0": "row", "2.11.0": ""}


def since(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return xla_harness("since", *arguments, cwd=folder)


@pytest.fixture(scope="module")
def folder(shared_project: Project) -> Path:
    """Reports of six releases: what the runs of three said, with other versions written in."""
    path = shared_project.path
    shared_project.write("test_inner.py", SUITE)
    shared_project.write("fixtures/upstream.toml", "").write_text(ROWS)
    shared_project.write("expected/area.toml", "").write_text(EXPECTED)
    texts: dict[str, str] = {}
    for bad in ("skip", "row watched", "", "row"):
        options = ("--expectations=expected",) if "watched" in bad else ()
        ran = shared_project.run(*options, "test_inner.py", BAD=bad)
        texts[bad] = ran.junit.read_text().partition("<?xla-harness")[0]  # it is edited below
    for version, bad in STACKS.items():
        text = texts[bad].replace('"torch_xla" value="2.9.0"', f'"torch_xla" value="{version}"')
        shared_project.write(f"reports/matrix/{version}/cpu.xml", "").write_text(text)
    moved = texts[""].replace('"torch_xla" value="2.9.0"', '"torch_xla" value="not installed"')
    moved = moved.replace('"torch_tpu" value="not installed"', '"torch_tpu" value="0.2.0"')
    shared_project.write("reports/matrix/torch_tpu-0.2.0/cpu.xml", "").write_text(moved)
    (path / "reports" / "other.xml").write_text("<testsuite/>")
    return path


def test_row(folder: Path) -> None:
    done = since(folder, "pytorch/xla#1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "------------------------------------- sums -------------------------------------",
        "2.5.1rc1         unmeasured      0/1",
        "2.5.1            wrong           0/1",
        "2.6.0            ok              1/1",
        "2.10.0           wrong           0/1",
        "2.11.0           ok              1/1",
        "torch_tpu-0.2.0  ok              1/1",
        "First bad 2.5.1, last bad 2.10.0, first good after it 2.11.0. 2.5.1 is the first",
        "stack that measured it: it may be older. Not monotonic: the answer changes 3",
        "times.",
    ]


def test_cases_whose_failure_is_expected_for_it(folder: Path) -> None:
    """test_watched alone: no run expects test_watched_too to fail."""
    lines = since(folder, "https://github.com/pytorch/xla/issues/2").stdout.splitlines()
    assert "cases about pytorch/xla#2" in lines[0]
    lines = [" ".join(line.split()) for line in lines]
    assert lines[1:3] == ["2.5.1rc1 ok 1/1", "2.5.1 wrong 0/1"]
    assert lines[7] == "First bad 2.5.1, last bad 2.5.1, first good after it 2.6.0."


@pytest.mark.parametrize(
    ("issue", "code", "message"),
    [
        ("3", 0, "Never measured: on no stack did a case of it run to an answer."),
        ("openxla/xla#7", 0, "2.10.0"),
        ("7", 2, "issue '7': expected one of openxla/xla#7, pytorch/xla#7"),
        ("XLA#3", 0, "cases about pytorch/xla#3"),
        ("xla#7", 2, "issue 'xla#7': expected one of openxla/xla#7, pytorch/xla#7"),
        ("jax#3", 2, "no case and no row names it"),
        ("pytorch/xla#11", 2, "no case and no row names it; near it: pytorch/xla#1"),
        ("pytorch", 2, "issue 'pytorch': expected 'pytorch/xla#8854', its address"),
    ],
)
def test_issue_as_it_is_written(folder: Path, issue: str, code: int, message: str) -> None:
    done = since(folder, issue)
    assert done.returncode == code
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_no_reports(folder: Path) -> None:
    done = since(folder, "1", "--reports", "expected")
    assert done.returncode == 2
    assert "expected: expected reports of xla-harness" in done.stderr


DECLARED = """\
[[expectation]]
cases = ["a.py::test_a", "a.py::test_b"]
issue = "pytorch/xla#5"
reason = "known"
signature = "differ"
stack = { torch_xla = ">=2.8" }
"""
STACK = 'python = "3.11"\n[pins]\n{0} = "{1}"\n'


def test_without_reports_expectations_answer(tmp_path: Path) -> None:
    """Of the frameworks on which they declare it at all; and of what came along, without any."""
    (tmp_path / "fixtures/stacks").mkdir(parents=True)
    for name, version in (("torch_xla", "2.7.0"), ("torch_xla", "2.9.0"), ("jax", "0.7.1")):
        stack = tmp_path / "fixtures/stacks" / f"{version}.toml"
        stack.write_text(STACK.format(name, version))
        stack.with_suffix(".txt").write_text(f"{name.replace('_', '-')}=={version}\n")
    (tmp_path / "fixtures/expectations").mkdir()
    (tmp_path / "fixtures/expectations/a.toml").write_text(DECLARED)
    lines = [" ".join(line.split()) for line in since(tmp_path, "5").stdout.splitlines()]
    assert "declared for pytorch/xla#5, not measured here" in lines[0]
    assert "2.7.0 ok 2/2" in lines
    assert "2.9.0 wrong 0/2" in lines
    assert not any("jax" in line or "0.7.1" in line for line in lines)
    empty = tmp_path / "empty"
    empty.mkdir()
    done = since(empty, "pytorch/xla#8522")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(
        "Expectations declare it first on 2.4.0, last on 2.6.0, and no more on 2.7.0.\n"
    )


def test_what_was_not_measured_may_be_declared() -> None:
    (entry,) = parse(Path("a.toml"), DECLARED, ())
    versions = {name: {"torch_xla": name} for name in ("2.7.0", "2.8.0", "2.9.0")}
    declared = Declarations([entry], versions)
    timeline = declared.timeline("pytorch/xla#5", {"2.8.0"})
    assert timeline is not None
    assert [(stack.name, stack.answer.verdict) for stack in timeline.stacks] == [
        ("2.7.0", "ok"),
        ("2.9.0", "wrong"),
    ]
    assert declared.timeline("pytorch/xla#6", ()) is None
    with pytest.raises(BadInputError, match="there are no reports, and no expectation declares"):
        timelines("1", [], [Row("sums", ("pytorch/xla#1",), ("a",))], declared)


def test_report_of_another_version(folder: Path) -> None:
    text = (folder / "reports/matrix/2.6.0/cpu.xml").read_text()
    other = folder / "older" / "cpu.xml"
    other.parent.mkdir()
    other.write_text(text.replace('report" value="3"', 'report" value="1"'))
    done = since(folder, "1", "--reports", "older")
    assert done.returncode == 2
    assert "older/cpu.xml: expected the property" in done.stderr
