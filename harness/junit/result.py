"""Result of one case in one run, whoever ran it and wherever it is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.diagnosis.cause import Cause, signature_of
from harness.junit.properties import LOST
from harness.model.case_id import key_of
from harness.model.outcome import Answer, Kind

MOST_MESSAGE = 2000  # characters
# Of a case that only pytest reports: it does not say how one failed that was expected to.
_ACTUAL = {Kind.EXPECTED_FAILURE: Kind.FAILED, Kind.UNEXPECTED_PASS: Kind.PASSED}


@dataclass(frozen=True)
class Result:
    """Result of one case in one run. If only the place is known, it was not measured."""

    id: str
    area: str = ""
    lane: str = ""  # "" for a test that names none, as its topology
    topology: str = ""
    outcome: Kind = Kind.SKIPPED
    expected: bool = False  # has an expectation
    duration: float = 0.0  # seconds
    message: str = ""  # what went wrong, expected or not; why it was skipped; a note of its outcome
    layer: str = ""  # where it went wrong, one of harness.diagnosis.layers; "" if it did not
    signature: str = ""  # the message without what differs from run to run; "" if it did not fail
    upstream: tuple[str, ...] = ()  # the issues that the case watches
    properties: Mapping[str, str] = field(default_factory=dict)  # all that have no field here
    rerun: int = 0  # how often it was run again in this run

    @property
    def place(self) -> tuple[str, str, str]:
        """Case, lane and topology, which no two results of a run have in common."""
        return self.id, self.lane, self.topology

    @property
    def key(self) -> str:
        """The case and where it ran, as a reader sees them."""
        return key_of(*self.place)

    @property
    def cause(self) -> Cause:
        """Cause of the failure; false for a case that did not fail."""
        return Cause(self.layer, self.signature)

    @property
    def failure(self) -> str:
        """The message of what went wrong, expected or not; "" for a case that did not fail."""
        return self.message if self.signature else ""

    @property
    def framework(self) -> str:
        """The framework that is asked, of a case that several are asked; else ""."""
        return self.properties.get("framework", "")

    @property
    def expectation(self) -> str:
        """The cause that its expectation names: an issue, or ``finding NAME``; "" without one."""
        return self.properties.get("expectation", "")

    @property
    def actual(self) -> Kind:
        """Outcome without regard to expectations; conflict if the report contradicts itself."""
        if self.outcome not in _ACTUAL:
            return self.outcome
        return Kind(self.properties.get("actual") or _ACTUAL[self.outcome])

    @property
    def expected_by(self) -> str:
        """Who expected a failure: ``expectation``, ``pytest`` by a marker of its own, or ""."""
        return self.properties.get("expected_by", "")

    @property
    def works(self) -> bool:
        """Return whether the case did what it asserts, expected or not."""
        return self.outcome.answer is Answer.WORKS

    @property
    def measured(self) -> bool:
        """Return whether the case ran to an answer."""
        return self.outcome.answer is not None

    @property
    def lost(self) -> bool:
        """Return whether the case was lost, with its cell or alone; ``message`` says how."""
        return LOST in self.properties


def settled(attempts: Sequence[Result]) -> Result:
    """Return the one answer of a case that a report has several times.

    Equal outcomes are reruns. Different ones are a conflict: nothing in a report shows which of
    them counts, and choosing one would hide the other.
    """
    if len(attempts) == 1:
        return attempts[0]
    counts = Counter(result.outcome for result in attempts)
    last = attempts[-1]
    if len(counts) == 1:
        reruns = sum(result.rerun for result in attempts) + len(attempts) - 1
        return replace(last, rerun=reruns)
    worst = next((result for result in attempts if result.outcome.is_bad), last)
    summary = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    head = f"conflicting results in one report: {summary}"
    return replace(
        worst,
        outcome=Kind.CONFLICT,
        duration=max(result.duration for result in attempts),
        message="\n".join(filter(None, (head, worst.message)))[:MOST_MESSAGE],
        signature=signature_of(worst.id, head),
    )
