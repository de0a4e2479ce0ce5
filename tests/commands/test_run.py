"""``xla-harness run``: each process gets its place, and nothing is left of any of them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.commands import run_program

from harness import cli
from harness.lanes.virtual import library
from harness.messages.ports import free_port

PLACE = """\
import os
print(*(os.environ.get(name, "-") for name in (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CLOUD_TPU_TASK_ID",
    "TPU_VISIBLE_CHIPS", "TPU_PROCESS_BOUNDS", "MEGASCALE_SLICE_ID")))
"""


@dataclass(frozen=True)
class Ran:
    """A command that is over."""

    code: int
    stdout: str
    stderr: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process, and says what came of it."""

    def call(*options: str, command: Sequence[str] = ()) -> Ran:
        code = cli.main(["run", *options, *(["--", *command] if command else [])])
        return Ran(code, *capfd.readouterr())

    return call


def python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def lines(text: str) -> list[str]:
    return sorted(text.splitlines())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--topology=4",), ["- - - - - - - -"]),
        (("--topology=2x4",), ["- - - - - - 1,1,1 -"]),
        (
            ("--topology=4", "--processes=chip"),
            [f"rank {n} | {n} 4 {n} 4 {n} {n} 2,2,1 -" for n in range(4)],
        ),
        (
            ("--topology=8", "--processes=host"),
            ["rank 0 | 0 2 0 1 0 0,1,2,3 1,2,1 -", "rank 1 | 1 2 0 1 1 4,5,6,7 1,2,1 -"],
        ),
        (
            ("--topology=2x4@slice",),
            ["rank 0 | 0 2 0 1 0 0,1,2,3 1,1,1 0", "rank 1 | 1 2 0 1 0 0,1,2,3 1,1,1 1"],
        ),
    ],
    ids=["one", "slices", "chips", "hosts", "a process a slice"],
)
def test_place_of_each_process(run: Run, options: tuple[str, ...], expected: list[str]) -> None:
    ran = run(*options, command=python(PLACE))
    assert ran.code == 0, ran.stderr
    assert lines(ran.stdout) == expected


def test_processes_share_one_job_and_two_runs_do_not(run: Run) -> None:
    names = ("XLA_HARNESS_JOB", "XLA_HARNESS_JOB_TOKEN", "MASTER_PORT")
    show = python(f"import os; print(*map(os.environ.get, {names}))")
    jobs = []
    for _ in range(2):
        ran = run("--topology=2@chip", command=show)
        (job,) = {line.partition("| ")[2] for line in ran.stdout.splitlines()}
        jobs.append(job.split())
    assert all(first != other for first, other in zip(*jobs, strict=True))


def test_a_log_of_its_own_has_only_what_is_read_of_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    show = python("import os; print(os.environ.get('XLA_HARNESS_EVENT_KINDS'))")
    assert run("--topology=2", command=show).stdout == "client,clients,meet\n"
    monkeypatch.setenv("XLA_HARNESS_EVENTS", "/dev/null")
    assert run("--topology=2", command=show).stdout == "None\n"


def test_output_keeps_its_stream_and_its_last_line(run: Run) -> None:
    text = "import sys; print('out'); print('err\\nno newline', end='', file=sys.stderr)"
    ran = run("--topology=2@chip", command=python(text))
    assert lines(ran.stdout) == ["rank 0 | out", "rank 1 | out"]
    assert lines(ran.stderr) == [
        f"rank {n} | {text}" for n in (0, 1) for text in ("err", "no newline")
    ]


def test_one_process_has_our_output_and_its_own_exit_code(run: Run) -> None:
    ran = run("--topology=4", command=("sh", "-c", "printf 'as it is'; exit 3"))
    assert ran == Ran(3, "as it is", "")


def test_a_rank_that_ended_well_before_another_failed_is_named(run: Run) -> None:
    text = "import os, time\nif os.environ['RANK'] == '1':\n    time.sleep(2)\n    os.abort()"
    ran = run("--topology=2@chip", command=python(text))
    ends = "rank 0 of 2 ended first, with exit code 0; then rank 1: exit code 134"
    assert (ran.code, f"xla-harness: {ends}" in ran.stderr) == (134, True)


