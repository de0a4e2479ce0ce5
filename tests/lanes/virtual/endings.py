"""Ends small jobs of two ranks in many ways, each rank in a fork of this process.

``python endings.py FRAMEWORK [ENDING...]`` prints one line an ending: its name, the exit codes of
both ranks, "hung" for one that had to be killed, and the seconds until the last one ended.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from harness.job.environment import JobEnvironment
from harness.lanes.virtual import library
from harness.model.topology import Topology
from harness.platforms.tpu import TPU

_MOST = 60.0  # seconds that a rank may take
_HELD = 4_000_000  # microseconds for which a function of C holds the GIL
_jobs: list[Job] = []  # alive until the interpreter ends, as what a script has in its globals


class Job:
    """A collective over both ranks: ``step`` queues it, ``wait`` waits for all that was queued."""

    def __init__(self, framework: str) -> None:
        _jobs.append(self)
        self.step, self.wait = getattr(self, f"_{framework}")()

    def _torch_xla(self) -> tuple[Callable[[], None], Callable[[], None]]:
        import torch
        import torch.distributed as dist
        import torch_xla

        dist.init_process_group("xla", init_method="xla://")
        array = torch.ones(3, device=torch_xla.device())

        def step() -> None:
            dist.all_reduce(array)
            torch_xla.sync()

        return step, array.cpu

    def _jax(self) -> tuple[Callable[[], None], Callable[[], None]]:
        import jax
        import numpy as np
        from jax import lax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        mesh, part = Mesh(np.array(jax.devices()), "x"), PartitionSpec("x")
        ones = np.ones((1, 2), np.float32)
        array = jax.make_array_from_callback((2, 2), NamedSharding(mesh, part), lambda _: ones)
        program = jax.jit(
            jax.shard_map(lambda x: lax.psum(x, "x") / 2, mesh=mesh, in_specs=part, out_specs=part)
        )
        arrays = [array]

        def step() -> None:
            arrays[0] = program(arrays[0])

        return step, lambda: jax.block_until_ready(arrays[0])


def last_statement(framework: str, _: int) -> None:
    """Queue a collective and end."""
    Job(framework).step()


def waited(framework: str, _: int) -> None:
    """Queue a collective, wait for it and end."""
    job = Job(framework)
    job.step()
    job.wait()


def exits(framework: str, _: int) -> None:
    """End with an exit code of its own."""
    Job(framework).step()
    sys.exit(3)


def raises(framework: str, rank: int) -> None:
    """One rank raises while the other waits for it in a collective."""
    job = Job(framework)
    job.step()
    if rank == 1:
        raise SystemError("the rank's own error")
    job.step()
    job.wait()


def thread(framework: str, _: int) -> None:
    """End while a thread still queues collectives."""
    job = Job(framework)
    threading.Thread(target=lambda: [job.step() for _ in range(20)]).start()


def hook(framework: str, _: int) -> None:
    """Queue a collective in an exit hook that runs after those of the plugin."""

    def step() -> None:
        _jobs[0].step()

    atexit.register(step)
    Job(framework)


def forks(framework: str, _: int) -> None:
    """End after a fork of this rank has ended."""
    job = Job(framework)
    job.step()
    if not (child := os.fork()):
        os._exit(0)
    os.waitpid(child, 0)


def holds(framework: str, rank: int) -> None:
    """One rank holds the GIL in C while the other waits for what the first one has queued."""
    job = Job(framework)
    for _ in range(5):
        job.step()
    job.wait()
    if rank == 1:
        start = time.monotonic()
        job.step()
        job.wait()
        sys.exit(time.monotonic() - start > _HELD / 2e6)
    hold = ctypes.PyDLL(None).usleep
    started = threading.Event()

    def queue() -> None:
        started.set()
        job.step()

    if framework == "jax":
        threading.Thread(target=queue).start()
        started.wait()
    else:  # it has a thread of its own
        queue()
    hold(_HELD)


ENDINGS = (last_statement, waited, exits, raises, thread, hook, forks, holds)


def _start(
    framework: str, ending: Callable[[str, int], None], environment: JobEnvironment, rank: int
) -> int:
    """Fork a rank, which runs to the end of its interpreter."""
    if pid := os.fork():
        return pid
    os.environ.update(environment.of(rank))
    null = os.open(os.devnull, os.O_WRONLY)
    if "ENDINGS_SHOW" not in os.environ:
        os.dup2(null, 1)
        os.dup2(null, 2)
    ending(framework, rank)
    sys.exit(0)


def _end_of(pid: int, until: float) -> str:
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "hung"
        time.sleep(0.02)
    return str(os.waitstatus_to_exitcode(ended[1]))


def _run(framework: str, ending: Callable[[str, int], None]) -> None:
    environment, start = JobEnvironment(_TOPOLOGY, TPU), time.monotonic()
    pids = [_start(framework, ending, environment, rank) for rank in range(2)]
    codes = [_end_of(pid, start + _MOST) for pid in pids]
    line = f"{ending.__name__} {' '.join(codes)} {time.monotonic() - start:.1f}\n"
    os.write(sys.stdout.fileno(), line.encode())


_TOPOLOGY = Topology.parse("2@chip")

if __name__ == "__main__":
    named = sys.argv[2:]
    wanted = library.environment(_TOPOLOGY, TPU)
    os.environ.update({name: value for name, value in wanted.items() if value is not None})
    if sys.argv[1] == "torch_xla":
        import torch_xla.distributed.xla_backend  # noqa: F401
    else:
        import jax  # noqa: F401
    for ending in ENDINGS:
        if not named or ending.__name__ in named:
            _run(sys.argv[1], ending)
