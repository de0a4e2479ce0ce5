"""Read facts about compiled kernels that libtpu dumps and the program itself does not contain.

libtpu reads ``LIBTPU_INIT_ARGS`` once, when it is initialised. Two passes of its low-level compiler
are written then, as text, for each module: what each kernel allocates, and how many instructions of
each kind it was scheduled to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.lanes.events import CASE_FOLDER

_VARIABLE = "LIBTPU_INIT_ARGS"
_TO = "--xla_jf_dump_to"
_ALLOCATIONS, _INSTRUCTIONS = "original", "hlo-static-bundle-profile"
# Not those at a fixed offset, which are libtpu's own.
_IN_SMEM = re.compile(
    r"^ *#allocation\d+ \[.*, space=smem, size = (?P<size>0x[0-9a-f]+), (?!offset)", re.MULTILINE
)
_FILE = re.compile(r"\d+-(?:(?P<instruction>.+)-)?\d+-(?P<label>[a-z-]+)\.txt")
_PROFILE = re.compile(r"^HLO: (?:%(?P<name>\S+) = )?.*$", re.MULTILINE)
_COUNT = re.compile(r"^ - (?P<space>[SV])MEM_SPILL_COUNT: \((?P<count>\d+)/", re.MULTILINE)


@dataclass(frozen=True)
class OnChip:
    """Use of a TensorCore by kernels: bytes of SMEM of the largest one, and the spills of all.

    A spill is an instruction of the program that stores a vector or scalar register in memory.
    """

    smem: int
    vector_spills: int
    scalar_spills: int


@contextmanager
def dumping() -> Iterator[None]:
    """Within it libtpu is initialised such that :func:`read` finds what it says of kernels.

    Nothing is asked for outside a case, nor where the user has it write elsewhere.
    """
    given = os.environ.get(_VARIABLE)
    folder = _folder()
    if folder is None or _TO in (given or ""):
        yield
        return
    folder.mkdir(exist_ok=True)
    passes = f"^({_ALLOCATIONS}|{_INSTRUCTIONS})$"
    # Without the categories libtpu 0.0.32 dies of a template that it has not got.
    os.environ[_VARIABLE] = (
        f"{given or ''} {_TO}={folder} --xla_jf_dump_llo_text=true "
        f"--xla_jf_dump_category_filter=original,misc --xla_jf_dump_llo_pass_label_regex={passes}"
    ).strip()
    try:
        yield
    finally:
        if given is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = given


def read(kernels: Collection[str]) -> OnChip | None:
    """Return what ``kernels`` of the program compiled last use, and delete libtpu's files.

    Return None if libtpu wrote nothing, as a version without those flags does.
    """
    folder = _folder()
    files = sorted(folder.iterdir()) if folder is not None and folder.exists() else []
    try:
        # Of each the last: a program for several slices is compiled once for each, all equal, and
        # one that was refused may have left some.
        last = {match.groups(): f for f in files if (match := _FILE.fullmatch(f.name))}
        profiles = [f for (_, label), f in last.items() if label == _INSTRUCTIONS]
        if not profiles:
            return None
        spills = _spills(profiles[-1].read_text())
        allocations = (last.get((name, _ALLOCATIONS)) for name in kernels)
        of_kernels = [spills.get(name, {}) for name in kernels]
        return OnChip(
            smem=max((_smem(f.read_text()) for f in allocations if f), default=0),
            vector_spills=sum(spills.get("V", 0) for spills in of_kernels),
            scalar_spills=sum(spills.get("S", 0) for spills in of_kernels),
        )
    finally:
        for file in files:
            file.unlink()


@cache
def _folder() -> Path | None:
    own = os.environ.get(CASE_FOLDER)
    return Path(own, f"llo-{os.getpid()}") if own else None


def _smem(text: str) -> int:
    return sum(int(match["size"], 16) for match in _IN_SMEM.finditer(text))


def _spills(profile: str) -> Mapping[str, Mapping[str, int]]:
    """Return each HLO instruction's spills by kind of register; each has one part of the text."""
    starts = [*_PROFILE.finditer(profile)]
    ends = [*(start.start() for start in starts[1:]), len(profile)]
    return {
        start["name"]: {
            match["space"]: int(match["count"])
            for match in _COUNT.finditer(profile, start.end(), end)
        }
        for start, end in zip(starts, ends, strict=True)
        if start["name"]
    }
