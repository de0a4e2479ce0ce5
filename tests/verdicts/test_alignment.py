"""Two frameworks that are asked the same, compared: real runs of two installed ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from support.project import Project
from support.two_frameworks import MOVE, asked, run_both
from support.two_stacks import report, result

from harness import cli
from harness.junit.report import Report
from harness.junit.result import Result
from harness.matrix.qualify import Effort, steps
from harness.matrix.runner import Runner
from harness.matrix.sides import Sides, not_asked
from harness.matrix.swaps import to_attribute
from harness.model.outcome import Kind
from harness.render import comparison_github, comparison_text
from harness.render.comparison_json import as_data
from harness.stacks.environments import Environments
from harness.stacks.stack import Stack
from harness.verdicts.alignment import move_between
from harness.verdicts.allow import Allowed, apply
from harness.verdicts.allow_file import load
from harness.verdicts.compare import compare, decide
from harness.verdicts.comparison import Comparison
from harness.verdicts.effects import Effect, effect_on
from harness.verdicts.finding import Finding
from harness.verdicts.words import Verdict

Reports = Callable[[str], Report]
STACKS = (Stack("old", "3.11", {"torch": "1"}), Stack("new", "3.11", {"torch": "2"}))


TABLE = """\
                       works broken  fixed broken       not skipped   only flaky
                          on     on     by     by available   after  after
                        both   both moving moving     after  moving moving
                                                     moving
test_asked.py              2      1      1      1         1       1      1     1
test_imports.py            .      .      .      .         1       .      .     .
test_plain.py              1      .      .      .         .       .      .     .
all                        3      1      1      1         2       1      1     1"""


class Again(Runner):
    """Reruns that are over; which cases they were asked is noted."""

    def __init__(self, made: dict[str, list[Report]]) -> None:
        super().__init__(Environments(), Path("reruns"), (), lambda _: None)
        self.__dict__.update(made=made, asked_cases=set[str]())

    made: dict[str, list[Report]]
    asked_cases: set[str]

    def reports(
        self, stacks: Iterable[Stack], cases: Sequence[Result], folders: Sequence[str]
    ) -> dict[str, list[Report]]:
        self.asked_cases.update(case.id for case in cases)
        return self.made


@pytest.fixture(scope="module")
def reports(shared_project: Project) -> Reports:
    return run_both(shared_project)


@pytest.fixture(scope="module")
def compared(reports: Reports) -> Comparison:
    again = ([reports("old-again")], [reports("new-again")])
    return compare([reports("old")], [reports("new")], *again)


@pytest.fixture(scope="module")
def by_key(compared: Comparison) -> dict[str, Finding]:
    return {case.key: case for case in compared.findings}


def test_verdicts(compared: Comparison, by_key: dict[str, Finding]) -> None:
    assert compared.move == ("acme", "zeta")
    assert {key: str(case.verdict) for key, case in by_key.items()} == {
        asked("works", MOVE): "unchanged",
        asked("works_too", MOVE, "-1"): "unchanged",
        asked("broken", MOVE): "still failing",
        asked("fixed", MOVE): "fixed",
        asked("breaks", MOVE): "regressed",
        asked("breaks_now_and_then", MOVE): "flaky",
        asked("skipped", MOVE): "missing",
        asked("own", "acme"): "missing",
        asked("new", "zeta"): "newly measured",
        "test_imports.py::test_imports[cpu-4]": "missing",
        "test_plain.py::test_plain[cpu-4]": "unchanged",
    }


def test_why_it_is_not_available(by_key: dict[str, Finding]) -> None:
    why = "framework acme: not installed in this environment"
    assert by_key[asked("own", "acme")].message == f"left out: {why}"
    assert by_key["test_imports.py::test_imports[cpu-4]"].message == f"can't be collected: {why}"
    assert by_key[asked("skipped", MOVE)].message == "skipped: zeta has none"


def test_what_is_shown_of_it(compared: Comparison) -> None:
    lines = list(comparison_text.lines(compared))
    assert max(map(len, lines)) <= 80
    assert f"  {asked('breaks', MOVE)}" in lines
    data = json.loads(json.dumps(as_data(compared, Allowed({}, ()))))
    cases = {case["case"]: case for case in data["cases"]}
    assert (data["moved"]["from"], data["moved"]["to"]) == ("acme", "zeta")
    assert data["moved"]["areas"]["test_asked.py"] == dict(
        zip(Effect, (2, 1, 1, 1, 1, 1, 1, 1), strict=True)
    )
    assert cases[asked("breaks", MOVE)]["effect"] == "broken by moving"
    assert cases[asked("breaks", MOVE)]["ids"] == [asked("breaks", "acme"), asked("breaks", "zeta")]
    assert cases[asked("own", "acme")]["ids"] == [asked("own", "acme")]


def test_the_table_by_area(compared: Comparison) -> None:
    lines = list(comparison_text.lines(compared))
    start = next(n for n, line in enumerate(lines) if "from acme to zeta, by area" in line)
    assert "\n".join(lines[start + 1 : start + 9]) == TABLE
    summary = comparison_github.summary(compared).splitlines()
    at = summary.index(f"| acme to zeta, by area | {' | '.join(Effect)} |")
    assert summary[at + 2 : at + 6] == [
        "| test_asked.py | 2 | 1 | 1 | 1 | 1 | 1 | 1 | 1 |",
        "| test_imports.py |  |  |  |  | 1 |  |  |  |",
        "| test_plain.py | 1 |  |  |  |  |  |  |  |",
        "| all | 3 | 1 | 1 | 1 | 2 | 1 | 1 | 1 |",
    ]


def test_the_command_gives_the_same_answer(
    reports: Reports, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(reports(name).path) for name in ("old", "new")]
    options = ("--json", "answer.json", "--markdown", "summary.md", "--out", "out")
    arguments = [str(tmp_path / each) if each[0] != "-" else each for each in options]
    assert cli.main(["qualify", *files, *arguments]) == 1
    comparison = compare([reports("old")], [reports("new")])
    comparison = replace(comparison, not_asked=not_asked(comparison))
    assert "\n".join(comparison_text.lines(comparison)) in capsys.readouterr().out
    data = json.loads((tmp_path / "answer.json").read_text())
    assert data == json.loads(json.dumps(as_data(comparison, Allowed({}, ()))))
    assert (tmp_path / "summary.md").read_text() == comparison_github.summary(comparison)


def test_a_long_area_fits() -> None:
    old, new = asks("x", "acme", area="a" * 90), asks("x", "zeta", area="a" * 90)
    lines = list(comparison_text.lines(compare([old], [new])))
    assert max(map(len, lines)) == 80
    assert any(line.startswith("aaaaaaaaaa") and "~" in line for line in lines)


@pytest.mark.parametrize(
    ("was", "now", "effect"),
    [
        (Kind.EXPECTED_FAILURE, Kind.FAILED, "broken on both"),
        (Kind.EXPECTED_FAILURE, Kind.EXPECTED_FAILURE, "broken on both"),
        (Kind.CRASHED, Kind.UNEXPECTED_PASS, "fixed by moving"),
        (Kind.PASSED, Kind.EXPECTED_FAILURE, "broken by moving"),
        (Kind.SKIPPED, Kind.FAILED, "only after moving"),
        (Kind.HUNG, Kind.SKIPPED, "skipped after moving"),
        (Kind.SKIPPED, Kind.SKIPPED, None),
    ],
)
def test_effect(was: Kind, now: Kind, effect: str | None) -> None:
    (case,) = compare([asks("x", "a", outcome=was)], [asks("x", "b", outcome=now)]).findings
    assert effect_on(case) == effect


def test_each_side_is_rerun_by_its_own_ids(reports: Reports, compared: Comparison) -> None:
    runner = Again({stack.name: [reports(f"{stack.name}-again")] for stack in STACKS})
    sides = Sides([[reports("old")], [reports("new")]], STACKS)
    *_, last = steps(sides, runner, Effort())
    assert runner.asked_cases == {
        asked(name, framework)
        for name in ("breaks", "breaks_now_and_then", "fixed")
        for framework in ("acme", "zeta")
    }
    assert {case.key: case.verdict for case in last.findings if case.rerun_cases} == {
        asked("breaks", MOVE): "regressed",
        asked("breaks_now_and_then", MOVE): "flaky",
    }
    assert not last.open


def test_another_framework_is_no_component(compared: Comparison) -> None:
    assert not to_attribute(compared, *STACKS)
    assert to_attribute(replace(compared, move=None), *STACKS)


@pytest.mark.parametrize("framework", [MOVE, "acme", "zeta"])
def test_what_is_broken_by_moving_is_signed_off(
    compared: Comparison, tmp_path: Path, framework: str
) -> None:
    path = tmp_path / "allow.toml"
    path.write_text(
        f"""\
