"""The allow-list is read strictly."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from support.two_stacks import report, result

from harness.errors import BadInputError
from harness.model.outcome import Kind
from harness.verdicts.allow import apply
from harness.verdicts.allow_file import load
from harness.verdicts.compare import compare

TODAY = date(2026, 6, 30)


def entry(**keys: str | None) -> str:
    values = {
        "cases": '["a.py::x[*]"]',
        "verdict": '"regressed"',
        "reason": '"not used"',
        "signed_off_by": '"A. Person"',
    } | keys
    lines = [f"{key} = {value}" for key, value in values.items() if value is not None]
    return "\n".join(["[[allow]]", *lines, ""])


BAD_FILES = {
    "no TOML": ("[[allow]\n", "allow.toml: "),
    "no UTF-8": ("\xff", "allow.toml: 'utf-8' codec"),
    "a stray key": ("version = 1\n", "allow.toml: key 'version': expected only [[allow]] tables"),
    "no list": ("allow = 1\n", "allow.toml: key 'allow': expected only"),
    "no tables": ("allow = [1]\n", "allow.toml#1: expected a table"),
    "unknown key": (entry() + entry(when='"x"'), "allow.toml#2: unknown key 'when': expected"),
    "no signer": (entry(signed_off_by=None), "allow.toml#1: key 'signed_off_by' is missing"),
    "empty reason": (entry(reason='" "'), "allow.toml#1: key 'reason': ' ': expected a text"),
    "no cases": (entry(cases="[]"), "allow.toml#1: key 'cases': []: expected a list of case ids"),
    "an empty case": (entry(cases='[""]'), "allow.toml#1: key 'cases': '': expected a list"),
    "bad verdict": (
        entry(verdict='"fixed"'),
        "allow.toml#1: key 'verdict': 'fixed': expected 'regressed' or 'missing'",
    ),
    "verdict a list": (entry(verdict="[]"), "allow.toml#1: key 'verdict': []: expected"),
    "bad issue": (entry(issue='"8854"'), "allow.toml#1: key 'issue': '8854': expected 'owner/"),
    "until a text": (entry(until='"2027"'), "allow.toml#1: key 'until': '2027': expected a date"),
    "until a time": (entry(until="2027-01-01T00:00:00"), "key 'until': datetime"),
    "expired": (
        entry(until="2026-06-29"),
        "allow.toml#1: key 'until': expired on 2026-06-29: remove the entry, or have A. Person",
    ),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_file_is_refused(tmp_path: Path, kind: str) -> None:
    text, message = BAD_FILES[kind]
    path = tmp_path / "allow.toml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(BadInputError) as caught:
        load(path, TODAY)
    assert message in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"allow\.toml: "):
        load(tmp_path / "allow.toml", TODAY)


@pytest.mark.parametrize(
    ("keys", "allowed"),
    [
        ({}, True),
        ({"until": "2026-06-30"}, True),
        ({"verdict": '"missing"'}, False),
        ({"cases": '["a.py::y[*]"]'}, False),
        ({"cases": '["a.py::x"]'}, False),
    ],
)
def test_what_an_entry_allows(tmp_path: Path, keys: dict[str, str], *, allowed: bool) -> None:
    path = tmp_path / "allow.toml"
    path.write_text(entry(**keys))
    works, broken = result("x", outcome=Kind.PASSED), result("x", outcome=Kind.FAILED)
    allowed_cases = apply(load(path, TODAY), compare([report(works)], [report(broken)]))
    assert (len(allowed_cases.entries), len(allowed_cases.stale)) == ((1, 0) if allowed else (0, 1))


def test_one_entry_for_a_case(tmp_path: Path) -> None:
    path = tmp_path / "allow.toml"
    path.write_text(entry() + entry(cases='["*"]'))
    works, broken = result("x", outcome=Kind.PASSED), result("x", outcome=Kind.FAILED)
    with pytest.raises(BadInputError, match=r"#1 and .*#2 match a\.py::x\[cpu-4\]: expected one"):
        apply(load(path, TODAY), compare([report(works)], [report(broken)]))
