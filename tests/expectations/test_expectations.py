"""What upstream gets wrong is declared, strictly; whatever else happens turns the run red."""

from __future__ import annotations

import tomllib

import pytest
from support.project import Project

from harness.model.versions import stack_versions

pytestmark = pytest.mark.measures_coverage

OPTION = "--expectations=expected"
CASES = """\
pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.upstream("pytorch/xla#1")]
def test_fails(): raise ValueError("sums differ: 3 instead of 4")
def test_crashes(): os.abort()
@pytest.mark.deadline(0.3)
def test_hangs(): time.sleep(60)
def test_passes(): pass
def test_skips(): pytest.skip("no use")
def test_subtests(subtests):
    with subtests.test(): pass
def test_some_subtests_fail(subtests):
    for n in range(4):
        with subtests.test(n=n): assert n == 0, f"sums differ: {n}"
@pytest.fixture
def broken_end():
    yield
    raise KeyError("teardown")
def test_fails_twice(broken_end): raise ValueError("sums differ")
@pytest.mark.xfail(reason="pytest's own")
def test_xfails(): assert 0
@pytest.mark.xfail(reason="pytest's own")
def test_xpasses(): pass
@pytest.mark.xfail(reason="pytest's own", strict=True)
def test_strictly(): pass
"""


def entry(**keys: object) -> str:
    """One entry of an expectation file, for test_inner.py::test_fails unless told otherwise."""
    values = {
        "cases": ["test_inner.py::test_fails[cpu-4]"],
        "issue": "pytorch/xla#8854",
        "reason": "the sum is wrong",
        "signature": "sums differ: 3",
    } | keys
    lines = [f"{key} = {value!r}" for key, value in values.items() if value is not None]
    return "[[expectation]]\n" + "\n".join(lines) + "\n"


def cases(*names: str) -> list[str]:
    return [f"test_inner.py::test_{name}[cpu-*]" for name in names]


