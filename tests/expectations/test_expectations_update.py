"""``xla-harness known update``: what reports prove is changed, and nothing else."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from junitparser.xunit2 import JUnitXml, TestCase, TestSuite
from support.commands import xla_harness
from support.project import Project

from harness import cli
from harness.errors import BadInputError
from harness.expectations import Expectations, describe, evidence, update
from harness.expectations.decide import Decisions, decide
from harness.expectations.update import DeclaredCause, UpdatePlan
from harness.files import write
from harness.junit.properties import FORMAT, FORMAT_PROPERTY

FILE = "suites/sums/test_sums.py"
KNOWN = [{"torch_xla": version} for version in ("2.4.0", "2.6.0", "2.8.0", "2.9.0")]
FAILURE = "ValueError: sums differ: 3 instead of 4"
ISSUE = DeclaredCause("issue", "pytorch/xla#8854", "the sum is wrong")


def ids(*parameters: str, name: str = "test_sum") -> list[str]:
    return [f"{FILE}::{name}[cpu-4-{parameter}]" for parameter in parameters]


def write_report(path: Path, torch_xla: str, outcomes: dict[str, str], **more: str) -> Path:
    """A report as a run writes it: by case "passed", "skipped", or the failure's message."""
    suite = TestSuite("pytest")
    for name, value in ({FORMAT_PROPERTY: FORMAT, "torch_xla": torch_xla} | more).items():
        suite.add_property(name, value)
    for id_, outcome in outcomes.items():
        case = TestCase(id_.rpartition("::")[2])
        fails = outcome not in ("passed", "skipped", "unexpected pass", "expected failure")
        kind = "crashed" if outcome.startswith("SIG") else "failed" if fails else outcome
        actual = {"unexpected pass": "passed", "expected failure": "failed"}.get(kind, kind)
        properties = {"id": id_, "lane": "cpu", "topology": "4", "area": "sums", "outcome": kind}
        properties |= {"actual": actual}
        properties |= {"expected_by": "pytest"} if kind == "expected failure" else {}
        for name, value in (properties | ({"failure": outcome} if fails else {})).items():
            case.add_property(name, value)
        suite.add_testcase(case)
    xml = JUnitXml()
    xml.add_testsuite(suite)
    xml.write(str(path))
    return path


@dataclass
class Bench:
    """A folder of expectations, reports, and what an update makes of both."""

    path: Path
    known: Sequence[dict[str, str]] = ()
    reports: list[Path] = field(default_factory=list)
    collected: Sequence[str] = ()
    collections: list[str] = field(default_factory=list)  # the files whose cases were collected
    decisions: Decisions = field(init=False)
    plan: UpdatePlan = field(init=False)

    def ran(self, torch_xla: str, outcomes: dict[str, str], times: int = 2, **more: str) -> None:
        """So many runs of a stack, all with these outcomes."""
        for _ in range(times):
            path = self.path / f"report-{len(self.reports)}.xml"
            more["run"] = str(len(self.reports))
            self.reports.append(write_report(path, torch_xla, outcomes, **more))

    def update(self, text: str, cause: DeclaredCause | None = None, runs: int = 2) -> str:
        """The new text of the one expectation file."""
        file = self.path / "sums.toml"
        file.write_text(text, newline="")
        entries = Expectations.load(self.path, self.known).entries
        recorded = evidence.read(self.reports)
        self.decisions = decide(entries, recorded, self.known, runs)
        self.plan = update.plan(self.path, entries, self.decisions, cause, self.collect)
        update.check(self.plan, self.path, recorded.answers, [*self.known, *recorded.stacks])
        return self.plan.texts.get(file, text)

    def collect(self, files: Sequence[str]) -> Sequence[str]:
        self.collections += files
        return self.collected

    def entries(self, text: str, cause: DeclaredCause | None = None, runs: int = 2) -> list[Any]:
        """The new entries as data."""
        return list(tomllib.loads(self.update(text, cause, runs)).get("expectation", []))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    return Bench(Path())


def entry(cases: Sequence[str], stack: str = "", signature: str = "sums differ") -> str:
    lines = ["[[expectation]]", f"cases = {list(cases)!r}", 'issue = "pytorch/xla#8854"']
    lines += ['reason = "the sum is wrong"', f"signature = '{signature}'"]
    return "\n".join(lines + ([f"stack = {{ {stack} }}"] if stack else [])) + "\n"


