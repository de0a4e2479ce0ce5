"""A JUnit report as a stream of its test cases, whoever wrote it: hostile, broken or huge.

junitparser says what a test case means. It would read a whole report first, with its output, and
believe what it declares; here expat hands it one case at a time, and every text has a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement
from xml.parsers import expat

from junitparser.xunit2 import TestCase

from harness.errors import BadInputError
from harness.junit.seal import Seal

MOST_TEXT = 1 << 16  # characters kept of each failure's text
MOST_OUTPUT = 1 << 20  # and of either stream of what it printed, where that is kept at all
_CHUNK = 1 << 18  # bytes
_LARGEST = 1 << 32  # bytes of a report
_DEEPEST = 64  # elements inside each other; JUnit needs about six
_LARGEST_TAG = 1 << 24  # bytes of one tag or comment: expat holds it whole
_MOST_CASES = 1_000_000
_MOST_PROPERTIES = 1_000  # of one case
_MOST_KEPT = 1 << 29  # characters of names, properties and failures in a report
_OUTPUT = frozenset({"system-out", "system-err"})
_BROKEN = frozenset({"failure", "error"})
_RESULTS = frozenset(TestCase.ITER_TYPES) - _OUTPUT


@dataclass(frozen=True)
class Reported:
    """``testcase`` element from junitparser, with the last of its flat properties of each name."""

    case: TestCase
    properties: dict[str, str]
    twice: frozenset[str] = frozenset()  # names that more than one of its properties has


@dataclass
class Head:
    """Data on the whole report, complete once its cases have been read."""

    properties: dict[str, str] = field(default_factory=dict)
    contradicted: set[str] = field(default_factory=set)  # names of properties with two values
    attributes: dict[str, str] = field(default_factory=dict)  # of the first suite
    timestamps: list[str] = field(default_factory=list)  # as written, of all suites
    hostname: str = ""
    contradictions: list[str] = field(default_factory=list)  # of suites and their cases
    cut: str = ""  # why what follows the last case can't be read; "" when all of it was


@dataclass
class _Suite:
    """A suite that is being read: the failures and errors that it counts, and those in it."""

    name: str
    counted: int
    broken: int = 0  # elements of its cases, and of suites in it
    own: int = 0  # that are of no case

    @property
    def contradiction(self) -> str:
        """Return what its count says that none of its cases does, or ""."""
        if self.own and not self.broken:
            return f"suite {self.name!r}: a failure that is of no case"
        if self.counted and not self.broken:
            return f"suite {self.name!r}: {self.counted} failures and errors, but no case has one"
        return ""


class Stream:
    """Reads one report; ``cases`` can be gone through once, ``head`` is complete after that."""

    def __init__(self, path: Path, *, output: bool = False) -> None:
        """Prepare to read the file; with ``output`` the cases have their output, too."""
        self.path, self.head = path, Head()
        self._texts = _RESULTS | _OUTPUT if output else _RESULTS
        self._depth, self._cases, self._kept, self._room, self._fed = 0, 0, 0, 0, 0
        self._seal: Seal | None = None
        self._case: Element | None = None
        self._suites: list[_Suite] = []
        self._inside = ""  # the result whose text is being read
        self._properties: dict[str, str] = {}
        self._twice: set[str] = set()
        self._text: list[str] = []
        self._ready: list[Reported] = []
        self._parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end

    def cases(self) -> Iterator[Reported]:
        """Yield the test cases in the file's order, including those of nested suites.

        Where the file is cut off or damaged behind a case, ``head.cut`` says so and the cases
        before it count. Raises BadInputError, naming the file and the line, for what is no JUnit
        report, declares entities or is out of all proportion.
        """
        try:
            for chunk in self._chunks():
                self._parser.Parse(chunk, False)
                if self._fed - self._parser.CurrentByteIndex > _LARGEST_TAG:
                    raise self._refused(f"a tag or comment of more than {_LARGEST_TAG:,} bytes")
                yield from self._taken()
            self._parser.Parse(b"", True)
            if self._seal is not None and self._seal.is_broken:
                raise BadInputError(
                    f"{self.path}: expected what its last line is a checksum of: "
                    "the report is damaged, or was changed after it was written"
                )
        except (OSError, expat.ExpatError, ValueError, LookupError) as error:
            if not self._cases:
                raise BadInputError(f"{self.path}: expected a JUnit report: {error}") from error
            self.head.cut = f"{error}: what follows test case {self._cases} is lost"
        yield from self._taken()

    def _chunks(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            if self.path.stat().st_size > _LARGEST:
                raise self._too_large()
            self._seal = Seal(file)
            while chunk := file.read(_CHUNK):
                self._seal.update(chunk)
                self._fed += len(chunk)
                if self._fed > _LARGEST:  # a pipe has no size
                    raise self._too_large()
                yield chunk

    def _taken(self) -> Iterator[Reported]:
        ready, self._ready = self._ready, []
        yield from ready

    def _too_large(self) -> BadInputError:
        return self._refused(f"more than {_LARGEST:,} bytes")

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
            if tag in self._texts and not self._inside:
                SubElement(self._case, tag, attributes)
                self._keep(*attributes.values())
                self._inside, self._text = tag, []
                self._room = MOST_OUTPUT if tag in _OUTPUT else MOST_TEXT
                self._parser.CharacterDataHandler = self._characters
        elif tag == "testcase":
            self._case, self._properties, self._twice = Element(tag, attributes), {}, set()
            self._keep(*attributes.values())
        elif tag in _BROKEN and self._suites:
            self._suites[-1].own += 1
        elif tag in ("testsuites", "testsuite"):
            self._open(tag, attributes)

    def _open(self, tag: str, attributes: dict[str, str]) -> None:
        counts = (attributes.get(name, "") for name in ("failures", "errors"))
        number = sum(int(text[:9]) for text in counts if text.isascii() and text.isdigit())
        self._suites.append(_Suite(attributes.get("name", "")[:200], number))
        if stamp := attributes.get("timestamp"):
            self.head.timestamps.append(stamp)
        if tag == "testsuite":
            self.head.attributes = self.head.attributes or attributes
        self.head.hostname = self.head.hostname or attributes.get("hostname", "")

    def _property(self, name: str, value: str) -> None:
        if self._case is not None:
            properties = self._properties
            if name in properties:
                self._twice.add(name)
        else:
            properties = self.head.properties
            if properties.get(name, value) != value:
                self.head.contradicted.add(name)
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
            if tag in ("testsuites", "testsuite"):
                self._close(self._suites.pop())
            return
        if tag == self._inside:
            self._case[-1].text = "".join(self._text)
            self._inside, self._parser.CharacterDataHandler = "", None
        elif tag == "testcase":
            case = TestCase.fromelem(self._case)  # type: ignore[no-untyped-call]
            self._ready.append(Reported(case, self._properties, frozenset(self._twice)))
            if self._suites:
                self._suites[-1].broken += sum(entry.tag in _BROKEN for entry in self._case)
            self._case = None
            self._cases += 1
            if self._cases > _MOST_CASES:
                raise self._refused(f"more than {_MOST_CASES:,} test cases")

    def _close(self, suite: _Suite) -> None:
        if text := suite.contradiction:
            self.head.contradictions.append(text)
        if self._suites:
            self._suites[-1].broken += suite.broken

    def _keep(self, *texts: str) -> None:
        self._kept += sum(map(len, texts))
        if self._kept > _MOST_KEPT:
            raise self._refused(f"more than {_MOST_KEPT:,} characters of names and properties")

    def _refused(self, content: str) -> BadInputError:
        line = self._parser.CurrentLineNumber
        return BadInputError(f"{self.path}: expected a JUnit report: line {line}: found {content}")
