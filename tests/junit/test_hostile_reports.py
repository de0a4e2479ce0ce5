"""Reports that somebody else wrote, at random, from record to the issues: nothing in them acts."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import cmarkgfm
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.github_api import GitHub, serve
from support.pages import Page

from harness import cli

# Each is a way to be more than text in a terminal, a CI log, Markdown, a page, SQL or a shell.
FRAGMENTS = [
    *(
        "::error::x",
        "::stop-commands::x",
        "::add-mask::a",
        "##[error]x",
        "##[command]rm",
        "%0A::x::",
    ),
    *("\x9b31m", "\x85", "\u202e", "\u2066", "\u200f", "\u061c", "\u2028", "\ufeff", "\U000e0041"),
    *("@octocat", "&#64;octocat", "&#x40;octocat", "&commat;octocat", "\uff20octocat", "@org/team"),
    *(
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "<!--",
        "-->",
        "]]>",
        "&lt;b&gt;",
    ),
    *("[x](javascript:alert(1))", "![x](https://example.org/x.png)", "<https://example.org>"),
    *("`", "```", "~~~", "|", "\n", "\r\n", "\n\n# x", "\n- x", "\t", "\\", "*", "_", "$x$", "#1"),
    *("GH-1", "org/repo#1", "fixes #1", "https://example.org/", "www.example.org", "a@example.org"),
    *("{{ 7 * 7 }}", "{% x %}", "../../etc/passwd", "'; DROP TABLE cases; --", "$(id)", "%s", "%n"),
    *("failed", "passed", "worker 'gw0' crashed while running x", "[XPASS(strict)]", "unknown", ""),
]
RESERVED = ["outcome", "outcomes", "lost", "rerun", "lane", "topology", "id", "stack", "workers"]
LEGAL = st.characters(exclude_categories=["Cs"], exclude_characters="\ufffe\uffff").filter(
    lambda character: character >= " " or character in "\t\n\r"
)
TEXTS = st.lists(
    st.sampled_from(FRAGMENTS) | st.text(LEGAL, max_size=6), min_size=1, max_size=4
).map("".join)
ATTRIBUTES = TEXTS.map(lambda text: text.replace("\x85", " "))
RESULTS = ["failure", "error", "skipped", "rerunFailure", "flakyFailure", "unknown"]
CASES = st.fixed_dictionaries(
    {
        "name": ATTRIBUTES,
        "classname": st.sampled_from(["test_x", "pkg.test_x.TestX", ""]) | ATTRIBUTES,
        "time": st.sampled_from(["0.1", "1", "", "-1", "nan", "1e999", "soon"]),
        "result": st.none() | st.tuples(st.sampled_from(RESULTS), ATTRIBUTES, TEXTS),
        "properties": st.lists(
            st.tuples(st.sampled_from(RESERVED) | ATTRIBUTES, ATTRIBUTES), max_size=3
        ),
        "output": TEXTS,
    }
)
REPORTS = st.fixed_dictionaries(
    {
        "stack": ATTRIBUTES,
        "hostname": ATTRIBUTES,
        "versions": st.dictionaries(st.sampled_from(["python", "torch_xla", "jax"]), ATTRIBUTES),
        "ours": st.booleans(),
        "cases": st.lists(CASES, min_size=1, max_size=5),
    }
)
TAGS = {"a", "b", "code", "del", "em", "h1", "h2", "h3", "li", "ol", "p", "pre", "strong", "ul"} | {
    *("table", "tbody", "td", "th", "thead", "tr"),
}
# Controls, bidirectional controls and separators; what is unassigned or private is only unknown.
ACTS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
COMMAND = re.compile(r"::(error|warning|notice) (file=[^,:]*,)?title=[^,:]*::\S.*")


def written(folder: Path, report: dict[str, Any], night: int) -> Path:
    """The report as a file: on the first night everything passes, on the second it is as drawn."""
    suite = ET.Element("testsuite", timestamp=f"2026-10-{night:02}T02:30:00+00:00")
    suite.set("hostname", report["hostname"])
    facts = {"stack": report["stack"], **report["versions"]}
    properties(suite, [*facts.items(), *([("xla_harness_report", "3")] if report["ours"] else [])])
    for number, drawn in enumerate(report["cases"]):
        name = f"{number}{drawn['name']}"
        case = ET.SubElement(suite, "testcase", name=name, classname=drawn["classname"])
        case.set("time", "1" if night == 1 else drawn["time"])
        failed = night == 2 and drawn["result"]
        own = {"id": f"test_x.py::{name}", "lane": "cpu", "topology": "4", "area": drawn["name"]}
        own |= dict.fromkeys(("outcome", "actual"), "failed" if failed else "passed")
        own["upstream"] = "pytorch/xla#8854"
        own |= {"failure": drawn["result"][2], "layer": drawn["result"][1]} if failed else {}
        properties(case, [*(own.items() if report["ours"] else []), *drawn["properties"]])
        if failed:
            tag, message, text = drawn["result"]
            ET.SubElement(case, tag, message=message, type=message).text = text
        ET.SubElement(case, "system-out").text = drawn["output"]
    path = folder / f"{night}.xml"
    ET.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
    return path


def properties(parent: ET.Element, values: list[tuple[str, str]]) -> None:
    element = ET.SubElement(parent, "properties")
    for name, value in values:
        ET.SubElement(element, "property", name=name, value=value)


@pytest.fixture(scope="module")
def github() -> Iterator[GitHub]:
    with serve() as server:
        yield server


def run(*arguments: str) -> tuple[int, str]:
    text = io.StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        code = cli.main(arguments)
    output = text.getvalue()
    assert "Traceback" not in output, output
    assert code in (0, 1, 2, 3), output
    for line in output.split("\n"):
        assert line.isprintable(), line
        assert "##[" not in line, line
        assert not line.lstrip().startswith("::") or COMMAND.fullmatch(line), line
    return code, output


@pytest.mark.long
@settings(
    max_examples=30,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(report=REPORTS)
def test_nothing_in_a_report_acts(
    monkeypatch: pytest.MonkeyPatch,
    github: GitHub,
    report: dict[str, Any],
) -> None:
    github.issues.clear()
    monkeypatch.setenv("GITHUB_API_URL", github.address)
    monkeypatch.setenv("GITHUB_TOKEN", "token")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        history, site, summary = (str(folder / each) for each in ("history", "site", "summary.md"))
        codes = {
            run("record", str(written(folder, report, night)), "--history", history)[0]
            for night in (1, 2)
        }
        if codes == {2}:  # nothing of it could be used, and that was said
            return
        for code, _ in (
            run("verdict", "latest", "--history", history, "--annotations", "--markdown", summary),
            run("ci", "query", "SELECT * FROM cases", "--history", history),
            run("dashboard", "--history", history, "--out", site, "--nights", "9999"),
            run("ci", "issues", "sync", "--repo", github.repository, "--history", history),
        ):
            assert code in (0, 1, 3)
        check_markdown(Path(summary).read_text(encoding="utf-8"))
        for issue in github.issues:
            assert not ACTS.search(issue["title"])
            assert not re.search(r"[@\uff20]\w", issue["title"])  # no entity is one in a title
            check_markdown(issue["body"])
        for path in Path(site).rglob("*.html"):
            check_page(Page(path))
        for path in Path(site).rglob("*.xml"):
            ET.parse(path)


class Rendered(HTMLParser):
    """What GitHub makes of Markdown: its tags, links, and the text outside of code."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self._code = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attributes if name in ("href", "src")]
        self._code += tag in ("code", "pre")

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in ("code", "pre")

    def handle_data(self, data: str) -> None:
        self.text += "" if self._code else data


def check_markdown(text: str) -> None:
    text = re.sub(r"<!-- xla-harness regression \{[^<>]*\} -->\s*\Z", "", text)
    page = Rendered(cmarkgfm.github_flavored_markdown_to_html(text))
    assert page.tags <= TAGS, text
    assert not re.search(r"(?<!\w)[@\uff20]\w", page.text), text
    for link in page.links:
        assert link.startswith("https://github.com/pytorch/xla/issues/"), text
    assert not ACTS.search(text.replace("\n", "")), text


def check_page(page: Page) -> None:
    assert page.unbalanced == page.open == [], page.path
    for tag, attributes in page.elements:
        assert tag not in ("style", "iframe", "object", "embed", "base", "foreignobject", "img")
        assert tag != "script" or attributes.get("src", "").endswith(".js")
        assert not [name for name in attributes if name == "style" or name.startswith("on")]
    for tag, link in page.links():
        assert re.match(r"https://github\.com/|[^:]*$", link), (tag, link)
    assert not ACTS.search(re.sub(r"[\t\n]", "", page.text)), page.path