# What passes goes.


@pytest.mark.parametrize("outcome", ["passed", "unexpected pass"])
def test_entry_that_passes_goes(bench: Bench, outcome: str) -> None:
    bench.ran("2.9.0", dict.fromkeys(ids("a", "b"), outcome))
    assert bench.entries(entry([f"{FILE}::test_sum[*]"])) == []


def test_glob_shrinks_to_what_still_fails(bench: Bench) -> None:
    fails = {f"{FILE}::test_sum[cpu-{n}-{p}]": FAILURE for n in (2, 4) for p in ("int-a", "int-b")}
    passes = {f"{FILE}::test_sum[cpu-{n}-{p}]": "passed" for n in (2, 4) for p in ("real-a", "c")}
    bench.ran("2.9.0", fails | passes)
    (left,) = bench.entries(entry([f"{FILE}::test_sum[*]", f"{FILE}::test_other[*]"]))
    assert left["cases"] == [f"{FILE}::test_sum[*-int-*]", f"{FILE}::test_other[*]"]


def test_case_that_no_report_has_keeps_its_entry(bench: Bench) -> None:
    """A report of one lane says nothing of the cases of another."""
    bench.ran("2.9.0", dict.fromkeys(ids("a", "b"), "passed"))
    other = f"{FILE}::test_sum[virtual-tpu-2x1-a]"
    bench.collected = [*ids("a", "b"), other]
    (left,) = bench.entries(entry([f"{FILE}::test_sum[*]"]))
    assert left["cases"] == [other]


def test_one_failure_is_no_proof_either(bench: Bench) -> None:
    bench.ran("2.9.0", {ids("a")[0]: FAILURE}, times=1)
    assert bench.update("", ISSUE) == ""
    assert bench.decisions.too_few == set(ids("a"))
    assert len(bench.entries("", ISSUE, runs=1)) == 1


def test_case_that_fails_in_two_ways_gets_no_entry(bench: Bench) -> None:
    bench.ran("2.9.0", {ids("a")[0]: FAILURE}, times=1)
    bench.ran("2.9.0", {ids("a")[0]: "KeyError: 'x'"}, times=1)
    assert bench.update("", ISSUE) == ""
    assert bench.decisions.flaky == set(ids("a"))


@pytest.mark.parametrize("actual", ["failed", "crashed", "hung"])
def test_how_a_case_failed_is_read_from_the_record(bench: Bench, actual: str) -> None:
    """Words that another kind of failure begins with mean nothing."""
    bench.ran("2.9.0", {ids("a")[0]: "failed: SIGSEGV: no result after 3 s"})
    for path in bench.reports:
        text = path.read_text()
        assert text.count('name="actual" value="failed"') == 1
        text = text.replace('name="actual" value="failed"', f'name="actual" value="{actual}"')
        path.write_text(
            text.replace('"outcome" value="failed"', '"outcome" value="expected failure"')
        )
    (added,) = bench.entries("", ISSUE)
    assert added.get("outcome", "failed") == actual


@pytest.mark.parametrize("outcome", ["skipped", "expected failure"])  # the latter is pytest's xfail
def test_what_gave_no_answer_proves_nothing(bench: Bench, outcome: str) -> None:
    text = entry(ids("a"))
    bench.ran("2.9.0", {ids("a")[0]: outcome})
    bench.ran("2.9.0", {ids("a")[0]: "passed"}, times=1)
    assert bench.update(text) == text
    assert bench.decisions.too_few == set(ids("a"))
    assert bench.decisions.flaky == bench.decisions.otherwise == set()


# Several stacks.


