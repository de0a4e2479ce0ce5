"""Entries for some stacks only: PEP 440 ranges, and those that can never match."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from support.paths import ROOT

from harness.errors import BadInputError
from harness.expectations import Expectations, ranges
from harness.expectations.condition import Condition, contains, read
from harness.stacks.catalogue import Catalogue, versions_of

OLD = {"python": "3.11", "torch": "2.5.1", "torch_xla": "2.5.1", "jax": "0.4.33"}
NEW = {"python": "3.11", "torch": "2.9.0", "torch_xla": "2.9.0", "jax": "0.7.1", "libtpu": "0.0.23"}
KNOWN = [OLD, NEW | {"torch_xla": "2.8.0", "libtpu": "<1"}, NEW]
NIGHTLY = NEW | {"torch_xla": "2.10.0.dev20250901+git123"}


def on(text: str, stack: dict[str, str]) -> bool:
    return Condition((("torch_xla", text),)).holds(stack)


@pytest.mark.parametrize(
    ("text", "stack", "holds"),
    [
        ("<2.8", OLD, True),
        ("<2.8", NEW, False),
        (">=2.5,<2.8", OLD, True),
        ("==2.9.0", NEW, True),
        ("==2.9.0", NEW | {"torch_xla": "2.9.0+cpu"}, True),
        ("==2.9.*", NEW, True),
        (">=2.9", NIGHTLY, True),
        (">=2.10.0.dev20250901", NIGHTLY, True),
        ("<2.10.0.dev20250901", NIGHTLY, False),
        (">=2.10", NIGHTLY, False),
        ("<2.10", NIGHTLY, False),  # PEP 440: nor a pre-release of the end itself
        ("!=2.9.0", {"torch_xla": "not installed"}, False),
        (">0", {}, False),
    ],
)
def test_range_of_a_component(text: str, stack: dict[str, str], *, holds: bool) -> None:
    assert on(text, stack) == holds


def test_all_components_must_hold() -> None:
    both = Condition((("torch_xla", "<2.8"), ("jax", ">=0.4,<0.5")))
    assert both.holds(OLD)
    assert not both.holds(OLD | {"jax": "0.7.1"})
    assert not both.holds(OLD | {"torch_xla": "2.9.0"})
    assert Condition().holds({})
    assert str(both) == "torch_xla <2.8, jax >=0.4,<0.5"


BAD = {
    "no table": ("<2.8", "a.toml#1: key 'stack': expected a table"),
    "empty": ({}, "a.toml#1: key 'stack': expected a table"),
    "near name": (
        {"torch-xla": "<2.8"},
        "a.toml#1: key 'stack.torch-xla': unknown component: did you mean 'torch_xla'? expected",
    ),
    "other name": ({"lane": "cpu"}, "key 'stack.lane': unknown component: expected python, torch,"),
    "number": ({"jax": 0.7}, "key 'stack.jax': expected a range of versions"),
    "no text": ({"jax": " "}, "key 'stack.jax': expected a range of versions"),
    "no range": ({"jax": "2.9"}, "key 'stack.jax': '2.9': expected PEP 440 ranges"),
    "no version in it": (
        {"torch_xla": ">=2.9,<2.8"},
        "key 'stack.torch_xla': '>=2.9,<2.8': can never match: no version is in all of these",
    ),
    "between the stacks": (
        {"torch_xla": ">=2.6,<2.8"},
        "can never match: expected a range that has one of the stacks' versions (2.5.1, 2.8.0, ",
    ),
    "below the stacks": ({"torch_xla": "<2.5"}, "key 'stack.torch_xla': '<2.5': can never match"),
    "only another key can": (
        {"jax": "<0.5", "torch_xla": "==2.9.1", "torch": "==2.8"},
        "key 'stack.torch': '==2.8': can never match",
    ),
    "pre-releases of the newest": ({"torch_xla": "<2.9,>=2.9.dev1"}, "can never match"),
}


@pytest.mark.parametrize("kind", BAD)
def test_condition_that_makes_no_sense_is_refused(kind: str) -> None:
    data, message = BAD[kind]
    with pytest.raises(BadInputError) as error:
        read("a.toml#1", data, KNOWN)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "text",
    ["<2.8", "==2.5.1", ">=2.8", ">2.9", ">=2.10", "==2.9.0.post1", "==3.*", ">=2.10.0.dev0"],
)
def test_range_of_a_known_or_newer_stack_is_taken(text: str) -> None:
    assert read("a.toml#1", {"torch_xla": text}, KNOWN) == Condition((("torch_xla", text),))


@pytest.mark.parametrize(
    ("data", "on"),
    [
        ({"torch_tpu": ">=0.2"}, ["2.14.0", "2.15.0"]),
        ({"torch_tpu": ">=0.2", "torch": "<2.15"}, ["2.14.0"]),
        ({"torch": "<2.15"}, ["2.14.0", "2.9.0"]),
    ],
)
def test_torch_tpu_and_its_torch_are_components(data: dict[str, str], on: list[str]) -> None:
    shipped = Catalogue(ROOT / "fixtures" / "stacks")
    names = ("torch_tpu-0.2.0-torch-2.14", "torch_tpu-0.2.0", "2.9.0")
    known = [versions_of(shipped.find(name)) for name in names]
    condition = read("a.toml#1", data, known)
    assert [stack["torch"] for stack in known if condition.holds(stack)] == on


def test_without_known_stacks_any_version_may_exist() -> None:
    assert read("a.toml#1", {"torch_xla": "<2.5"}, [])
    assert read("a.toml#1", {"libtpu": "<0.0.1"}, [OLD])  # no stack has any
    with pytest.raises(BadInputError, match="no version is in all"):
        read("a.toml#1", {"torch_xla": "<2.5,>2.5"}, [])


def test_the_running_stack_is_known_too(tmp_path: Path) -> None:
    running = Expectations.load(tmp_path, ()).stack
    text = f"=={Version(running['python'])}"
    entry = 'cases = ["t.py::x"]\nissue = "a/b#1"\nreason = "r"\nsignature = "s"\n'
    (tmp_path / "a.toml").write_text(f'[[expectation]]\n{entry}stack = {{ python = "{text}" }}\n')
    expectations = Expectations.load(tmp_path, [{"python": "3.2.0"}, {"python": "3.99.0"}])
    assert expectations.find("t.py::x") is not None


# Releases with nightlies between them, as a stack's torch_xla may be.
VERSIONS = st.builds(
    "2.{}.{}{}".format,
    st.integers(4, 12),
    st.integers(0, 1),
    st.sampled_from(["", "", "", ".dev20250901", "rc1", ".post1"]),
)


@given(st.sets(VERSIONS, min_size=1), st.sets(VERSIONS))
def test_range_between_keeps_and_drops(keep: set[str], drop: set[str]) -> None:
    drop -= keep
    text = ranges.between(sorted(map(Version, keep)), sorted(map(Version, drop)))
    assert {v for v in keep if text and not contains(text, v)} == set()
    assert {v for v in drop if not text or contains(text, v)} == set()


RANGES = st.sampled_from(
    [
        "<2.8",
        ">=2.5",
        ">=2.5,<2.9",
        "==2.9.0",
        "~=2.5",
        "!=2.7.0",
        "<=2.8.0.dev1",
        ">2.6",
        "==2.9.*",
    ]
)


@given(RANGES, RANGES, VERSIONS)
def test_narrowed_range_is_both(text_range: str, other: str, version: str) -> None:
    text = ranges.narrow(Condition((("jax", text_range),)), "jax", other)["jax"]
    assert contains(text, version) == (contains(text_range, version) and contains(other, version))


@pytest.mark.parametrize(
    ("keep", "drop", "text"),
    [
        (["2.4.0", "2.7.0"], ["2.8.0", "2.9.0"], "<2.8"),
        (["2.8.0", "2.9.0"], ["2.7.0"], ">=2.8"),
        (["2.5.1"], ["2.4.0", "2.6.0"], ">=2.5.1,<2.6"),
        (["2.5.1", "2.7.0"], ["2.4.0", "2.6.0"], ">=2.5.1,!=2.6.0"),
        (["2.8.0.dev20250901"], ["2.8.0"], "<=2.8.0.dev20250901"),
        (["2.4.0"], [], ""),
    ],
)
def test_range_reads_as_a_person_writes_it(keep: list[str], drop: list[str], text: str) -> None:
    assert ranges.between([Version(v) for v in keep], [Version(v) for v in drop]) == text


def test_stacks_of_one_torch_xla_are_told_apart_by_another_component() -> None:
    old, new = NEW | {"libtpu": "0.0.21"}, NEW
    assert ranges.separate([old], [new]) == ("libtpu", "<0.0.23")
    assert ranges.separate([old, OLD], [new]) is None  # OLD has no libtpu
    assert ranges.separate([new], [old, OLD]) == ("libtpu", ">=0.0.23")
    assert ranges.separate([new], [new]) is None


def _of_torch_tpu(torch: str) -> dict[str, str]:
    return {"torch": torch, "torch_tpu": "0.2.0", "torch_xla": "not installed", "jax": "0.12.0.1"}


def test_torch_tells_stacks_of_one_torch_tpu_apart() -> None:
    old, new = _of_torch_tpu("2.14.0"), _of_torch_tpu("2.15.0")
    assert ranges.separate([old], [new]) == ("torch", "<2.15")
    assert ranges.only(new) == ("torch_tpu", "==0.2.0")
    assert ranges.in_order([new, OLD, old]) == [OLD, old, new]


def test_a_range_of_torch_tpu_has_no_stack_of_torch_xla() -> None:
    assert ranges.separate([_of_torch_tpu("2.15.0")], [OLD]) == ("torch_tpu", ">=0.2")
    assert ranges.separate([OLD], [_of_torch_tpu("2.15.0")]) == ("torch_xla", ">=2.5.1")


def test_stacks_of_a_framework_that_nobody_ran_stay() -> None:
    known = [OLD, _of_torch_tpu("2.15.0")]
    assert ranges.without(known, [OLD]) == known[1:]
    assert ranges.without(known, known[1:]) == [OLD]
