"""The command line and ini settings, read once and checked."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness import frameworks
from harness.errors import BadInputError
from harness.frameworks import FRAMEWORKS
from harness.isolation.isolator import Limits
from harness.isolation.preload import Preload
from harness.job import job
from harness.lanes import LANES, Lane, check_named_platforms, lane_can, lane_named, platform_of
from harness.model.topology import Target, Topology, unit
from harness.session.selection import QUICK_LANE, Durations, Shard, read_cases, read_durations
from harness.session.xdist_workers import workers

if TYPE_CHECKING:
    from harness.lanes.aot.golden import Golden

_MIB, _KIB = 1 << 20, 1 << 10


def add_options(parser: pytest.Parser) -> None:
    """Add the options for where cases run, how each is isolated, and what is expected of them."""
    where = parser.getgroup("xla-harness: where cases run")
    where.addoption(
        "--lane",
        metavar="NAMES",
        help=f"lanes to run on, of {', '.join(LANES)} (default: the first that a case names)",
    )
    where.addoption(
        "--topology",
        metavar="SIZES",
        default="all",
        help="topologies to run on, as 4 or 1,8 or 2x4, 2xv6e:2x2 (default: all a case names)",
    )
    where.addoption(
        "--processes",
        metavar="EACH",
        help="run jobs with a process for each chip, host or slice, of GPUs device or node",
    )
    where.addoption(
        "--plugin",
        metavar="NAME=PATH",
        help="the PJRT plugin that lane pjrt asks; NAME alone is one that is installed for JAX",
    )
    where.addoption(
        "--plugin-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="an option of the plugin's clients; may be repeated",
    )
    where.addoption(
        "--plugin-version",
        metavar="VERSION",
        default="",
        help="the plugin's version, for expectations (default: its package's)",
    )
    which = parser.getgroup("xla-harness: which cases run")
    which.addoption(
        "--shard",
        metavar="NUMBER/COUNT",
        help="one part of several that take equally long by recorded durations, as 2/5",
    )
    which.addoption(
        "--cases", metavar="FILE", help="only the cases whose ids are its lines, in their order"
    )
    which.addoption(
        "--unless-cases", metavar="FILE", help="leave out the cases whose ids are its lines"
    )
    which.addoption("--first", metavar="FILE", help="run the cases whose ids are its lines first")
    which.addoption(
        "--quick",
        action="store_true",
        help="only the cases of ini xla_quick, on their lane: few that see most planted faults",
    )
    which.addoption(
        "--unless-lane",
        metavar="NAMES",
        default="",
        help="leave out cases that can run on one of these lanes too, as virtual-tpu",
    )
    apart = parser.getgroup("xla-harness: a process for each case")
    apart.addoption(
        "--isolation",
        metavar="WAY",
        default="fork",
        help="fork, or none: run cases in pytest's own process, as --pdb does",
    )
    apart.addoption(
        "--deadline",
        default="60",
        metavar="SECONDS",
        help="after which a case counts as hung, unless it names its own (default: 60)",
    )
    apart.addoption(
        "--memory-limit",
        default="8192",
        metavar="MIB",
        help="memory a case may allocate (default: 8192; 0: no limit)",
    )
    apart.addoption(
        "--output-limit",
        default="128",
        metavar="KIB",
        help="output kept of each phase and stream, the middle is cut (default: 128)",
    )
    apart.addoption(
        "--reuse",
        metavar="DIR",
        help="keep results in this folder, and reuse those of which nothing has changed",
    )
    apart.addoption(
        "--reuse-check",
        default="10",
        metavar="N",
        help="run one in N of the reused cases again, and compare (default: 10; 1: each)",
    )
    apart.addoption("--reuse-seed", default="0", metavar="TEXT", help="which of them (default: 0)")
    shown = parser.getgroup("xla-harness: what is shown")
    shown.addoption(
        "--full",
        action="store_true",
        help="show every unexpected case and its traceback, not one of each cause; as -vv does",
    )
    known = parser.getgroup("xla-harness: what upstream is known to get wrong")
    known.addoption(
        "--expectations",
        metavar="DIR",
        help="folder of expectation files (default: ini xla_expectations)",
    )
    known.addoption(
        "--update-golden",
        action="store_true",
        help="write what a lane that only compiles does to ini xla_golden; compare nothing",
    )
    parser.addini("xla_golden", "folder of golden compilations, from the root", default="")
    parser.addini("xla_expectations", "folder of expectation files, from the root", default="")
    parser.addini("xla_stacks", "folder of stacks, which expectations may name", default="")
    parser.addini("xla_findings", "Markdown file of findings, which expectations name", default="")
    parser.addini("xla_durations", "file of recorded durations, for --shard", default="")
    parser.addini(
        "xla_workers", "pytest-xdist's workers without -n: cores, or a number", default=""
    )
    parser.addini("xla_quick", "file of the cases that --quick runs, an id a line", default="")
    parser.addini("xla_long", "marker of the tests that pytest leaves out by itself", default="")
    parser.addini("xla_upstream", "file of upstream rows for the summary", default="")
    parser.addini(
        "xla_preload",
        "modules imported once, before the first case; one with ? behind it may be missing "
        "(default: those of each framework that a test file names or imports)",
        type="args",
        default=None,
    )


@dataclass(frozen=True)
class Settings:
    """The checked options; ``topologies`` is empty for all."""

    lanes: tuple[str, ...]  # () for the first that a case names
    hardware: Topology | None  # of the one lane asked for, if that is one of real hardware
    topologies: tuple[Topology, ...]
    processes: str  # each of which a job has a process for; "" for what its topology says
    in_process: str  # why there is no isolation, or ""
    elsewhere: tuple[str, ...]  # lanes whose cases are left out on all others
    shard: Shard | None
    durations: Durations
    cases: frozenset[str] | None  # None for all
    unless_cases: frozenset[str]
    first_cases: tuple[str, ...]
    long: str  # the marker of tests that were not chosen, so that they are left out; "" for none
    deadline: float
    limits: Limits
    expectations: Path | None
    findings: Path | None
    golden: Golden | None
    update_golden: bool
    stacks: Path | None
    upstream: Path | None
    preload: tuple[Preload, ...]
    environment: Mapping[str, str]  # before any test is imported, whose framework may change it
    is_chosen: bool  # the lane, by the user: the one that all tests run on

    @classmethod
    def of(cls, config: pytest.Config) -> Settings:
        """Read ``config``; raises BadInputError naming the option."""
        given, sizes = config.getoption("lane"), config.getoption("topology")
        lanes = () if given is None else _split(given)
        chosen = _cases(config)
        if config.getoption("quick") and not lanes:
            lanes = (QUICK_LANE,)
        _choose_plugin(config, lanes)
        topologies = () if sizes == "all" else tuple(map(Topology.parse, _split(sizes)))
        if processes := config.getoption("processes") or "":
            topologies = _divided(topologies, lanes, processes)
        if job.current() is not None and config.getoption("numprocesses", None):
            raise BadInputError("-n: expected one process on each worker of a job")
        workers(config.getini("xla_workers"))
        elsewhere = _split(unless) if (unless := config.getoption("unless_lane")) else ()
        for lane in map(lane_named, elsewhere):
            if lane.name in lanes:
                raise BadInputError(f"--unless-lane {lane.name}: --lane asks for that lane")
        for lane in map(lane_named, lanes):
            for size in topologies if len(lanes) == 1 else ():
                lane_can(lane, size)
        return cls(
            lanes=lanes,
            hardware=_hardware(lanes),
            topologies=topologies,
            processes=processes,
            in_process=_why_in_process(config),
            elsewhere=elsewhere,
            shard=Shard.parse(text) if (text := config.getoption("shard")) else None,
            durations=read_durations(_from_root(config, config.getini("xla_durations"))),
            cases=None if chosen is None else frozenset(chosen),
            unless_cases=frozenset(_cases_in(config, "unless_cases")),
            first_cases=_cases_in(config, "first") or chosen or (),
            long="" if _chooses(config) else config.getini("xla_long"),
            deadline=_number(config, "--deadline", above=0),
            limits=Limits(
                memory_bytes=int(_number(config, "--memory-limit", above=-1)) * _MIB or None,
                output_bytes=int(_number(config, "--output-limit", above=0) * _KIB),
            ),
            expectations=_expectations(config),
            findings=_from_root(config, config.getini("xla_findings")),
            golden=_golden(config, lanes),
            update_golden=_updates_golden(config),
            stacks=_from_root(config, config.getini("xla_stacks")),
            upstream=_from_root(config, config.getini("xla_upstream")),
            preload=_preload(config),
            environment=dict(os.environ),
            is_chosen=given is not None and len(lanes) == 1,
        )

    def why_not(self, target: Target, declared: Sequence[Target], framework: str) -> str:
        """Return what leaves the target out, such as ``lane tpu: ...``; "" if nothing does.

        ``declared`` are all targets of the case: without ``--lane`` it runs on the first one's.
        ``framework`` is asked there, if the case says so.
        """
        if self.hardware is not None and target.lane == lane_named(self.lanes[0]).runs_cases_of:
            emulated, target = target.lane, self.place(target)
            if target in declared:  # it is written for the real one too
                return f"lane {emulated}: {target} is the same case"
        if target.lane not in (self.lanes or (declared[0].lane,)):
            return f"lane {target.lane}: run with --lane {target.lane}"
        if other := next((target.lane for target in declared if target.lane in self.elsewhere), ""):
            return f"lane {target.lane}: left to lane {other}"
        if not self.lanes and (missing := lane_named(target.lane).missing()):
            return f"lane {target.lane}: {missing}"
        lane = lane_named(target.lane)
        absent = framework and frameworks.missing(
            framework, platform_of(lane), is_real=bool(lane.runs_cases_of)
        )
        if absent:
            return absent
        return self._why_not_size(target.topology)

    def why_not_plain(self) -> str:
        """Return what leaves out tests that name no lane, since they can run on all; or ""."""
        if self.lanes and self.elsewhere:
            return f"lane {self.lanes[0]}: left to lane {self.elsewhere[0]}"
        return ""

    def why_not_long(self, item: pytest.Item) -> str:
        """Return what leaves out a test that takes long, if nobody said which tests to run."""
        is_long = self.long and item.get_closest_marker(self.long)
        return f"{self.long}: run with -m {self.long}" if is_long else ""

    def _why_not_size(self, size: Topology) -> str:
        if self.topologies and size not in self.topologies:
            return f"topology {size}: run with --topology {size}"
        if self.processes and size.processes != self.processes:
            return f"topology {size}: run without --processes {self.processes}"
        return ""

    def place(self, target: Target) -> Target:
        """Return where a case of that target runs: on the hardware, if that was requested."""
        return target if self.hardware is None else replace(target, lane=self.lanes[0])

    def check_named_platforms(self, lane: Lane, topology: Topology) -> None:
        """Raise BadInputError if the user has named a platform that the lane would replace."""
        check_named_platforms(lane, topology, self.environment, is_chosen=self.is_chosen)

    def plain_target(self) -> Target | None:
        """Return where tests without ``lanes`` run; return None unless ``--lane`` is given.

        Raises BadInputError when several lanes or topologies are chosen.
        """
        if not self.lanes:
            return None
        if len(self.lanes) > 1 or len(self.topologies) > 1:
            raise BadInputError(
                "tests without a lanes marker: expected one --lane and one --topology"
            )
        lane = lane_named(self.lanes[0])
        size = self.topologies[0] if self.topologies else lane.default_topology
        size = size.divided(self.processes) if self.processes else size
        return Target(lane.name, lane_can(lane, size))


def _divided(
    topologies: Sequence[Topology], lanes: Sequence[str], processes: str
) -> tuple[Topology, ...]:
    """Return the chosen topologies as jobs of several processes; BadInputError names the option."""
    if not lanes:
        raise BadInputError("--processes: expected a --lane to run jobs on")
    try:
        word = unit(processes)
    except BadInputError as error:
        raise BadInputError(f"--{error}") from None
    return tuple(size.divided(word) for size in topologies)


def _choose_plugin(config: pytest.Config, lanes: Sequence[str]) -> None:
    """Ask the plugin of lane pjrt what it is; BadInputError names the option."""
    plugin: str | None = config.getoption("plugin")
    given = [name for name in ("plugin_option", "plugin_version") if config.getoption(name)]
    if not plugin:
        if given:
            raise BadInputError(f"--{given[0].replace('_', '-')}: expected --plugin beside it")
        return
    if "pjrt" not in lanes:
        raise BadInputError(f"--plugin {plugin}: expected --lane pjrt, whose plugin it is")
    choose = import_module("harness.conformance.choose").choose
    choose(plugin, config.getoption("plugin_option"), config.getoption("plugin_version"))


def _why_in_process(config: pytest.Config) -> str:
    for option, spelling in (("usepdb", "--pdb"), ("trace", "--trace")):
        if config.getoption(option, False):
            return spelling
    isolation = config.getoption("isolation")
    if isolation not in ("fork", "none"):
        raise BadInputError(f"--isolation {isolation!r}: expected fork or none")
    return "--isolation none" if isolation == "none" else ""


def _expectations(config: pytest.Config) -> Path | None:
    given = config.getoption("expectations")
    if given is not None:
        return Path(given)
    return _from_root(config, config.getini("xla_expectations"))


def _updates_golden(config: pytest.Config) -> bool:
    wanted: bool = config.getoption("update_golden")
    if wanted and not config.getini("xla_golden"):
        raise BadInputError("--update-golden: expected a folder, ini xla_golden")
    if wanted and find_spec("tomlkit") is None:  # a stack's environment only compares
        raise BadInputError("--update-golden: expected the package tomlkit, which writes the files")
    return wanted


def _cases(config: pytest.Config) -> tuple[str, ...] | None:
    """Return the ids of the cases to run, in their file's order, or None for all."""
    path = Path(given) if (given := config.getoption("cases")) else None
    if config.getoption("quick"):
        if path is not None:
            raise BadInputError("--quick: expected no --cases beside it")
        path = _from_root(config, config.getini("xla_quick"))
        if path is None:
            raise BadInputError("--quick: expected ini xla_quick, a file of cases")
    return None if path is None else read_cases(path)


