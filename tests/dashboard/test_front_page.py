"""The front page: since when and what changed, old failures apart, each case counted once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.pages import Page
from support.site_nights import Night, Row, Told, example, fails, write

from harness import cli

CASE = "suites/spmd/test_specs.py::test_a[cpu-4]"


def front(history: Path, site: Path) -> str:
    """The text of the front page that is published from a history."""
    assert cli.main(["dashboard", "--history", str(history), "--out", str(site)]) == 0
    return Page(site / "index.html").words


def section(words: str, heading: str) -> str:
    """What stands under a verdict's heading, up to the next part of the page."""
    ends = ("1 fixed", "1 still failing", "2 still failing", "Runs of this night")
    rest = words[words.rindex(heading) + len(heading) :]
    return rest[: min(rest.find(end) for end in ends if end in rest)]


def breaks_at(first: float, outcome: str = "failed") -> Callable[[Night], Row]:
    """What becomes of a case that works until a night and never again."""
    return lambda night: fails("Boom", outcome) if night.number >= first else {}


def libtpu(night: Night) -> dict[str, str]:
    """Versions that change with the third night."""
    return {"libtpu": "0.0.23" if night.number >= 2 else "0.0.21"}


@pytest.mark.parametrize(
    ("nights", "heading", "label"),
    [
        (3, "1 regressed worked on the baseline", "1 regressed"),
        (5, "1 still failing was broken", "1 case still failing"),
    ],
)
def test_a_cause_has_since_when_and_what_changed(
    tmp_path: Path, nights: int, heading: str, label: str
) -> None:
    write(tmp_path / "h", [Told(CASE, becomes=breaks_at(2))], range(nights), ["2.9.0"], libtpu)
    words = front(tmp_path / "h", tmp_path / "site")
    assert label in words
    assert "since 2026-01-03; changed: libtpu 0.0.21 -> 0.0.23" in section(words, heading)


def test_what_changed_is_compared_with_the_run_that_measured_the_case(tmp_path: Path) -> None:
    """The case is skipped on the night of the change, and broken when it runs again."""

    def becomes(night: Night) -> Row:
        return {"outcome": "skipped"} if night.number == 2 else breaks_at(3)(night)

    cases = [Told(CASE, becomes=becomes), Told("t.py::test_other")]
    write(tmp_path / "h", cases, range(4), ["2.9.0"], libtpu)
    words = front(tmp_path / "h", tmp_path / "site")
    assert "since 2026-01-04; changed: libtpu 0.0.21 -> 0.0.23" in words


def test_one_cause_on_two_stacks_says_what_changed_on_each(tmp_path: Path) -> None:
    def versions(night: Night) -> dict[str, str]:
        return libtpu(night) if night.stack == "nightly" else {}

    stacks = ["2.9.0", "nightly"]
    write(tmp_path / "h", [Told(CASE, becomes=breaks_at(2))], range(3), stacks, versions)
    text = section(front(tmp_path / "h", tmp_path / "site"), "1 regressed worked on the baseline")
    assert text.count("Boom") == 1
    assert "since 2026-01-03; changed: libtpu 0.0.21 -> 0.0.23 on nightly" in text
    assert "since 2026-01-03; no version, commit or machine changed on 2.9.0" in text


def test_a_new_stack_is_compared_with_the_one_before_it(tmp_path: Path) -> None:
    always = [Told(CASE, becomes=breaks_at(1))]
    write(tmp_path / "h", always, [0], ["2.8.0"])
    write(tmp_path / "h", always, [1], ["2.9.0"])
    words = front(tmp_path / "h", tmp_path / "site")
    assert (
        "since 2026-01-02, the first run of its stack; changed from stack 2.8.0:"
        " torch 2.8.0 -> 2.9.0, torch_xla 2.8.0 -> 2.9.0"
    ) in words


def test_a_failure_older_than_the_nights_shown_says_so(tmp_path: Path) -> None:
    write(tmp_path / "h", [Told(CASE, becomes=breaks_at(0))], range(5), ["2.9.0"])
    words = front(tmp_path / "h", tmp_path / "site")
    assert "since 2026-01-01, when it was first measured in these nights" in words


def test_failures_of_earlier_nights_stand_apart_from_new_ones(tmp_path: Path) -> None:
    example(tmp_path / "h")
    words = front(tmp_path / "h", tmp_path / "site")
    assert "4 cases (2 crashed) still failing from earlier nights." in words
    new = section(words, "2 regressed worked on the baseline")
    old = words[words.index("4 still failing (2 crashed) was broken") :]
    assert "test_regressed[cpu-4]" in new
    assert "test_crashes" not in new
    assert "2 cases in spmd on 2.8.0, 2.9.0 SIGABRT in compile" in old
    assert "test_regressed" not in old


def test_a_case_that_hangs_counts_once(tmp_path: Path) -> None:
    write(tmp_path / "h", [Told(CASE, becomes=breaks_at(2, "hung"))], range(3), ["2.9.0"])
    site = tmp_path / "site"
    words = front(tmp_path / "h", site)
    assert "Since the night before: 1 regressed (1 hung), none fixed" in words
    tiles = [a.get("class", "") for tag, a in Page(site / "index.html").elements if tag == "li"]
    assert [tile for tile in tiles if tile.startswith("tile") and "none" not in tile] == [
        "tile v-regressed"
    ]
    (change,) = json.loads((site / "data" / "night.json").read_text())["changes"]
    assert (change["verdict"], change["outcome"]) == ("regressed", "hung")
    assert (site / "regressions.atom").read_text().count("<entry>") == 1
    assert "1 tonight" in (site / "badge.svg").read_text()


def test_a_case_that_broke_tonight_is_not_still_failing_too(tmp_path: Path) -> None:
    """The night has two runs of one stack; the first one broke the case."""
    nights = [0, 1, 2, 2.5]
    write(tmp_path / "h", [Told(CASE, becomes=breaks_at(2))], nights, ["2.9.0"])
    words = front(tmp_path / "h", tmp_path / "site")
    assert "1 regressed" in words
    assert "still failing" not in words


def test_an_issue_without_a_good_stack_is_not_fixed_yet(tmp_path: Path) -> None:
    """``open`` would read as the state of the issue upstream."""
    planted = Told(CASE, upstream=("pytorch/xla#1",), becomes=breaks_at(0))
    write(tmp_path / "h", [planted], range(2), ["2.9.0"])
    front(tmp_path / "h", tmp_path / "site")
    page = Page(tmp_path / "site" / "issues.html")
    words = page.words
    assert "2.9.0 or older not fixed yet" in words
    assert "open" not in words.split()
    states = [a["data-state"] for _, a in page.elements if "data-state" in a]
    assert states == ["not fixed yet"]
    assert [a["value"] for _, a in page.elements if a.get("value") in states] == states
