"""``xla-harness run``: any command on a lane, in as many processes as a job has."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.commands.in_stack import add_stack, continue_in, stack_named
from harness.commands.output import say
from harness.errors import BadInputError
from harness.job.command import CommandEnding, no_leave, run_command
from harness.job.environment import JobEnvironment
from harness.job.gathering import Gathering
from harness.job.launched import LaunchedJob, launched_job
from harness.lanes import (
    LANES,
    Lane,
    check_named_platforms,
    events,
    lane_can,
    lane_named,
)
from harness.lanes.event_file import EventFile
from harness.lanes.events import EventLog, Events
from harness.lanes.unseen import unseen_error
from harness.lanes.virtual.executor.watch import deadline_of
from harness.model.topology import ONE, Topology
from harness.platforms import platform_here

_LANE = "virtual-tpu"
_PRINTED = "XLA_HARNESS_PRINTS_REASON"  # tells the job that this process prints why it is stuck
# Seconds that processes have when the job can't go on. Those that have never met are told nothing.
_TO_GATHER = 3.0
_TO_END = 30.0  # the others are given an error, which one may catch and end well
# Makes torch_xla tell the compiler where in the script each operation comes from, as JAX does.
_LINES = {"XLA_IR_DEBUG": "1", "XLA_HLO_DEBUG": "1"}
_ALONE = """\
each of the {count} processes worked alone: no program ran over several of them.
A script that calls torch_xla.launch starts its processes itself: run it without --processes.
Others join the job with torch.distributed.init_process_group("xla", init_method="xla://"), or, of
JAX's on GPUs, with jax.distributed.initialize()."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--lane", default=_LANE, metavar="NAME", help="default: %(default)s")
    parser.add_argument("--topology", metavar="SIZE", help="as 4 or 2x4 (default: the lane's own)")
    parser.add_argument(
        "--processes",
        metavar="EACH",
        help="start it for each chip, host or slice, or GPU: device or node (default: once)",
    )
    add_stack(parser)
    parser.add_argument("--deadline", metavar="SECONDS", help="after which all processes end")
    parser.set_defaults(arguments=[], run=_run)


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise BadInputError(f"--deadline {text!r}: expected seconds above 0")
    return seconds


def _run(options: argparse.Namespace) -> int:
    if not options.arguments:
        raise BadInputError("run: expected a command after --, as in -- python train.py")
    lane = lane_named(options.lane)
    if lane.compiles_only or lane.runs_cases_of:
        able = [
            name for name, lane in LANES.items() if not (lane.compiles_only or lane.runs_cases_of)
        ]
        raise BadInputError(f"run: lane {lane.name}: expected one of {', '.join(able)}")
    job = launched_job(os.environ) if lane.counts_events and options.processes != ONE else None
    topology = _topology(options, lane, job)
    deadline = _seconds(options.deadline)
    lane.preload()  # says what is missing
    check_named_platforms(lane, topology, os.environ, is_chosen=True)
    if options.stack:
        continue_in(stack_named(options.stack), options)
    named = os.environ.get(events.VARIABLE)
    own: Mapping[str, str] = {}
    log: EventLog | EventFile
    if named:
        log = EventLog(Path(named))
    else:  # a script may run for days, and only these are read here
        log = EventFile()
        own = {**log.environment, events.KINDS_VARIABLE: "client,clients,meet"}
    bases, leave = _environments(lane, topology, job)
    environments = [{**each, **own, _PRINTED: "1"} for each in bases]
    path = Path(environments[0][events.VARIABLE])
    reason = _Reason(log, path)
    ended = run_command(options.arguments, environments, deadline, reason.respite, leave)
    return _verdict(lane, ended, log.read(), reason, len(environments))


