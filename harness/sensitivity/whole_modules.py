"""Slips over all lines of modules, whether or not a case executes them.

A file lists the modules, so the share of slips that cases see does not depend on what they execute.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from harness.errors import BadInputError, nearest
from harness.files import read_toml
from harness.sensitivity.fault import Fault
from harness.sensitivity.python_faults import lines_by_place
from harness.sensitivity.python_source import folder_of, functions
from harness.sensitivity.sample import Sample, in_turn, spread
from harness.sensitivity.unused import is_unused, unread_lines

Place = tuple[str, int]  # a function and a line of it where a slip can be planted


@dataclass(frozen=True)
class Slip:
    """A fault that is in no case yet, and the lines of its statement."""

    fault: Fault
    module: str
    lines: range

    @property
    def place(self) -> Place:
        """Return the function and the line, which other slips may share."""
        return self.fault.program, self.lines[0]


def read_modules(path: Path, packages: Sequence[str]) -> dict[str, list[str]]:
    """Return the functions that a file lists, by module; of these packages, or of all in it.

    Raises BadInputError for an entry that matches nothing, with the nearest name.
    """
    data = read_toml(path)
    for package in packages:
        if package not in data:
            raise BadInputError(f"{path}: package {package!r}: {nearest(package, data)}")
    chosen: dict[str, list[str]] = {}
    for package in packages or data:
        entries = data[package]
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            raise BadInputError(f"{path}: {package}: expected a list of modules")
        known = list(_modules(package))
        if not known:
            raise BadInputError(
                f"{path}: package {package!r}: expected an installed package; "
                "--python NAMES chooses some of the file's"
            )
        for name in dict.fromkeys(
            name for entry in entries for name in _matches(path, entry, known)
        ):
            chosen.setdefault(name.partition(":")[0], []).append(name)
    return chosen


def _matches(path: Path, entry: str, known: Collection[str]) -> list[str]:
    """Return the functions that an entry means, of the ``known`` modules."""
    pattern, _, wanted = entry.partition(":")
    modules = [module for module in known if fnmatchcase(module, pattern)]
    if not modules:
        raise BadInputError(f"{path}: module {pattern!r}: {nearest(pattern, known)}")
    names = [name for module in modules for name in functions(module)]
    matches = [name for name in names if fnmatchcase(name.split(":")[1], wanted or "*")]
    if wanted and not matches:
        hint = nearest(wanted, {name.split(":")[1] for name in names})
        raise BadInputError(f"{path}: function {entry!r}: {hint}")
    return [name for name in matches if not is_unused(name)]


def sampled(
    modules: Mapping[str, Collection[str]], operators: Collection[str], sample: Sample
) -> list[Slip]:
    """Return a sample of all slips in functions of modules.

    Each module has as many turns as any other while it has slips left, and so has each line in it.
    A larger sample of the same seed begins with the slips of a smaller one.
    """
    chance = random.Random(sample.seed)  # noqa: S311 - no secret
    queues = []
    for of_module in every_slip(modules, operators):
        by_line: dict[Place, list[Slip]] = {}
        for slip in of_module:
            by_line.setdefault(slip.place, []).append(slip)
        for slips in by_line.values():
            chance.shuffle(slips)
        queues.append(in_turn(list(by_line.values()), chance))
    chance.shuffle(queues)
    return spread(queues, sample.most)


def every_slip(
    modules: Mapping[str, Collection[str]], operators: Collection[str]
) -> Iterator[Iterator[Slip]]:
    """Yield the slips in functions of each module."""
    for module in sorted(modules):
        yield _slips(module, sorted(modules[module]), operators)


def _slips(module: str, names: Collection[str], operators: Collection[str]) -> Iterator[Slip]:
    for name in names:
        by_operator, unread = lines_by_place(name), unread_lines(name)
        for operator in operators:
            for place, lines in enumerate(by_operator[operator]):
                if lines[0] in unread:
                    continue
                fault = Fault(0, "", name, operator, place, f"line {lines[0]}")
                yield Slip(fault, module, lines)


def _modules(package: str) -> Iterator[str]:
    """Yield the names of a package's modules. Imports nothing."""
    folder = folder_of(package)
    for path in sorted(Path(folder).rglob("*.py")) if folder else ():
        parts = path.relative_to(folder).with_suffix("").parts
        yield ".".join((package, *(parts[:-1] if parts[-1] == "__init__" else parts)))