@pytest.mark.parametrize(
    ("fails", "passes", "before", "after"),
    [
        (["2.4.0", "2.6.0"], ["2.8.0", "2.9.0"], "", "<2.8"),
        (["2.8.0", "2.9.0"], ["2.4.0", "2.6.0"], "", ">=2.8"),
        (["2.4.0", "2.8.0"], ["2.6.0", "2.9.0"], "", "<2.9,!=2.6.0"),
        (["2.6.0", "2.8.0"], ["2.4.0", "2.9.0"], ">=2.4,<3", ">=2.6,<2.9"),
        (["2.6.0"], ["2.8.0"], ">=2.5", ">=2.5,!=2.8.0"),  # 2.9.0 was not run
        ([], ["2.9.0"], "", "<2.9"),  # nor any older one
        ([], ["2.4.0", "2.6.0", "2.8.0", "2.9.0"], "", None),
        ([], ["2.8.0", "2.9.0"], ">=2.8", None),
    ],
)
def test_condition_is_narrowed(
    bench: Bench, fails: list[str], passes: list[str], before: str, after: str | None
) -> None:
    bench.known = KNOWN
    for version in fails:
        bench.ran(version, {ids("a")[0]: FAILURE})
    for version in passes:
        bench.ran(version, {ids("a")[0]: "passed"})
    entries = bench.entries(entry(ids("a"), f'torch_xla = "{before}"' if before else ""))
    assert [item["stack"] for item in entries] == ([] if after is None else [{"torch_xla": after}])


def test_cases_with_other_versions_get_their_own_entries(bench: Bench) -> None:
    bench.ran("2.6.0", dict.fromkeys(ids("a", "b", "c"), FAILURE))
    bench.ran("2.9.0", dict.fromkeys(ids("a", "b"), "passed") | {ids("c")[0]: FAILURE})
    own, other = bench.entries(entry([f"{FILE}::test_sum[*]"]))
    assert own["cases"] == ids("c")
    assert "stack" not in own
    assert other == own | {
        "cases": [f"{FILE}::test_sum[cpu-4-a]", f"{FILE}::test_sum[cpu-4-b]"],
        "stack": {"torch_xla": "<2.9"},
    }


def test_stacks_that_no_range_tells_apart_are_named(bench: Bench) -> None:
    text = entry(ids("a"))
    bench.ran("2.9.0", {ids("a")[0]: FAILURE}, libtpu="not installed")
    bench.ran("2.9.0", {ids("a")[0]: "passed"}, libtpu="0.0.23")
    assert bench.update(text) == text
    assert bench.decisions.inseparable == set(ids("a"))


def test_another_component_tells_stacks_apart(bench: Bench) -> None:
    bench.ran("2.9.0", {ids("a")[0]: FAILURE}, jax="0.7.1")
    bench.ran("2.9.0", {ids("a")[0]: "passed"}, jax="0.8.0")
    (left,) = bench.entries(entry(ids("a"), 'torch_xla = ">2"'))
    assert left["stack"] == {"torch_xla": ">2", "jax": "<0.8"}


# What fails comes, with its cause.


def test_nothing_is_added_without_a_cause(bench: Bench) -> None:
    bench.ran("2.9.0", {ids("a")[0]: FAILURE})
    assert bench.update("# nothing\n") == "# nothing\n"
    (missing,) = bench.decisions.missing
    assert bench.decisions.missing[missing] == ids("a")
    assert bench.collections == []  # collecting takes seconds


@pytest.mark.parametrize(
    ("fails", "passes", "stack"),
    [
        (["2.4.0", "2.6.0"], ["2.8.0", "2.9.0"], {"torch_xla": "<2.8"}),
        (["2.8.0", "2.9.0"], ["2.6.0"], {"torch_xla": ">=2.8"}),
        (["2.4.0", "2.6.0", "2.8.0", "2.9.0"], [], None),
        (["2.4.0", "2.6.0"], [], {"torch_xla": "<2.8"}),  # 2.8.0 was not run
        (["2.8.0"], [], {"torch_xla": "==2.8.0"}),
    ],
)
def test_added_entry_has_the_range_where_it_fails(
    bench: Bench, fails: list[str], passes: list[str], stack: dict[str, str] | None
) -> None:
    bench.known = KNOWN
    for version in fails:
        bench.ran(version, {ids("a")[0]: FAILURE})
    for version in passes:
        bench.ran(version, {ids("a")[0]: "passed"})
    (added,) = bench.entries("", ISSUE)
    assert added == {
        "cases": ids("a"),
        "issue": "pytorch/xla#8854",
        "reason": "the sum is wrong",
        "signature": r"ValueError: sums differ: -?[\d.]+(?:e[+-]?\d+)? instead of "
        r"-?[\d.]+(?:e[+-]?\d+)?",
    } | ({"stack": stack} if stack else {})


