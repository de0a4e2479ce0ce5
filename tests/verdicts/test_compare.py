"""Two stacks' reports, compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from support.project import Project
from support.two_stacks import key, only, report, result, run_both

from harness.errors import BadInputError
from harness.junit.report import Report, read
from harness.model.outcome import Kind
from harness.render import comparison_github, comparison_json, comparison_text
from harness.verdicts.allow import Allowed, apply
from harness.verdicts.allow_file import load
from harness.verdicts.compare import compare, decide
from harness.verdicts.comparison import Comparison
from harness.verdicts.finding import Finding
from harness.verdicts.groups import groups
from harness.verdicts.upstream import Row
from harness.verdicts.words import Verdict

Reports = Callable[[str], Report]
ROW = Row(
    title="sums",
    issues=("pytorch/xla#4",),
    cases=(key("breaks_earlier"),),
    layer="verification",
)


@pytest.fixture(scope="module")
def reports(shared_project: Project) -> Reports:
    return run_both(shared_project)


@pytest.fixture(scope="module")
def compared(reports: Reports) -> Comparison:
    base, candidate = [reports("base-again")], [reports("candidate-again")]
    return compare([reports("base")], [reports("candidate")], base, candidate, [ROW])


@pytest.fixture(scope="module")
def by_key(compared: Comparison) -> dict[str, Finding]:
    return {case.key: case for case in compared.findings}


def test_verdicts(compared: Comparison, by_key: dict[str, Finding]) -> None:
    assert {key: str(case.verdict) for key, case in by_key.items()} == {
        key("works"): "unchanged",
        key("regresses", "-0"): "regressed",
        key("regresses", "-1"): "regressed",
        key("regresses", "-2"): "regressed",
        key("regresses_as_expected"): "regressed",
        key("fixed_unexpectedly"): "fixed",
        key("still_failing"): "still failing",
        key("breaks_earlier"): "still failing",
        key("skipped_now"): "missing",
        key("sometimes_breaks"): "flaky",
        key("sometimes_broke"): "flaky",
        key("always_flaky"): "flaky",
        key("gone"): "missing",
        key("new"): "newly measured",
        "test_other.py::test_file_gone[cpu-4]": "missing",
        "test_placed.py::test_placed[cpu-2]": "missing",
        "test_placed.py::test_placed[cpu-4]": "unchanged",
    }
    assert compared.counts[Verdict.REGRESSED] == 4
    assert [f.verdict for f in compared.findings] == sorted(
        (f.verdict for f in compared.findings), key=list(Verdict).index
    )


def test_what_is_known_of_each(by_key: dict[str, Finding]) -> None:
    regressed = by_key[key("regresses", "-1")]
    assert (regressed.layer, regressed.issues) == ("numbers", ("pytorch/xla#1",))
    assert regressed.message.startswith("harness.model.mismatch.NumbersError: rank 1: 9 at 0x")
    assert (str(regressed.base), str(regressed.candidate)) == ("1 ok", "1 broken")
    assert by_key[key("regresses_as_expected")].issues == ("pytorch/xla#3",)
    assert by_key[key("fixed_unexpectedly")].issues == ("pytorch/xla#3",)
    earlier = by_key[key("breaks_earlier")]
    assert (earlier.layer, earlier.issues) == ("import", ("pytorch/xla#4",))
    assert earlier.note.startswith("the base broke at verification: AssertionError: signature: 4")
    assert earlier.note.endswith("; broke at import, before the verification that it is about")
    assert by_key[key("still_failing")].note == ""
    assert str(by_key[key("sometimes_breaks")].candidate) == "1 ok, 1 broken"


def test_why_it_is_not_measured(by_key: dict[str, Finding]) -> None:
    missing = "not collected: the case is in no report of this stack"
    assert by_key[key("skipped_now")].message == "skipped: no such device"
    assert by_key[key("gone")].message == missing
    assert by_key["test_placed.py::test_placed[cpu-2]"].message == (
        "left out: topology 2: run with --topology 2"
    )
    assert by_key["test_other.py::test_file_gone[cpu-4]"].message == (
        "can't be collected: ModuleNotFoundError: No module named 'no_such_module'"
    )


def test_left_out_of_one_lane_is_not_left_out_of_all(reports: Reports) -> None:
    """Each lane's report leaves out the other lanes' cases."""
    candidate = reports("candidate")
    whole = replace(candidate, left_out={}, uncollected={})
    by_key = {f.key: f for f in compare([reports("base")], [candidate, whole]).findings}
    assert by_key["test_placed.py::test_placed[cpu-2]"].message.startswith("not collected")


def test_one_side_is_one_stack(reports: Reports) -> None:
    base = reports("base")
    other = replace(base, path=Path("other.xml"), versions={**base.versions, "jax": "0.0.1"})
    with pytest.raises(BadInputError, match=r"other\.xml: expected jax .*, found 0\.0\.1"):
        compare([base, other], [base])


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["works"], 0),
        (["works", "fixed_unexpectedly", "still_failing", "sometimes_broke", "always_flaky"], 0),
        (["works", "regresses_as_expected", "sometimes_breaks"], 1),
        (["works", "skipped_now"], 1),
        (["works", "sometimes_breaks"], 2),
        (["skipped_now"], 2),
        ([], 2),
    ],
)
def test_exit_code(reports: Reports, names: list[str], code: int) -> None:
    keys = [key(name) for name in names]
    flaky = [k for k in keys if "sometimes" in k or "flaky" in k]
    sides = ("base", "candidate")
    base, candidate = ([only(reports(side), *keys)] for side in sides)
    base_again, candidate_again = ([only(reports(f"{side}-again"), *flaky)] for side in sides)
    comparison = compare(base, candidate, base_again, candidate_again)
    assert decide(comparison).exit_code == code


def test_flaky_base_and_broken_candidate_is_undecided() -> None:
    broken, works = result("x", outcome=Kind.FAILED), result("x", outcome=Kind.PASSED)
    other = result("y", outcome=Kind.PASSED)
    comparison = compare([report(works, other)], [report(broken, other)], [report(broken)])
    assert decide(comparison).exit_code == 2
    fixed = compare([report(broken, other)], [report(works, other)], (), [report(broken)])
    assert decide(fixed).exit_code == 0  # it was always broken: no worse


def test_cases_with_one_cause_are_one_group(compared: Comparison) -> None:
    regressed = groups(compared.of(Verdict.REGRESSED))
    assert [(len(group), group.first.key) for group in regressed] == [
        (3, key("regresses", "-0")),
        (1, key("regresses_as_expected")),
    ]


def test_text(compared: Comparison) -> None:
    lines = list(comparison_text.lines(compared))
    assert max(map(len, lines)) <= 80
    shown = "\n".join(lines)
    assert "--- regressed: 4 (1 expected) ---" in shown
    assert "    3  numbers, pytorch/xla#1\n  test_inner.py::test_regresses[cpu-4-0]\n" in shown
    assert "import, pytorch/xla#4" in shown
    assert lines[-1] == "Refused: 4 regressed (1 expected), 4 missing."


def test_markdown(compared: Comparison) -> None:
    lines = comparison_github.summary(compared).splitlines()
    assert lines[0].startswith(
        "**Refused: 4 regressed (1 expected), 4 missing.** new compared with old"
    )
    assert lines[4].startswith(
        "| regressed | 3 | numbers | [pytorch/xla#1](https://github.com/pytorch/xla/issues/1) |  "
        f"| `{key('regresses', '-0')}` | `harness.model.mismatch.NumbersError: rank 0: 9 at 0x"
    )
    assert {len(cells(line)) for line in lines if line.startswith("|")} == {3, 7}


def test_markdown_shows_the_most_important_rows(compared: Comparison) -> None:
    few = comparison_github.summary(compared, most=1)
    rows = [line for line in few.splitlines() if line.count("|") == 8]
    assert [row.split("|")[1].strip() for row in rows] == ["verdict", "---", "regressed"]
    assert re.search(r"^\.\.\. and \d+ more groups with 12 cases\.$", few, re.MULTILINE)


def cells(line: str) -> list[str]:
    """A row's cells as GitHub splits them: a pipe behind a backslash is text."""
    return line.replace("\\|", "").strip("|").split("|")


