"""JUnit from outside, read for a history: real, of any pytest, hostile, broken, huge."""

from __future__ import annotations

import os
import string
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.paths import ROOT
from support.project import Project

from harness.errors import BadInputError
from harness.history.run import RunMetadata, joined, read_run
from harness.junit import stream as junit_stream
from harness.junit.report import read
from harness.model.outcome import Kind

REAL = sorted((ROOT / "fixtures" / "junit").glob("*.xml"))
HOSTILE = ROOT / "fixtures" / "junit" / "hostile"
HEAD = '<testsuite timestamp="2026-11-21T02:30:00+00:00">'
REFUSED = {
    "entity_bomb": "line 2: found a document type",
    "external_entity": "line 2: found a document type",
    "external_dtd": "line 2: found a document type",
    "nested": "line 2: found elements 65 deep",
    "invalid_utf8": "not well-formed (invalid token): line 2",
    "control_character": "not well-formed (invalid token): line 2",
    "control_reference": "reference to invalid character number: line 2",
    "null": "not well-formed (invalid token): line 2",
    "unknown_encoding": "unknown encoding",
    "truncated": "no element found: line 2",
    "empty": "no element found: line 1",
    "not_xml": "syntax error: line 1",
    "html": "found <html>, expected <testsuites>",
    "no_cases": "with test cases, found none",
    "no_time": "attribute 'timestamp': no suite says when it ran",
    "bad_time": "expected ISO 8601, as 2026-11-21T02:30:00Z: Invalid isoformat",
    "far_time": "expected ISO 8601, as 2026-11-21T02:30:00Z: date value out of range",
    "nan_seconds": "test case 'b': attribute 'time': expected seconds, found 'nan'",
    "negative_seconds": "test case 'b': attribute 'time': expected seconds, found '-1'",
    "seconds_in_words": "test case 'b': attribute 'time': expected seconds, found 'soon'",
    "no_name": "expected a name, found none",
    "outcome_of_none": "'exploded' is not a valid Kind",
    "no_lane": "property 'lane' is missing",
    "newer_format": "the property xla_harness_report to be 3, the report says '4'",
    "stack_with_control": "property 'stack': expected at most 80 printable characters",
}


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_real_reports_say_what_the_other_reader_says(path: Path) -> None:
    run, report = read_run(path), read(path)
    assert len(run.cases) == len(report.results) >= 190
    assert (run.stack, run.versions["torch_xla"]) == (report.stack, report.stack)
    assert run.machine == "runner"
    assert list(run.cases) == sorted(report.results.values(), key=lambda result: result.place)


def test_real_reports_are_of_three_stacks_and_have_the_outcomes_that_count() -> None:
    runs = [read_run(path) for path in REAL]
    assert {run.stack for run in runs} == {"2.5.1", "2.8.0", "2.9.0"}
    counts = Counter(case.outcome for run in runs for case in run.cases)
    assert set(Kind) - set(counts) == {Kind.HUNG, Kind.CONFLICT}


SUITE = """\
class TestNested:
    @pytest.mark.parametrize("x", ["a.b", "c::d"])
    def test_in_class(self, x): pass
def test_passes(record_property): record_property("rows", 3)
def test_fails(): assert 1 == 2
def test_skips(): pytest.skip("no use")
@pytest.mark.xfail(reason="known")
def test_known(): assert 0
@pytest.mark.xfail(strict=True, reason="was known")
def test_mended(): pass
@pytest.fixture
def breaks():
    yield
    raise OSError("after")
def test_twice(breaks): assert 0, "first"
def test_error_after(breaks): pass
"""


