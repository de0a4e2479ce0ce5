"""Everything else of pytest works with isolated cases, alone and under pytest-xdist."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from support.project import Project

CASE = "pytestmark = pytest.mark.lanes('cpu')\n"
NOTE = """\
def note(what):
    with open("notes", "a") as file:
        print(what, os.getpid(), file=file)
"""
xdist = pytest.mark.parametrize("xdist", [(), ("-n2",)], ids=["alone", "xdist"])


def notes(project: Project) -> list[tuple[str, str]]:
    """What the tests noted, each with its process id."""
    file = project.path / "notes"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [(words[0], words[1]) for words in map(str.split, lines)]


def test_each_case_has_a_process_unless_it_shares(project: Project) -> None:
    project.write(
        "test_inner.py",
        CASE
        + NOTE
        + """
us = pytest.mark.share("us")
def test_a(): note("a")
def test_b(): note("b")
@us
def test_c(): note("c")
@us
def test_d(): note("d"); os.abort()
@us
def test_e(): note("e")
@us
def test_f(): note("f")
@us
@pytest.mark.environment(XLA_A="1")
def test_g(): note("g")
@us
@pytest.mark.topologies(2)
def test_h(): note("h")
@pytest.mark.share("them")
@pytest.mark.topologies(2)
def test_i(): note("i")
""",
    )
    ran = project.run()
    assert Counter(ran.outcomes.values()) == {"passed": 8, "crashed": 1}
    processes: dict[str, str] = {}
    for letter, pid in notes(project):
        processes[pid] = processes.get(pid, "") + letter
    assert list(processes.values()) == ["a", "b", "cd", "ef", "g", "h", "i"]


def test_many_cases_share_a_process(project: Project) -> None:
    project.write(
        "test_inner.py",
        CASE + NOTE + "pytestmark = [pytestmark, pytest.mark.share('us')]\n"
        "@pytest.mark.parametrize('n', range(100))\ndef test_x(n): note(n)",
    )
    ran = project.run("--deadline=2")
    assert Counter(ran.outcomes.values()) == {"passed": 100}
    assert len({pid for _, pid in notes(project)}) == 1


@xdist
def test_fixtures_of_every_scope(project: Project, xdist: tuple[str, ...]) -> None:
    project.write(
        "test_inner.py",
        CASE
        + NOTE
        + """
def make(scope):
    @pytest.fixture(scope=scope, name=scope + "_wide", params=["x", "y"])
    def wide(request):
        note(f"+{scope}")
        yield os.getpid()
        note(f"-{scope}")
    return wide

function_wide, module_wide, session_wide = map(make, ["function", "module", "session"])

def test_all(function_wide, module_wide, session_wide, topology):
    assert {function_wide, module_wide, session_wide} == {os.getpid()}
    assert topology.devices == 4
""",
    )
    ran = project.run(*xdist)
    assert len(ran.outcomes) == 8
    assert set(ran.outcomes.values()) == {"passed"}
    counts = Counter(note for note, _ in notes(project))
    assert counts == {f"{sign}{s}": 8 for sign in "+-" for s in ("function", "module", "session")}


@pytest.mark.parametrize(
    ("options", "ran_bodies"), [((), "abcd"), (("-x",), "ab"), (("--maxfail=2",), "abc")], ids=str
)
@pytest.mark.parametrize("share", ["", "pytestmark.append(pytest.mark.share('us'))"])
def test_stopping_early_ends_wider_fixtures(
    project: Project, options: tuple[str, ...], ran_bodies: str, share: str
) -> None:
    project.write(
        "test_inner.py",
        NOTE
        + f"pytestmark = [pytest.mark.lanes('cpu')]\n{share}"
        + """
@pytest.fixture(scope="module")
def wide():
    note("+")
    yield
    note("-")
def test_a(wide): note("a")
def test_b(wide): note("b"); assert 0
def test_c(wide): note("c"); assert 0
def test_d(wide): note("d")
""",
    )
    assert project.run(*options).code == 1
    noted = "".join(note for note, _ in notes(project))
    expected = f"+{ran_bodies}-" if share else "".join(f"+{body}-" for body in ran_bodies)
    assert noted == expected


@xdist
def test_subtests(project: Project, xdist: tuple[str, ...]) -> None:
    project.write(
        "test_inner.py",
        CASE
        + """
