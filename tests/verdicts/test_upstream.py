"""A row of fixtures/upstream.toml is ok, wrong or unmeasured."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.paths import ROOT
from support.two_stacks import result

from harness.errors import BadInputError
from harness.model.outcome import Kind
from harness.verdicts.upstream import Row
from harness.verdicts.upstream_file import load

P, F, S, E = Kind.PASSED, Kind.FAILED, Kind.SKIPPED, Kind.EXPECTED_FAILURE
GOOD = '[[row]]\ntitle = "sums"\nissues = ["a/b#1"]\ncases = ["*"]\n'
BAD_FILES = {
    "no TOML": ("[[row]\n", "upstream.toml: "),
    "no title": ("[[row]]\nissues = []\ncases = []\n", "upstream.toml#1: key 'title' is missing"),
    "a stray key": (
        GOOD + GOOD + "when = 1\n",
        "upstream.toml#2: unknown key 'when': ",
    ),
    "bad layer": (GOOD + 'layer = "sum"\n', "#1: key 'layer': 'sum': expected import, trace,"),
}


@pytest.mark.parametrize(
    ("runs", "layer", "verdict", "count"),
    [
        ([(P, ""), (P, "")], "trace", "ok", "2/2"),
        ([(P, ""), (Kind.UNEXPECTED_PASS, ""), (S, "")], "trace", "ok", "2/3"),
        ([(P, ""), (F, "trace")], "trace", "wrong", "1/2"),
        ([(S, "")], "trace", "unmeasured", "0/1"),
        ([], "trace", "unmeasured", "0/0"),
        ([(E, "import")], "trace", "unmeasured", "0/1"),
        ([(E, "export"), (F, "trace")], "verification", "unmeasured", "0/2"),
        ([(E, "export"), (P, "")], "verification", "ok", "1/2"),
        ([(E, "verification")], "verification", "wrong", "0/1"),
        ([(E, "numbers")], "verification", "wrong", "0/1"),
        ([(E, "export")], "trace", "wrong", "0/1"),
    ],
)
def test_answer(runs: list[tuple[Kind, str]], layer: str, verdict: str, count: str) -> None:
    row = Row(title="sums", issues=("a/b#1",), cases=("a.py::*",), layer=layer)
    results = [result(str(i), outcome=kind, layer=at) for i, (kind, at) in enumerate(runs)]
    answer = row.answer(row.select([*results, result("other", id="b.py::x", outcome=F)]))
    assert (answer.verdict, answer.count) == (verdict, count)


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_file_is_refused(tmp_path: Path, kind: str) -> None:
    text, message = BAD_FILES[kind]
    path = tmp_path / "upstream.toml"
    path.write_text(text)
    with pytest.raises(BadInputError) as caught:
        load(path)
    assert message in str(caught.value)


def test_the_signature_row_is_about_verification() -> None:
    rows = load(ROOT / "fixtures" / "upstream.toml")
    assert [row.layer for row in rows if row.issues == ("pytorch/xla#8969",)] == ["verification"]
