"""A rank that raised and waits for the others says what, by whatever it was started."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.lanes.virtual.raised import raised

SCRIPT = """\
import concurrent.futures
import multiprocessing
import sys
import time

fork = multiprocessing.get_context("fork")

def check(size):
    raise ValueError(f"a batch of {size}\\nof three lines")

def work():
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    jax.distributed.initialize()
    parts = NamedSharding(Mesh(np.array(jax.devices()), "x"), PartitionSpec("x"))
    full = np.ones(2, np.float32)
    x = jax.make_array_from_callback((2,), parts, lambda i: full[i])
    assert float(jax.jit(lambda v: v.sum())(x)) == 2
    if jax.process_index() == 1:
        check(3)
    jax.jit(lambda v: v.max())(x).block_until_ready()

def by_pool():
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=fork) as pool:
        if pool.submit(work).exception():
            time.sleep(20)

{"script": work, "pool": by_pool}[sys.argv[1]]()
"""


@pytest.mark.parametrize("started", ["script", "pool"])
def test_the_exception_and_its_lines(tmp_path: Path, started: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = (sys.executable, "-m", "harness", "run", "--topology=2", "--processes=chip", "--")
    ran = subprocess.run(
        (*command, sys.executable, "train.py", started),
        cwd=tmp_path,
        env={**os.environ, "VIRTUAL_TPU_DEADLINE": "4"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    report = re.search(r"rank 1 \(process \d+\):\n(.*?)rank 0 \(process", ran.stderr, re.DOTALL)
    assert report, ran.stderr
    lines = report[1].splitlines()
    assert lines[0] == "  raised ValueError: a batch of 3"
    line = 1 + SCRIPT.splitlines().index(next(x for x in SCRIPT.splitlines() if "raise" in x))
    assert f'  File "{tmp_path}/train.py", line {line}, in check' in lines


def test_what_a_launcher_has_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends its process by SystemExit, of which nobody learns anything."""
    monkeypatch.delattr(sys, "last_value", raising=False)  # pytest's, of another test
    try:
        try:
            os.environ["NO_SUCH_WEIGHTS"]
        except KeyError:
            sys.exit(1)
    except SystemExit:
        first, place, *_ = raised().splitlines()
    assert first == "  raised KeyError: 'NO_SUCH_WEIGHTS'"
    assert __file__ in place
