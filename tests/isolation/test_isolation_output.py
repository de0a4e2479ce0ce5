"""What a case writes reaches its own record, phase by phase, whatever its size and its end."""

from __future__ import annotations

import json
import re

import pytest
from support.project import Project

pytestmark = pytest.mark.measures_coverage

# Notes what pytest's other plugins are told of each report, in the order of telling.
REPORTS_TO_FILE = """\
import json, os

def pytest_runtest_logreport(report):
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    with open("reports.jsonl", "a") as file:
        print(json.dumps([report.nodeid, report.when, report.sections]), file=file)
"""
WRITER = """\
pytestmark = pytest.mark.lanes("cpu")
C = ctypes.CDLL(None)

def say(what):
    print(what, "by Python")
    os.write(1, f"{what} by write\\n".encode())
    C.printf(f"{what} by C\\n".encode())
    print(what, "by Python", file=sys.stderr)
    os.write(2, f"{what} by write\\n".encode())

@pytest.fixture
def around():
    say("setup")
    yield
    say("teardown")
"""
ENDS = {
    "segfault": "ctypes.string_at(0)",
    "exit": "os._exit(0)",
    "kill": "os.kill(os.getpid(), 9)",
    "fail": "assert 0",
}


def sections(project: Project) -> dict[tuple[str, str], dict[str, str]]:
    """The sections of each report that was told, by case and phase."""
    by_report: dict[tuple[str, str], dict[str, str]] = {}
    for line in (project.path / "reports.jsonl").read_text(encoding="utf-8").splitlines():
        id_, when, parts = json.loads(line)
        key = id_.split("::")[1].partition("[")[0], when
        assert key not in by_report, "a report was told twice"
        by_report[key] = dict(parts)
    return by_report


@pytest.mark.parametrize("how", ["--isolation=fork", "--isolation=none", "-n1"])
def test_output_belongs_to_its_phase_and_case(project: Project, how: str) -> None:
    project.write("conftest.py", REPORTS_TO_FILE)
    project.write(
        "test_inner.py",
        WRITER + "def test_one(around): say('one')\n"
        "def test_two(): say('two'); assert 0\n"
        "def test_silent(): pass",
    )
    # PYTHONUNBUFFERED because pytest's own capture leaves what is in C's buffers.
    project.run(how, **({"PYTHONUNBUFFERED": "1"} if how == "--isolation=none" else {}))
    by_report = sections(project)
    assert len(by_report) == 9
    for stream, ways in (("stdout", ["C", "Python", "write"]), ("stderr", ["Python", "write"])):
        for when, case, phase in (
            ("setup", "test_one", "setup"),
            ("call", "test_one", "one"),
            ("teardown", "test_one", "teardown"),
            ("call", "test_two", "two"),
        ):
            text = by_report[case, "teardown"][f"Captured {stream} {when}"]
            assert sorted(text.splitlines()) == [f"{phase} by {way}" for way in ways]
    assert list(by_report["test_one", "setup"]) == [
        "Captured stdout setup",
        "Captured stderr setup",
    ]
    assert not any(text for (case, _), text in by_report.items() if case == "test_silent")


@pytest.mark.parametrize("passing", ["true", "false"])
def test_output_before_the_end_is_in_junit(project: Project, passing: str) -> None:
    body = "".join(f"def test_{n}(around): say('{n}'); {end}\n" for n, end in ENDS.items())
    project.write("test_inner.py", WRITER + body)
    ran = project.run("-o", "junit_logging=all", "-o", f"junit_log_passing_tests={passing}")
    for name in ENDS:
        case = ran.cases[f"test_{name}"]
        for phase in ("setup", name):
            for way in ("Python", "write"):
                assert f"{phase} by {way}" in case.system_out
                assert f"{phase} by {way}" in case.system_err
            assert f"{phase} by C" in case.system_out
        assert {f"{other} by C" in case.system_out for other in ENDS if other != name} == {False}


