"""``xla-harness conformance``: ask a PJRT plugin whether it does what frameworks rely on."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from harness.commands.output import answer as print_answer
from harness.commands.output import say
from harness.commands.parsers import add_json, names, output_file, whole_number
from harness.errors import BadInputError, nearest

if TYPE_CHECKING:
    from harness.conformance.answer import CheckAnswer
    from harness.conformance.asker import Asker
    from harness.conformance.distribution.suite_run import SuiteRun
    from harness.conformance.plugin_check import PluginCheck
    from harness.conformance.plugin_file import Option, PluginFile
    from harness.conformance.seen import FaultSeen

_LINE_SECONDS = 5.0
_INSTALL = "pip install 'xla-harness[conformance]'"
_PROCESSES = 2  # of a job
_LEAST_SEEN = 0.95  # of the faults that change a call


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("plugin", metavar="NAME=PATH", help="or NAME of an installed plugin of JAX")
    parser.add_argument(
        "--plugin-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the plugin's clients; may be repeated",
    )
    parser.add_argument("--levels", default="", metavar="NUMBERS", help="as 0 or 0,1; default: all")
    parser.add_argument(
        "--check", default="*", metavar="PATTERN", help="only these, as 'c_api/buffer/*'"
    )
    parser.add_argument(
        "--stack",
        type=names,
        default=[],
        metavar="NAMES",
        help="the stacks, by comma, whose JAX runs levels 2 and 3; default: the installed JAX",
    )
    parser.add_argument(
        "--deadline",
        type=whole_number(1, 3600),
        default=20,
        metavar="SECONDS",
        help="for each check; default: 20",
    )
    parser.add_argument(
        "--workers",
        type=whole_number(1, 256),
        default=os.cpu_count() or 1,
        metavar="N",
        help="checks at a time; default: as many as cores",
    )
    parser.add_argument(
        "--junit", type=output_file, metavar="FILE", help="a report for record and verdict"
    )
    parser.add_argument(
        "--badge", type=output_file, metavar="FILE", help="what shields.io shows in a README"
    )
    parser.add_argument(
        "--faults",
        type=whole_number(1, 10_000),
        metavar="N",
        help="plant N faults in front of the plugin; count which of them the checks see",
    )
    parser.add_argument(
        "--seed",
        type=whole_number(0, 10**9),
        default=1,
        metavar="N",
        help="of --faults; default: 1",
    )
    add_json(parser)
    parser.set_defaults(run=_run)
    parser.epilog = (
        "The exit code is 1 when a check fails. docs/your-plugin.md explains the levels."
    )


def _run(options: argparse.Namespace) -> int:
    from harness.conformance.choose import need_pypjrt, request_of

    need_pypjrt("conformance")
    from harness.conformance import answer_files, table
    from harness.conformance.answer import Conformance
    from harness.conformance.asker import Asker
    from harness.conformance.c_api.coverage import uncovered
    from harness.conformance.distribution.suite_run import AREAS, SuiteRun
    from harness.conformance.operators.uncovered_operators import OPERATORS, TYPES
    from harness.conformance.plugin_check import Conformity, all_checks
    from harness.conformance.plugin_file import JAXLIBS_CLIENT, parse_options
    from harness.files import write

    if options.plugin == JAXLIBS_CLIENT and options.plugin_option:
        raise BadInputError("plugin cpu: jaxlib's own client takes no --plugin-option")
    checks = _selected(all_checks(), options.levels, options.check)
    suites = _asks_suites(options.levels, options.check)
    if not checks and not suites:
        places = [*all_checks(), *(area.prefix for area in AREAS)]
        raise BadInputError(f"--check {options.check!r}: {nearest(options.check, places)}")
    plugin, about = _plugin(options.plugin, parse_options(options.plugin_option))
    uninitialized = not about["initialized"]
    asker = Asker(plugin, about["client"], uninitialized, float(options.deadline))
    own = options.plugin == JAXLIBS_CLIENT
    request = () if own else request_of(options.plugin, options.plugin_option)
    if options.faults:
        run = SuiteRun(asker, about, request, options.check, "", options.workers)
        return _seen(options, run, checks)
    runs = _runs(checks, options.stack)
    progress = _Progress(sum(len(chosen) for _, chosen in runs))
    answers: list[CheckAnswer] = []
    for stack, chosen in runs:
        order = {check.id: number for number, check in enumerate(chosen)}
        part: list[CheckAnswer] = []
        for each in _answers(asker, chosen, stack, options.workers):
            part.append(each)
            progress.add(str(each.result))
        answers += sorted(part, key=lambda each: order[each.check])
    for stack in (options.stack or [""]) if suites else []:
        run = SuiteRun(asker, about, request, options.check, stack, options.workers)
        for each in run.answers(progress.of_session):
            answers.append(each)
            progress.add(str(each.result), is_more=True)
    progress.end()
    lacking = {0: uncovered(), 1: (*OPERATORS, *TYPES)}
    result = Conformance(plugin.name, about, answers, lacking)
    files = {}
    if options.junit:
        files[options.junit] = answer_files.junit(result)
    if options.badge:
        files[options.badge] = json.dumps(answer_files.badge(result)) + "\n"
    write(files)
    print_answer(options, result.as_data(), "\n".join(table.lines(result)))
    return int(bool(result.counts()[Conformity.FAILS]))


def _answers(
    asker: Asker, checks: Sequence[PluginCheck], stack: str, workers: int
) -> Iterator[CheckAnswer]:
    """Yield the answers of one stack, at last of the checks that several processes share."""
    from harness.conformance.asker import Servers

    alone = [each for each in checks if each.level < 3]
    if alone:
        with Servers(workers, stack) as servers:
            yield from asker.all(alone, servers)
    jobs = [each for each in checks if each.level == 3]
    if jobs:
        with Servers(_PROCESSES, stack) as servers:
            for check in jobs:
                yield asker.together(check, servers)


def _plugin(text: str, options: Mapping[str, Option]) -> tuple[PluginFile, Mapping[str, Any]]:
    """Return the plugin, and what it says of itself; raises BadInputError as ``parse`` does."""
    from harness.conformance.plugin_file import JAXLIBS_CLIENT, NO_FILE, PluginFile, parse
    from harness.conformance.probe import probe

    if text == JAXLIBS_CLIENT:
        return PluginFile(text, NO_FILE), {"client": "", "initialized": True, "platform": text}
    plugin = parse(text, options)
    say(f"{plugin.name}: {plugin.path}")
    return plugin, probe(plugin)


def _seen(options: argparse.Namespace, run: SuiteRun, checks: list[PluginCheck]) -> int:
    """Measure how much the checks see; the exit code is 1 below ``_LEAST_SEEN``."""
    from harness.conformance.asker import Servers

    level = _level_of_faults(options, checks)
    progress = _Progress(options.faults)

    def note(each: FaultSeen) -> None:
        progress.add("seen" if each.check else "not seen" if each.is_planted else "without effect")

    measure, sample = _planter(level, options)
    if level == 3:
        results = measure(run, sample, say, note)
    else:
        relevant = {each.id: each for each in checks if each.level == level}
        with Servers(options.workers) as servers:
            results = measure(run.asker, relevant, sample, servers, note)
    progress.end()
    planted = [each for each in results if each.is_planted]
    seen = [each for each in planted if each.check]
    share = len(seen) / max(len(planted), 1)
    lines = [
        f"{len(results)} faults of seed {options.seed}: {len(planted)} changed a call or a result,",
        f"{len(seen)} of these were seen ({share:.0%}).",
        *(f"not seen: {each.fault}" for each in planted if not each.check),
    ]
    data = {"seed": options.seed, "share": share, "faults": [asdict(each) for each in results]}
    print_answer(options, data, "\n".join(lines))
    return int(share < _LEAST_SEEN)


def _level_of_faults(options: argparse.Namespace, checks: list[PluginCheck]) -> int:
    """Return the lowest level of the checks, whose faults are planted: 3 if there are none.

    Raises BadInputError for a stack, a level that the plugin lacks, or without what makes HLO.
    """
    from harness.conformance.plugin_file import JAXLIBS_CLIENT

    level = min((each.level for each in checks), default=3)
    if options.stack:
        raise BadInputError("--faults: expected no --stack: they are planted under the JAX here")
    if options.plugin == JAXLIBS_CLIENT and level < 2:
        raise BadInputError("plugin cpu: expected --levels 2 or 3 with --faults")
    if level and find_spec("jaxlib") is None:
        raise BadInputError(
            f"--faults: at level {level} it needs the package jaxlib, which makes HLO"
        )
    return level


def _planter(
    level: int, options: argparse.Namespace
) -> tuple[Callable[..., Sequence[FaultSeen]], Any]:
    """Return the function that measures a level, and which faults it plants."""
    if level == 0:
        from harness.conformance.c_api.planted import sample
        from harness.conformance.c_api.struct_sizes import RECIPES
        from harness.conformance.seen import measure

        return measure, sample(RECIPES, options.faults, options.seed)
    # The operators of sensitivity plant them; all else here works without that folder.
    modules = {1: "planted_programs", 2: "planted_jax_programs", 3: "planted_suites"}
    module = import_module(f"harness.sensitivity.{modules[level]}")
    return module.measure, (options.seed, options.faults)


def _runs(checks: list[PluginCheck], stacks: Sequence[str]) -> list[tuple[str, list[PluginCheck]]]:
    """Return the checks by the stack in whose environment they run, "" for this one."""
    if not stacks:
        return [("", checks)]
    here = [each for each in checks if each.level < 2]
    programs = [each for each in checks if each.level >= 2]
    return [("", here), *((stack, programs) for stack in stacks)]


def _selected(checks: Mapping[str, PluginCheck], levels: str, pattern: str) -> list[PluginCheck]:
    """Return the chosen checks; raises BadInputError for a level that does not exist."""
    from harness.conformance.plugin_check import LEVELS, has

    known = [str(level.number) for level in LEVELS]
    wanted = _numbers(levels)
    for level in LEVELS:
        if level.missing and (not wanted or str(level.number) in wanted):
            why = f"level {level.number} needs the package {level.missing}: {_INSTALL}"
            if wanted:
                raise BadInputError(f"--levels {levels}: {why}")
            say(f"left out: {why}")
    for number in wanted:
        if number not in known:
            raise BadInputError(f"--levels {number!r}: expected some of {','.join(known)}")
    return [
        each
        for each in checks.values()
        if (not wanted or str(each.level) in wanted) and has(pattern, each.id)
    ]


def _asks_suites(levels: str, pattern: str) -> bool:
    """Return whether level 3 is chosen, whose cases only a session of theirs knows."""
    from harness.conformance.distribution.suite_run import AREAS, FOLDER, may_match

    chosen = "3" in (_numbers(levels) or "3")
    areas = any(may_match(pattern, area.prefix) for area in AREAS)
    return chosen and (pattern == "*" or (pattern.startswith(FOLDER) and areas))


def _numbers(levels: str) -> list[str]:
    return [part.strip().removeprefix("L") for part in levels.split(",") if part.strip()]


class _Progress:
    """How many checks are done: one line, redrawn on a terminal and repeated in a log."""

    def __init__(self, total: int) -> None:
        self._total, self._counts = total, Counter[str]()
        self._of_session = 0, 0
        self._begun = self._drawn = time.monotonic()

    def add(self, result: str, *, is_more: bool = False) -> None:
        """Count an answer, which may be more than was expected."""
        self._counts[result] += 1
        self._total += is_more
        self._draw()

    def of_session(self, done: int, total: int) -> None:
        """Count cases that are under way, or have no answer yet."""
        self._of_session = done, total
        self._draw()

    def end(self) -> None:
        """Say what it came to, or leave a terminal as it was."""
        self._draw(is_last=True)

    def _draw(self, *, is_last: bool = False) -> None:
        live, now = sys.stderr.isatty(), time.monotonic()
        if not is_last and now - self._drawn < (0.1 if live else _LINE_SECONDS):
            return
        self._drawn, more = now, self._of_session
        done, total = self._counts.total() + more[0], self._total + more[1]
        parts = ", ".join(f"{count} {name}" for name, count in self._counts.items())
        line = f"[{done}/{total} {now - self._begun:.0f} s] {parts}"
        if not live:
            say(line)
            return
        sys.stderr.write(f"\r{'':<78}\r" if is_last else f"\r{line[:78]:<78}")
        sys.stderr.flush()
