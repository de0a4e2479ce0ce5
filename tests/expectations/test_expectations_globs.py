"""Globs and signatures that an update writes: they match what they are for, and nothing else."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import ROOT

from harness.expectations import Expectations, glob_pattern
from harness.expectations.failure_pattern import describes, signature_of
from harness.expectations.globs import cover

LANES = ("cpu-2", "cpu-4", "virtual-tpu-2x1")
DTYPES = ("int32", "float32", "bfloat16")
OPS = ("sum", "min", "all-gather")
IDS = [f"suites/a.py::test_x[{t}-{d}-{o}]" for t in LANES for d in DTYPES for o in OPS]
IDS += [f"suites/a.py::test_{name}" for name in ("x", "xy", "xy[cpu-4]", "z[*]", "z[a?]")]


def matched(globs: list[str]) -> set[str]:
    patterns = [glob_pattern(glob) for glob in globs]
    return {id_ for id_ in IDS if any(pattern.fullmatch(id_) for pattern in patterns)}


@given(st.sets(st.sampled_from(IDS)))
def test_cover_is_exact(wanted: set[str]) -> None:
    globs = cover(sorted(wanted), IDS)
    assert wanted <= matched(globs)
    # Two of the ids are globs that match each other.
    assert {id_ for id_ in matched(globs) - wanted if "z[" not in id_} == set()
    assert len(globs) <= len(wanted)


@pytest.mark.parametrize(
    ("part", "globs"),
    [
        ("", ["test_x[*]"]),
        ("-sum", ["test_x[*-sum]"]),
        ("[cpu-", ["test_x[cpu-*]"]),
        ("cpu-4-", ["test_x[cpu-4-*]"]),
        ("-int32-", ["test_x[*-int32-*]"]),
        ("-gather", ["test_x[*-gather]"]),
        ("2x1-int32-sum", ["test_x[virtual-tpu-2x1-int32-sum]"]),
    ],
)
def test_cover_reads_as_a_person_writes_it(part: str, globs: list[str]) -> None:
    wanted = [id_ for id_ in IDS if part in id_ and "test_x[" in id_]
    assert cover(wanted, IDS) == [f"suites/a.py::{glob}" for glob in globs]


@pytest.mark.parametrize(
    ("message", "signature"),
    [
        ("ValueError: no such op", "ValueError: no such op"),
        ("\n  KeyError: 'x'  \nmore", "KeyError: 'x'"),
        ("shape.h:400] f32[4,2] at 0xAF", r"shape\.h:NUM\] f32\[NUM,NUM\] at 0x[0-9a-fA-F]+"),
        ("in /a/b-1/c.py:12 (x.py:3)", r"in \S+:NUM \(x\.py:NUM\)"),
        ("-1.5e-3 of int64, 2.0", "NUM of int64, NUM"),
        ("x " * 80, ("x " * 50).strip()),
        ("y" * 200, "y" * 100),
        ("", r"^\s*$"),
    ],
)
def test_signature(message: str, signature: str) -> None:
    pattern = signature_of(message)
    assert pattern == signature.replace("NUM", r"-?[\d.]+(?:e[+-]?\d+)?")
    assert describes(pattern, message)


@given(st.text())
def test_signature_describes_its_message(message: str) -> None:
    assert describes(signature_of(message), message)


@pytest.mark.parametrize(
    "signature", ["(a+)+$", "(a|aa)+$", "(.*a){20}$", "(x+x+)+y", "([a-z]+)*!", "^(\\w+\\s?)*$"]
)
def test_no_signature_takes_forever(signature: str) -> None:
    assert not describes(signature, "a" * 20_000 + "\u2603")


def test_no_glob_takes_forever() -> None:
    assert not glob_pattern("*a" * 12 + "*b").fullmatch("a" * 300)
    assert glob_pattern("*a" * 12 + "*b").fullmatch("a" * 300 + "b")


@given(st.text("ab[]*?!-\n"), st.text("ab[]*?!-\n"))
def test_a_glob_has_two_special_characters(glob: str, text: str) -> None:
    pattern = "".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in glob[:12])
    wanted = re.fullmatch(pattern, text, re.DOTALL) is not None
    assert (glob_pattern(glob[:12]).fullmatch(text) is not None) == wanted


def test_every_signature_of_the_project_compiles() -> None:
    folder = ROOT / "fixtures" / "expectations"
    assert all(
        describes(entry.signature, "") in (True, False)
        for entry in Expectations.load(folder).entries
    )