def test_one_entry_for_a_function_a_signature_and_a_range(bench: Bench) -> None:
    lost = f"SIGSEGV in test_sum ({FILE}:3)"
    outcomes = {id_: f"ValueError: row {n} differs" for n, id_ in enumerate(ids("x-1", "x-2"))}
    outcomes |= {ids("y-1")[0]: lost, ids("y-2")[0]: "passed"}
    outcomes |= dict.fromkeys(ids("a", name="test_other"), FAILURE)
    bench.ran("2.9.0", outcomes)
    added = bench.entries("", DeclaredCause("finding", "wrong-sum", ""))
    assert [(item["cases"], item.get("outcome")) for item in added] == [
        (ids("a", name="test_other"), None),
        ([f"{FILE}::test_sum[cpu-4-x-*]"], None),
        (ids("y-1"), "crashed"),
    ]
    assert [item["reason"] for item in added] == [FAILURE, "ValueError: row 0 differs", lost]
    assert {item["finding"] for item in added} == {"wrong-sum"}


def test_what_it_added_describes_the_failures(bench: Bench, tmp_path: Path) -> None:
    messages = [
        "ValueError: f(x) at 0x7f3a [1.5e-3] in /tmp/x/y.py:12 isn't 'a' \\ b",
        "\nKeyError: 1",
    ]
    bench.ran("2.9.0", dict(zip(ids("a", "b"), messages, strict=True)))
    text = bench.update("", ISSUE)
    assert bench.update(text) == text
    assert bench.decisions.otherwise == set()
    assert not bench.decisions.missing


def test_added_entry_stays_out_of_the_way_of_others(bench: Bench) -> None:
    """The case has an entry for the stacks above, with another signature."""
    bench.known = KNOWN
    bench.ran("2.4.0", {ids("a")[0]: FAILURE})
    bench.ran("2.6.0", {ids("a")[0]: "skipped"})
    bench.ran("2.8.0", {ids("a")[0]: "KeyError: 'x'"})
    bench.ran("2.9.0", {ids("a")[0]: "skipped"})
    _, added = bench.entries(entry(ids("a"), 'torch_xla = ">=2.6"', "KeyError"), ISSUE)
    assert added["stack"] == {"torch_xla": "<2.6"}


# Nothing else changes.

ANNOTATED = f"""\
# What upstream gets wrong.

# --- sums ------

# The first one's own comment,
# of two lines.
[[expectation]]   # a table
# inside
cases = [
    "{ids("a")[0]}",  # the first case
    # of the second
    '{ids("b")[0]}',
]
issue  = "pytorch/xla#8854"   # why
reason = "the sum is wrong"
signature = "sums differ"

# The second one's.
[[expectation]]
cases = ["{ids("c")[0]}"]
signature = \"\"\"sums\\
 differ\"\"\"
reason = "the sum is wrong"
issue = "pytorch/xla#8854"


# --- the rest ---

[[expectation]]
cases = ["{ids("d")[0]}"]
stack = {{ jax = ">0" }}  # where
issue = "pytorch/xla#8854"
reason = "the sum is wrong"
signature = "sums differ"
# the end
"""


def both(bench: Bench, passing: str, newline: str) -> str:
    """The text after those cases passed on both stacks."""
    for version in ("2.8.0", "2.9.0"):
        outcomes = dict.fromkeys(ids("a", "b", "c", "d"), FAILURE)
        bench.ran(version, outcomes | dict.fromkeys(ids(*passing), "passed"), jax="1")
    return bench.update(ANNOTATED.replace("\n", newline))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_nothing_to_change_changes_nothing(bench: Bench, newline: str) -> None:
    assert both(bench, "", newline) == ANNOTATED.replace("\n", newline)
    assert not bench.plan.texts