HOSTILE = "a | b `c` ``d`` <img src=x> [l](http://x) @who \\| *e*\r\n# title"


def test_hostile_text_stays_in_its_cell() -> None:
    bad = result("x|y`<b>", outcome=Kind.FAILED, message=HOSTILE, layer="trace|")
    bad = replace(bad, upstream=("not|an|issue",))
    good = replace(bad, outcome=Kind.PASSED)
    comparison = compare([report(good, stack="o|d")], [report(bad, stack="<new>\n@you")])
    shown = comparison_github.summary(comparison)
    row = next(line for line in shown.splitlines() if line.startswith("| regressed"))
    assert len(cells(row)) == 7
    assert "\n# title" not in shown
    assert "```a \\| b `c` ``d`` <img src=x> [l](http://x) @who" in row  # all of it in code
    assert "\\<new\\>" in shown
    assert "@you" not in shown
    assert max(map(len, comparison_text.lines(comparison))) <= 80


def test_versions_side_by_side() -> None:
    base = report(result("x", outcome=Kind.PASSED), stack="old", jax="0.4.33", torch="2.9.0")
    candidate = report(result("x", outcome=Kind.PASSED), stack="new", jax="0.7.1", torch="2.9.0")
    comparison = compare([base], [candidate])
    assert "| jax | 0.4.33 | **0.7.1** |\n| torch | 2.9.0 | 2.9.0 |" in comparison_github.summary(
        comparison
    )
    assert "* jax            0.4.33                         0.7.1" in list(
        comparison_text.lines(comparison)
    )