@pytest.mark.parametrize("family", ["xunit1", "xunit2"])
def test_report_of_any_pytest(project: Project, family: str) -> None:
    """One that has never heard of this harness, with a folder in between."""
    project.write("tests/unit/test_it.py", SUITE)
    project.write("tests/unit/test_broken.py", "import no_such_module")
    ran = project.run(
        "-p", "no:xla-harness", "-o", f"junit_family={family}", "--continue-on-collection-errors",
        "tests",
    )  # fmt: skip
    run = read_run(ran.junit)
    cases = {case.id.removeprefix("tests/unit/test_it.py::"): case for case in run.cases}
    assert {name: str(case.outcome) for name, case in cases.items()} == {
        "TestNested::test_in_class[a.b]": "passed",
        "TestNested::test_in_class[c::d]": "passed",
        "test_passes": "passed",
        "test_fails": "failed",
        "test_skips": "skipped",
        "test_known": "expected failure",
        "test_mended": "unexpected pass",
        "test_twice": "failed",
        "test_error_after": "failed",
        "tests/unit/test_broken.py": "failed",
    }
    assert "no_such_module" in cases["tests/unit/test_broken.py"].message
    assert cases["test_passes"].area == "tests/unit"
    assert cases["test_passes"].properties == {"rows": "3"}
    assert cases["test_fails"].message.startswith("assert 1 == 2")
    # A bare comparison says too little to be one cause with those of other functions.
    assert cases["test_fails"].signature == "tests/unit/test_it.py::test_fails: assert N == N"
    assert cases["test_twice"].message.startswith("AssertionError: first")
    assert cases["test_twice"].rerun == 0
    assert cases["test_error_after"].message == "OSError: after"
    assert (run.stack, cases["test_passes"].lane) == ("unknown", "")
    assert abs((run.time - datetime.now(UTC)).total_seconds()) < 3600 * 15  # xunit1 has no zone


@pytest.mark.parametrize(
    ("inside", "outcome", "rerun", "outcomes"),
    [
        ("", "passed", 0, None),
        ('<flakyFailure message="x"><stackTrace>t</stackTrace></flakyFailure>', "passed", 1,
         "failed, passed"),
        ('<failure message="x"/><rerunFailure message="x"/><rerunError/>', "failed", 2, None),
        ('<failure message="worker \'gw1\' crashed while running \'a\'"/>', "crashed", 0, None),
        (('<error message="failed on setup with &quot;worker&quot;">'
         "worker 'gw1' crashed while running 'a'</error>"), "crashed", 0, None),
        ('<failure message="Failed: Timeout (&gt;1.0s) from pytest-timeout."/>', "hung", 0, None),
        ('<skipped type="pytest.skip" message="m"/>', "skipped", 0, None),
    ],
)  # fmt: skip
def test_words_of_other_tools(
    tmp_path: Path, inside: str, outcome: str, rerun: int, outcomes: str | None
) -> None:
    (case,) = read_run(written(tmp_path, f"{HEAD}<testcase name='a'>{inside}</testcase>")).cases
    assert (case.outcome, case.rerun, case.properties.get("outcomes")) == (
        outcome, rerun, outcomes,
    )  # fmt: skip


def test_lanes_and_reruns_together() -> None:
    first, second = (read_run(path) for path in REAL[:2])
    assert len(joined([second, first]).cases) == 400
    assert joined([second, first]).name == joined([first, second]).name
    again = joined([first, read_run(REAL[0], RunMetadata(time=datetime(2026, 11, 20, tzinfo=UTC)))])
    assert {case.rerun for case in again.cases} == {1}
    assert {"outcomes" in case.properties for case in again.cases} == {False}
    with pytest.raises(BadInputError, match="stack: expected reports of one run"):
        joined([first, read_run(REAL[2])])


def test_what_the_report_does_not_say(tmp_path: Path) -> None:
    path = written(tmp_path, "<testsuite><testcase name='a'/>")
    time = datetime.fromisoformat("2026-11-21T05:00:00+03:00")
    run = read_run(path, RunMetadata("2.9.0", "abc", "host", time))
    assert (run.stack, run.commit, run.machine) == ("2.9.0", "abc", "host")
    assert run.name.startswith("20261121T020000_000000Z-0000001-")