@pytest.mark.parametrize(
    ("end", "code"), [("raise SystemExit(7)", 7), ("os.kill(os.getpid(), 9)", 137)]
)
def test_others_end_with_the_first_that_fails(run: Run, end: str, code: int) -> None:
    text = f"import os, time\nif os.environ['RANK'] == '2':\n    {end}\ntime.sleep(600)"
    start = time.monotonic()
    ran = run("--topology=4@chip", command=python(text))
    assert ran.code == code
    assert f"xla-harness: rank 2 of 4: exit code {code}" in ran.stderr
    assert time.monotonic() - start < 60


LEAVES = """\
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "611"], start_new_session=True)
print(child.pid, flush=True)
if os.environ["RANK"] == "0":
    {end}
time.sleep(611)
"""


def gone(pids: Sequence[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("end", ["sys.exit(0) if time.sleep(1) else sys.exit(1)", "sys.exit(1)"])
def test_nothing_stays_behind_a_failure(run: Run, end: str) -> None:
    ran = run("--topology=2@chip", command=python(LEAVES.format(end=end)))
    assert ran.code == 1
    assert gone([int(line.split()[-1]) for line in ran.stdout.splitlines()])


def test_nothing_stays_behind_a_command_that_has_ended(run: Run) -> None:
    ran = run("--topology=4", command=("sh", "-c", "setsid sleep 611 >&- 2>&- & echo $!"))
    assert ran.code == 0
    assert gone([int(ran.stdout)])


# Without the command line, which takes seconds to import.
DRIVER = """\
import os, sys
from harness.job.command import run_command
ranks = [{{**os.environ, "RANK": str(rank)}} for rank in range(2)]
ended = run_command([sys.executable, "-c", {text!r}], ranks, None, lambda _: {respite})
print(ended.why)
sys.exit(ended.code)
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 128 + signal.SIGTERM),
        (signal.SIGHUP, 128 + signal.SIGHUP),
        (signal.SIGINT, 128 + signal.SIGINT),
    ],
)
def test_nothing_stays_behind_a_signal(number: signal.Signals, code: int) -> None:
    command = python(DRIVER.format(text=LEAVES.format(end="pass"), respite=None))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        pids = [int(running.stdout.readline().split()[-1]) for _ in range(2)]
        running.send_signal(number)
        why, _ = running.communicate(timeout=60)
        assert running.returncode == code
        assert gone(pids)
    where = f"rank 0, 1 of 2: still running at {number.name}\nrank 0:\n"
    assert (where in why) == (number != signal.SIGINT)


@pytest.mark.parametrize(("respite", "code"), [(60.0, 0), (0.5, 1)])
def test_processes_that_cannot_go_on_together_may_end_well(respite: float, code: int) -> None:
    text = "import time; time.sleep(5)"  # as one that has caught the error, and saves its work
    ran = subprocess.run(python(DRIVER.format(text=text, respite=respite)), check=False)
    assert ran.returncode == code


def test_deadline_says_where_they_are(run: Run) -> None:
    text = "import os, time\ndef stuck(): time.sleep(600)\nos.environ['RANK'] == '1' and stuck()"
    ran = run("--topology=2@chip", "--deadline=5", command=python(text))
    assert ran.code == 124
    assert "rank 1 of 2: still running after 5 s" in ran.stderr
    assert "stuck (<string>:2)" in ran.stderr
    assert "rank 0:" not in ran.stderr


# What each of two ranks does with an array over both of them.
OVER_BOTH = """\
import os
import jax, numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
rank, mesh = os.environ["RANK"], Mesh(np.array(jax.devices()), "x")
ones = jax.make_array_from_callback((2,), NamedSharding(mesh, P("x")), lambda i: np.ones(1))
def body(x):
{body}
program = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
print(program(ones).addressable_data(0))
"""


def test_the_reason_comes_once_and_its_first_line_last(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    body = '    return lax.psum(x, "x") if rank == "0" else lax.pmax(x, "x")'
    script.write_text(OVER_BOTH.format(body=body), encoding="utf-8")
    ran = run("--topology=2@chip", command=(sys.executable, str(script)))
    assert ran.code == 1
    first = "ranks 0, 1 run programs whose collectives do not match, at collective 1 of program 1"
    *_, last = ran.stderr.splitlines()
    assert last.startswith("xla-harness: the reason, the same for all ranks: virtual TPU: ")
    assert last.endswith(first)
    _, _, report = ran.stderr.partition(f"xla-harness: virtual TPU: the job can't go on: {first}")
    patterns = [rf"  rank {n}: all-reduce {kind} of " for n, kind in enumerate(("sum", "max"))]
    for line in patterns:
        assert ran.stderr.count(line) == 1
        assert re.search(line + rf"f32\[1\] .*, {script}:\d+\)", report)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            'jax.distributed.initialize(os.environ["COORDINATOR"], 5, int(os.environ["RANK"]))',
            "2 processes were started, and ranks 0, 1 wait in jax.distributed.initialize for 5",
        ),
        (
            (
                'os.environ["RANK"] == "1" and time.sleep(600)\n'
                'jax.distributed.initialize(os.environ["COORDINATOR"], 2, int(os.environ["RANK"]))'
            ),
            "rank 1 does nothing, for 3 s, and rank 0 waits in jax.distributed.initialize",
        ),
    ],
    ids=["count", "absent"],
)
def test_processes_that_never_gather(
    run: Run, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    monkeypatch.setenv("VIRTUAL_TPU_DEADLINE", "3")
    monkeypatch.setenv("COORDINATOR", f"localhost:{free_port()}")
    ran = run("--topology=2@chip", command=python(f"import os, time, jax\n{script}"))
    assert ran.code
    assert f"xla-harness: {message}" in ran.stderr


HANGS_UNDER_JAX = """\
import os, time
import jax
jax.distributed.initialize(os.environ["COORDINATOR"], 3, int(os.environ["RANK"]))
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), "x")
ones = jax.make_array_from_callback((3,), NamedSharding(mesh, P("x")), lambda i: np.ones(1))
body = lambda x: lax.psum(x, "x")
program = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P()))
for step in range(4):
    if step == 2 and jax.process_index() == 1:
        {mistake}
    program(ones).block_until_ready()
