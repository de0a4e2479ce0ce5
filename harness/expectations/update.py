"""Rewriting expectation files from reports: what passes goes, what fails comes with its cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.expectations import entry_files, rewrite
from harness.expectations.condition import Versions
from harness.expectations.decide import GONE, Decisions, Missing, Ranges
from harness.expectations.entry import Expectation
from harness.expectations.entry_set import Expectations
from harness.expectations.failure_pattern import first_line
from harness.expectations.globs import cover
from harness.files import read_text
from harness.model.case_id import file_of

Collect = Callable[[Sequence[str]], Collection[str]]  # test files to the ids of their cases


@dataclass(frozen=True)
class DeclaredCause:
    """Cause to declare for the failures in the new entries."""

    key: str  # issue or finding
    value: str
    reason: str  # "": the failure's own words


@dataclass(frozen=True)
class Narrowed:
    """Changes to an entry: the cases that it loses, and the ranges where others still need it."""

    entry: Expectation
    gone: tuple[str, ...]  # by no stack needed any more
    narrowed: Mapping[Ranges, tuple[str, ...]]  # by the ranges that they get
    parts: tuple[rewrite.Part, ...]  # what it becomes


@dataclass(frozen=True)
class Added:
    """A new entry."""

    path: Path
    new: rewrite.New


@dataclass(frozen=True)
class UpdatePlan:
    """Plan of an update: all changes, and the files' new texts."""

    narrowed: tuple[Narrowed, ...]
    added: tuple[Added, ...]
    texts: Mapping[Path, str]


def plan(
    folder: Path,
    entries: Sequence[Expectation],
    decisions: Decisions,
    cause: DeclaredCause | None,
    collect: Collect,
) -> UpdatePlan:
    """Plan the changes that follow from ``decisions``; add nothing without a ``cause``.

    ``collect`` returns all cases of the files concerned, since a glob may match cases that no
    report has. Raises BadInputError if they can't be collected, or a file can't be rewritten.
    """
    changed = [entry for entry in entries if decisions.passing.get(entry.where)]
    missing = decisions.missing if cause else {}
    concerned = [id_ for e in changed for id_ in decisions.passing[e.where]]
    concerned += [id_ for ids in missing.values() for id_ in ids]
    paths = sorted({*map(file_of, concerned)})
    ids = sorted({*decisions.evidence.areas, *(collect(paths) if paths else ())})
    narrowed = tuple(_narrowed(entry, decisions.passing[entry.where], ids) for entry in changed)
    added = tuple(_added(folder, new, decisions, ids, cause) for new in missing if cause)
    return UpdatePlan(narrowed, added, _texts(narrowed, added))


def check(plan_: UpdatePlan, folder: Path, ids: Iterable[str], stacks: Sequence[Versions]) -> None:
    """Raise BadInputError if the new texts could not be used: better no change than a bad one."""
    texts = {path: read_text(path) for path in folder.glob("*.toml")}
    everything = [
        entry
        for path, text in sorted({**texts, **plan_.texts}.items())
        for entry in entry_files.parse(path, text, ())
    ]
    for stack in stacks:
        on = Expectations(everything, stack)
        for id_ in ids:
            on.find(id_)


def _narrowed(
    entry: Expectation, passing: Mapping[str, Ranges | None], ids: Sequence[str]
) -> Narrowed:
    by_ranges: dict[Ranges, list[str]] = defaultdict(list)
    matched = [id_ for id_ in ids if entry.matches(id_)]
    for id_ in matched:
        ranges = passing.get(id_, entry.condition.ranges)
        if ranges is not GONE:
            by_ranges[ranges].append(id_)
    # What keeps its ranges stays first, so that the least text changes.
    order = sorted(by_ranges, key=lambda ranges: ranges != entry.condition.ranges)
    return Narrowed(
        entry,
        gone=tuple(id_ for id_ in matched if passing.get(id_, ()) is GONE),
        narrowed={
            ranges: tuple(members)
            for ranges, members in by_ranges.items()
            if ranges != entry.condition.ranges
        },
        parts=tuple(_part(entry, ranges, by_ranges[ranges], ids) for ranges in order),
    )


def _part(
    entry: Expectation, ranges: Ranges, members: Sequence[str], ids: Sequence[str]
) -> rewrite.Part:
    """Return the entry for ``members`` only: globs that match other cases, too, are replaced."""
    chosen, seen, cases = set(members), set[str](), list[tuple[str, ...]]()
    for glob, pattern in zip(entry.cases, entry.patterns, strict=True):
        matched = [id_ for id_ in ids if pattern.fullmatch(id_)]
        wanted = [id_ for id_ in matched if id_ in chosen]
        if len(wanted) == len(matched):
            # A glob that matches nothing goes with what keeps its ranges.
            cases.append((glob,) if matched or ranges == entry.condition.ranges else ())
        else:
            left = [id_ for id_ in wanted if id_ not in seen]
            cases.append(tuple(cover(left, [id_ for id_ in ids if id_ not in chosen])))
        seen.update(wanted)
    return rewrite.Part(tuple(cases), dict(ranges))


def _added(
    folder: Path, missing: Missing, decisions: Decisions, ids: Sequence[str], cause: DeclaredCause
) -> Added:
    wanted = decisions.missing[missing]
    new = rewrite.New(
        cases=cover(wanted, ids),
        stack=dict(missing.ranges),
        cause=(cause.key, cause.value),
        reason=cause.reason or first_line(decisions.messages[missing]),
        outcome=missing.outcome,
        signature=missing.signature,
    )
    area = decisions.evidence.areas[wanted[0]].removesuffix(".py")
    return Added(folder / f"{area}.toml", new)


def _texts(narrowed: Sequence[Narrowed], added: Sequence[Added]) -> dict[Path, str]:
    paths = {change.entry.path for change in narrowed} | {change.path for change in added}
    return {
        path: rewrite.changed(
            path,
            _text_of(path),
            {n.entry.number: n.parts for n in narrowed if n.entry.path == path},
            [change.new for change in added if change.path == path],
        )
        for path in sorted(paths)
    }


def _text_of(path: Path) -> str:
    if not path.exists():
        return ""
    with path.open(encoding="utf-8", newline="") as file:
        return file.read()
