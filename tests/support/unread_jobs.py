"""Small jobs in which something may go wrong after the last line that the test has written."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

# What each process of a job does. Nothing in it knows of the harness.
WORKER = '''\
import os
import sys

import numpy as np

X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128) / 100


def kernel(fault):
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    def shifted(x, out):
        for row in range(8):
            out[row, :] = x[pallas.program_id(0) + row + (fault == "bounds"), :]

    def racing(x, out, scratch, semaphore):
        copy = tpu.make_async_copy(x, scratch, semaphore)
        copy.start()
        out[...] = 2 * scratch[...]
        copy.wait()

    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    if fault == "race":
        scratch = [tpu.VMEM(X.shape, X.dtype), tpu.SemaphoreType.DMA]
        anywhere = [pallas.BlockSpec(memory_space=pallas.ANY)]
        return pallas.pallas_call(
            racing, out_shape=shape, in_specs=anywhere, scratch_shapes=scratch
        )
    return pallas.pallas_call(shifted, out_shape=shape, grid=(1,))


class Jax:
    def run_kernel(self, fault):
        import jax

        return jax.jit(kernel(fault))(jax.device_put(X))

    def add(self, count, rows):
        import jax
        from jax import lax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

        mesh = Mesh(np.array(jax.devices()), "x")
        full = np.ones((count, rows), np.float32)
        ones = jax.make_array_from_callback(
            full.shape, NamedSharding(mesh, P("x")), lambda index: full[index]
        )
        total = jax.shard_map(lambda v: lax.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
        return jax.jit(total)(ones)

    def submit(self, value):
        pass

    def wait(self, value):
        value.block_until_ready()

    def read(self, value):
        return np.asarray(value.addressable_shards[0].data)


class TorchXla:
    def __init__(self):
        # A process that torch_xla.launch has started is one of the job already. Without this,
        # torch_xla takes each process for a job of its own, and its collectives do nothing.
        if "TORCHELASTIC_RUN_ID" in os.environ:
            import torch.distributed as dist
            import torch_xla.distributed.xla_backend

            dist.init_process_group("xla", init_method="xla://")

    def run_kernel(self, fault):
        import torch
        import torch_xla
        from torch_xla.experimental.custom_kernel import jax_import_guard, make_kernel_from_pallas

        jax_import_guard()
        function = make_kernel_from_pallas(kernel(fault), lambda x: [(x.shape, x.dtype)])
        return function(torch.tensor(X, device=torch_xla.device()))

    def add(self, count, rows):
        import torch
        import torch_xla
        import torch_xla.core.xla_model as xm

        return xm.all_reduce("sum", torch.ones(rows, device=torch_xla.device()))

    def submit(self, value):
        import torch_xla

        torch_xla.sync()

    def wait(self, value):
        import torch_xla

        torch_xla.sync(wait=True)

    def read(self, value):
        return value.cpu()


FRAMEWORKS = {"jax": Jax, "torch_xla": TorchXla}
KERNELS = ("control", "bounds", "race")


def steps(framework, fault, rank, count):
    if fault in KERNELS and count == 1:
        yield framework.run_kernel(fault)
        return
    culprit = rank == count - 1
    yield framework.add(count, 2)
    if culprit and fault == "early":
        return
    if not (culprit and fault == "left_out"):
        yield framework.add(count, 3 if culprit and fault == "shapes" else 2)
    yield framework.add(count, 4)


def work(name, fault, reading, rank, count):
    """Return whether an error was raised where the result was read."""
    framework = FRAMEWORKS[name]()
    value = None
    try:
        for value in steps(framework, fault, rank, count):
            framework.submit(value)
            if reading == "waited":
                framework.wait(value)
        if reading in ("read", "caught"):
            framework.read(value)
    except Exception as error:
        if reading != "caught":
            raise
        print("caught", str(error)[:100], flush=True)
        return True
    if reading == "exit":
        sys.exit()
    return False


def launched(index, name, fault, reading, count):
    import torch_xla.runtime as xr

    work(name, fault, reading, xr.global_ordinal(), count)


def forked(name, fault, reading):
    import multiprocessing

    process = multiprocessing.get_context("fork").Process(
        target=work, args=(name, fault, reading, 0, 1)
    )
    process.start()
    process.join()
    assert process.exitcode == 0


if __name__ == "__main__":
    name, fault, reading, count = sys.argv[1:]
    work(name, fault, reading, int(os.environ.get("RANK", 0)), int(count))
'''
_COUNT = 2  # processes of a job of several
_TESTS = {
    "process": "def test_{}():\n    work({!r}, {!r}, {!r}, 0, 1)\n",
    "fork": "def test_{}():\n    forked({!r}, {!r}, {!r})\n",
    "ranks": "@pytest.mark.lanes('virtual-tpu')\n@pytest.mark.topologies('2@chip')\n"
    "def test_{0}(topology):\n    __import__({1!r})  # once for all ranks\n"
    "    run_ranks(lambda n: work({1!r}, {2!r}, {3!r}, n, 2), topology)\n",
    "launch": "def test_{}():\n    torch_xla.launch(launched, args=({!r}, {!r}, {!r}, 2))\n",
}
HEADER = {
    "process": "from worker import *\n",
    "fork": "from worker import *\n",
    "ranks": "import pytest\nfrom harness.job.ranks import run_ranks\nfrom worker import *\n",
    "launch": "import torch_xla\nfrom worker import *\n",
}
_LAUNCHERS = {  # how many processes each starts
    "process": 1,
    "fork": 1,
    "run one": 1,
    "ranks": _COUNT,
    "launch": _COUNT,
    "run": _COUNT,
    "torchrun": _COUNT,
}
_FAULTS = {1: ("control", "bounds", "race"), _COUNT: ("control", "left_out", "shapes", "early")}
_READINGS = ("unread", "waited", "read", "caught", "exit")


@dataclass(frozen=True)
class UnreadJob:
    """One job: what starts it, what goes wrong in it, and how its results are used."""

    framework: str
    launcher: str
    fault: str
    reading: str

    @property
    def name(self) -> str:
        """Return it as a part of a test's name."""
        words = (self.framework, self.launcher, self.fault, self.reading)
        return "_".join(words).replace(" ", "_")

    @property
    def processes(self) -> int:
        """Return how many processes it has."""
        return _LAUNCHERS[self.launcher]

    @property
    def is_right(self) -> bool:
        """Return whether it may end green."""
        return self.fault == "control" or self.reading == "caught"

    @property
    def is_test(self) -> bool:
        """Return whether pytest runs it; if not, it is a script."""
        return self.launcher in _TESTS

    @property
    def processes_of(self) -> str:
        """Return what of the topology each process of the whole run has; "" for all of it."""
        return "chip" if self.launcher == "launch" else ""

    @property
    def test(self) -> str:
        """Return the source of its test."""
        return _TESTS[self.launcher].format(self.name, self.framework, self.fault, self.reading)

    @property
    def arguments(self) -> list[str]:
        """Return the arguments of the worker's script."""
        return [self.framework, self.fault, self.reading, str(self.processes)]


def every_job() -> list[UnreadJob]:
    """Return all jobs, in an order that never changes."""
    jobs = []
    for framework, launcher in itertools.product(("jax", "torch_xla"), _LAUNCHERS):
        if framework == "jax" and launcher in ("launch", "torchrun"):
            continue
        for fault, reading in itertools.product(_FAULTS[_LAUNCHERS[launcher]], _READINGS):
            # A test's own process is not ended, and torch_xla.launch raises a process's SystemExit.
            if reading == "exit" and launcher in ("process", "ranks", "launch"):
                continue
            jobs.append(UnreadJob(framework, launcher, fault, reading))
    return jobs