BAD_FILES = {
    "no TOML": ("[[expectation]\n", "area.toml: "),
    "no UTF-8": ("\xff", "area.toml: 'utf-8' codec"),
    "a stray key": ("version = 1\n", "area.toml: key 'version': expected only [[expectation]]"),
    "no list": ("expectation = 1\n", "area.toml: key 'expectation': expected only"),
    "no tables": ("expectation = [1]\n", "area.toml#1: expected a table"),
    "unknown key": (entry() + entry(when="2.9"), "area.toml:6: unknown key 'when': expected"),
    "no cases": (entry(cases=None), "area.toml:1: key 'cases' is missing"),
    "no reason": (entry(reason=None), "area.toml:1: key 'reason' is missing"),
    "no signature": (entry(signature=None), "area.toml:1: key 'signature' is missing"),
    "empty cases": (entry(cases=[]), "area.toml:1: key 'cases': expected a list of case ids"),
    "cases a text": (entry(cases="x"), "area.toml:1: key 'cases': expected a list of case ids"),
    "cases of numbers": (entry(cases=[1]), "area.toml:1: key 'cases': expected a list"),
    "empty reason": (entry(reason=" "), "area.toml:1: key 'reason': expected a text"),
    "signature a number": (entry(signature=1), "area.toml:1: key 'signature': expected a text"),
    "bad signature": (entry(signature="("), "area.toml:1: key 'signature': missing )"),
    "a lookahead": (
        entry(signature="sums(?=x)"),
        "area.toml:1: key 'signature': invalid perl operator: (?=: expected a regular",
    ),
    "a backreference": (
        entry(signature="(a)-1").replace("-", "\\"),
        "area.toml:1: key 'signature': invalid escape",
    ),
    "deep nesting": (f"x = {'[' * 9999}", "area.toml: expected TOML: nested too deeply"),
    "bad outcome": (
        entry(outcome="passed"),
        "area.toml:1: key 'outcome': 'passed': expected failed, crashed, hung",
    ),
    "bad issue": (entry(issue="8854"), "area.toml:1: expected either key 'issue'"),
    "neither cause": (entry(issue=None), "area.toml:1: expected either key 'issue'"),
    "both causes": (entry(finding="a-b"), "area.toml:1: expected either key 'issue'"),
    "bad stack": (
        entry() + 'stack = { torch-xla = "<2.8" }\n',
        "area.toml:1: key 'stack.torch-xla': unknown component: did you mean 'torch_xla'?",
    ),
    "bad range": (
        entry() + 'stack.python = "<3,>3"\n',
        "area.toml:1: key 'stack.python': '<3,>3': can never match",
    ),
    "bad finding": (entry(issue=None, finding="A b"), "or key 'finding', the name of a section"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_file_is_refused(project: Project, kind: str) -> None:
    text, message = BAD_FILES[kind]
    path = project.write("expected/area.toml", "")
    path.write_text(text, encoding="latin-1")
    ran = project.run(OPTION)
    assert ran.code == 2
    assert ran.shows(f"xla-harness: expected/{message}") or ran.shows(message)
    assert "Traceback" not in ran.stdout + ran.stderr


def test_two_entries_for_a_case_are_refused(project: Project) -> None:
    project.write("test_inner.py", CASES)
    project.write("expected/a.toml", entry())
    project.write("expected/b.toml", entry(cases=cases("*s")))
    ran = project.run(OPTION, "-n2")
    assert ran.code == 2
    assert ran.shows(
        "expected/a.toml:1 and expected/b.toml:1 match test_inner.py::test_fails[cpu-4]: "
        "expected one entry at most for a case"
    )
    assert "INTERNALERROR" not in ran.stdout


NOT_DECLARED = (
    "not the failure that expected/area.toml:1 (pytorch/xla#8854: the sum is wrong) declares"
)
# Entry, name of the case, its outcome, what its detail says.
JUDGED = {
    "failure": (entry(), "fails", "expected failure", "pytorch/xla#8854: the sum is wrong"),
    "finding": (
        entry(issue=None, finding="wrong-sum"),
        "fails",
        "expected failure",
        "finding wrong-sum: the sum is wrong",
    ),
    "any of several": (
        entry(cases=cases("f?ils", "crashes"), signature="sums|SIGABRT"),
        "fails",
        "expected failure",
        "pytorch/xla#8854: the sum is wrong",
    ),
    "any file": (
        entry(cases=["test_*.py::test_f?ils[*"]),
        "fails",
        "expected failure",
        "pytorch/xla#8854: the sum is wrong",
    ),
    "crash": (
        entry(cases=cases("crashes"), outcome="crashed", signature="SIGABRT in test_crashes"),
        "crashes",
        "expected failure",
        "pytorch/xla#8854: the sum is wrong",
    ),
    "hang": (
        entry(cases=cases("hangs"), outcome="hung", signature="no result after 0.3 s"),
        "hangs",
        "expected failure",
        "pytorch/xla#8854: the sum is wrong",
    ),
    "wrong signature": (
        entry(signature="sums differ: 5"),
        "fails",
        "failed",
        f"ValueError: sums differ: 3 instead of 4\n{NOT_DECLARED}: failed with 'sums differ: 5'",
    ),
    "wrong kind": (
        entry(cases=cases("crashes"), signature="."),
        "crashes",
        "crashed",
        f"{NOT_DECLARED}: failed with '.'",
    ),
    "wrong kind of two": (
        entry(outcome="crashed"),
        "fails",
        "failed",
        f"{NOT_DECLARED}: crashed with 'sums differ: 3'",
    ),
    "pass": (
        entry(cases=cases("passes")),
        "passes",
        "unexpected pass",
        "passes now: the entry expected/area.toml:1 (pytorch/xla#8854: the sum is wrong) can go",
    ),
    "pass with subtests": (
        entry(cases=cases("subtests")),
        "subtests",
        "unexpected pass",
        "passes now: the entry expected/area.toml:1",
    ),
    "subtests that all fail as declared": (
        entry(cases=cases("some_subtests_fail"), signature="sums differ: [123]"),
        "some_subtests_fail",
        "expected failure",
        "pytorch/xla#8854",
    ),
    "a subtest that fails otherwise": (
        entry(cases=cases("some_subtests_fail"), signature="sums differ: [12]"),
        "some_subtests_fail",
        "failed",
        "sums differ: 3",
    ),
    "skip": (entry(cases=cases("skips")), "skips", "skipped", "no use"),
    "two failures": (
        entry(cases=cases("fails_twice"), signature="sums differ"),
        "fails_twice",
        "failed",
        "KeyError: 'teardown'",
    ),
    "xfail": (entry(cases=cases("xfails")), "xfails", "expected failure", "pytest's own"),
    "xpass": (entry(cases=cases("xpasses")), "xpasses", "unexpected pass", "pytest's own"),
    "strict": (entry(cases=cases("strictly")), "strictly", "unexpected pass", "pytest's own"),
}
# By name of the case: what really happened, with which signal, and who expected a failure.
HAPPENED = {
    "fails": ("failed", "", "expectation"),
    "crashes": ("crashed", "SIGABRT", "expectation"),
    "hangs": ("hung", "", "expectation"),
    "passes": ("passed", "", "expectation"),
    "subtests": ("passed", "", "expectation"),
    "some_subtests_fail": ("failed", "", "expectation"),
    "skips": ("skipped", "", "expectation"),
    "fails_twice": ("failed", "", "expectation"),
    "xfails": ("failed", "", "pytest"),
    "xpasses": ("passed", "", "pytest"),
    "strictly": ("passed", "", "pytest"),
}


@pytest.mark.parametrize("kind", JUDGED)
def test_outcome_is_judged(project: Project, kind: str) -> None:
    text, name, outcome, detail = JUDGED[kind]
    project.write("test_inner.py", CASES)
    project.write("expected/area.toml", text)
    ran = project.run(OPTION, "-k", f"test_{name} and not {name}_")
    properties = ran.properties(f"test_{name}")
    assert properties["outcome"] == outcome
    assert detail in properties["outcome_detail"]
    assert (
        properties["actual"],
        properties.get("signal", ""),
        properties["expected_by"],
    ) == HAPPENED[name]
    (declared,) = tomllib.loads(text)["expectation"]
    declares = declared.get("outcome", "failed")
    assert (properties["expected"], float(properties["deadline"])) == (
        declares,
        0.3 if name == "hangs" else 60,
    )
    is_bad = outcome not in ("expected failure", "skipped") and name != "xpasses"
    nothing_measured = 5
    assert ran.code == (nothing_measured if outcome == "skipped" else int(is_bad))
    if is_bad:
        assert ran.shows(detail.splitlines()[0])
        assert ran.shows(f"pytest 'test_inner.py::test_{name}[cpu-4]'")


def test_deleting_an_entry_turns_the_run_red(project: Project) -> None:
    project.write("test_inner.py", CASES)
    path = project.write("expected/area.toml", entry())
    green = project.run(OPTION, "-k", "test_fails and not twice")
    assert green.code == 0
    assert green.shows("1 pytorch/xla#8854: the sum is wrong")
    path.unlink()
    red = project.run(OPTION, "-k", "test_fails and not twice")
    assert red.code == 1
    assert red.outcomes == {"test_fails": "failed"}
    assert red.shows("watches pytorch/xla#1")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("test_inner.py test_other.py", 1),
        ("-n2", 1),
        ("-k passes", 1),
        ("test_inner.py", 1),
        ("--topology=1,4 test_inner.py", 1),
        ("test_inner.py::test_passes", 0),
        ("test_inner.py::test_passes -n2", 0),
        ("--lf", 0),
        ("test_other.py", 0),
    ],
)
def test_an_entry_without_a_case_is_red(project: Project, options: str, code: int) -> None:
    body = "pytestmark = pytest.mark.lanes('cpu')\ndef test_passes(): pass\n"
    project.write("test_inner.py", body)
    project.write("test_other.py", body)
    project.write("expected/area.toml", entry(cases=cases("gone")))
    if options == "--lf":
        project.write("test_inner.py", f"{body}def test_fails(): assert 0\n")
        project.run()
        project.write("test_inner.py", f"{body}def test_fails(): pass\n")
    ran = project.run(OPTION, *options.split())
    assert ran.code == code
    message = "expected/area.toml:1: test_inner.py::test_gone[cpu-*] matches no case"
    assert ran.shows(message) == bool(code)