[[allow]]
cases = ["{asked("breaks", framework)}"]
verdict = "regressed"
reason = "we wait for it"
signed_off_by = "A. Person"
"""
    )
    allowed = apply(load(path, date(2026, 1, 1)), compared)
    assert list(allowed.entries) == [asked("breaks", MOVE)]
    assert not allowed.stale
    assert decide(compared, allowed.entries).sentence == "Refused: 3 missing."


def test_without_a_move_nothing_is_renamed(reports: Reports) -> None:
    same = compare([reports("old")], [reports("old")])
    assert same.move is None
    assert asked("works", "acme") in {case.key for case in same.findings}
    assert same.counts[Verdict.MISSING] == 0
    assert as_data(same, Allowed({}, ()))["moved"] is None


def asks(
    name: str, framework: str, topology: str = "4", outcome: Kind = Kind.PASSED, area: str = "a"
) -> Report:
    case = result(
        "x",
        id=f"a.py::{name}[cpu-{topology}-{framework}]",
        topology=topology,
        outcome=outcome,
        area=area,
        properties={"framework": framework},
    )
    return report(case)


def test_a_move_is_between_those_that_have_cases_in_common() -> None:
    base = [asks("x", "jax"), asks("x", "torch_xla"), asks("y", "torch_xla"), asks("z", "jax")]
    candidate = [asks("y", "torch_tpu"), asks("w", "torch_tpu")]
    assert compare(base, candidate).move == ("torch_xla", "torch_tpu")
    tied = [asks("x", "jax"), asks("x", "torch_xla")]
    assert compare(tied, [asks("x", "torch_tpu")]).move is None
    assert move_between({}, {}) is None


def test_no_case_is_lost_where_several_have_other_processes() -> None:
    base = [asks("x", "a", at) for at in ("4", "4@host", "4@slice")]
    comparison = compare(base, [asks("x", "b", "4@chip")])
    assert {case.key: case.verdict for case in comparison.findings} == {
        "a.py::x[cpu-4@chip-a..b]": "unchanged",
        "a.py::x[cpu-4@host-a]": "missing",
        "a.py::x[cpu-4@slice-a]": "missing",
    }
    exact = compare(base, [asks("x", "b", "4@host")])
    assert "a.py::x[cpu-4@host-a..b]" in {case.key for case in exact.findings}
    assert exact.counts[Verdict.MISSING] == 2