@pytest.mark.parametrize("name", sorted(path.stem for path in HOSTILE.iterdir()))
def test_hostile_report(name: str) -> None:
    path = HOSTILE / f"{name}.xml"
    if name not in REFUSED:
        assert read_run(path).cases  # test_history_store records it
        return
    with pytest.raises(BadInputError) as error:
        read_run(path)
    assert str(error.value).startswith(f"{path}: ")
    assert REFUSED[name] in str(error.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f'<testcase name="{"x" * (20 << 20)}"/>', "a tag or comment of more than 16,777,216"),
        (f"<!-- {'x' * (20 << 20)} -->", "a tag or comment of more than 16,777,216"),
        (f'<testcase name="{"x" * 4001}"/>', "a name of at most 4000 characters, found 4001"),
        (
            "<testcase name='a'><properties>"
            + "".join(f"<property name='{i}'/>" for i in range(1001)),
            "more than 1,000 properties",
        ),
    ],
    ids=["tag", "comment", "name", "properties"],
)
def test_out_of_proportion(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(BadInputError) as error:
        read_run(written(tmp_path, HEAD + body))
    assert message in str(error.value)


@pytest.mark.parametrize("limit", ["_MOST_CASES", "_MOST_KEPT"])
def test_too_much_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """With a limit that a small file reaches."""
    path = written(tmp_path, HEAD + "<testcase name='a'/>" * 50)
    assert len(read_run(path).cases) == 1
    monkeypatch.setattr(junit_stream, limit, 49)
    with pytest.raises(BadInputError, match="line 1: found more than 49 "):
        read_run(path)


READER = """\
import resource, sys
from pathlib import Path
from harness.history.run import read_run
limit = 256 << 20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
run = read_run(Path(sys.argv[1]))
print(len(run.cases), len(run.cases[0].message))
"""


def test_output_of_any_size_takes_no_memory(tmp_path: Path) -> None:
    """Half a gigabyte of output and of failure text, in a process that may have a quarter."""
    pipe = tmp_path / "report.xml"
    os.mkfifo(pipe)
    line = [sys.executable, "-c", READER, str(pipe)]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as reader:
        writer = threading.Thread(target=write_much, args=(pipe,))
        writer.start()
        out, error = reader.communicate(timeout=100)
        writer.join()
    assert (reader.returncode, out) == (0, "1 2000\n"), error


def write_much(pipe: Path) -> None:
    """What a case prints, and a failure's text, a quarter of a gigabyte each."""
    megabyte = ("line of output\n" * 70_000).encode()[: 1 << 20]
    with pipe.open("wb") as file:
        file.write(f"{HEAD}<testcase name='a'>".encode())
        for tag in (b"system-out", b"failure"):
            file.write(b"<%s>" % tag)
            for _ in range(256):
                file.write(megabyte)
            file.write(b"</%s>" % tag)
        file.write(b"</testcase></testsuite>")


# Fuzz: whatever comes, a run that can be written or BadInputError, and nothing else.
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
TAGS = ("testsuite", "testcase", "failure", "error", "skipped", "properties", "property",
        "system-out", "flakyFailure", "rerunError", "x")  # fmt: skip
ATTRIBUTES = ("name", "classname", "time", "timestamp", "message", "type", "value", "file")
VALUES = st.one_of(
    NAMES,
    st.sampled_from(["xla_harness_report", "3", "outcome", "passed", "id", "lane", "topology"]),
    st.floats().map(str),
    st.datetimes().map(str),
)


@st.composite
def elements(draw: st.DrawFn, depth: int = 4) -> str:
    """An element of JUnit's vocabulary with any attributes and children."""
    tag = draw(st.sampled_from(TAGS))
    drawn = draw(st.dictionaries(st.sampled_from(ATTRIBUTES), VALUES, max_size=4))
    attributes = "".join(f" {name}={quoteattr(value)}" for name, value in drawn.items())
    children = draw(st.lists(elements(depth - 1), max_size=4)) if depth else []
    return f"<{tag}{attributes}>{''.join(children)}</{tag}>"


FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings(FUZZ, max_examples=50)
@given(st.lists(elements(), max_size=4))
def test_any_elements(tmp_path: Path, body: Iterable[str]) -> None:
    tried(written(tmp_path, HEAD + "".join(body)))


@FUZZ
@given(st.data())
def test_damaged_real_report(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(REAL[0].read_bytes()[:40_000])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=5))
    path = tmp_path / "damaged.xml"
    path.write_bytes(content + data.draw(st.sampled_from([b"", b"</testsuite></testsuites>"])))
    tried(path)


def tried(path: Path) -> None:
    """Read it twice: the same run, or the same kind of error."""
    try:
        run = read_run(path)
    except BadInputError as error:
        assert str(path) in str(error)  # noqa: PT017 - either will do
        return
    assert read_run(path) == run
    assert set(run.name) <= set(string.hexdigits + "TZ-_")
    assert 1 <= len(run.cases) <= path.read_bytes().count(b"testcase")


def written(folder: Path, text: str) -> Path:
    path = folder / "report.xml"
    closing = "</testsuite>" if not text.rstrip().endswith("</testsuite>") else ""
    path.write_text(text + closing, encoding="utf-8")
    return path
