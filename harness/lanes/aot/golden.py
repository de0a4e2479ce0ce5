"""Golden compilations: what each case's programs were compiled to, and on which stack.

One TOML file for each test module below the folder that ini ``xla_golden`` names, and for each
framework that its cases name; a table for each case, and in it one for each program that the case
compiles.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from harness.errors import BadInputError
from harness.files import read_toml, write
from harness.lanes.aot.compilation_record import (
    GPU_KERNELS,
    MEMORY,
    NUMBERS,
    ON_CHIP,
    SPILLS,
    TEXTS,
    Summary,
)
from harness.model.case_id import file_of
from harness.model.versions import ABSENT, leading, stack_versions
from harness.platforms import PLATFORMS

_STACK = "stack"
# Of torch_tpu's programs PyTorch makes a part; a torch_xla has the torch of its own version.
_COMPONENTS = {
    "torch_xla": ("torch_xla", "jax"),
    "torch_tpu": ("torch_tpu", "torch", "jax"),
    "jax": ("jax",),
}
# A compiler of another version may plan otherwise what these count: that alone is no regression.
_PLANNED = ("flops", *MEMORY, *ON_CHIP, *SPILLS)
_TOLERANCE = 0.1
_UNNAMED = "tpu-aot"  # the lane whose files don't have its name
_HEADER = (
    "What each case's programs were compiled to; written by pytest --update-golden.",
    "Bytes are those of one device in one step, memory that of one device.",
)


@dataclass(frozen=True)
class GoldenFile:
    """Golden compilations of one test module; empty if the file does not exist yet."""

    path: Path
    stack: Mapping[str, str] = field(default_factory=dict)
    cases: Mapping[str, Sequence[Summary]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> GoldenFile:
        """Read a file; raises BadInputError, with path and key, for what is not such a file."""
        data = read_toml(path)
        stack = data.pop(_STACK, None)
        if not isinstance(stack, dict):
            raise BadInputError(f"{path}: [{_STACK}]: expected the versions that it was made with")
        for component, version in stack.items():
            try:
                Version("0" if version == ABSENT else str(version))
            except InvalidVersion as error:
                raise BadInputError(f"{path}: [{_STACK}] {component}: {error}") from error
        for name, programs in data.items():
            if not isinstance(programs, list) or not all(map(_is_summary, programs)):
                raise BadInputError(
                    f"{path}: {name!r}: expected tables of {', '.join(TEXTS)} (lists of strings) "
                    f"and {', '.join(NUMBERS)} (integers)"
                )
        return cls(path, stack, data)

    def difference(self, case: str, programs: Sequence[Summary]) -> str:
        """Return how ``programs`` differ from the golden ones, as a diff naming both stacks; or "".

        A stack of JAX alone has golden compilations only if they were made with such a stack; it is
        compared with another one instead. A stack with an older component than the golden one's has
        none: that it did otherwise is no regression.
        """
        name, here = _test(case), _components()
        if leading(here) != leading(self.stack) and (self.stack or leading(here) == "jax"):
            return ""
        if _is_older(here, self.stack):
            return ""
        if name not in self.cases:
            return f"{self.path} has no golden compilation of {name}: run with --update-golden"
        tolerance = 0.0 if here == self.stack else _TOLERANCE
        golden = self.cases[name]
        old = [line for n, p in enumerate(golden) for line in _lines(n, p)]
        new = [
            line
            for n, p in enumerate(programs)
            for line in _lines(n, _settled(p, golden[n], tolerance) if n < len(golden) else p)
        ]
        if old == new:
            return ""
        diff = difflib.unified_diff(
            old, new, f"golden, {_named(self.stack)}", f"now, {_named(here)}", lineterm="", n=0
        )
        lines = [line for line in diff if not line.startswith("@@")]
        return "\n".join([f"compiled to something else than in {self.path}:", *lines])

    def updated(self, cases: Mapping[str, Sequence[Summary]]) -> str:
        """Return the file's new text, with the programs of those ``cases`` as this stack compiles
        them.
        """
        import tomlkit  # not in every stack's environment, which only compares

        merged = {**self.cases, **{_test(case): programs for case, programs in cases.items()}}
        document = tomlkit.document()
        for line in _HEADER:
            document.add(tomlkit.comment(line))
        document.add(_STACK, tomlkit.item(_components()))
        for name in sorted(merged):
            tables = tomlkit.aot()
            for program in merged[name]:
                tables.append(_table(program))
            document.add(name, tables)
        return tomlkit.dumps(document)


class Golden:
    """A folder of golden compilations."""

    def __init__(self, folder: Path) -> None:
        """Read all of it; raises BadInputError, with path and key, for a file that can't be."""
        self._folder = folder
        self._files = {path: GoldenFile.read(path) for path in sorted(folder.rglob("*.toml"))}

    def file_of(self, area: str, case: str, framework: str, lane: str) -> GoldenFile:
        """Return the file that has, or will have, the case of that id, which runs on ``framework``.

        Frameworks are of different stacks, and lanes too, so each has its own files.
        """
        parts = Path(file_of(case)).stem, framework, lane.replace(_UNNAMED, "")
        path = self._folder / area / f"{'-'.join(filter(None, parts))}.toml"
        return self._files.get(path) or GoldenFile(path)

    def update(self, compiled: Mapping[tuple[str, str, str, str], Sequence[Summary]]) -> None:
        """Rewrite the files of the cases, given by area, id, framework and lane."""
        new: dict[Path, dict[str, Sequence[Summary]]] = {}
        for (area, case, *target), programs in compiled.items():
            new.setdefault(self.file_of(area, case, *target).path, {})[case] = programs
        for path in new:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise BadInputError(f"{path}: can't be written: {error.strerror}") from error
        write(
            {
                path: (self._files.get(path) or GoldenFile(path)).updated(cases)
                for path, cases in new.items()
            }
        )