def test_cuda_is_a_component() -> None:
    absent = dict.fromkeys(("jax_cuda12_plugin", "jax_cuda13_plugin"), "not installed")
    base, candidate = (
        report(result("x", outcome=Kind.PASSED), stack=stack, **(absent | versions))
        for stack, versions in (
            ("old", {"jax_cuda12_plugin": "0.12.0.1"}),
            ("new", {"jax_cuda13_plugin": "0.12.0.1"}),
        )
    )
    lines = [*comparison_text.lines(compare([base], [candidate]))]
    assert "* cuda              12                           13" in lines
    without = report(result("x", outcome=Kind.PASSED), stack="old", **absent)
    assert not [x for x in comparison_text.lines(compare([without], [without])) if "cuda " in x]


def test_component_is_named(compared: Comparison) -> None:
    cases = tuple(replace(f, component="torch_xla") for f in compared.findings)
    attributed = replace(compared, findings=cases)
    assert "| torch_xla | `test_inner" in comparison_github.summary(attributed)
    assert "numbers, pytorch/xla#1, caused by torch_xla" in "\n".join(
        comparison_text.lines(attributed)
    )


def test_report_of_another_version(shared_project: Project, reports: Reports) -> None:
    old = (
        (shared_project.path / "base.xml")
        .read_text()
        .replace('report" value="3"', 'report" value="1"')
    )
    path = shared_project.write("old.xml", "")
    path.write_text(old)
    with pytest.raises(BadInputError, match=r"old\.xml: expected the property .* says '1'"):
        read(path)


def test_signed_off(compared: Comparison, tmp_path: Path) -> None:
    path = tmp_path / "allow.toml"
    path.write_text(
        """\
[[allow]]
cases = ["test_inner.py::test_regresses*"]
verdict = "regressed"
reason = "we ship without it"
signed_off_by = "A. Person"
issue = "pytorch/xla#1"
until = 2999-01-01
[[allow]]
cases = ["*"]
verdict = "missing"
reason = "no such device here"
signed_off_by = "A. Person"
[[allow]]
cases = ["test_inner.py::test_works[*]"]
verdict = "regressed"
reason = "old news"
signed_off_by = "A. Person"
"""
    )
    allowed = apply(load(path, date(2026, 1, 1)), compared)
    assert len(allowed.entries) == 8
    assert [entry.where for entry in allowed.stale] == [f"{path}#3"]
    assert decide(compared, allowed.entries).exit_code == 2  # a flaky one is left
    assert decide(compared, list(allowed.entries)[1:]).exit_code == 1
    shown = comparison_github.summary(compared, allowed)
    assert "| regressed" not in shown
    assert "- 4 regressed: we ship without it, [pytorch/xla#1](" in shown
    assert "(A. Person, until 2999-01-01)" in shown
    assert "old news" in shown
    lines = list(comparison_text.lines(compared, allowed))
    assert max(map(len, lines)) <= 80
    assert "    4  regressed: we ship without it (A. Person)" in lines
    assert comparison_github.summary(compared, Allowed({}, ())) == comparison_github.summary(
        compared
    )


CALLS = {"host_calls_trace": "1000", "host_calls_dispatch": "1", "python": "3.12.1"}


@pytest.mark.parametrize(
    ("changes", "slower"),
    [
        ({}, []),
        ({"host_calls_trace": "1100"}, []),
        ({"host_calls_trace": "1101"}, [("trace", 1000, 1101)]),
        ({"host_calls_dispatch": "20"}, []),
        ({"host_calls_dispatch": "300"}, [("dispatch", 1, 300)]),
        ({"host_calls_trace": "4000", "python": "3.13.0"}, []),  # which makes other calls
        ({"host_calls_trace": "4000", "python": "3.12.9"}, [("trace", 1000, 4000)]),
        ({"host_calls_trace": "many"}, []),
        ({"host_calls_lower": "9000"}, []),  # not counted on the base
        ({"clients": "4000"}, []),
    ],
)
def test_slower_on_the_host(changes: dict[str, str], slower: list[tuple[str, int, int]]) -> None:
    def side(stack: str, calls: dict[str, str]) -> Report:
        return report(result("x", outcome=Kind.PASSED, properties=calls), stack=stack)

    comparison = compare([side("a", CALLS)], [side("b", CALLS | changes)])
    (case,) = comparison.findings
    assert [(cost.what, cost.was, cost.now) for cost in case.costs] == slower
    assert case.verdict == (Verdict.SLOWER if slower else Verdict.UNCHANGED)
    decision = decide(comparison)
    assert decision.exit_code == 0
    assert ("1 slower on the host" in decision.sentence) == bool(slower)


