"""The record, the terminal, JUnit and pytest's caches agree on what a test's subtests come to."""

from __future__ import annotations

import json
import re

import pytest
from support.project import Project

from harness.history.run import read_run
from harness.junit.report import read

pytestmark = pytest.mark.measures_coverage

MIXES = """
LANES = [] if os.environ.get("PLAIN") else [pytest.mark.lanes("cpu")]
pytestmark = LANES
def test_all_skip(subtests):
    for n in range(3):
        with subtests.test(n=n): pytest.skip("no chip")
def test_two_reasons(subtests):
    for n in range(4):
        with subtests.test(n=n): pytest.skip(f"reason {n % 2}")
def test_some_skip(subtests):
    for n in range(3):
        with subtests.test(n=n):
            if n != 1: pytest.skip("no chip")
def test_no_subtest(subtests): pass
def test_nested(subtests):
    with subtests.test("outer"):
        for n in range(2):
            with subtests.test("inner", n=n): pytest.skip("deep")
def test_nested_some(subtests):
    with subtests.test("outer"):
        for n in range(2):
            with subtests.test("inner", n=n):
                if n: pytest.skip("deep")
@pytest.mark.parametrize("skips", [True, False])
def test_parametrized(subtests, skips):
    with subtests.test():
        if skips: pytest.skip("this one")
def test_skip_after(subtests):
    with subtests.test(): pass
    pytest.skip("the rest")
def test_fail_and_skip(subtests):
    with subtests.test(): assert 0
    with subtests.test(): pytest.skip("no chip")
def test_xfail(subtests):
    with subtests.test(): pass
    with subtests.test(): pytest.xfail("known")
    with subtests.test(): pytest.skip("no chip")
def test_skip_and_xfail(subtests):
    with subtests.test(): pytest.skip("no chip")
    with subtests.test(): pytest.xfail("known")
@pytest.mark.xfail(reason="marker")
def test_marker(subtests):
    with subtests.test(): assert 0
@pytest.mark.xfail(reason="marker", strict=True)
def test_strict(subtests):
    with subtests.test(): assert 0
@pytest.mark.xfail(reason="marker", strict=True)
def test_strict_skips(subtests):
    with subtests.test(): pytest.skip("no chip")
@pytest.mark.xfail(reason="marker")
def test_marker_passes(subtests):
    with subtests.test(): pass
class TestUnit(unittest.TestCase):
    def setUp(self): self.reason = "no chip"
    def test_unit_all_skip(self):
        for n in range(3):
            with self.subTest(n=n): self.skipTest(self.reason)
    def test_unit_last_runs(self):
        for n in range(3):
            with self.subTest(n=n):
                if n < 2: self.skipTest(self.reason)
    def test_unit_no_subtest(self): pass
    def test_unit_nested(self):
        with self.subTest(outer=1):
            with self.subTest(inner=1): self.skipTest(self.reason)
    def test_unit_skip_after(self):
        with self.subTest(): pass
        self.skipTest("the rest")
    def test_unit_fail_and_skip(self):
        with self.subTest(): self.fail("broken")
        with self.subTest(): self.skipTest(self.reason)
"""
SAID = {
    "test_all_skip": ("skipped", "no chip"),
    "test_two_reasons": ("skipped", "reason 0; reason 1"),
    "test_some_skip": ("passed", ""),
    "test_no_subtest": ("passed", ""),
    "test_nested": ("skipped", "deep"),
    "test_nested_some": ("passed", ""),
    "test_parametrized[cpu-4-True]": ("skipped", "this one"),
    "test_parametrized[cpu-4-False]": ("passed", ""),
    "test_skip_after": ("skipped", "the rest"),
    "test_fail_and_skip": ("failed", "assert 0"),
    "test_xfail": ("expected failure", "known"),
    "test_skip_and_xfail": ("expected failure", "known"),
    "test_marker": ("expected failure", "marker"),
    "test_strict": ("expected failure", "marker"),
    "test_strict_skips": ("skipped", "no chip"),
    "test_marker_passes": ("unexpected pass", "marker"),
    "test_unit_all_skip": ("skipped", "no chip"),
    "test_unit_last_runs": ("passed", ""),
    "test_unit_no_subtest": ("passed", ""),
    "test_unit_nested": ("skipped", "no chip"),
    "test_unit_skip_after": ("skipped", "the rest"),
    "test_unit_fail_and_skip": ("failed", "AssertionError: broken"),
}


