"""Hangs with a known culprit, and slow jobs that are correct: who is named, how late and how long.

Each job is a script under ``xla-harness run``, made from a seed: a framework and launcher, a
topology, a kind of mistake, and the rank that makes it. Programs that do nothing but compute keep
all cores busy meanwhile. A hang is right if the first line of the report names the culprit, the
report comes within the deadline and 5 seconds after the mistake, and has at most 40 lines; a slow
job is right if it ends well and nobody is accused.

Usage: ``uv run benchmarks/hangs.py [--hangs 200] [--slow 50] [--seed 1] [--load 2]``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from harness.messages.ports import free_port

DEADLINE = 4
_LATER = 5.0  # seconds after the deadline
_MOST_LINES = 40
_LIMIT = 240.0
_MISTAKE = "the mistake is made at "

# What all kinds share: `psum` over all devices, `other` a program of another shape, and `mark` that
# notes the time of the mistake. NAME, RANK and WHO are known.
JAX = """\
import os, sys, time, signal, threading, socket, subprocess
import jax
{initialize}
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
jax.devices()
RANK, WHO = jax.process_index(), {who}
mesh = Mesh(np.array(jax.devices()), "x")
SIZE = len(jax.devices())

def over_all(body, columns=2):
    parts = NamedSharding(mesh, P("x"))
    shape = (SIZE, columns)
    ones = jax.make_array_from_callback(shape, parts, lambda i: np.ones(shape, np.float32)[i])
    specs = dict(mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    part = jax.jit(jax.shard_map(body, **specs))
    return lambda: part(ones)

pairs = [list(range(SIZE // 2)), list(range(SIZE // 2, SIZE))]
psum = over_all(lambda v: lax.psum(v, "x"))
largest = over_all(lambda v: lax.pmax(v, "x"))
wide = over_all(lambda v: lax.psum(v, "x"), 3)
halves = over_all(lambda v: lax.psum(v, "x", axis_index_groups=pairs))
mine = lambda: lax.axis_index("x") // (SIZE // jax.process_count()) == WHO
branch = over_all(lambda v: lax.cond(mine(), lambda v: v, lambda v: lax.psum(v, "x"), v))
turns = lambda: jax.numpy.where(mine(), 2, 3)
loop = over_all(lambda v: lax.fori_loop(0, turns(), lambda _, v: lax.psum(v, "x"), v))
def on_host(function):
    def body(v):
        same = jax.ShapeDtypeStruct(v.shape, v.dtype)
        return lax.psum(jax.pure_callback(lambda v: function() or np.asarray(v), same, v), "x")
    return over_all(body)
wait = lambda x: x.block_until_ready()
local = jax.jit(lambda v: lax.fori_loop(0, 4000, lambda _, v: v @ v / 1e3, v))
"""
TORCH = """\
import gc
gc.disable()
import os, sys, time, signal, threading, socket, subprocess
import numpy as np
import torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
{initialize}
xm.xla_device()
RANK, WHO = xr.process_index(), {who}
SIZE = xr.world_size()
pairs = [list(range(SIZE // 2)), list(range(SIZE // 2, SIZE))]
ones = lambda columns=2: torch.ones(1, columns, device=xm.xla_device())

def step(*arguments, columns=2):
    def reduce():
        value = xm.all_reduce(*arguments[:1], ones(columns), **dict(arguments[1:]))
        torch_xla.sync()
        return value
    return reduce

psum, largest, wide = step("sum"), step("max"), step("sum", columns=3)
halves = step("sum", ("groups", pairs))
wait = lambda value: value.cpu()
local = lambda v: None
"""
START = """
wait(psum())
wait(psum())

def mark():
    if RANK == WHO:
        os.write(1, f"{mistake}{{time.monotonic()}}\\n".encode())

{body}
"""
# What is done in which case; in each the others go on with three more programs.
GO_ON = "for _ in range(3): wait(psum())"
HANGS = {
    "skips": f"mark()\nif RANK != WHO: wait(psum())\n{GO_ON}",
    "extra": f"{GO_ON}\nmark()\nif RANK == WHO: wait(psum())",
    "reducer": f"mark()\nwait((largest if RANK == WHO else psum)())\n{GO_ON}",
    "shape": f"mark()\nwait((wide if RANK == WHO else psum)())\n{GO_ON}",
    "groups": f"mark()\nwait((halves if RANK == WHO else psum)())\n{GO_ON}",
    "order": """mark()
for each in ((wide, largest) if RANK == WHO else (largest, wide)): wait(each())""",
    "raises and waits": f"""mark()
try:
    if RANK == WHO: raise ValueError("wrong")
    {GO_ON}
except ValueError:
    threading.Event().wait()""",
    "exits": f"mark()\nif RANK == WHO: sys.exit(0)\n{GO_ON}",
    "leaves": f"mark()\nif RANK == WHO: os._exit(0)\n{GO_ON}",
    "sleeps": f"mark()\nif RANK == WHO: time.sleep(3600)\n{GO_ON}",
    "stopped": f"mark()\nif RANK == WHO: os.kill(os.getpid(), signal.SIGSTOP)\n{GO_ON}",
    "lock": f"""lock = threading.Lock()
mark()
if RANK == WHO: lock.acquire(); lock.acquire()
{GO_ON}""",
    "socket": f"""server = socket.create_server(("127.0.0.1", 0))
mark()
if RANK == WHO: server.accept()
{GO_ON}""",
    "polls": f"""mark()
while RANK == WHO: time.sleep(0.02)
{GO_ON}""",
    "heartbeats": f"""def beat():
    while True: time.sleep(0.05)
[threading.Thread(target=beat, daemon=True).start() for _ in range(3)]
mark()
if RANK == WHO: time.sleep(3600)
{GO_ON}""",
}
JAX_HANGS = {
    "branch": f"mark()\nwait(branch())\n{GO_ON}",
    "loop": f"mark()\nwait(loop())\n{GO_ON}",
    "callback": f"""mark()
wait(on_host(lambda: time.sleep(3600) if RANK == WHO else None)())
{GO_ON}""",
    "callback leaves": f"""mark()
wait(on_host(lambda: os._exit(0) if RANK == WHO else None)())
{GO_ON}""",
}
BUSY = 2.5 * DEADLINE
SLOW = {
    "numpy": f"""end = time.monotonic() + {BUSY}
while RANK == WHO and time.monotonic() < end: np.ones((200, 200)) @ np.ones((200, 200))""",
    "sleeps a little": f"if RANK == WHO: time.sleep({DEADLINE / 2})",
    "thread": f"""def work():
    end = time.monotonic() + {BUSY}
    while time.monotonic() < end: np.ones((200, 200)) @ np.ones((200, 200))
if RANK == WHO:
    thread = threading.Thread(target=work); thread.start(); thread.join()""",
    "child": f"""if RANK == WHO:
    code = "import time; end = time.monotonic() + {BUSY}"
    subprocess.run([sys.executable, "-c", code + "\\nwhile time.monotonic() < end: pass"])""",
    "python": f"""end = time.monotonic() + {BUSY}
while RANK == WHO and time.monotonic() < end: sorted(str(n) for n in range(1000))""",
    "data": """if RANK == WHO:
    import tempfile
    with tempfile.TemporaryFile() as file:
        for _ in range(8):
            file.seek(0); np.random.rand(1 << 22).tofile(file)""",
}
JAX_SLOW = {
    "callback computes": f"""def work():
    end = time.monotonic() + {BUSY}
    while RANK == WHO and time.monotonic() < end: sorted(str(n) for n in range(1000))
wait(on_host(work)())""",
    "compiles": """if RANK == WHO:
    f = lambda v: sum(jax.numpy.sin(v * n) @ v for n in range(1500))
    jax.jit(f)(np.ones((8, 8), np.float32)).block_until_ready()""",
    "local program": f"""end = time.monotonic() + {BUSY}
while RANK == WHO and time.monotonic() < end:
    local(np.ones((100, 100), np.float32)).block_until_ready()""",
}
LATE = f"""import os, time
end = time.monotonic() + {2 * DEADLINE} * (os.environ["RANK"] == "{{who}}")
while time.monotonic() < end: pass
"""


@dataclass(frozen=True)
class Job:
    """One job: what it does wrong, or ``""`` and what makes it slow."""

    framework: str
    launcher: str
    topology: str
    processes: int
    kind: str
    who: int
    hangs: bool


@dataclass(frozen=True)
class Result:
    """What came of a job: ``wrong`` is "" if all is as it must be."""

    wrong: str
    seconds: float = 0.0
    lines: int = 0
    first: str = ""


# framework, launcher and the lines that join the job there
FRAMEWORKS = {
    ("jax", "run"): "",
    (
        "jax",
        "distributed",
    ): 'jax.distributed.initialize(os.environ["ADDRESS"], {count}, int(os.environ["RANK"]))',
    ("jax", "distributed()"): "jax.distributed.initialize()",
    (
        "torch_xla",
        "run",
    ): 'import torch.distributed as dist\ndist.init_process_group("xla", init_method="xla://")',
    (
        "torch_xla",
        "torchrun",
    ): 'import torch.distributed as dist\ndist.init_process_group("xla", init_method="xla://")',
    ("torch_xla", "launch"): "",
}
TOPOLOGIES = (
    ("4", "chip", 4),
    ("8", "chip", 8),
    ("2x4", "chip", 8),
    ("2x4", "slice", 2),
    ("3", "chip", 3),
    ("16", "host", 4),
    ("2x8", "host", 4),
)


def jobs(count: int, seed: int, *, hang: bool, forked: bool = False) -> list[Job]:
    """Return so many jobs, the same for the same seed, of ranks that can be forked if they are."""
    chosen, made = random.Random(seed), list[Job]()
    while len(made) < count:
        framework, launcher = chosen.choice([*FRAMEWORKS, *list(FRAMEWORKS)[:3]])
        topology, each, processes = chosen.choice(TOPOLOGIES)
        if framework == "torch_xla" and (launcher != "run" or each != "chip" or processes == 3):
            topology, each, processes = "4", "chip", 4  # their launchers start those of one slice
        kinds = HANGS if hang else SLOW
        if framework == "jax":
            kinds = {**kinds, **(JAX_HANGS if hang else {**JAX_SLOW, "starts late": ""})}
        kind = chosen.choice(list(kinds))
        if forked and launcher in ("torchrun", "launch"):
            continue
        if launcher == "distributed()" and processes == 3:
            continue
        if processes == 2 and kind in (
            "reducer",
            "shape",
            "groups",
            "order",
            "branch",
            "loop",
            "extra",
        ):
            continue  # of two equal halves both are named
        who = chosen.randrange(processes)
        made.append(Job(framework, launcher, f"{topology}@{each}", processes, kind, who, hang))
    return made


def script(job: Job) -> str:
    """Return the job's program."""
    bodies = {**HANGS, **JAX_HANGS, **SLOW, **JAX_SLOW, "starts late": ""}
    body = bodies[job.kind] if job.hangs else f"{bodies[job.kind]}\n{GO_ON}\nprint('ended well')"
    head = JAX if job.framework == "jax" else TORCH
    initialize = FRAMEWORKS[job.framework, job.launcher].format(count=job.processes)
    text = head.format(initialize=initialize, who=job.who)
    text += START.format(mistake=_MISTAKE, body=body)
    if job.kind == "starts late":
        text = LATE.format(who=job.who) + text
    if job.launcher == "launch":
        lines = "".join(f"    {line}\n" for line in text.splitlines())
        text = f"def work(index):\n{lines}"
        text += "\nif __name__ == '__main__':\n    import torch_xla\n    torch_xla.launch(work)\n"
    return text


def run(job: Job, folder: Path) -> Result:
    """Run a job and judge what is said of it."""
    file = folder / "train.py"
    file.write_text(script(job), encoding="utf-8")
    topology, _, each = job.topology.partition("@")
    command = [str(Path(sys.executable).parent / "xla-harness"), "run", f"--deadline={_LIMIT}"]
    python = [sys.executable, str(file)]
    if job.launcher == "torchrun":
        python = [
            str(Path(sys.executable).parent / "torchrun"),
            f"--nproc-per-node={job.processes}",
        ]
        python += [f"--master-port={free_port()}", str(file)]
    if job.launcher in ("torchrun", "launch"):
        command += [f"--topology={topology}"]
    else:
        command += [f"--topology={topology}", f"--processes={each}"]
    environment = {
        **os.environ,
        "VIRTUAL_TPU_DEADLINE": str(DEADLINE),
        "ADDRESS": f"127.0.0.1:{free_port()}",
    }
    started = time.monotonic()
    with subprocess.Popen(
        [*command, "--", *python],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        lines = [(time.monotonic(), line.rstrip("\n")) for line in process.stdout]
    return judged(job, lines, process.returncode, time.monotonic() - started)


def judged(job: Job, lines: list[tuple[float, str]], code: int, seconds: float) -> Result:
    """Return what came of a job that has printed these lines, each at its time."""
    texts = [line for _, line in lines]
    # JAX terminates the others at once when the rank with its coordination service ends.
    ended_first = f"xla-harness: rank {job.who} of {job.processes} ended first"
    reports = ("xla-harness: virtual TPU:", ended_first)
    starts = [i for i, t in enumerate(texts) if t.startswith(reports)]
    if not job.hangs:
        if starts:
            return Result("accused", seconds, 0, texts[starts[0]])
        # The processes of a launcher share a pipe, so that a line may be of two of them.
        ended = sum(text.count("ended well") for text in texts)
        well = code == 0 and ended == job.processes
        return Result("" if well else f"ended with {code}: {texts[-1:]}", seconds)
    if not starts:
        # A busy machine may still be importing.
        when = "after" if any(_MISTAKE in text for text in texts) else "before"
        return Result(f"no report {when} the mistake, exit code {code}: {texts[-1:]}", seconds)
    at, first = lines[starts[0]]
    report = 1 + next(
        (
            i
            for i, t in enumerate(texts[starts[0] + 1 :])
            if re.match(r"rank +\d+ \||xla-harness:|\[rank|[WEF]\d{4}|Traceback|WARNING|E0000", t)
        ),
        len(texts) - starts[0] - 1,
    )
    made = next((float(t.partition(_MISTAKE)[2]) for t in texts if _MISTAKE in t), 0.0)
    late = at - made - DEADLINE if made else 0.0
    culprit = re.match(r".*?can't go on: (?:devices? [\d, -]+ of )?ranks? ([\d, -]+)", first)
    named = str(job.who) if first.startswith(ended_first) else culprit and culprit[1].strip(" ,")
    wrong = ""
    if named != str(job.who):
        wrong = "another is named"
    elif late > _LATER:
        wrong = "late"
    elif report > _MOST_LINES:
        wrong = "long"
    return Result(wrong, late, report, first)


def run_forked(todo: list[Job]) -> list[tuple[Job, Result]]:
    """Run the jobs in forked ranks, as cases of pytest, and return what came of each."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "jobs.json")
        file.write_text(json.dumps([job.__dict__ for job in todo]), encoding="utf-8")
        environment = {
            **os.environ,
            "HANGS": str(file),
            "VIRTUAL_TPU_DEADLINE": str(DEADLINE),
            "PYTHONPATH": str(Path(__file__).parent),
        }
        here = str(Path(__file__).with_name("hangs_forked.py"))
        command = [sys.executable, "-m", "pytest", "-q", "-n2", "-p", "no:cacheprovider", here]
        subprocess.run(command, env=environment, check=False)
        lines = file.with_suffix(".results").read_text(encoding="utf-8").splitlines()
    results = [json.loads(line) for line in lines]
    return [(Job(**each["job"]), Result(**each["result"])) for each in results]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hangs", type=int, default=200)
    parser.add_argument("--slow", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--load", type=int, default=os.cpu_count(), help="busy processes beside")
    parser.add_argument("--forked", action="store_true", help="ranks are forked: import once")
    parser.add_argument("--minutes", type=float, default=0.0, help="start no job after so many")
    options = parser.parse_args()
    todo = jobs(options.hangs, options.seed, hang=True, forked=options.forked)
    todo += jobs(options.slow, options.seed, hang=False, forked=options.forked)
    random.Random(options.seed).shuffle(todo)
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.load)
    ]
    end = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    results: list[tuple[Job, Result]] = []
    try:
        if options.forked:
            results = run_forked(todo)
            for job, result in results:
                print(json.dumps({**job.__dict__, **result.__dict__}))
            todo = []
        for job in todo:
            if time.monotonic() > end:
                break
            with tempfile.TemporaryDirectory() as folder:
                result = run(job, Path(folder))
            results.append((job, result))
            print(json.dumps({**job.__dict__, **result.__dict__}), flush=True)
    finally:
        for process in busy:
            process.kill()
    for hangs in (True, False):
        mine = [result for job, result in results if job.hangs is hangs]
        print(
            "hangs" if hangs else "slow jobs", len(mine), dict(Counter(r.wrong[:40] for r in mine))
        )
        if hangs and (right := [r for r in mine if not r.wrong]):
            seconds, lines = [r.seconds for r in right], [r.lines for r in right]
            most = f"most {max(seconds):.1f} s"
            print(f"beyond the deadline: median {statistics.median(seconds):.1f} s, {most}")
            print(f"lines: median {statistics.median(lines):g}, most {max(lines)}")
    sys.exit(any(result.wrong for _, result in results))


if __name__ == "__main__":
    main()