OWN = ANNOTATED.partition("# The first")[2].partition("# The second")
FIRST = "# The first" + OWN[0]
SECOND = "# The second" + OWN[2].partition("\n\n# --- the")[0]
THIRD = "[[expectation]]" + ANNOTATED.rpartition("[[expectation]]")[2]
REMOVALS = {
    "a": [(f'    "{ids("a")[0]}",  # the first case\n', "")],
    "b": [(f"    '{ids('b')[0]}',\n", "")],
    "ab": [(FIRST, "")],
    "c": [("\n" + SECOND, "")],
    "abc": [("\n" + FIRST + SECOND, "")],
    "d": [(THIRD.removesuffix("# the end\n"), "")],
    "abcd": [("\n" + FIRST + SECOND, ""), (THIRD.removesuffix("# the end\n"), "")],
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("passing", REMOVALS)
def test_removal_takes_the_entry_and_its_own_comment(
    bench: Bench, passing: str, newline: str
) -> None:
    expected = ANNOTATED
    for old, new in REMOVALS[passing]:
        assert old in expected
        expected = expected.replace(old, new)
    assert both(bench, passing, newline).split(newline) == expected.split("\n")


def test_narrowing_adds_one_line(bench: Bench) -> None:
    old = dict.fromkeys(ids("a", "b", "c", "d"), FAILURE)
    bench.ran("2.8.0", old, jax="1")
    bench.ran("2.9.0", old | dict.fromkeys(ids("c", "d"), "passed"), jax="2")
    text = bench.update(ANNOTATED)
    condition = 'stack = { jax = ">0" }  # where'
    end = SECOND.removesuffix("\n")
    expected = ANNOTATED.replace(end, f'{end}\nstack = {{ torch_xla = "<2.9" }}')
    assert text == expected.replace(
        condition, 'stack = { jax = ">0", torch_xla = "<2.9" }  # where'
    )


def test_replaced_glob_keeps_the_comments_beside_it(bench: Bench) -> None:
    text = (
        entry([f"{FILE}::test_sum[*]"])
        .replace("cases = ['", "cases = [ # all\n  # and that one\n  '")
        .replace("]']", "]', # is\n]")
    )
    bench.ran("2.9.0", {ids("a")[0]: "passed", ids("b")[0]: FAILURE, ids("c")[0]: FAILURE})
    changed = bench.update(text)
    first, second = ids("b", "c")
    assert changed == text.replace(
        f"'{FILE}::test_sum[*]', # is", f'"{first}", # is\n  "{second}",'
    )


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_entry_is_added_behind_a_blank_line(bench: Bench, newline: str) -> None:
    bench.ran("2.9.0", dict.fromkeys(ids("a", "b"), FAILURE))
    text = entry(ids("a")).rstrip("\n").replace("\n", newline)
    changed = bench.update(text, ISSUE)
    assert changed.startswith(f"{text}{newline * 2}[[expectation]]{newline}")
    assert changed.count(newline) == changed.count("\n")


NOT_PLAIN = {
    "in a text": entry(ids("a"))
    .replace('"the sum', '"""\n[[expectation]]\nthe sum')
    .replace('wrong"', 'wrong"""'),
    "inline": f"expectation = [{{ cases = {ids('a')!r}, issue = 'a/b#1', reason = 'r', "
    "signature = 'sums' }]\n",
}


@pytest.mark.parametrize("kind", NOT_PLAIN)
def test_file_of_another_shape_is_refused(bench: Bench, kind: str) -> None:
    bench.ran("2.9.0", dict.fromkeys(ids("a"), "passed"))
    with pytest.raises(BadInputError, match="can't be rewritten: expected"):
        bench.update(NOT_PLAIN[kind])


# The command.


def command(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return xla_harness("known", "update", *map(str, arguments), cwd=folder)


SUITE = """\
pytestmark = pytest.mark.lanes("cpu", "virtual-tpu")
@pytest.mark.parametrize("n", [1, 2, 3])
def test_sum(n): assert n == {right}, f"{{n}} is wrong"
"""


@pytest.mark.long
def test_from_a_run_to_a_green_run_and_back(project: Project) -> None:
    """Reports of real runs, held to real entries; the cases of the other lane were not run."""
    project.write("suites/sums/test_sums.py", SUITE.format(right=1))
    folder = project.path / "fixtures" / "expectations"
    folder.mkdir(parents=True)
    option = "--expectations=fixtures/expectations"
    assert project.run(option, "suites").code == 1
    update_ = ("junit.xml", "--runs=1", "--issue=pytorch/xla#1", "--reason=2 and 3")
    dry = command(project.path, *update_, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert list(folder.iterdir()) == []
    added = command(project.path, *update_)
    assert (added.returncode, added.stdout) == (0, dry.stdout)
    (entry_,) = tomllib.loads((folder / "sums.toml").read_text())["expectation"]
    assert entry_["cases"] == [f"{FILE}::test_sum[cpu-4-2]", f"{FILE}::test_sum[cpu-4-3]"]
    assert project.run(option, "suites").code == 0

    project.write("suites/sums/test_sums.py", SUITE.format(right="n"))
    for report in ("one.xml", "two.xml"):
        assert project.run(option, "suites", f"--junitxml={report}").code == 1
    done = command(project.path, "one.xml", "two.xml")
    assert (done.returncode, done.stderr) == (0, "")
    assert "entries: 1 removed in 1 file" in done.stdout
    assert (folder / "sums.toml").read_text() == ""


def said(bench: Bench, *, runs: int = 2) -> list[str]:
    """What the command prints of the last update."""
    left = describe.left(bench.decisions, bench.plan, [Path("a b.xml")], runs)
    return [*describe.changes(bench.plan), *left]


def test_what_it_says_of_changes(bench: Bench) -> None:
    bench.ran("2.6.0", dict.fromkeys(ids("a", "b"), FAILURE) | {ids("c")[0]: "passed"})
    bench.ran("2.9.0", dict.fromkeys(ids("a", "c"), "passed") | {ids("b")[0]: FAILURE})
    bench.ran("2.9.0", dict.fromkeys(ids("x", name="test_x"), FAILURE))
    bench.update(entry([f"{FILE}::test_sum[*]"]), ISSUE)
    assert said(bench) == [
        "sums.toml:1 (pytorch/xla#8854: the sum is wrong)",
        "  passes wherever it applies: goes from these cases",
        f"    {ids('c')[0]}",
        "  needed on torch_xla <2.9 only:",
        f"    {ids('a')[0]}",
        "sums.toml: added pytorch/xla#8854 on torch_xla >=2.9",
        r"  failed with ValueError: sums differ: -?[\d.]+(?:e[+-]?\d+)? instead of",
        r"    -?[\d.]+(?:e[+-]?\d+)?",
        f"    {ids('x', name='test_x')[0]}",
        "entries: 1 narrowed, 1 added in 1 file",
    ]
    data = describe.as_data(bench.decisions, bench.plan)
    needed = [{"condition": {"torch_xla": "<2.9"}, "cases": ids("a")}]
    (changed,), (added,) = data["changed"], data["added"]
    assert changed == {
        "where": "sums.toml:1",
        "removed": False,
        "passing": ids("c"),
        "needed": needed,
    }
    assert added["condition"] == {"torch_xla": ">=2.9"}
    assert added["cases"] == ids("x", name="test_x")
    assert not any(data["left"].values())


TYPED = (
    f"  xla-harness known update 'a b.xml' --cases '{FILE}::test_sum*' --issue OWNER/REPO#NUMBER"
)


def test_what_it_says_of_the_rest(bench: Bench) -> None:
    flaky, once, other, *new = ids("a", "b", "c", *"stuvwx")
    bench.ran("2.9.0", {flaky: "passed", other: "KeyError: 1"} | dict.fromkeys(new, FAILURE), 1)
    bench.ran("2.9.0", {flaky: FAILURE, other: "KeyError: 2"} | dict.fromkeys(new, FAILURE), 1)
    bench.ran("2.9.0", {once: "passed"}, 1)
    bench.update(entry([flaky, once, other]))
    lines = said(bench)
    assert lines == [
        "nothing to change",
        "1 not changed: flaky: the reports of one stack disagree",
        f"    {flaky}",
        "1 not changed: not proven: expected 2 reports of the stack; give more, or --runs",
        "  1",
        f"    {once}",
        "1 not changed: fail otherwise than their entry declares: change its signature,",
        "  or make it another entry",
        f"    {other}",
        "fail without an entry: 6",
        "  on torch_xla ==2.9.0: failed",
        f"    {FAILURE}",
        *(f"    {case}" for case in new[:5]),
        "    ... and 1 more",
        "add them with their cause, as an upstream issue or --finding NAME:",
        TYPED,
    ]
    assert said(bench, runs=1)[-1].split(" --cases")[0].endswith("'a b.xml' --runs 1")
    left = describe.as_data(bench.decisions, bench.plan)["left"]
    (without,) = left.pop("without_entry")
    assert without["cases"] == new
    assert without["condition"] == {"torch_xla": "==2.9.0"}
    expected = {
        "flaky": [flaky],
        "not_proven": [once],
        "fail_otherwise": [other],
        "inseparable": [],
    }
    assert left == expected


OLD_REPORT = f"""<testsuite><properties>
<property name="{FORMAT_PROPERTY}" value="1"/></properties></testsuite>"""
BAD: dict[str, tuple[str | dict[str, str], tuple[str, ...], str]] = {
    "no report": ("<x>", (), "one.xml: expected a JUnit report"),
    "another format": (
        OLD_REPORT,
        (),
        f"one.xml: expected the property {FORMAT_PROPERTY} to be 3, the report says '1'",
    ),
    "of another tool": ("<testsuite/>", (), "the report has none"),
    "no case": ({}, (), "one.xml: no case in it: expected a report of a run of cases"),
    "twice": ({"a": "passed"}, ("one.xml",), "one.xml: the same report as one.xml"),
    "no such report": ({"a": "passed"}, ("gone.xml",), "gone.xml: expected a JUnit report"),
    "other case": ({"a": "passed"}, ("--cases=x",), "--cases 'x': matches no case"),
    "bad issue": ({"a": "passed"}, ("--issue=8854",), "expected either key 'issue'"),
    "empty issue": ({"a": "passed"}, ("--issue=",), "expected either key 'issue'"),
    "bad finding": ({"a": "passed"}, ("--finding=A b",), "or key 'finding'"),
    "reason alone": ({"a": "passed"}, ("--reason=x",), "--reason: expected --issue or --finding"),
    "no runs": ({"a": "passed"}, ("--runs=0",), "--runs 0: expected a number above 0"),
    "no folder": ({"a": "passed"}, ("--expectations=gone",), "gone: expected a folder of"),
    "no stacks": ({"a": "passed"}, ("--folder=gone",), "gone: expected a folder of stacks"),
    "bad entry": (
        {"a": "passed"},
        ("--expectations=bad",),
        "bad/a.toml:1: unknown key 'when': expected cases",
    ),
    "no such test": (
        {"gone.py::test_x[cpu-4]": "passed"},
        ("--expectations=good", "--runs=1"),
        "gone.py is not here: expected to run where the reports' cases are",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_refused_and_changes_nothing(
    tmp_path: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content, arguments, message = BAD[kind]
    monkeypatch.chdir(tmp_path)
    for folder, more in (("bad", "when = 1\n"), ("good", ""), ("fixtures/expectations", "")):
        Path(folder).mkdir(parents=True)
        Path(folder, "a.toml").write_text(entry(["gone.py::test_x[cpu-4]"]) + more)
    if isinstance(content, str):
        Path("one.xml").write_text(content)
    else:
        write_report(Path("one.xml"), "2.9.0", content)
    assert cli.main(["known", "update", "one.xml", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert Path("good/a.toml").read_text() == entry(["gone.py::test_x[cpu-4]"])
    assert [path.name for path in Path("good").iterdir()] == ["a.toml"]


def test_exit_code_says_that_something_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.toml").write_text(entry(ids("a")))
    report = write_report(tmp_path / "one.xml", "2.9.0", {ids("a")[0]: "passed"})
    line = ["known", "update", str(report), f"--expectations={tmp_path}"]
    assert cli.main(line) == 1
    assert "1 not changed: not proven" in capsys.readouterr().out
    assert cli.main([*line, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["left"]["not_proven"] == ids("a")
    write_report(report, "2.9.0", {ids("a")[0]: FAILURE})
    assert cli.main(line) == 0
    assert capsys.readouterr().out == "nothing to change\n"


def test_stack_without_a_framework_is_refused(tmp_path: Path) -> None:
    path = write_report(tmp_path / "one.xml", "not installed", {"a": "passed"})
    with pytest.raises(BadInputError, match="expected the property torch_xla, or torch_tpu, to be"):
        evidence.read([path])


def test_file_that_cannot_be_written_leaves_all_as_they_were(tmp_path: Path) -> None:
    good, folder = tmp_path / "a.toml", tmp_path / "gone"
    good.write_text("old")
    with pytest.raises(BadInputError, match="can't be written"):
        write({good: "new", folder / "b.toml": "new"})
    assert good.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.toml"]


def test_written_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("old")
    path.chmod(0o640)
    write({path: "new\r\n"})
    assert path.read_bytes() == b"new\r\n"
    assert path.stat().st_mode & 0o777 == 0o640