def test_flood_is_cut_with_a_note(project: Project) -> None:
    flood = "os.write(2, b'begin'); [os.write(n, b'x' * 65536) for n in (1, 2) * 200]"
    ends = {"pass": "pass"} | ENDS
    body = "".join(f"def test_{n}(): {flood}; os.write(2, b'end'); {e}\n" for n, e in ends.items())
    project.write("conftest.py", REPORTS_TO_FILE)
    project.write("test_inner.py", WRITER + body)
    project.run("--output-limit", "4")
    for name in ends:
        for stream, total in (("stdout", 200 * 65536), ("stderr", 200 * 65536 + 8)):
            text = sections(project)[f"test_{name}", "call"][f"Captured {stream} call"]
            cut = re.search(r"\n\[\.\.\. ([\d,]+) bytes cut \.\.\.\]\n", text)
            assert cut is not None
            assert len(text) - len(cut[0]) == 4096
            assert int(cut[1].replace(",", "")) == total - 4096
        assert text.startswith("begin")
        assert text.endswith("end")


def test_a_flood_without_end_is_a_hang(project: Project) -> None:
    endless = "while True: os.write(1, b'x' * 65536)"
    project.write("test_inner.py", f"{WRITER}\ndef test_x():\n    {endless}\ndef test_y(): pass")
    ran = project.run("--deadline", "0.5")
    assert ran.outcomes == {"test_x": "hung", "test_y": "passed"}


def test_closed_descriptors_do_no_harm(project: Project) -> None:
    project.write(
        "test_inner.py",
        WRITER + "def test_x(): sys.stdout.close(); os.close(1); os.close(2)\n"
        "def test_y(): assert os.isatty(0) is False and sys.stdin.read() == ''",
    )
    assert project.run("-s").outcomes == {"test_x": "passed", "test_y": "passed"}


def test_subtests_keep_their_output_through_a_crash(project: Project) -> None:
    project.write(
        "test_inner.py",
        WRITER + "def test_x(subtests):\n    with subtests.test('a'): say('a')\n"
        "    with subtests.test('b'): say('b'); os.abort()",
    )
    ran = project.run("-o", "junit_logging=all")
    assert ran.properties("test_x")["outcome"] == "crashed"
    assert "a by C" in ran.cases["test_x"].system_out
    assert "b by C" in ran.cases["test_x"].system_out


def test_capture_fixtures_work(project: Project) -> None:
    project.write(
        "test_inner.py",
        WRITER
        + "def test_fd(capfd):\n    say('x')\n    assert 'x by C' in capfd.readouterr().out\n"
        "def test_sys(capsys):\n    say('x')\n"
        "    assert capsys.readouterr().out == 'x by Python\\n'\n"
        "def test_log(caplog):\n    import logging; logging.warning('w')\n"
        "    assert caplog.messages == ['w']",
    )
    assert set(project.run().outcomes.values()) == {"passed"}


@pytest.mark.parametrize(("option", "shown"), [("-s", True), ("--capture=fd", False)])
def test_output_is_shown_live_without_capture(
    project: Project, option: str, *, shown: bool
) -> None:
    project.write("test_inner.py", WRITER + "def test_x(around): say('call')")
    ran = project.run(option, "-q")
    for phase in ("setup", "call", "teardown"):
        assert (f"{phase} by C" in ran.stdout) == shown
        assert (f"{phase} by write" in ran.stderr) == shown
    assert ran.outcomes == {"test_x": "passed"}


def test_loggers_of_imported_modules_write_to_the_cases_output(project: Project) -> None:
    """Their handlers keep the stream that pytest had put in the place of sys.stderr."""
    project.write(
        "early.py",
        """\
        import logging, sys
        for name, stream in (("to_stderr", None), ("to_stdout", sys.stdout)):
            logging.getLogger(name).addHandler(logging.StreamHandler(stream))
        """,
    )
    project.write("conftest.py", "import early")
    project.write(
        "test_inner.py",
        WRITER + "import logging\n"
        "def test_x():\n    logging.getLogger('to_stderr').error('an error')\n"
        "    logging.getLogger('to_stdout').error('a result')\n    assert 0\n",
    )
    case = project.run("-o", "junit_logging=all").cases["test_x"]
    assert "a result" in case.system_out
    assert "an error" in case.system_err
    assert "Logging error" not in case.system_err
