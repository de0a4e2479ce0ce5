"""The rules in SQL and the rules in Python give one answer on histories that nobody chose."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import product

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import ROOT

from harness.history.format import SCHEMA
from harness.history.names import run_name
from harness.history.views import create_cases
from harness.junit.names import VERSIONS
from harness.model.flakiness import is_flaky
from harness.model.outcome import BROKEN, DECLARABLE, OUTCOMES_SQL, UNEXPECTED, WORKS, Answer, Kind
from harness.verdicts.nightly import judge
from harness.verdicts.words import Verdict, change

COLUMNS = pa.schema([*SCHEMA, ("date", pa.date32()), ("stack", pa.string())])
FIRST = datetime(2026, 3, 1, 2, 30, tzinfo=UTC)
NIGHTS = 12
RUNS = [run_name(FIRST + timedelta(days=n), 1, f"{n:012x}") for n in range(NIGHTS)]
CHANGES = {Verdict.REGRESSED, Verdict.NEW_FAILURE, Verdict.FIXED, Verdict.STILL_FAILING}

# What a night says of a case: the attempts of its run, of which the last one counts. A night in
# which the case was not collected is none.
ATTEMPTS = st.lists(st.sampled_from(Kind), min_size=1, max_size=3)
Night = list[Kind] | None
CASE = st.lists(st.none() | ATTEMPTS, min_size=NIGHTS, max_size=NIGHTS)
HISTORIES = st.lists(CASE, min_size=1, max_size=8)
# The versions of each night: an upgrade, and perhaps the way back.
VERSIONS_OF_NIGHTS = st.text("ab", min_size=NIGHTS, max_size=NIGHTS)


def connected(cases: Sequence[Sequence[Night]], versions: str) -> duckdb.DuckDBPyConnection:
    """The view ``cases`` over such a history."""
    plain: dict[str, object] = {
        "stack": "s",
        "lane": "cpu",
        "topology": "1",
        "message": "",
        "signature": "",
    }
    plain |= {"layer": "", "area": "", "upstream": [], "duration": 0.0}
    plain |= dict.fromkeys(VERSIONS, "")
    # A case that always works, so that every night has a run.
    every = [*enumerate(cases), ("always", [[Kind.PASSED]] * len(versions))]
    rows = [
        {
            **plain,
            "run": RUNS[night],
            "time": FIRST + timedelta(days=night),
            "date": (FIRST + timedelta(days=night)).date(),
            "torch_xla": versions[night],
            "case": f"case-{case}",
            "outcome": str(attempts[-1]),
            "rerun": len(attempts) - 1,
            "properties": list(_properties(attempts).items()),
        }
        for case, nights in every
        for night, attempts in enumerate(nights)
        if attempts
    ]
    connection = duckdb.connect()
    create_cases(connection, [])
    connection.register("rows", pa.Table.from_pylist(rows, COLUMNS))
    connection.execute("INSERT INTO no_file SELECT * FROM rows")
    return connection


def _properties(attempts: list[Kind]) -> dict[str, str]:
    return {"outcomes": ", ".join(attempts)} if len(set(attempts)) > 1 else {}


def by_the_rules_in_python(nights: Sequence[Night], versions: str) -> dict[int, set[Verdict]]:
    """The verdicts about change that a case gets on each night."""
    found: dict[int, set[Verdict]] = {}
    measured: list[tuple[str, list[bool]]] = []
    was: Answer | None = None
    for night, attempts in enumerate(nights):
        now = attempts[-1].answer if attempts else None
        if now is None or attempts is None:
            continue
        works = [kind in WORKS for kind in attempts if kind.answer]
        measured.append((versions[night], works))
        if is_flaky([runs for version, runs in measured if version == versions[night]]):
            found[night] = {Verdict.FLAKY}
        elif (verdict := change(was, now)) in CHANGES:
            found[night] = {verdict}
        was = now
    return found


def compare(cases: Sequence[Sequence[Night]], versions: str) -> None:
    found: dict[tuple[str, int], set[Verdict]] = {}
    for each in judge(connected(cases, versions), RUNS[: len(versions)]).of(
        Verdict.FLAKY, *CHANGES
    ):
        found.setdefault((each.case, RUNS.index(each.run)), set()).add(each.verdict)
    assert found == {
        (f"case-{number}", night): verdicts
        for number, nights in enumerate(cases)
        for night, verdicts in by_the_rules_in_python(nights, versions).items()
    }


@settings(max_examples=25)
@given(HISTORIES, VERSIONS_OF_NIGHTS)
def test_any_history(cases: list[list[Night]], versions: str) -> None:
    compare(cases, versions)


@pytest.mark.parametrize(
    ("said", "versions"),
    [
        ([[Kind.PASSED], [Kind.FAILED]], "a" * 9),  # each edge of the window, for turns
        ([[Kind.PASSED], [Kind.FAILED, Kind.PASSED]], "a" * 8),  # and for attempts
        ([[Kind.PASSED], [Kind.FAILED], [Kind.EXPECTED_FAILURE]], "a" * 5),
        # An upgrade each night: nothing is flaky.
        ([None, [Kind.PASSED], [Kind.FAILED], [Kind.EXPECTED_FAILURE]], "abcd"),
    ],
)
def test_every_short_history(said: list[Night], versions: str) -> None:
    compare(list(product(said, repeat=len(versions))), versions)


@settings(max_examples=15)
@given(HISTORIES)
def test_missing_is_measured_before_and_not_now(cases: list[list[Night]]) -> None:
    judged = judge(connected(cases, "a" * NIGHTS), RUNS)
    found = {(each.case, RUNS.index(each.run)) for each in judged.of(Verdict.MISSING)}
    answers = [[night[-1].answer if night else None for night in nights] for nights in cases]
    assert found == {
        (f"case-{case}", night)
        for case, given_ in enumerate(answers)
        for night in range(1, NIGHTS)
        if change(given_[night - 1], given_[night]) is Verdict.MISSING
    }


def test_every_outcome_is_one_answer_or_none() -> None:
    assert {*WORKS, *BROKEN, Kind.SKIPPED} == set(Kind)
    assert not set(WORKS) & set(BROKEN)
    assert set(DECLARABLE) <= set(BROKEN)
    relation = duckdb.sql(OUTCOMES_SQL)
    assert relation is not None
    assert sorted(relation.fetchall()) == sorted(
        (k, k.answer, k in UNEXPECTED) for k in (*WORKS, *BROKEN)
    )


def test_other_engines_are_told_the_same() -> None:
    assert OUTCOMES_SQL in (ROOT / "docs" / "history.md").read_text(encoding="utf-8")
