"""A JUnit report as a stream of its test cases, whoever wrote it: hostile, broken or huge.

junitparser says what a test case means. It would read a whole report first, with its output, and
believe what it declares; here expat hands it one case at a time, without what cases printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement
from xml.parsers import expat

from junitparser.xunit2 import TestCase

from harness.errors import BadInputError

MOST_TEXT = 1 << 16  # characters kept of each failure's text
_CHUNK = 1 << 18  # bytes
_DEEPEST = 64  # elements inside each other; JUnit needs about six
_LARGEST_TAG = 1 << 24  # bytes of one tag or comment: expat holds it whole
_MOST_CASES = 1_000_000
_MOST_PROPERTIES = 1_000  # of one case
_MOST_KEPT = 1 << 29  # characters of names, properties and failures in a report
_RESULTS = frozenset(TestCase.ITER_TYPES) - {"system-out", "system-err"}


@dataclass(frozen=True)
class Reported:
    """One ``testcase``: as junitparser sees it without its output, and its flat properties."""

    case: TestCase
    properties: dict[str, str]


@dataclass
class Head:
    """What is said of the whole report, complete once its cases have been read."""

    properties: dict[str, str] = field(default_factory=dict)
    timestamps: list[str] = field(default_factory=list)  # as written, of all suites
    hostname: str = ""


class Stream:
    """Reads one report; ``cases`` can be gone through once, ``head`` is complete after that."""

    def __init__(self, path: Path) -> None:
        self.path, self.head = path, Head()
        self._depth, self._cases, self._kept, self._room = 0, 0, 0, 0
        self._case: Element | None = None
        self._inside = ""  # the result whose text is being read
        self._properties: dict[str, str] = {}
        self._text: list[str] = []
        self._ready: list[Reported] = []
        self._parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end

    def cases(self) -> Iterator[Reported]:
        """Each test case in the file's order, suites in suites included.

        Raises BadInputError, naming the file and the line, for what is no JUnit report, is cut
        off, declares entities or is out of all proportion.
        """
        fed = 0
        try:
            with self.path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    fed += len(chunk)
                    self._parser.Parse(chunk, False)
                    if fed - self._parser.CurrentByteIndex > _LARGEST_TAG:
                        raise self._refused(f"a tag or comment of more than {_LARGEST_TAG:,} bytes")
                    yield from self._ready
                    self._ready.clear()
            self._parser.Parse(b"", True)
        except (OSError, expat.ExpatError, ValueError, LookupError) as error:
            raise BadInputError(f"{self.path}: expected a JUnit report: {error}") from error
        yield from self._ready
        if not self._cases:
            raise BadInputError(f"{self.path}: expected a JUnit report with test cases, found none")

    def _doctype(self, *_: object) -> None:
        raise self._refused("a document type, which could declare entities")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and tag not in ("testsuites", "testsuite"):
            raise self._refused(f"<{tag[:50]}>, expected <testsuites> or <testsuite>")
        if self._depth > _DEEPEST:
            raise self._refused(f"elements {self._depth} deep")
        if tag == "property":
            self._property(attributes.get("name", ""), attributes.get("value", ""))
        elif self._case is not None:
            if tag in _RESULTS and not self._inside:
                SubElement(self._case, tag, attributes)
                self._keep(*attributes.values())
                self._inside, self._text, self._room = tag, [], MOST_TEXT
                self._parser.CharacterDataHandler = self._characters
        elif tag == "testcase":
            self._case, self._properties = Element(tag, attributes), {}
            self._keep(*attributes.values())
        elif tag in ("testsuites", "testsuite"):
            if stamp := attributes.get("timestamp"):
                self.head.timestamps.append(stamp)
            self.head.hostname = self.head.hostname or attributes.get("hostname", "")

    def _property(self, name: str, value: str) -> None:
        properties = self._properties if self._case is not None else self.head.properties
        properties[name] = value
        if len(properties) > _MOST_PROPERTIES:
            raise self._refused(f"more than {_MOST_PROPERTIES:,} properties of one element")
        self._kept += len(name) + len(value)
        if self._kept > _MOST_KEPT:
            self._keep()

    def _characters(self, text: str) -> None:
        if self._room:
            kept = text[: self._room]
            self._text.append(kept)
            self._room -= len(kept)
            self._keep(kept)

    def _end(self, tag: str) -> None:
        self._depth -= 1
        if self._case is None:
            return
        if tag == self._inside:
            self._case[-1].text = "".join(self._text)
            self._inside, self._parser.CharacterDataHandler = "", None
        elif tag == "testcase":
            case = TestCase.fromelem(self._case)  # type: ignore[no-untyped-call]
            self._ready.append(Reported(case, self._properties))
            self._case = None
            self._cases += 1
            if self._cases > _MOST_CASES:
                raise self._refused(f"more than {_MOST_CASES:,} test cases")

    def _keep(self, *texts: str) -> None:
        self._kept += sum(map(len, texts))
        if self._kept > _MOST_KEPT:
            raise self._refused(f"more than {_MOST_KEPT:,} characters of names and properties")

    def _refused(self, found: str) -> BadInputError:
        line = self._parser.CurrentLineNumber
        return BadInputError(f"{self.path}: expected a JUnit report: line {line}: found {found}")
