"""Set of a folder's entries, as they apply on one stack."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from harness.errors import BadInputError
from harness.expectations import entry_files
from harness.expectations.condition import Versions
from harness.expectations.entry import Expectation
from harness.model.case_id import file_of
from harness.model.chosen_plugin import plugin_versions
from harness.model.versions import stack_versions


class Expectations:
    """Set of entries, at most one of which may apply to a case on a stack."""

    def __init__(self, entries: Iterable[Expectation] = (), stack: Versions | None = None) -> None:
        """``stack`` is the one that runs unless another is given."""
        self.entries = tuple(entries)
        self.stack = {**stack_versions(), **plugin_versions()} if stack is None else stack
        # By test file: a collection has thousands of cases, and each file a few entries.
        self._by_file: dict[str, list[tuple[re.Pattern[str], Expectation]]] = defaultdict(list)
        for entry in self.entries:
            if entry.condition.holds(self.stack):
                for glob, pattern in zip(entry.cases, entry.patterns, strict=True):
                    self._by_file[_file_of(glob)].append((pattern, entry))

    @classmethod
    def load(
        cls,
        folder: Path,
        known: Sequence[Versions] = (),
        findings: Collection[str] | None = None,
    ) -> Expectations:
        """Read every ``*.toml`` in ``folder``; ``known`` are the stacks that there are.

        Without ``known`` any version may exist, without ``findings`` any finding. Raises
        BadInputError naming the file, the line and the key.
        """
        stacks = [*known, {**stack_versions(), **plugin_versions()}] if known else []
        return cls(entry_files.read_all(folder, stacks, findings))

    @classmethod
    def load_optional(
        cls,
        folder: Path | None,
        known: Sequence[Versions] = (),
        findings: Collection[str] | None = None,
    ) -> Expectations:
        """Read the folder as ``load`` does; without a folder nothing is expected to fail."""
        return cls() if folder is None else cls.load(folder, known, findings)

    def find(self, case_id: str) -> Expectation | None:
        """Return the case's entry on the stack; raise BadInputError if there are two."""
        file = file_of(case_id)
        candidates = (*self._by_file.get(file, ()), *self._by_file.get("", ()))
        matches = list({e.where: e for p, e in candidates if p.fullmatch(case_id)}.values())
        if len(matches) > 1:
            both = " and ".join(entry.where for entry in matches)
            raise BadInputError(f"{both} match {case_id}: expected one entry at most for a case")
        return matches[0] if matches else None

    def unmatched(self, ids: Iterable[str], root: Path) -> list[str]:
        """Globs that match no collected case though their file was collected, or is not in
        ``root``: the case is gone or misspelt. Entries for other stacks are held to it too.
        """
        by_file: dict[str, list[str]] = defaultdict(list)
        for id_ in ids:
            by_file[file_of(id_)].append(id_)
        everything = [id_ for members in by_file.values() for id_ in members]
        return [
            f"{entry.where}: {glob} matches no case"
            for entry in self.entries
            for glob, pattern in zip(entry.cases, entry.patterns, strict=True)
            if (file := file_of(glob)) in by_file or not _may_exist(root, file)
            if not any(map(pattern.fullmatch, by_file.get(_file_of(glob), everything)))
        ]


def _file_of(glob: str) -> str:
    """Return the one file whose cases the glob can match, or "" if there may be several."""
    file = file_of(glob)
    return "" if _is_open(file) else file


def _may_exist(root: Path, file: str) -> bool:
    return _is_open(file) or (root / file).is_file()


def _is_open(file: str) -> bool:
    return "*" in file or "?" in file
