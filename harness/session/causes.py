"""Failures of one cause as one: same outcome, layer and signature, as docs/glossary.md has it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.diagnosis.signature import generalised, headline
from harness.model.outcome import Kind
from harness.session.record import Record

Key = tuple[str, ...]


@dataclass(frozen=True)
class Cause:
    """Cases that went wrong alike, in the order in which they ran; there is at least one."""

    records: tuple[Record, ...]

    @property
    def first(self) -> Record:
        """The case to look at; the others' messages differ in numbers, addresses and folders."""
        return self.records[0]

    @property
    def issues(self) -> str:
        """The upstream issues that its cases watch, separated by spaces."""
        return " ".join(sorted({i for record in self.records for i in record.upstream.split()}))

    def __len__(self) -> int:
        return len(self.records)


def causes(records: Iterable[Record]) -> list[Cause]:
    """The records by cause, the cause with the most cases first."""
    together: dict[Key, list[Record]] = {}
    for record in records:
        together.setdefault(key_of(record), []).append(record)
    return sorted((Cause(tuple(same)) for same in together.values()), key=len, reverse=True)


def key_of(record: Record) -> Key:
    """What records of one cause have in common.

    The text of a bare assertion is its expression, and unrelated tests have the same one: it tells
    failures of one test function only.
    """
    text = _text(record)
    bare = text.startswith(("assert ", "AssertionError: assert "))
    function = record.id.partition("[")[0] if bare else ""
    return record.outcome, record.layer, record.expectation, generalised(text), function


def message_of(record: Record) -> str:
    """What went wrong, in one line; of an unexpected pass, which entry can go."""
    return headline(_text(record))


def _text(record: Record) -> str:
    if record.kind == Kind.UNEXPECTED_PASS:
        return record.outcome_detail
    return record.failure or record.outcome_detail
