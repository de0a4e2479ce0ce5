"""Plan of a JobSet, checked to contain nothing that Kubernetes or a shell would reject."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from harness.errors import BadInputError
from harness.lanes import LANES
from harness.platforms.description import Generation
from harness.platforms.tpu import TPU

REPLICATED = "slice"  # the replicated job: one Job for each slice
_LONGEST = 63  # characters of a host name
_SUFFIX = 6  # of a pod's name, behind its index: a dash and five characters
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035: it names a Service too
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_IMAGE = re.compile(r"[a-z0-9]+[\w.:/@-]*")
_TAKEN = ("--junitxml", "--junit-xml")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class JobPlan:
    """A job of ``slices`` slices of ``hosts`` hosts with ``chips`` chips each."""

    name: str
    namespace: str
    image: str
    stack: str
    lane: str
    generation: Generation
    grid: str
    slices: int
    hosts: int
    chips: int
    arguments: tuple[str, ...]  # pytest's
    deadline: int  # seconds for the job, waiting for nodes included
    wait: int  # seconds that a finished worker waits to be collected

    @property
    def on_hardware(self) -> bool:
        """Return whether the pods need TPU nodes; otherwise the job is a rehearsal on CPU nodes."""
        return bool(LANES[self.lane].runs_cases_of)

    @property
    def topology(self) -> str:
        """Topology in the harness's notation, such as ``2xv6e:2x2``."""
        slice_ = f"{self.generation.name}:{self.grid}"
        return slice_ if self.slices == 1 else f"{self.slices}x{slice_}"

    def host(self, slice_: int | str, worker: int) -> str:
        """Return the DNS name of a worker, valid in any pod of the namespace."""
        return f"{self.name}-{REPLICATED}-{slice_}-{worker}.{self.name}"


def name_of(text: str) -> str:
    """Parse a JobSet's name; raise BadInputError if it is no DNS label."""
    return _label("name", text, _NAME, "a letter first")


def namespace_of(text: str) -> str:
    """Parse a namespace; raise BadInputError if it is no DNS label."""
    return _label("--namespace", text, _NAMESPACE, "no dash at either end")


def plan(  # noqa: PLR0913
    *,
    name: str,
    namespace: str,
    image: str,
    stack: str,
    lane: str,
    accelerator: str,
    grid: str,
    slices: int,
    chips: int,
    arguments: Sequence[str],
    deadline: int,
    wait: int,
) -> JobPlan:
    """Check all of it; BadInputError names the option and what was expected."""
    generation = _generation(accelerator)
    for option, number in (("--slices", slices), ("--deadline", deadline), ("--wait", wait)):
        if number < 1:
            raise BadInputError(f"{option} {number}: expected at least 1")
    if not _IMAGE.fullmatch(image):
        raise BadInputError(f"--image {image!r}: expected [HOST/]NAME[:TAG][@DIGEST]")
    if lane not in (usable := _lanes()):
        raise BadInputError(f"--lane {lane!r}: expected one of {', '.join(usable)}")
    if not stack.isprintable():
        raise BadInputError(f"--stack {stack!r}: expected printable characters")
    total, hosts = _hosts(generation, grid, chips)
    made = JobPlan(
        name=name_of(name),
        namespace=namespace_of(namespace),
        image=image,
        stack=stack,
        lane=lane,
        generation=generation,
        grid=grid,
        slices=slices,
        hosts=hosts,
        chips=total // hosts,
        arguments=_arguments(arguments, lane),
        deadline=deadline,
        wait=wait,
    )
    pod = made.host(slices - 1, hosts - 1).partition(".")[0]
    if len(pod) + _SUFFIX > _LONGEST:
        most = len(made.name) - (len(pod) + _SUFFIX - _LONGEST)
        raise BadInputError(
            f"--name {name!r}: expected {most} characters at most: pods are {pod}-*"
        )
    return made


def _lanes() -> list[str]:
    """Return the hardware's lane, followed by the lane whose cases it runs, as a rehearsal."""
    return [TPU.name, LANES[TPU.name].runs_cases_of]


def _generation(accelerator: str) -> Generation:
    by_label = {generation.gke: generation for generation in TPU.generations}
    if topology_label := by_label.get(accelerator):
        return topology_label
    near = [generation.gke for generation in TPU.generations if generation.name == accelerator]
    near = near or get_close_matches(accelerator, by_label, n=1, cutoff=0.3)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise BadInputError(
        f"--accelerator {accelerator!r}: expected one of {', '.join(by_label)}{hint}"
    )


def _hosts(generation: Generation, grid: str, chips: int) -> tuple[int, int]:
    """Return a slice's number of chips and of hosts with ``chips`` each; 0: the usual number."""
    if grid not in generation.grids:
        near = get_close_matches(grid, generation.grids, n=3, cutoff=0.2) or generation.grids
        raise BadInputError(
            f"--grid {grid!r}: no slice of {generation.name}: expected the chips of one, as "
            f"{', '.join(near)}"
        )
    total = math.prod(map(int, grid.split("x")))
    if not 0 <= chips <= total:
        raise BadInputError(f"--chips-per-host {chips}: expected 1 to {total}, all of a slice")
    try:
        return total, generation.hosts(total, chips)
    except ValueError as error:
        raise BadInputError(f"--chips-per-host {chips}: {error}") from None


def _label(option: str, text: str, pattern: re.Pattern[str], rule: str) -> str:
    if not pattern.fullmatch(text) or len(text) > _LONGEST:
        raise BadInputError(
            f"{option} {text!r}: expected a DNS label: at most {_LONGEST} of a-z, 0-9 and dashes, "
            f"{rule}"
        )
    return text


def _arguments(given: Sequence[str], lane: str) -> tuple[str, ...]:
    """Pytest's arguments, on the plan's lane; without any, all suites."""
    for argument in given:
        option = argument.partition("=")[0]
        if option in _TAKEN:
            raise BadInputError(f"{option}: every worker's report has its own place: leave it out")
        if option == "--lane":
            raise BadInputError("--lane: expected in front of --, where the pods depend on it")
        if _CONTROL.search(argument):
            raise BadInputError(f"{argument!r}: expected no control characters")
    return (*(given or ("suites/",)), "--lane", lane)