def test_an_entry_without_a_file_is_red(project: Project) -> None:
    project.write("test_inner.py", CASES)
    project.write("expected/area.toml", entry(cases=["test_gone.py::test_x[cpu-4]"]))
    ran = project.run(OPTION, "-k", "passes")
    assert ran.code == 1
    assert ran.shows("expected/area.toml:1: test_gone.py::test_x[cpu-4] matches no case")


def for_python(operator: str) -> str:
    """A condition on the Python that runs, as the key of an entry."""
    return f"stack = {{ python = '{operator}{stack_versions()['python']}' }}\n"


def test_only_the_entry_for_this_stack_counts(project: Project) -> None:
    project.write("test_inner.py", CASES)
    here, elsewhere = entry() + for_python("=="), entry(reason="another") + for_python("!=")
    project.write("expected/area.toml", elsewhere + here)
    both = project.run(OPTION, "-k", "test_fails and not twice", "-n2")
    assert both.code == 0
    assert both.shows("1 pytorch/xla#8854: the sum is wrong")
    project.write("expected/area.toml", elsewhere)
    absent = project.run(OPTION, "-k", "test_fails and not twice", "-n2")
    assert absent.code == 1
    assert absent.properties("test_fails")["outcome_detail"] == (
        "ValueError: sums differ: 3 instead of 4"
    )


def test_pass_names_the_condition_that_holds(project: Project) -> None:
    project.write("test_inner.py", CASES)
    project.write("expected/area.toml", entry(cases=cases("passes")) + for_python(">="))
    ran = project.run(OPTION, "-k", "test_passes")
    assert ran.code == 1
    assert ran.shows(f"can go from python >={stack_versions()['python']}")


def test_two_entries_for_this_stack_are_refused(project: Project) -> None:
    project.write("test_inner.py", CASES)
    project.write("expected/area.toml", entry() + for_python("==") + entry() + for_python(">="))
    ran = project.run(OPTION)
    assert ran.code == 2
    assert ran.shows("expected/area.toml:1 and expected/area.toml:7 match test_inner.py::")


def test_misspelt_case_of_another_stack_is_red(project: Project) -> None:
    project.write("test_inner.py", CASES)
    project.write("expected/area.toml", entry(cases=cases("gone")) + for_python("!="))
    ran = project.run(OPTION, "-k", "passes")
    assert ran.code == 1
    assert ran.shows("expected/area.toml:1: test_inner.py::test_gone[cpu-*] matches no case")