def test_some(subtests):
    for i in range(3):
        with subtests.test(i=i):
            assert i != 1, "is one"
def test_several(subtests):
    for i in range(4):
        with subtests.test(i=i):
            assert i < 2, f"{i} is too large"
def test_none(subtests):
    with subtests.test(): pass
    with subtests.test(): pytest.skip("this one only")
class TestUnit(unittest.TestCase):
    def test_some_unit(self):
        for i in range(3):
            with self.subTest(i=i):
                self.assertNotEqual(i, 1)
    @unittest.skip("for now")
    def test_skip(self): pass
    @unittest.expectedFailure
    def test_expected(self): assert 0
""",
    )
    ran = project.run(*xdist)
    assert ran.code == 1
    assert ran.outcomes == {
        "test_some": "failed",
        "test_several": "failed",
        "test_none": "passed",
        "test_some_unit": "failed",
        "test_skip": "skipped",
        "test_expected": "expected failure",
    }
    assert ran.properties("test_some")["outcome_detail"].startswith("AssertionError: is one")
    assert ran.properties("test_some_unit")["outcome_detail"] == "AssertionError: 1 == 1"
    messages = [entry.message for entry in ran.cases["test_some"].result]
    assert messages == ["AssertionError: is one\nassert 1 != 1", "contains 1 failed subtest"]
    assert ran.properties("test_several")["outcome_detail"].startswith("AssertionError: 2 is too")
    report = ran.junit.read_text(encoding="utf-8")
    for i in (2, 3):
        message = f"AssertionError: {i} is too large"
        assert len(re.findall(f"^E +{message}$", ran.stdout, re.MULTILINE)) == 1
        assert report.count(f'<failure message="{message}') == 1


@xdist
def test_warnings_of_a_case_reach_the_summary_once(
    project: Project, xdist: tuple[str, ...]
) -> None:
    project.write(
        "test_inner.py",
        "pytestmark = [pytest.mark.lanes('cpu'), pytest.mark.share('us')]\n"
        "class OwnWarning(UserWarning): pass\n"
        "warnings.warn('while importing')\n"
        "@pytest.mark.filterwarnings('error')\n"
        "def test_a(): warnings.warn('of the strict')\n"
        "def test_b(): warnings.warn('of the lax')\n"
        "def test_c(): warnings.warn('of old', DeprecationWarning)\n"
        "def test_d(): warnings.warn(OwnWarning('of ours'))\n",
    )
    ran = project.run(*xdist)
    assert ran.outcomes == {f"test_{n}": "failed" if n == "a" else "passed" for n in "abcd"}
    for text in (
        " UserWarning: while importing",
        " UserWarning: of the lax",
        " DeprecationWarning: of old",
        " OwnWarning: of ours",
    ):
        assert ran.stdout.count(text) == 1


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("pytest.exit('enough', 7)", 7, "Exit: enough"),
        ("raise KeyboardInterrupt", 2, "KeyboardInterrupt"),
    ],
)
def test_a_case_may_end_the_run(project: Project, body: str, code: int, message: str) -> None:
    project.write(
        "test_inner.py",
        f"{CASE}{NOTE}def test_a(): pass\ndef test_b(): {body}\ndef test_c(): note('c')",
    )
    ran = project.run()
    assert ran.code == code
    assert ran.shows(message)
    assert ran.outcomes["test_a"] == "passed"
    assert not notes(project)


@xdist
def test_choosing(project: Project, xdist: tuple[str, ...]) -> None:
    body = "@pytest.mark.parametrize('n', [1, 2])\ndef test_x(n): assert n == 1\ndef test_y(): pass"
    project.write("test_inner.py", CASE + body)
    everything = project.run(*xdist)
    assert everything.outcomes == {
        "test_x[cpu-4-1]": "passed",
        "test_x[cpu-4-2]": "failed",
        "test_y": "passed",
    }
    assert project.run("--lf", *xdist).outcomes == {"test_x[cpu-4-2]": "failed"}
    assert project.run("-k", "test_y", *xdist).outcomes == {"test_y": "passed"}
    assert project.run("test_inner.py::test_x[cpu-4-1]", *xdist).code == 0


@pytest.mark.parametrize("lane", [(), ("--lane=cpu",), ("--lane=cpu", "--topology=2", "-n2")])
def test_plain_files_are_cases_only_with_a_lane(project: Project, lane: tuple[str, ...]) -> None:
    project.write("conftest.py", f"{NOTE}\nnote('pytest')")
    project.write(
        "test_plain.py",
        NOTE + "def test_x(): note('test')\n"
        "class TestY(unittest.TestCase):\n    def test_y(self): note('test')",
    )
    ran = project.run(*lane)
    assert ran.code == 0
    pytests = {pid for note, pid in notes(project) if note == "pytest"}
    tests = {pid for note, pid in notes(project) if note == "test"}
    if not lane:
        assert tests == pytests
        assert set(ran.outcomes.values()) == {""}
        return
    assert len(tests) == 2
    assert not tests & pytests
    for name in ("test_x", "test_y"):
        assert ran.properties(name)["topology"] == ("2" if "-n2" in lane else "4")
        assert ran.properties(name)["outcome"] == "passed"


def test_plain_tests_and_cases_share_no_fixture(project: Project) -> None:
    project.write(
        "test_mixed.py",
        NOTE
        + """