def _is_summary(program: Any) -> bool:
    known = {*TEXTS, *NUMBERS}
    return (
        isinstance(program, dict)
        and known.issuperset(program)
        and all(isinstance(program.get(name, []), list) for name in TEXTS)
        and all(isinstance(program.get(name, 0), int) for name in NUMBERS)
    )


def _components() -> dict[str, str]:
    versions = stack_versions()
    vendors = [package for platform in PLATFORMS.own() for package in platform.packages]
    present = [package for package in vendors if versions[package] != ABSENT]
    names = (*_COMPONENTS[leading(versions) or "torch_xla"], *present)
    return {name: versions[name] for name in names}


def _is_older(here: Mapping[str, str], golden: Mapping[str, str]) -> bool:
    """Return whether any component here is older than the golden stack's."""
    both = ((here.get(name, ABSENT), version) for name, version in golden.items())
    return any(Version(now) < Version(then) for now, then in both if ABSENT not in (now, then))


def _test(case: str) -> str:
    return case.partition("::")[2]


def _named(stack: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in stack.items())


def _settled(program: Summary, golden: Summary, tolerance: float) -> Summary:
    """``program`` with the golden numbers where it is as close as it must be, or says none."""
    close = {
        name: golden.get(name, 0)
        for name in _PLANNED
        if name not in program
        or abs(program[name] - golden.get(name, 0)) <= tolerance * golden.get(name, 0)
    }
    if tolerance:  # another GPU compiler divides a program into other kernels
        close["operations"] = golden.get("operations", [])
        close |= {name: golden.get(name, 0) for name in GPU_KERNELS}
    return {**program, **close}


def _lines(number: int, program: Summary) -> Iterator[str]:
    where = f"program {number + 1}: "
    for name in TEXTS:
        yield from (f"{where}{name} {text}" for text in program.get(name, ()))
    for name in NUMBERS:
        yield f"{where}{name} {program.get(name, 0)}"


def _table(program: Summary) -> Any:
    import tomlkit

    table = tomlkit.table()
    for name in TEXTS:
        if texts := program.get(name):
            table.add(name, tomlkit.item(list(texts)).multiline(len(texts) > 1))
    for name in NUMBERS:
        if number := program.get(name):
            table.add(name, number)
    return table