def _cases_in(config: pytest.Config, option: str) -> tuple[str, ...]:
    given = config.getoption(option)
    return read_cases(Path(given)) if given else ()


def _chooses(config: pytest.Config) -> bool:
    """Return whether the user says which tests to run, and so also runs long ones."""
    options = ("lane", "quick", "cases", "markexpr")
    return any(map(config.getoption, options)) or any("::" in path for path in config.args)


def _hardware(lanes: Sequence[str]) -> Topology | None:
    """Return the hardware's topology, if its lane was chosen; raise BadInputError without any."""
    lane = next((lane for lane in map(lane_named, lanes) if lane.runs_cases_of), None)
    if lane is None:
        return None
    if len(lanes) > 1:
        raise BadInputError(
            f"--lane {lane.name}: expected no other lane: it runs the cases of "
            f"{lane.runs_cases_of}, by their ids"
        )
    if missing := lane.missing():
        raise BadInputError(f"lane {lane.name}: {missing}")
    return lane.default_topology


def _golden(config: pytest.Config, lanes: Sequence[str]) -> Golden | None:
    folder = _from_root(config, config.getini("xla_golden"))
    compiles = not lanes or any(lane_named(name).compiles_only for name in lanes)
    if folder is None or not compiles:
        return None
    from harness.lanes.aot.golden import Golden

    return Golden(folder)


def _preload(config: pytest.Config) -> tuple[Preload, ...]:
    given = config.getini("xla_preload")
    if given is not None:
        return (Preload(given),)
    # A stack may lack a framework, or have a version of it without such a module.
    return tuple(
        Preload([f"{name}?" for name in each.preload], (each.name, *each.packages))
        for each in FRAMEWORKS.values()
    )


def _from_root(config: pytest.Config, text: str) -> Path | None:
    """``text`` from the root folder, written from the current one where that is shorter."""
    if not text:
        return None
    path = config.rootpath / text
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _number(config: pytest.Config, option: str, *, above: int) -> float:
    text = config.getoption(option)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not above < value < math.inf:
        raise BadInputError(f"{option} {text!r}: expected a number above {above}")
    return value
