"""What an entry may name as its cause, and where messages say that it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.project import Project

from harness.errors import BadInputError
from harness.expectations.causes import cause_of, read_findings
from harness.expectations.entry_files import parse

ENTRY = """\
[[expectation]]
cases = ["test_inner.py::test_x[*]"]
finding = "no-such-finding"
reason = "a text of several lines, \\nwith a table [[expectation]]"
signature = "known"
"""
PAGE = "# Findings\n\n## nothing-is-found\n\n## such-a-finding \n\ntext\n\n## Two words\n"


def test_the_sections_of_a_page_are_its_findings(tmp_path: Path) -> None:
    page = tmp_path / "findings.md"
    page.write_text(PAGE)
    assert read_findings(page) == frozenset({"nothing-is-found", "such-a-finding"})
    assert read_findings(None) is None
    page.write_text("# Findings\n")
    with pytest.raises(BadInputError, match=r"findings\.md: expected findings"):
        read_findings(page)


def test_an_unknown_finding_is_refused_with_the_nearest() -> None:
    assert cause_of("a.toml:1", None, "such-a-finding", {"such-a-finding"})
    assert cause_of("a.toml:1", None, "any-other", None) == "finding any-other"
    with pytest.raises(BadInputError) as error:
        cause_of("a.toml:7", None, "no-such-finding", {"such-a-finding", "else"})
    message = "a.toml:7: key 'finding': 'no-such-finding': did you mean such-a-finding? expected"
    assert str(error.value).startswith(message)


def test_an_entry_is_named_by_its_line() -> None:
    text = f"# a comment\n\n{ENTRY}\n# another\n  [[ expectation ]]\n{ENTRY.partition(chr(10))[2]}"
    first, second = parse(Path("a.toml"), text, ())
    assert (first.where, second.where) == ("a.toml:3", "a.toml:10")
    inline = 'expectation = [{ cases = ["x"], issue = "a/b#1", reason = "r", signature = "s" }]'
    assert parse(Path("a.toml"), inline, ())[0].where == "a.toml#1"
    hidden = ENTRY.replace('= "a text', '= """\n[[expectation]]\na text', 1)
    hidden = hidden.replace('[[expectation]]"\n', '[[expectation]]"""\n')
    assert parse(Path("a.toml"), hidden, ())[0].where == "a.toml#1"  # better none than a wrong one


def test_the_plugin_knows_the_findings_of_its_setting(project: Project) -> None:
    project.write("test_inner.py", '@pytest.mark.lanes("cpu")\ndef test_x(): assert 0, "known"')
    project.write("expected/area.toml", ENTRY)
    project.write("findings.md", PAGE)
    arguments = ("--expectations=expected", "-o", "xla_findings=findings.md")
    ran = project.run(*arguments)
    assert ran.code == 2
    assert ran.shows("expected/area.toml:1: key 'finding': 'no-such-finding': did you mean")
    project.write("findings.md", PAGE + "## no-such-finding\n")
    assert project.run(*arguments).outcomes == {"test_x": "expected failure"}
