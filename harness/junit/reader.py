"""Reader of JUnit reports: the results that they contain, and the parts that can't be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element as XmlElement
from xml.etree.ElementTree import SubElement

from harness.errors import BadInputError
from harness.junit.case import is_of_harness, is_teardown, place_of, result_of
from harness.junit.properties import FORMAT, FORMAT_PROPERTY, LOST, STACK_PROPERTY, VERSIONS
from harness.junit.result import MOST_MESSAGE, Result
from harness.junit.stream import Head, Reported, Stream
from harness.printable import printable

_OF_REPORT = (FORMAT_PROPERTY, STACK_PROPERTY, "commit", *VERSIONS)


@dataclass(frozen=True)
class Element:
    """Test case element of a report."""

    result: Result
    reported: Reported
    ours: bool  # this harness ran the case
    second: bool  # pytest's second one for a case that failed: its teardown failed, too

    def xml(self) -> Any:
        """Return the case's XML with its properties first, as pytest writes it."""
        case, properties = self.reported.case, self.reported.properties
        if properties:
            parent = XmlElement("properties")
            for name, value in properties.items():
                SubElement(parent, "property", name=name, value=value)
            case._elem.insert(0, parent)
        return case


class Reader:
    """Reads one report, ours or any pytest's.

    ``elements`` can be gone through once; ``head`` and ``faults`` are complete after that. A fault
    names the file and what of it is left out.
    """

    def __init__(self, path: Path, *, output: bool = False) -> None:
        """Prepare to read the file; with ``output`` the elements have the cases' output, too."""
        self.path = path
        self.faults: list[str] = []
        self._stream = Stream(path, output=output)
        self._broken = set[tuple[str, str, str]]()

    @property
    def head(self) -> Head:
        """Data on the whole report."""
        return self._stream.head

    def elements(self, *, some: bool = True) -> Iterator[Element]:
        """Yield the test cases in the file's order; with ``some`` there must be at least one.

        A case with an invalid value is not measured, and says why; a case that can't be identified
        is left out.

        Raises BadInputError, naming the file, if it is no JUnit report or none of it can be read.
        """
        sound = 0
        for reported in self._stream.cases():
            ours = is_of_harness(reported, ours=self._is_ours())
            faults = len(self.faults)
            if element := self._element(reported, ours=ours):
                sound += len(self.faults) == faults
                yield element
        self._is_ours()
        self._refuse_contradictions()
        if self.head.cut:
            self.faults.append(f"{self.path}: cut off or damaged: {self.head.cut}")
        if self.faults and not sound:
            raise BadInputError(self.faults[0])
        if some and not sound:
            raise BadInputError(f"{self.path}: expected a JUnit report with test cases, found none")

    def _element(self, reported: Reported, *, ours: bool) -> Element | None:
        try:
            place = place_of(reported, ours=ours)
        except ValueError as error:
            self._fault(reported, error)
            return None
        try:
            result = result_of(place, reported, ours=ours)
        except ValueError as error:
            self._fault(reported, error)
            why, framework = f"can't be read: {error}", reported.properties.get("framework")
            properties = {LOST: "case", **({"framework": framework} if framework else {})}
            result = replace(place, message=why[:MOST_MESSAGE], properties=properties)
        second = is_teardown(reported) and result.place in self._broken
        if result.outcome.is_bad and not second:
            self._broken.add(result.place)
        return Element(result, reported, ours, second)

    def _fault(self, reported: Reported, error: ValueError) -> None:
        name = printable(str(reported.case.name or ""))[:200]
        self.faults.append(f"{self.path}: test case {name!r}: {error}")

    def _is_ours(self) -> bool:
        format_number = self.head.properties.get(FORMAT_PROPERTY)
        if format_number not in (None, FORMAT):
            raise BadInputError(
                f"{self.path}: expected the property {FORMAT_PROPERTY} to be {FORMAT}, the report "
                f"says {format_number[:50]!r}: another version of xla-harness wrote it; "
                "run the cases again"
            )
        return format_number is not None

    def _refuse_contradictions(self) -> None:
        for name in sorted(self.head.contradicted.intersection(_OF_REPORT)):
            raise BadInputError(
                f"{self.path}: property {name!r}: expected one value in a report, found several"
            )
        for text in self.head.contradictions[:1]:
            raise BadInputError(f"{self.path}: {text}: what failed is not known")