def test_reused_results_are_counted() -> None:
    def side(stack: str, reused: dict[str, str]) -> Report:
        results = (
            result(name, outcome=Kind.FAILED, properties={"reused": when} if when else {})
            for name, when in reused.items()
        )
        return report(*results, stack=stack)

    old, older = "2026-11-02T01:00:00Z a", "2026-11-01T01:00:00Z b"
    base = [side("a", {"x": "", "y": old, "z": ""})]
    comparison = compare(base, [side("b", {"x": older, "y": older, "z": ""})])
    sentence = f"Reused: 1 result of a and 2 results of b, the oldest of {older}."
    assert sentence in " ".join(" ".join(comparison_text.lines(comparison)).split())
    assert sentence in comparison_github.summary(comparison)
    data = comparison_json.as_data(comparison, Allowed({}, ()))
    assert (data["base"]["reused"], data["base"]["oldest_reused"]) == (1, old)
    assert (data["candidate"]["reused"], data["candidate"]["oldest_reused"]) == (2, older)
    assert [case["reused"] for case in data["cases"]] == [
        {"base": None, "candidate": older},
        {"base": old, "candidate": older},
        {"base": None, "candidate": None},
    ]
    comparison = compare([side("a", {"x": ""})], [side("b", {"x": ""})])
    assert "Reused" not in "".join(comparison_text.lines(comparison))


def test_of_several_runs_the_fewest_calls_count() -> None:
    def side(stack: str, calls: str) -> Report:
        properties = CALLS | {"host_calls_trace": calls}
        return report(result("x", outcome=Kind.PASSED, properties=properties), stack=stack)

    def answer(*calls: str) -> Verdict:
        first, *again = (side("b", each) for each in calls)
        return compare([side("a", "1000")], [first], (), again).findings[0].verdict

    assert answer("2000") == Verdict.SLOWER
    assert answer("2000", "1010") == Verdict.UNCHANGED


def test_slower_steps_are_shown() -> None:
    def side(stack: str, calls: str) -> Report:
        properties = CALLS | {"host_calls_trace": calls}
        return report(result("x", outcome=Kind.PASSED, properties=properties), stack=stack)

    comparison = compare([side("a", "28700")], [side("b", "64400")])
    text = "slower on the host: trace: 28,700 calls -> 64,400 (+124%)"
    assert text in " ".join("\n".join(comparison_text.lines(comparison)).split())
    assert text.replace(">", r"\>") in comparison_github.summary(comparison)
    (case,) = comparison_json.as_data(comparison, Allowed({}, ()))["cases"]
    assert case["costs"] == [{"what": "trace", "was": 28700, "now": 64400, "unit": "calls"}]


COMPILED = {"aot_vmem": "8454144", "aot_vector_spills": "0", "aot_bytes_across": "0"}


@pytest.mark.parametrize(
    ("changes", "larger"),
    [
        ({}, []),
        ({"aot_vmem": "9000000"}, []),
        ({"aot_vmem": "16842752"}, ["VMEM of a kernel: 8,454,144 B -> 16,842,752 (+99%)"]),
        ({"aot_vmem": "4000000"}, []),
        ({"aot_vector_spills": "19"}, []),
        ({"aot_vector_spills": "20"}, ["vector registers: 0 spills -> 20"]),
        ({"aot_bytes_across": "65536"}, ["exchanged between slices: 0 B -> 65,536"]),
        ({"aot_smem": "65536"}, []),  # the base's libtpu did not say
        ({"aot_flops": "9000"}, []),
    ],
)
def test_larger_as_compiled(changes: dict[str, str], larger: list[str]) -> None:
    def side(stack: str, numbers: dict[str, str]) -> Report:
        return report(result("x", outcome=Kind.PASSED, properties=numbers), stack=stack)

    comparison = compare([side("a", COMPILED)], [side("b", COMPILED | changes)])
    (case,) = comparison.findings
    assert [str(cost) for cost in case.costs] == larger
    assert case.verdict == (Verdict.LARGER if larger else Verdict.UNCHANGED)
    decision = decide(comparison)
    assert decision.exit_code == 0
    assert ("1 larger as compiled" in decision.sentence) == bool(larger)
