"""The job that this process is a worker of: several hosts or slices, one pytest on each."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from harness.errors import BadInputError
from harness.platforms import platform_here

RENDEZVOUS = "XLA_HARNESS_RENDEZVOUS"
TOKEN = "XLA_HARNESS_JOB_TOKEN"
_PATIENCE = "XLA_HARNESS_PATIENCE"
_SECONDS = "60"  # a hung case's stacks take half of that
_USABLE = re.compile(r"[0-9a-f]{32,128}")  # the plugin reads the same


@dataclass(frozen=True)
class Job:
    """``slices`` slices of ``hosts`` hosts each, of which this one is ``slice``-``host``."""

    slices: int
    hosts: int
    slice: int
    host: int
    address: tuple[str, int]  # where the first worker awaits the others
    coordinator: str  # where the slices discover each other
    patience: float  # seconds to wait for a worker beyond the deadline of the case it is in
    token: str = field(repr=False)  # who has it is a worker of this job

    @property
    def count(self) -> int:
        """Number of workers in the job."""
        return self.slices * self.hosts

    @property
    def number(self) -> int:
        """Index of this worker in the job, counting slice by slice."""
        return self.slice * self.hosts + self.host

    def worker(self, number: int) -> str:
        """Return a worker's name, ``slice-host``."""
        return f"{number // self.hosts}-{number % self.hosts}"


@cache
def current() -> Job | None:
    """Return this worker's job, read from the environment once: lanes change it for cases."""
    return of(os.environ)


def of(environment: Mapping[str, str]) -> Job | None:
    """Return the job of a worker with that environment; None for one worker, or no rendezvous.

    Raises BadInputError, naming the variable.
    """
    address = environment.get(RENDEZVOUS, "")
    if not address:
        return None
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise BadInputError(f"{RENDEZVOUS}={address!r}: expected HOST:PORT")
    launch = platform_here(environment).launch
    slices = _number(environment, launch.slices, "1", 1, 4096)
    hosts = len(environment.get(launch.hostnames, "localhost").split(","))
    job = Job(
        slices=slices,
        hosts=hosts,
        slice=_number(environment, launch.slice, "0", 0, slices - 1),
        host=_number(environment, launch.worker, "0", 0, hosts - 1),
        address=(host, int(port)),
        coordinator=environment.get(launch.coordinator, ""),
        patience=_seconds(environment),
        token=environment.get(TOKEN, ""),
    )
    if job.count == 1:
        return None
    if not _USABLE.fullmatch(job.token):
        is_set = "is not that" if job.token else "is not set"
        raise BadInputError(
            f"{TOKEN} {is_set}: expected 32 to 128 hexadecimal digits, the same on all workers of "
            "the job and known to nobody else, as from: openssl rand -hex 32"
        )
    return job


def _number(environment: Mapping[str, str], name: str, default: str, low: int, high: int) -> int:
    text = environment.get(name, default)
    if not text.isdecimal() or not low <= int(text) <= high:
        raise BadInputError(f"{name}={text!r}: expected a number from {low} to {high}")
    return int(text)


def _seconds(environment: Mapping[str, str]) -> float:
    text = environment.get(_PATIENCE, _SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise BadInputError(f"{_PATIENCE}={text!r}: expected seconds above 0")
    return seconds