@pytest.fixture(scope="module")
def wide():
    note("+")
    yield os.getpid()
    note("-")
def test_a(wide): note("a")
@pytest.mark.lanes("cpu")
def test_b(wide): note("b"); assert wide == os.getpid()
def test_c(wide): note("c"); assert wide == os.getpid()
""",
    )
    ran = project.run()
    assert ran.outcomes == {"test_a": "", "test_b": "passed", "test_c": ""}
    assert ran.code == 0
    texts, pids = zip(*notes(project), strict=True)
    assert "".join(texts) == "+a-+b-+c-"
    assert len(set(pids[:3])) == len(set(pids[3:6])) == 1
    assert pids[:3] == pids[6:] != pids[3:6]


def test_a_failure_prints_no_argument(project: Project) -> None:
    project.write(
        "test_inner.py",
        CASE + "class Lazy:\n    def __repr__(self): os.abort()\n"
        "@pytest.fixture\ndef lazy(): return Lazy()\n"
        "def test_x(lazy): raise ValueError",
    )
    assert project.run().outcomes == {"test_x": "failed"}


def test_pdb_is_in_process_and_says_so(project: Project) -> None:
    project.write("test_inner.py", f"{CASE}def test_x():\n    here = 41\n    assert not here")
    ran = project.run("--pdb", typed="p 'local', here + 1\nq\n")
    assert ran.shows("xla-harness: no isolation (--pdb): cases share this process")
    assert ran.shows("('local', 42)")


def test_without_isolation_one_target_runs(project: Project) -> None:
    project.write(
        "test_inner.py",
        CASE + NOTE + "note('pytest')\n@pytest.mark.topologies(1, 2)\ndef test_x(): note('test')",
    )
    ran = project.run("--isolation=none")
    assert ran.shows("xla-harness: no isolation (--isolation none)")
    assert ran.outcomes == {"test_x[cpu-1]": "passed", "test_x[cpu-2]": "skipped"}
    assert ran.properties("test_x[cpu-1]")["isolation"] == "none"
    assert "this process runs cpu-1" in ran.properties("test_x[cpu-2]")["outcome_detail"]
    assert [pid for _, pid in notes(project)] == [notes(project)[0][1]] * 2


def test_no_report_of_a_case_is_told_twice(project: Project) -> None:
    project.write(
        "conftest.py",
        NOTE + "def pytest_runtest_logreport(report): note(report.when)\n"
        "def pytest_runtest_logstart(): note('start')\n"
        "def pytest_runtest_logfinish(): note('finish')",
    )
    project.write("test_inner.py", f"{CASE}def test_x(): pass")
    project.run()
    events, pids = zip(*notes(project), strict=True)
    assert events == ("start", "setup", "call", "teardown", "finish")
    assert len(set(pids)) == 1
