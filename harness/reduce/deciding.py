"""What decides a failure: XLA's passes without which there is none, and the one that brings it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness.reduce.compiled import Flags
from harness.reduce.trial import (
    SEEDS,
    Endings,
    ProgramEnding,
    endings,
    in_a_fork,
    wrong_dump,
)

DISABLE = "xla_disable_hlo_passes"
_OTHER_FLAGS: Sequence[Flags] = ({"xla_backend_optimization_level": 0},)
_PASSES = re.compile(r"\.(\d{4})\.[\w-]+\.after_([\w-]+)(?:\.before_([\w-]+))?\.txt$")
_DISABLED = re.compile(rf"--{DISABLE}=(\S+)")
# The ends of a pipeline, and what divides a program: without it, nothing is left to go wrong.
_START = "pipeline-start"
_NO_PASS = (_START, "pipeline-end", "shardy-xla", "spmd-partitioning")


@dataclass(frozen=True)
class Deciding:
    """What decides: flags that make the program right, each alone, and the pass that brings it.

    If no pass alone decides, it may be several that have to be left out together.
    """

    flags: Sequence[Flags]
    brought_by: str  # "" if it is not known


def deciding(text: str, ending: ProgramEnding, ask: Endings = endings) -> Deciding:
    """Return what decides how a program ends, by asking XLA without each of its passes in turn."""
    with tempfile.TemporaryDirectory(prefix="reduce-") as name:
        dump = {"xla_dump_to": name, "xla_dump_hlo_pass_re": ".*", "xla_dump_hlo_as_text": True}
        ask([text], [dump])
        paths = [path for path in Path(name).iterdir() if _PASSES.search(path.name)]
        paths.sort(key=lambda path: _place(path.name))
        names = dict.fromkeys(
            each for path in paths for each in _names(path.name) if each not in _NO_PASS
        )
        brought_by = ""
        if ending.kind == "wrong":
            _, answer = in_a_fork(partial(wrong_dump, text, ending.seed, [*map(str, paths)]))
            brought_by = _pass_of(answer, paths) if answer in map(str, paths) else ""
    seeds = [ending.seed] if ending.seed else SEEDS
    given = _DISABLED.findall(os.environ.get("XLA_FLAGS", ""))

    def without(passes: Sequence[str]) -> Flags:
        return {DISABLE: ",".join([*given, *passes])}

    def ends(flags: Sequence[Flags]) -> Iterator[ProgramEnding]:
        together = len(os.sched_getaffinity(0))
        for start in range(0, len(flags), together):
            some = flags[start : start + together]
            yield from ask([text] * len(some), some, seeds)

    def is_right(own: ProgramEnding) -> bool:
        return own.kind == "right" or (own.kind == "ran" and ending.kind != "wrong")

    def stays_right(flags: Flags) -> bool:
        """Return whether it is right twice: a flaky program may be by chance."""
        return all(map(is_right, ends([flags] * 2)))

    alone = [without([each]) for each in names]
    own = list(ends([*alone, *_OTHER_FLAGS]))
    pairs = zip([*alone, *_OTHER_FLAGS], own, strict=True)
    right = [flags for flags, each in pairs if is_right(each) and stays_right(flags)]
    if not right:
        # What XLA can't do without ends in another way; the others may decide together.
        same = zip(names, own, strict=False)
        together = [name for name, each in same if each.signature == ending.signature]
        if together and stays_right(without(together)):
            right = [without(_fewest(together, lambda passes: stays_right(without(passes))))]
    return Deciding(right, brought_by)


def _fewest(names: Sequence[str], is_enough: Callable[[Sequence[str]], bool]) -> Sequence[str]:
    """Leave out as many names as possible: halves of them, then fewer."""
    size = len(names)
    while size := size // 2:
        start = 0
        while start < len(names) > 1:
            fewer = [*names[:start], *names[start + size :]]
            if fewer and is_enough(fewer):
                names = fewer
            else:
                start += size
    return names


def _place(name: str) -> int:
    match = _PASSES.search(name)
    return int(match[1]) if match else 0


def _names(name: str) -> Sequence[str]:
    match = _PASSES.search(name)
    return [each for each in match.groups()[1:] if each] if match else []


def _pass_of(path: str, paths: Sequence[Path]) -> str:
    """Return the pass that made a dump: of a pipeline's first one, what was to run next before."""
    place = [str(each) for each in paths].index(path)
    name = (_names(Path(path).name) or [""])[0]
    if name != _START:
        return name
    return _names(paths[place - 1].name)[-1] if place else ""