@pytest.mark.parametrize("options", [(), ("--isolation=none",), ("-n2",)], ids=str)
def test_what_subtests_come_to(project: Project, options: tuple[str, ...]) -> None:
    project.write("test_inner.py", MIXES)
    ran = project.run(*options)
    properties = {name: ran.properties(name) for name in ran.cases}
    assert {
        name: (recorded["outcome"], recorded.get("outcome_detail", ""))
        for name, recorded in properties.items()
    } == SAID
    kinds = [outcome for outcome, _ in SAID.values()]
    for result in read(ran.junit).results.values():
        assert result.measured == (result.outcome != "skipped"), result.id
    shown = {name: {type(entry).__name__ for entry in ran.cases[name]} for name in SAID}
    for name, (outcome, _) in SAID.items():
        assert ("Failure" in shown[name]) == (outcome == "failed"), name
        assert shown[name] or outcome in ("passed", "unexpected pass"), name
    for kind, word in (
        ("passed", "passed"),
        ("skipped", "skipped"),
        ("expected failure", "xfailed"),
        ("unexpected pass", "xpassed"),
    ):
        assert re.search(rf" {kinds.count(kind)} {word}\b", ran.stdout.splitlines()[-1]), kind
    assert ran.shows("2 skipped: the rest")


def test_another_pytest_reports_them(project: Project) -> None:
    """Its reports name no subtest that passed, so a case with a skipped one counts as skipped."""
    project.write("test_inner.py", MIXES)
    ran = project.run("-p", "no:xla_harness", PLAIN="1")
    cases = {case.id.rpartition("::")[2]: case.outcome for case in read_run(ran.junit).cases}
    outcomes = {name: outcome for name, (outcome, _) in SAID.items()}
    outcomes |= dict.fromkeys(
        ("test_some_skip", "test_nested_some", "test_unit_last_runs"), "skipped"
    )
    outcomes |= dict.fromkeys(
        ("test_strict", "test_strict_skips"), "unexpected pass"
    )  # pytest's way
    outcomes["test_marker_passes"] = (
        "passed"  # a pass of a marker that is not strict leaves no trace
    )
    assert cases == {name.replace("cpu-4-", ""): outcome for name, outcome in outcomes.items()}


DECLARED = """
import pytest
pytestmark = [pytest.mark.lanes("cpu")]
def test_a(subtests):
    for n in range(4):
        with subtests.test(n=n): assert n != 1 and n != 2, "sums differ"
class TestUnit(unittest.TestCase):
    def test_b(self):
        for n in range(3):
            with self.subTest(n=n): assert n != 1, "sums differ"
@pytest.mark.share("all")
def test_c(subtests):
    with subtests.test(): assert 0, "sums differ"
@pytest.mark.share("all")
def test_d(): assert 0, "sums differ"
@pytest.mark.share("all")
def test_e(subtests):
    for n in range(3):
        with subtests.test(n=n): assert n == 1, "sums differ" if n else "otherwise"
def test_last(): pass
"""
ENTRY = """
[[expectation]]
cases = [CASES]
issue = "pytorch/xla#8854"
reason = "open"
signature = "sums differ"
"""


def entry(names: str) -> str:
    """An expectation's file for the cases with these letters."""
    places = (f"{'TestUnit::' * (name == 'b')}test_{name}*" for name in names)
    return ENTRY.replace("CASES", ", ".join(f'"test_inner.py::{place}"' for place in places))


EXPECTED = dict.fromkeys(("test_a", "test_b", "test_c", "test_d"), "expected failure")


@pytest.mark.parametrize(
    "options",
    [("-x",), ("-x", "-n2"), ("--maxfail=1", "--isolation=none"), ("--sw",), ("--sw", "-n2")],
    ids=str,
)
def test_a_declared_failure_in_a_subtest_does_not_end_the_run(
    project: Project, options: tuple[str, ...]
) -> None:
    project.write("test_inner.py", DECLARED)
    project.write("expected/area.toml", entry("abcd"))
    ran = project.run("--expectations=expected", *options, "-k", "not test_e")
    assert ran.outcomes == {**EXPECTED, "test_last": "passed"}
    assert ran.code == 0
    assert not (project.path / ".pytest_cache/v/cache/lastfailed").exists()


@pytest.mark.parametrize("isolation", ["fork", "none"])
def test_only_undeclared_failures_are_counted(project: Project, isolation: str) -> None:
    """Three subtests, of which one fails as declared and one otherwise; and the test itself."""
    project.write("test_inner.py", DECLARED)
    project.write("expected/area.toml", entry("abcde"))
    options = ("--expectations=expected", f"--isolation={isolation}")
    ran = project.run(*options, "--maxfail=3")
    assert ran.outcomes == {**EXPECTED, "test_e": "failed", "test_last": "passed"}
    assert ran.code == 1
    properties = ran.properties("test_e")
    assert properties["failure"].startswith("AssertionError: otherwise")
    cache = project.path / ".pytest_cache/v/cache/lastfailed"
    assert json.loads(cache.read_text()) == {"test_inner.py::test_e[cpu-4]": True}
    again = project.run(*options, "--lf")
    assert again.outcomes == {"test_e": "failed"}
    first = project.run(*options, "-x")
    assert first.outcomes == {**EXPECTED, "test_e": "failed"}
