"""The static site, read as files: what it says, that nothing on it acts, that it is never half."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

import pytest
from support.pages import Page
from support.paths import ROOT
from support.site_nights import (
    HOSTILE,
    SCRIPT,
    Night,
    Row,
    Told,
    example,
    fails,
    moving,
    write,
)

from harness import cli
from harness.conformance.answer import CheckAnswer, Conformance
from harness.conformance.answer_files import junit
from harness.conformance.plugin_check import Conformity
from harness.dashboard import shapes, units
from harness.errors import PARTIAL
from harness.render import page_names


def publish(history: Path, out: Path, *more: str) -> int:
    arguments = ["--history", str(history), "--out", str(out), *more]
    return cli.main(["dashboard", *arguments])


def files(site: Path) -> dict[str, bytes]:
    """Every published file with its content."""
    paths = (p for p in site.rglob("*") if p.is_file() and ".site" not in p.parts)
    return {str(path.relative_to(site)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("history")
    example(folder)
    return folder


@pytest.fixture(scope="module")
def site(history: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("published") / "site"
    assert publish(history, out, "--address", "https://example.org/xla") == 0
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    return {str(path.relative_to(site)): Page(path) for path in site.rglob("*.html")}


def case(pages: dict[str, Page], function: str) -> Page:
    return next(page for path, page in pages.items() if path.startswith(f"case/{function}-"))


def test_the_first_screen_says_what_changed(pages: dict[str, Page]) -> None:
    words = pages["index.html"].words
    assert "Night of 15 January 2026" in words
    sentence = re.search(r"Since the night before: (.*?)\. ", words)
    assert sentence is not None
    assert sentence[1] == "2 regressed, 1 fixed, 1 flaky, 1 missing, 1 slower"
    assert "AssertionError: numbers: 3 of 8 differ" in words
    assert "duration 100 ms to 1.5 s" in words
    assert "not in the run" in words


def test_the_heat_map_leads_to_the_cases_behind_each_cell(pages: dict[str, Page]) -> None:
    cell = next(
        attributes["href"]
        for _, attributes in pages["index.html"].elements
        if attributes.get("href", "").startswith("cell/collectives-2-9-0-")
    )
    assert "92.9 % 1 unexpected" in pages["index.html"].words  # 13 of 14
    rows = pages[cell].words
    assert rows.index("test_regressed") < rows.index("test_fixed")
    assert "test_flaky" not in rows


def test_a_case_page_says_when_a_failure_began_and_how_to_repeat_it(
    pages: dict[str, Page],
) -> None:
    page = case(pages, "test_regressed")
    assert "regressed on 2.9.0 cpu 4" in page.words
    assert "1 distinct failure" in page.words
    sentence = "First seen 2026-01-15; no version, commit or machine changed."
    assert sentence in page.words
    assert "uv run pytest 'suites/collectives/test_sums.py::test_regressed[cpu-4]'" in page.words
    assert "--stacks 2.9.0 --lanes cpu" in page.words


def test_a_case_page_names_the_component_that_changed_with_a_failure(tmp_path: Path) -> None:
    broken = Told("t.py::test_a", becomes=lambda n: fails("Boom") if n.number > 2 else {})
    write(
        tmp_path / "h",
        [broken],
        range(5),
        ["nightly"],
        lambda night: {"jax": "0.8.0" if night.number > 2 else "0.7.1"},
    )
    publish(tmp_path / "h", tmp_path / "site")
    page = Page(next((tmp_path / "site" / "case").iterdir()))
    assert "First seen 2026-01-04; changed: jax 0.7.1 -> 0.8.0." in page.words


def test_pages_say_what_was_reused(tmp_path: Path) -> None:
    measured = "2026-01-01T02:30:00Z 2.9.0"
    again = {"properties": [("reused", measured)]}
    reused = Told("t.py::test_a", becomes=lambda night: again if night.number else {})
    write(tmp_path / "h", [reused, Told("t.py::test_b")], range(2), ["2.9.0"])
    publish(tmp_path / "h", tmp_path / "site")
    pages = {path.name: Page(path) for path in (tmp_path / "site" / "case").iterdir()}
    says = [f"passed measured {measured}" in page.words for page in pages.values()]
    assert sorted(says) == [False, True]
    runs = [Page(path).words for path in (tmp_path / "site" / "run").iterdir()]
    assert sorted("Reused1" in words.replace(" ", "") for words in runs) == [False, True]


def test_a_case_page_plots_numbers_that_moved(pages: dict[str, Page]) -> None:
    page = case(pages, "test_discovers")
    assert "Always 1 on 2.8.0 virtual-tpu 2x4; 2.9.0 virtual-tpu 2x4." in page.words
    plots = [a["aria-label"] for tag, a in page.elements if a.get("class") == "plot"]
    assert "discoveries on 2.9.0 virtual-tpu 2x4 between 1 and 2" in plots
    assert any(label.startswith("Duration on 2.9.0") for label in plots)


def test_a_strip_has_a_block_for_each_change(pages: dict[str, Page]) -> None:
    elements = case(pages, "test_flaky").elements
    blocks = [attributes["class"] for tag, attributes in elements if tag == "rect"]
    assert blocks[:4] == ["s-failed", "s-passed", "s-failed", "s-passed"]


def test_the_issue_matrix_gives_first_bad_and_first_good(pages: dict[str, Page]) -> None:
    page = pages["issues.html"]
    assert "https://github.com/pytorch/xla/issues/8854" in [link for _, link in page.links()]
    row = page.words[page.words.index("pytorch/xla#8854") :]
    assert row.startswith("pytorch/xla#8854 wrong 0/1ok 1/12.8.0 or older 2.9.0")
    row = page.words[page.words.index("pytorch/xla#8812") :]
    assert row.startswith("pytorch/xla#8812 ok 1/1ok 1/1never wrong")


def test_stacks_are_compared_in_pairs(pages: dict[str, Page]) -> None:
    page = next(page for path, page in pages.items() if path.startswith("compare/2-8-0-2-9-0"))
    assert "1 regressed" in page.words
    assert "3 fixed" in page.words


def test_stacks_of_two_frameworks_show_what_moving_does(tmp_path: Path) -> None:
    moving(tmp_path / "history")
    assert publish(tmp_path / "history", tmp_path / "site") == 0
    page = Page(next((tmp_path / "site" / "compare").glob("*.html")))
    assert "What moving from torch_xla to torch_tpu does" in page.words
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>((?:<td>\d*</td>)+)', page.path.read_text())
    sizes = {re.sub("<.*?>", "", area): re.findall(r"<td>(\d*)", cells) for area, cells in rows}
    assert sizes == {
        "dtensor": ["1", "1", "1", "1", "1", "1", "1"],
        "spmd": ["1", "", "", "", "", "", ""],
        "all": ["2", "1", "1", "1", "1", "1", "1"],
    }
    effects = [a["data-verdict"] for tag, a in page.elements if "data-verdict" in a]
    assert sorted(effects) == sorted(
        [
            "broken on both",
            "fixed by moving",
            "broken by moving",
            "not available after moving",
            "skipped after moving",
            "only after moving",
        ]
    )
    assert page.text.count("test_fixed[virtual-tpu-4@chip-torch_tpu-x]") == 1


def test_coverage_names_the_cheapest_lane(pages: dict[str, Page]) -> None:
    words = pages["coverage.html"].words
    assert "needs a TPU of N chips" in words
    assert "virtual-tpu for 1" in words


def test_sensitivity_has_areas_with_their_trend(tmp_path: Path) -> None:
    def sees(*percent: float) -> Callable[[Night], Row | None]:
        def becomes(night: Night) -> Row | None:
            share = percent[int(night.number) % len(percent)]
            numbers = {"seen": share, "not_seen": 100 - share, "seen_percent": share}
            numbers |= {"not_seen_narrowed": 99 - share, "not_seen_constant-off": 1}
            numbers |= {"not_seen_slice-shifted": 0}
            return {"properties": [(f"faults_{name}", f"{n:g}") for name, n in numbers.items()]}

        return becomes

    def of_module(_: Night) -> Row | None:
        numbers = {"seen": 30, "not_seen": 70, "not_executed": 60, "seen_percent": 30}
        return {"properties": [(f"faults_{name}", str(n)) for name, n in numbers.items()]}

    cases = [
        Told("sensitivity.collectives", "collectives", "virtual-tpu", "", becomes=sees(82, 95)),
        Told("sensitivity.dtensor", "dtensor", "virtual-tpu", "", becomes=sees(97)),
        Told("sensitivity.modules::m", "sensitivity", "virtual-tpu", "", becomes=of_module),
        Told("suites/dtensor/test_it.py::test_it", "dtensor"),
    ]
    write(tmp_path / "history", cases, range(4), ["2.9.0"])
    assert publish(tmp_path / "history", tmp_path / "site") == 0
    page = Page(tmp_path / "site" / "sensitivity.html")
    assert "2.9.0 virtual-tpu97 %973always 97 %" in page.words
    assert "2.9.0 virtual-tpu95 %955" in page.words
    assert "2.9.0 virtual-tpu30 %307060always 30 %" in page.words
    assert page.words.index("virtual-tpu95 %") < page.words.index("virtual-tpu97 %")
    assert "between 82 and 95" in page.path.read_text()
    assert "narrowed 4, constant-off 1" in page.words
    assert "narrowed 2, constant-off 1" in page.words
    assert "slice-shifted" not in page.words
    assert "test_it" not in page.words


def test_plugins_by_level(tmp_path: Path) -> None:
    """As the command writes its report: what fails is named, and what is unsupported is none."""
    answers = [
        CheckAnswer("c_api/event/awaited", "Await", Conformity.CONFORMS),
        CheckAnswer("c_api/struct_sizes/f", "Sizes", Conformity.FAILS, "failed", "got 8"),
        CheckAnswer("c_api/event/s", "Stream", Conformity.UNSUPPORTED, detail="null"),
    ]
    plugin = {"api": [0, 115], "devices": 4, "version": "cpu"}
    written = tmp_path / "report.xml"
    written.write_text(junit(Conformance("mine", plugin, answers)))
    history = str(tmp_path / "history")
    assert cli.main(["record", str(written), "--history", history]) == 0
    assert publish(tmp_path / "history", tmp_path / "site") == 0
    page = Page(tmp_path / "site" / "plugins.html")
    assert "mine 0.115L0 the C API1110".replace(" ", "") in page.words.replace(" ", "")
    assert "mine, L0 the C API: 1 failed" in page.words
    assert "f: got 8" in page.words
    assert "Plugins" in Page(tmp_path / "site" / "index.html").words


def test_plugins_that_nobody_has_asked(pages: dict[str, Page]) -> None:
    assert "No plugin was asked in these nights" in pages["plugins.html"].words


def test_sensitivity_that_nobody_has_measured(pages: dict[str, Page]) -> None:
    assert "No faults were planted in these nights" in pages["sensitivity.html"].words


def test_the_flaky_list_has_the_flaky_case_only(pages: dict[str, Page]) -> None:
    words = pages["flaky.html"].words
    assert "test_flaky" in words
    assert "test_regressed" not in words
    assert "test_sum[" not in words


def test_the_slow_list_starts_with_what_became_slower(pages: dict[str, Page]) -> None:
    words = pages["slow.html"].words
    assert words.index("Slower tonight") < words.index("test_slower") < words.index("The slowest")


def test_failures_of_one_cause_are_one(pages: dict[str, Page]) -> None:
    assert pages["failures.html"].words.count("RuntimeError: rendezvous timed out") == 0
    assert pages["failures.html"].words.count("SIGABRT in compile") == 1
    sentence = "2 cases unexpected at execution SIGABRT in compile First seen 2026-01-01"
    assert sentence in pages["failures.html"].words


def test_programs_get_json_an_atom_feed_and_a_badge(site: Path) -> None:
    night = json.loads((site / "data" / "night.json").read_text())
    verdicts = sorted(change["verdict"] for change in night["changes"])
    for verdict in ("regressed", "fixed", "flaky", "missing", "slower"):
        assert verdicts.count(verdict) == (1 if verdict in ("fixed", "missing") else 2), verdict
    assert len(json.loads((site / "data" / "cases.json").read_text())["cases"]) == 30
    feed = ET.parse(site / "regressions.atom").getroot()
    atom = "{http://www.w3.org/2005/Atom}"
    titles = [entry.findtext(f"{atom}title") or "" for entry in feed.iter(f"{atom}entry")]
    assert sorted(title.split(":")[0] for title in titles) == ["missing", "regressed", "regressed"]
    links = {link.get("href") or "" for link in feed.iter(f"{atom}link")}
    assert all(link.startswith("https://example.org/xla/") for link in links)
    assert "3 tonight" in (site / "badge.svg").read_text()
    assert json.loads((site / "badge.json").read_text())["color"] == "red"


def test_every_link_within_the_site_leads_somewhere(site: Path, pages: dict[str, Page]) -> None:
    assert dead_links(site, pages) == []


def test_a_skip_has_its_cause(pages: dict[str, Page]) -> None:
    skipped = [
        p for p in pages.values() if "Why it is not measured needs a TPU of 4 chips" in p.words
    ]
    assert len(skipped) == 1


def test_runs_before_the_nights_shown_are_no_links(tmp_path: Path) -> None:
    write(tmp_path / "h", [Told("t.py::test_a", becomes=lambda night: fails("Boom"))], range(9))
    publish(tmp_path / "h", tmp_path / "site", "--nights", "3")
    site = tmp_path / "site"
    by_path = {str(path.relative_to(site)): Page(path) for path in site.rglob("*.html")}
    page = next(page for path, page in by_path.items() if path.startswith("case/"))
    assert "First seen 2026-01-01, before the nights shown here." in page.words
    assert dead_links(site, by_path) == []


def dead_links(site: Path, pages: dict[str, Page]) -> list[tuple[str, str]]:
    """Each page with a link of its own site that leads nowhere."""
    dead = []
    for path, page in pages.items():
        place = "case/404.html" if path == "404.html" else path  # shown for addresses in folders
        for _, link in page.links():
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (site / place).parent / unquote(parts.path) if parts.path else site / path
            if not target.is_file():
                dead.append((path, link))
            elif parts.fragment and target.suffix == ".html":
                inner = pages[os.path.relpath(target, site)]
                dead += [] if parts.fragment in inner.ids else [(path, link)]
    return dead


def test_pages_are_well_formed(pages: dict[str, Page]) -> None:
    for path, page in pages.items():
        assert page.unbalanced == [], path
        assert page.open == [], path
        assert len(page.ids) == len(set(page.ids)), path


def test_nothing_on_a_page_acts_but_the_sites_own_files(pages: dict[str, Page]) -> None:
    for path, page in pages.items():
        metas = [a.get("content", "") for tag, a in page.elements if tag == "meta"]
        policy = next(content for content in metas if "default-src 'none'" in content)
        assert "unsafe" not in policy
        for tag, attributes in page.elements:
            assert tag not in ("style", "iframe", "object", "embed", "base", "foreignobject"), path
            assert tag != "script" or attributes.get("src", "").endswith((".js",)), path
            acts = [name for name in attributes if name == "style" or name.startswith("on")]
            assert acts == [], path
        for tag, link in page.links():
            outside = urlsplit(link)
            assert outside.scheme in ("", "https"), path
            assert not outside.scheme or (tag == "a" and outside.netloc == "github.com"), link


def test_hostile_text_is_shown_as_text(pages: dict[str, Page]) -> None:
    text = next(p.text for n, p in pages.items() if n.startswith("case/") and SCRIPT in p.text)
    assert text.count(SCRIPT) >= 3  # its name, its area, its message
    assert "\u241b[31m\u2400<U+202E>txt" in text
    assert [page.path for page in pages.values() if {*"\x1b\x00\u202e"} & {*page.text}] == []
    assert "{{ 7 * 7 }}" in pages["cases.html"].text


def test_hostile_names_stay_inside_the_site(site: Path, pages: dict[str, Page]) -> None:
    assert len([path for path in pages if path.startswith("case/")]) == 30
    for path in files(site):
        assert re.fullmatch(r"(?:[a-z]+/){0,2}[a-z0-9._-]{1,80}", path), path
    assert not (site.parent / "etc").exists()
    shown = [page.words for path, page in pages.items() if path.startswith("case/")]
    for planted in HOSTILE:
        assert any(page_names.visible(planted.name)[:60] in words for words in shown), planted.name


def test_the_same_history_twice_rewrites_nothing(
    history: Path, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: (site / path).stat().st_mtime_ns for path in files(site)}
    publish(history, site, "--address", "https://example.org/xla")
    assert " 0 new or changed" in capsys.readouterr().out
    assert {path: (site / path).stat().st_mtime_ns for path in files(site)} == before


def test_the_next_night_keeps_the_pages_of_old_runs(tmp_path: Path) -> None:
    example(tmp_path / "h", last=9)
    publish(tmp_path / "h", tmp_path / "site")
    site = tmp_path / "site"
    before = {path: (site / path).stat().st_ino for path in files(site)}
    write(tmp_path / "h", [Told("suites/collectives/test_sums.py::test_sum[cpu-4-0]")], [10])
    publish(tmp_path / "h", tmp_path / "site")
    after = {path: (site / path).stat().st_ino for path in files(site)}
    runs = {path for path in before if path.startswith(("run/", "data/run/"))}
    assert runs
    assert {path: after[path] for path in runs} == {path: before[path] for path in runs}
    assert after["index.html"] != before["index.html"]


def test_pages_that_left_the_window_are_removed(tmp_path: Path) -> None:
    write(tmp_path / "h", [Told("t.py::test_old")], [0])
    publish(tmp_path / "h", tmp_path / "site")
    write(tmp_path / "h", [Told("t.py::test_new")], [200])
    publish(tmp_path / "h", tmp_path / "site")
    assert [path.name[:8] for path in (tmp_path / "site" / "case").iterdir()] == ["test_new"]


def test_a_foreign_folder_is_left_alone(
    history: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    assert publish(history, tmp_path) == 2
    assert "expected an empty folder or an older site" in capsys.readouterr().err
    assert files(tmp_path) == {"thesis.txt": b"mine"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--address", "javascript:alert(1)"], "expected https://"),
        (["--address", "https://["], "--address"),
    ],
)
def test_bad_options_are_refused(
    history: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    expected: str,
) -> None:
    assert publish(history, tmp_path / "site", *options) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize("nights", ["0", "-1", "1000000", "many"])
def test_nights_that_cannot_be_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], nights: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        publish(tmp_path / "h", tmp_path / "site", "--nights", nights)
    assert "--nights: " in capsys.readouterr().err


def test_a_list_of_pages_from_elsewhere_removes_nothing_outside(
    history: Path, tmp_path: Path
) -> None:
    (tmp_path / "kept.html").write_text("mine")
    own = tmp_path / "site" / ".site"
    own.mkdir(parents=True)
    pages = {"../kept.html": "", str(tmp_path / "kept.html"): "", "gone.html": ""}
    (own / "pages.json").write_text(json.dumps({"format": 1, "pages": pages}))
    publish(history, tmp_path / "site")
    assert (tmp_path / "kept.html").read_text() == "mine"


PUBLISH = [sys.executable, "-m", "harness", "dashboard", "--history"]


def test_a_full_disk_leaves_the_old_site(tmp_path: Path) -> None:
    """No file may grow over 9 kB in the second publishing: writing fails in the middle of it."""
    write(tmp_path / "h", [Told("t.py::test_a")], [0])
    publish(tmp_path / "h", tmp_path / "site")
    before = files(tmp_path / "site")
    example(tmp_path / "h", last=3)
    done = subprocess.run(
        [*PUBLISH, str(tmp_path / "h"), "--out", str(tmp_path / "site")],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},  # half of which would stay
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000)),
    )
    assert done.returncode == 2
    assert "File too large: the old site is as it was" in done.stderr
    assert files(tmp_path / "site") == before
    assert not (tmp_path / "site" / ".site" / "next").exists()


@pytest.mark.long
def test_kill_at_any_moment_leaves_whole_pages(tmp_path: Path) -> None:
    write(tmp_path / "h", [Told("t.py::test_a")], [0])
    publish(tmp_path / "h", tmp_path / "site")
    before = files(tmp_path / "site")
    example(tmp_path / "h", last=5)
    publish(tmp_path / "h", tmp_path / "whole")
    after = files(tmp_path / "whole")
    kills = 0
    for hundredths in range(12):
        process = subprocess.Popen(
            [*PUBLISH, str(tmp_path / "h"), "--out", str(tmp_path / "site")],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        next_ = tmp_path / "site" / ".site" / "next"
        while process.poll() is None and not next_.is_dir():
            time.sleep(0.005)
        time.sleep(hundredths / 20)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        now = files(tmp_path / "site")
        assert before.keys() <= now.keys() or after.keys() <= now.keys()
        assert [p for p in now if now[p] not in (before.get(p), after.get(p))] == []
    assert kills >= 3
    publish(tmp_path / "h", tmp_path / "site")
    assert files(tmp_path / "site") == after


@pytest.mark.long
def test_two_publishers_take_turns(tmp_path: Path) -> None:
    example(tmp_path / "h", last=5)
    publish(tmp_path / "h", tmp_path / "alone")
    command = [*PUBLISH, str(tmp_path / "h"), "--out", str(tmp_path / "site")]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) for _ in range(2)]
    outputs = sorted(str(process.communicate()[0]) for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert " 0 new or changed" in outputs[0]
    assert files(tmp_path / "site") == files(tmp_path / "alone")


def test_a_broken_file_is_named_and_the_rest_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "h", [Told("t.py::test_a")], range(3))
    broken = min((tmp_path / "h").rglob("*.parquet"))
    broken.write_bytes(broken.read_bytes()[:200])
    assert publish(tmp_path / "h", tmp_path / "site") == PARTIAL
    assert f"set aside: {broken.relative_to(tmp_path / 'h')}" in capsys.readouterr().err
    assert Page(tmp_path / "site" / "runs.html").words.count("2026-01-0") == 5


def test_slugs_are_safe_and_differ() -> None:
    texts = ["a", "A", "a/b", "a-b", "", "..", "/", "\ud800", "x" * 500, "CON", "<script>"]
    slugs = [page_names.slug(text) for text in texts]
    assert len(set(slugs)) == len(texts)
    assert all(re.fullmatch(r"[a-z0-9_-]{1,60}", slug) for slug in slugs)


def test_stacks_are_in_natural_order() -> None:
    assert page_names.ordered(["2.10.0", "2.9.0", "nightly", "2.9.0"]) == [
        "nightly",
        "2.9.0",
        "2.10.0",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "12.3 ms"), (1.25, "1.25 s"), (125.4, "2 min 05 s"), (None, "-")],
)
def test_durations_are_short(value: float | None, text: str) -> None:
    assert units.seconds(value) == text


def test_a_plot_of_one_night_is_a_dot() -> None:
    nights = [date(2026, 1, n) for n in (1, 2, 3)]
    plot = shapes.plot(nights, {nights[1]: 4.0}, units.number, "It", "cpu")
    assert plot is not None
    assert plot.dots == "M150 0h0"
    assert shapes.plot(nights, {}, units.number, "It", "cpu") is None