"""


@pytest.mark.parametrize(
    ("mistake", "place"),
    [
        ("time.sleep(600)", "time.sleep(600)"),
        ("raise SystemExit", "  the program has ended; then:\n"),  # JAX waits for the others
    ],
    ids=["sleeps", "ends"],
)
def test_jax_distributed_hangs_with_a_reason(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str, place: str
) -> None:
    """Its heartbeats are no work, and the ranks that failed would wait minutes for the others."""
    script = tmp_path / "train.py"
    script.write_text(HANGS_UNDER_JAX.format(mistake=mistake), encoding="utf-8")
    monkeypatch.setenv("VIRTUAL_TPU_DEADLINE", "3")
    monkeypatch.setenv("COORDINATOR", f"localhost:{free_port()}")
    ran = run("--topology=3@chip", command=(sys.executable, str(script)))
    assert ran.code
    report = ran.stderr[ran.stderr.index("xla-harness: virtual TPU:") :]
    first, *rest = report.splitlines()
    assert "rank 1 does nothing, for 3 s, and ranks 0, 2 wait for it: psum" in first
    assert "  rank 1: 2 programs over several ranks" in rest
    assert "  ranks 0, 2: 3 programs over several ranks, of which the last one waits" in rest
    assert place in report
    assert "Traceback" not in ran.stderr[: -len(report)]


@pytest.mark.parametrize(("body", "alone"), [("x * 2", True), ('lax.psum(x, "x")', False)])
def test_processes_that_never_meet_are_named(
    run: Run, tmp_path: Path, body: str, *, alone: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(OVER_BOTH.format(body=f"    return {body}"), encoding="utf-8")
    ran = run("--topology=2@chip", command=(sys.executable, str(script)))
    assert ran.code == 0, ran.stderr
    assert lines(ran.stdout) == ["rank 0 | [2.]", "rank 1 | [2.]"]
    assert ("each of the 2 processes worked alone" in ran.stderr) is alone


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("import jax; jax.config.update('jax_platforms', 'cpu'); jax.devices()", "JAX's cpu"),
        ("import os; os.environ['PJRT_DEVICE'] = 'CPU'; import torch_xla; torch_xla.device()", "t"),
        ("import jax, torch_xla", ""),
    ],
    ids=["JAX", "torch_xla", "none"],
)
def test_a_lane_that_was_not_used(run: Run, text: str, other: str) -> None:
    """Who computes elsewhere learns nothing about the lane; who computes nothing asks nothing."""
    ran = run("--topology=2", command=python(text))
    assert ran.code == (1 if other else 0), ran.stderr
    assert (
        f"lane virtual-tpu was not used: no process created a client of it, and there were "
        f"other clients: {other}" in ran.stderr
    ) is bool(other)


def test_a_platform_that_the_user_has_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_HARNESS_PLATFORM", raising=False)
    monkeypatch.setenv("JAX_PLATFORMS", "mine")
    ran = run("--lane=cpu", command=("true",))
    assert (ran.code, ran.stdout) == (2, "")
    assert "JAX_PLATFORMS='mine' names a platform that lane cpu would replace" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--topology=4",), "run: expected a command after --"),
        (("--topology=4", "--", "./nothing-here"), "./nothing-here: expected a program"),
        (("--topology=4x", "--", "true"), "topology '4x': expected DEVICES"),
        (("--lane=npu", "--", "true"), "lane 'npu': expected one of"),
        (("--lane=tpu-aot", "--", "true"), "lane tpu-aot: expected one of cpu, virtual-tpu"),
        (
            ("--lane=cpu", "--topology=4@chip", "--", "true"),
            "topology 4@chip: lane cpu has all devices in one process",
        ),
        (
            ("--topology=4@chip", "--processes=host", "--", "true"),
            "topology 4@chip: expected no 'host' beside it",
        ),
        (
            ("--processes=core", "--", "true"),
            "processes 'core': expected a process for each chip, host, slice, of GPUs device",
        ),
        (("--deadline=0", "--", "true"), "--deadline '0': expected seconds above 0"),
    ],
)
def test_bad_input(
    capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert cli.main(["run", *arguments]) == 2
    assert message in capfd.readouterr().err


def test_lane_cpu(run: Run) -> None:
    show = python("import os; print(os.environ['PJRT_DEVICE'], os.environ['CPU_NUM_DEVICES'])")
    assert run("--lane=cpu", "--topology=8", command=show).stdout == "CPU 8\n"


@pytest.mark.parametrize("framework", ["torch_xla", "jax"])
def test_python_without_the_harness(tmp_path: Path, framework: str) -> None:
    (tmp_path / f"{framework}.py").touch()
    startup = Path(library.__file__).with_name("startup")
    ran = run_program(
        sys.executable,
        "-S",
        "-c",
        f"import sitecustomize; print(1); import {framework}",
        env={"PYTHONPATH": f"{startup}:{tmp_path}"},
    )
    assert ran.stdout == "1\n"
    assert f"{sys.executable} has {framework} but no xla-harness" in ran.stderr


def test_the_first_framework_that_is_imported_is_prepared_too(tmp_path: Path) -> None:
    """What changes it after its import is called though it was not there when the import began."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch_xla.py").write_text(
        "class _XLAC: _prepare_to_exit, _xla_runtime_is_initialized, __file__ = print, bool, '/x'"
    )
    code = "import torch, torch_xla; print(torch_xla._XLAC._prepare_to_exit)"
    startup = Path(library.__file__).with_name("startup")
    ran = run_program(
        sys.executable,
        "-c",
        code,
        env={"PYTHONPATH": f"{startup}:{tmp_path}", "VIRTUAL_TPU_PLUGIN": str(library.PLUGIN)},
    )
    assert "prepare_to_exit at" in ran.stdout, ran.stderr


def test_another_sitecustomize_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")
    startup = Path(library.__file__).with_name("startup")
    ran = run_program(
        sys.executable, "-c", "print('ours')", env={"PYTHONPATH": f"{startup}:{tmp_path}"}
    )
    assert (ran.stdout, ran.stderr) == ("theirs\nours\n", "")