def _verdict(lane: Lane, ended: CommandEnding, events: Events, reason: _Reason, count: int) -> int:
    """Say what is known of a command that has ended, and return the exit code."""
    if events.damage:
        say(f"xla-harness: the log of the job's events is damaged: {events.damage}", style="red")
    if ended.why:
        say(f"xla-harness: {ended.why}", style="red")
    alone = events.of("client") and not events.of("meet")
    unseen = unseen_error(events)
    if failed := events.of("failed"):
        first = (failed[0].stack or "").partition("\n")[0]
        say(f"xla-harness: the reason, the same for all ranks: {first}", style="red")
    elif reason.text:
        say(f"xla-harness: the reason, the same for all ranks: {reason.text}", style="red")
    elif unseen:
        say(f"xla-harness: an error that the script was not given:\n{unseen}", style="red")
    elif alone and ended.code == 0 and count > 1:
        say(f"xla-harness: {_ALONE.format(count=count)}", style="yellow")
    if unused := "" if ended.code else _unused(lane, events):
        say(f"xla-harness: {unused}", style="yellow")
    return ended.code or int(bool(events.damage or unseen or unused))


def _unused(lane: Lane, events: Events) -> str:
    """Say where the command computed if it was nowhere on the lane; "" if it did, or nowhere."""
    if not lane.counts_events or events.of("client"):
        return ""
    clients = {
        str(name) for event in events.of("clients") for name in event.facts.get("clients", ())
    }
    others = ", ".join(sorted(clients))
    return others and (
        f"lane {lane.name} was not used: no process created a client of it, and there were other "
        f"clients: {others}. Does the command choose a platform itself, as with JAX_PLATFORMS?"
    )


class _Reason:
    """Says once, as soon as it is known, why the job can't go on.

    Attributes:
        text: why; "" as long as it may.
    """

    def __init__(self, log: EventLog | EventFile, path: Path) -> None:
        self._log, self._path, self._read, self.text = log, path, 0, ""
        self._gathering: Gathering | None = Gathering(deadline_of(os.environ))

    def respite(self, processes: Mapping[int, int]) -> float | None:
        """Return how many seconds the processes have if the job can't go on; None if it can.

        The first time that it can't, say why.
        """
        size = self._path.stat().st_size if self._path.exists() else 0
        if not self.text and size != self._read:
            self._read, read = size, self._log.read()
            if read.of("client"):
                self._gathering = None  # from here on the lane judges
            if failed := read.of("failed"):
                self.text = failed[0].stack or "the job can't go on"
        elif not self.text and self._gathering is not None and len(processes) > 1:
            self.text = self._gathering.why_late(processes)
        else:
            return self._seconds if self.text else None
        if self.text:
            say(f"xla-harness: {self.text}", style="red")
        return self._seconds if self.text else None

    @property
    def _seconds(self) -> float:
        return _TO_GATHER if self._gathering is not None else _TO_END


def _topology(options: argparse.Namespace, lane: Lane, job: LaunchedJob | None) -> Topology:
    size = Topology.parse(options.topology) if options.topology else lane.default_topology
    if job is not None:
        return lane_can(lane, job.divide(size, options.processes))
    return lane_can(lane, size.divided(options.processes) if options.processes else size)


def _environments(
    lane: Lane, topology: Topology, launched: LaunchedJob | None
) -> tuple[list[Mapping[str, str]], Callable[[int], None]]:
    """Return the environment of each process to start, and what to call when they have ended.

    If one process has a whole slice, it finds its chips as a host's process does, so that a
    launcher in it can divide them.
    """
    if not topology.processes:
        undivided = topology.slices == 1 and lane.name == _LANE
        changes = lane.environment(topology.divided("chip") if undivided else topology)
        return [_LINES | _merged(changes)], no_leave
    base = _merged(lane.environment(topology))
    job = JobEnvironment(topology, platform_here(base))
    each = [job.of(number) for number in range(topology.process_count)]
    each, leave = launched.meet(each) if launched is not None else (each, no_leave)
    return [_LINES | base | own for own in each], leave


def _merged(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return this process's environment with the changes; None unsets a variable."""
    kept = {name: value for name, value in os.environ.items() if name not in changes}
    return kept | {name: value for name, value in changes.items() if value is not None}
