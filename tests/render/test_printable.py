"""Text of unknown origin has no effect wherever it is shown."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import cmarkgfm
import pytest
from support.two_stacks import report, result

from harness.commands.output import as_json, show
from harness.model.outcome import Kind
from harness.printable import folded, printable
from harness.render import comparison_github, comparison_text
from harness.render.github_markup import code, link, plain, table
from harness.verdicts.compare import compare

ID = "suites/a/test_a.py::TestX::test_y[cpu-4-f32[2,3]-a::b-#1]"
# ActionCommand.cs of GitHub's runner: one form in a trimmed line, the other anywhere.
ACTS = re.compile(r"^\s*::|##\[")
HOSTILE = {
    "a command": "::stop-commands::x",
    "an indented command": " \t ::error::x",
    "a command after a break": "fine\n::error::x",
    "a command after another line's end": "fine\u2028::error::x\x85::error::y\r::error::z",
    "the older form": "fine ##[error]x",
    "the older form twice": "###[group]##[endgroup]",
    "an escape sequence": "\x1b[2J\x1b]0;title\x07",
    "a control character of eight bits": "\x9b2J\x90x\x9c",
    "a right-to-left override": "abc\u202edcba\u2066\u2069\u200f\u200e\u061c",
    "invisible letters": "a\u200bb\u00adc\u3164d\U000e0041e\ufefff\u034fg",
    "a lone surrogate": "a\udcffb",
    "a broken end": "a\r\nb\0",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_would_act_is_shown(kind: str) -> None:
    shown = printable(HOSTILE[kind])
    assert shown.isprintable()
    assert not re.search("[\u034f\u3164]", shown)
    assert not ACTS.search(shown)
    assert printable(shown) == shown
    shown.encode()


@pytest.mark.parametrize("same", [ID, "a # [b] #[c]", "größer → ✔️", "C:: and ::", "%0A \\ ` |"])
def test_what_does_not_act_stays_as_it_is(same: str) -> None:
    assert printable(same) == same


def test_a_command_in_any_line_of_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    show(f"first\n{HOSTILE['a command']}\n  {HOSTILE['an indented command']}")
    shown = capsys.readouterr().out
    assert shown == "first\n\\::stop-commands::x\n   \\t ::error::x\n"


def test_json_stays_json() -> None:
    data = as_json(["##[error]", "::error::", "\x9b"])
    assert not ACTS.search(data)
    assert data == r'["#\u0023[error]", "::error::", "\u009b"]'


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_comparison_in_a_job(kind: str) -> None:
    hostile = HOSTILE[kind]
    bad = result("x", outcome=Kind.FAILED, message=f"{'word ' * 14}{hostile}", layer=hostile)
    base = report(result("x", outcome=Kind.PASSED), stack=hostile, jax=hostile)
    comparison = compare([base], [report(bad, stack="new", jax="1")])
    lines = list(comparison_text.lines(comparison))
    assert all(line.isprintable() for line in lines)
    assert [line for line in lines if ACTS.search(line)] == []
    (annotation,) = comparison_github.annotation_lines(comparison, None)
    assert annotation.isprintable()
    assert annotation.startswith("::error ")
    assert "##[" not in annotation


class _Text(HTMLParser):
    """The texts of a page outside of code, and its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] != ["code"]:
            self.texts.append(data)


def rendered(source: str) -> _Text:
    """As GitHub's own renderer has it."""
    page = _Text()
    page.feed(cmarkgfm.github_flavored_markdown_to_html(source))
    return page


# What GitHub looks for in the text of a page, after it has rendered it.
MENTION = re.compile(r"[@\uff20\ufe6b][A-Za-z0-9]|#\d|\bGH-\d", re.IGNORECASE)
MARKUP = {
    "a mention": "see @owner/team",
    "its spellings": "&#64;owner &#x40;owner &commat;owner \uff20owner \ufe6bowner",
    "an address of mail": "owner@example.com mailto:a@example.com xmpp:a@example.com",
    "an address": "http://example.com https://example.com ftp://example.com www.example.com",
    "an issue": "#1 pytorch/xla#1 GH-1",
    "links": "[a](http://example.com) ![a](b) <http://example.com> [a]: http://example.com",
    "HTML": "<img src=x onerror=y> <!-- x --> &lt;b&gt; </details>",
    "emphasis": "*a* **b** _c_ __d__ ~~e~~ `f` ``g`",
    "pipes": "a | b \\| c \\\\| @d",
}


@pytest.mark.parametrize("kind", MARKUP)
def test_text_in_markdown_is_text(kind: str) -> None:
    page = rendered(f"begin {plain(MARKUP[kind])}")
    assert page.tags == ["p"]
    (shown,) = ["".join(page.texts)]
    assert not MENTION.search(shown)
    assert "".join(shown.split("\u200b")).strip() == f"begin {MARKUP[kind]}"


@pytest.mark.parametrize("kind", [*MARKUP, *HOSTILE])
def test_code_in_a_table_keeps_to_its_cell(kind: str) -> None:
    hostile = (MARKUP | HOSTILE)[kind]
    page = rendered("\n".join(table(("a", "b"), [(code(hostile), "end")])))
    assert page.tags[-4:] == ["tr", "td", "code", "td"]
    assert "".join(page.texts).split() == ["a", "b", "end"]


def test_an_issue_is_linked() -> None:
    page = rendered(link("pytorch/xla#8854"))
    assert page.tags == ["p", "a"]


def test_a_long_word_stays_whole() -> None:
    """So that a case's id can be copied, whatever is in it."""
    case = f"test_a.py::test_b[{'x' * 30}-y]"
    assert folded(f"{case} and more", 20, "1 ", "  ") == [f"1 {case}", "  and more"]
    assert folded("two-fold", 6) == ["two-fold"]
