"""JAX's processes find their jobs of virtual GPUs as on a cluster of real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import xla_harness
from support.project import Project

from harness.messages.ports import free_port
from harness.model.topology import Topology
from harness.platforms.gpu import variables

RUN_RANKS = """
@pytest.mark.lanes("virtual-gpu")
@pytest.mark.topologies("2xh100:2@device", "2xh100:4@node", "gb200:8@device", "gb200:8@node")
def test_job(topology):
    from harness.job.ranks import run_ranks
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    total, count = topology.total, topology.process_count
    of_node = 2 if topology.slices == 2 and topology.devices == 2 else 4
    def rank(number):
        jax.distributed.initialize()
        parts = NamedSharding(Mesh(np.array(jax.devices()), "x"), PartitionSpec("x"))
        full = np.arange(total, dtype=np.float32)
        values = jax.make_array_from_callback(full.shape, parts, lambda index: full[index])
        local = jax.local_devices()
        who = {
            "process": (jax.process_index(), jax.process_count(), {d.process_index for d in local}),
            "ids": [device.id for device in local],
            "hardware": [device.local_hardware_id for device in local],
            "slices": [device.slice_index for device in jax.devices()],
            "sum": float(jax.jit(lambda v: v.sum())(values)),
        }
        jax.distributed.shutdown()
        return who
    each = total // count
    for number, who in enumerate(run_ranks(rank, topology)):
        ids = list(range(number * each, (number + 1) * each))
        assert who == {
            "process": (number, count, {number}),
            "ids": ids,
            "hardware": [id % of_node for id in ids],
            "slices": [id // topology.devices for id in range(total)],
            "sum": total * (total - 1) / 2,
        }
"""
# What each launcher tells process PROCESS of COUNT, LOCAL of OF_NODE on its node.
LAUNCHERS = {
    "slurm": """
        "SLURM_JOB_ID": str(PORT), "SLURM_STEP_NODELIST": "localhost,node[7-9]",
        "SLURM_NTASKS": str(COUNT), "SLURM_PROCID": str(PROCESS), "SLURM_LOCALID": str(LOCAL),
    """,
    "openmpi": """
        "OMPI_MCA_orte_hnp_uri": f"{PORT << 12}.0;tcp://127.0.0.1,10.148.0.1:34911",
        "OMPI_COMM_WORLD_SIZE": str(COUNT), "OMPI_COMM_WORLD_RANK": str(PROCESS),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(LOCAL),
    """,
    "address": """
        "ARGUMENTS": f'"localhost:{PORT}", {COUNT}, {PROCESS}, local_device_ids={LOCAL}',
    """,
    "visible": """
        "ARGUMENTS": f'"localhost:{PORT}", {COUNT}, {PROCESS}',
        "CUDA_VISIBLE_DEVICES": str(OF_NODE - 1 - LOCAL),
    """,
    "undivided": '"ARGUMENTS": f\'"localhost:{PORT}", {COUNT}, {PROCESS}\',',
}
LAUNCH = """
import os, subprocess, sys
COUNT, OF_NODE, PORT = {count}, 2, {port}
for name in [*os.environ]:
    if name.startswith(("SLURM", "OMPI", "JAX_COORDINATOR")):
        del os.environ[name]
started = []
for PROCESS in range(COUNT):
    LOCAL = PROCESS % OF_NODE
    variables = {{{variables}}}
    started.append(subprocess.Popen([sys.executable, "train.py"], env=os.environ | variables))
sys.exit(max(each.wait() for each in started))
"""
TRAIN = """
import os, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

if sys.argv[1:]:
    place = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    jax.distributed.initialize(sys.argv[1], *place, int(os.environ["LOCAL_RANK"]))
else:
    eval(f"jax.distributed.initialize({os.environ.get('ARGUMENTS', '')})")
parts = NamedSharding(Mesh(np.array(jax.devices()), "x"), PartitionSpec("x"))
full = np.arange(jax.device_count(), dtype=np.float32)
values = jax.make_array_from_callback(full.shape, parts, lambda index: full[index])
total = float(jax.jit(lambda v: v.sum())(values))
(device,) = jax.local_devices()
place = f"process {jax.process_index()} of {jax.process_count()}, {device.local_hardware_id}"
os.write(1, f"{place}, {device.slice_index}: {device}, {total}\\n".encode())
"""


def run(
    folder: Path, *words: str, topology: str = "2xh100:2", visible: str | None = None
) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    command = ("run", "--lane=virtual-gpu", f"--topology={topology}", *words)
    return xla_harness(
        *command,
        cwd=folder,
        env=os.environ | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}),
    )


def launched(folder: Path, variables: str, count: int = 4) -> subprocess.CompletedProcess[str]:
    script = LAUNCH.format(count=count, port=free_port(), variables=variables)
    (folder / "launch.py").write_text(script, encoding="utf-8")
    return run(folder, "--", sys.executable, "launch.py")


def lines(hardware: str = "0101") -> list[str]:
    """What the four processes print, each with the number of its device on its node."""
    return [
        f"process {process} of 4, {number}, {process // 2}: cuda:{process}, 6.0"
        for process, number in enumerate(hardware)
    ]


def test_run_ranks(project: Project) -> None:
    project.write("test_inner.py", RUN_RANKS)
    ran = project.run("--lane=virtual-gpu")
    assert list(ran.outcomes.values()) == ["passed"] * 4, ran.stdout


def test_initialize_without_arguments_in_each_process(tmp_path: Path) -> None:
    ran = run(tmp_path, "--processes=device", "--", sys.executable, "train.py")
    assert ran.returncode == 0, ran.stderr
    assert sorted(line.rpartition("| ")[2] for line in ran.stdout.splitlines()) == lines()


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_processes_of_a_launcher(tmp_path: Path, launcher: str) -> None:
    ran = launched(tmp_path, LAUNCHERS[launcher])
    assert ran.returncode == 0, ran.stderr
    hardware = {"visible": "0000"}.get(launcher, "0101")
    assert sorted(ran.stdout.splitlines()) == lines(hardware)


def test_torchrun(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node=4", f"--master-port={free_port()}")
    address = f"localhost:{free_port()}"
    ran = run(tmp_path, "--", sys.executable, *torchrun, "train.py", address, topology="h100:4")
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == [
        f"process {n} of 4, {n}, 0: cuda:{n}, 6.0" for n in range(4)
    ]


# Arguments for JAX, other variables, and what the error says.
IMPOSSIBLE = {
    "processes": ("", "", "process 2 of a job of 3: expected as many processes on each of 2 nodes"),
    "devices": (
        "local_device_ids=[0, 1]",
        "",
        "this one takes 2 of the node's 2 devices: expected 1",
    ),
    "device": ("local_device_ids=7", "", "expected numbers of the 2 devices that the process sees"),
    "visible": ("", '"CUDA_VISIBLE_DEVICES": "2"', "CUDA_VISIBLE_DEVICES=2: expected numbers of a"),
    "same": ("local_device_ids=1", "", "device 1 of node 0 is that of rank "),
    "same visible": ("", '"CUDA_VISIBLE_DEVICES": "1"', "device 1 of node 0 is that of rank "),
}


@pytest.mark.long
@pytest.mark.parametrize("place", IMPOSSIBLE)
def test_a_place_that_the_topology_has_not(tmp_path: Path, place: str) -> None:
    arguments, variables, message = IMPOSSIBLE[place]
    given = (
        f"""{LAUNCHERS["undivided"].replace("PROCESS}", f"PROCESS}}, {arguments}")}{variables}"""
    )
    ran = launched(tmp_path, given, 3 if place == "processes" else 4)
    assert ran.returncode == 1
    assert "virtual GPU: " in ran.stderr
    assert message in ran.stderr


HANGING = """
import os, time
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

jax.distributed.initialize()
number, full = int(os.environ["SLURM_PROCID"]), np.arange(4, dtype=np.float32)
psum, pmax = (lambda v: jax.lax.psum(v, "x")), (lambda v: jax.lax.pmax(v, "x"))
for step in range(3):
    calls = [psum, pmax]
    if (number, step) == (2, WHEN):
        OTHERWISE
    mesh = Mesh(np.array(jax.devices()), "x")
    parts = NamedSharding(mesh, P("x"))
    for call in calls:
        values = jax.make_array_from_callback(full.shape, parts, full.__getitem__)
        jax.jit(jax.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=P()))(values)
print("done")
"""
MATCH = "rank 2 runs a program whose collectives do not match those of ranks 0, 1, 3"
# In which step one rank does what, and what the report says: its first words, and what waits.
HANGS = {
    "skips": (1, "calls = []", "rank 2 does nothing, for 2 s, and ranks 0, 1, 3 wait for it"),
    "shape": (1, "full = np.arange(8, dtype=np.float32)", MATCH),
    "order": (1, "calls = [pmax, psum]", MATCH),
    "dies": (1, "os.kill(os.getpid(), 9)", "rank 2 (process "),
    "late": (0, "time.sleep(100)", "rank 2 (process "),
}


@pytest.mark.parametrize(
    "otherwise",
    [pytest.param(name, marks=[pytest.mark.long] * (name == "late")) for name in HANGS],
)
def test_a_job_that_would_hang(
    tmp_path: Path, otherwise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, does, first = HANGS[otherwise]
    monkeypatch.setenv("VIRTUAL_TPU_DEADLINE", "2")
    script = HANGING.replace("WHEN", str(step)).replace("OTHERWISE", does)
    (tmp_path / "hanging.py").write_text(script, encoding="utf-8")
    ran = run(tmp_path, "--processes=device", "--", sys.executable, "hanging.py")
    assert ran.returncode not in (0, 2)
    reason, *more = ran.stderr.partition("rank 0 | ")[0].splitlines()
    assert reason.startswith(f"xla-harness: virtual GPU: the job can't go on: {first}")
    if otherwise == "late":
        assert "has never come, and ranks 0, 1, 3 wait for it" in reason
    else:
        line = script[: script.index("        jax.jit(")].count("\n") + 1
        assert any(f"hanging.py:{line}" in text for text in [reason, *more])
    assert not [word for word in ("TPU", "chip", "MegaScale") if word in " ".join(more)]


# What all run on is a process that the last has started, whose command then ends first.
LATER = """
others, number = jax.devices()[:3], jax.process_index()
jax.distributed.shutdown()
if number < 3:
    time.sleep(2)
    parts = NamedSharding(Mesh(np.array(others), "x"), PartitionSpec("x"))
    values = jax.make_array_from_callback((3,), parts, lambda index: full[index])
    assert float(jax.jit(lambda v: v.sum())(values)) == 3
"""
# What each launcher tells process {n} of {count}; that of mpirun was read from Open MPI 5.0.11.
STARTED = {
    "srun": "SLURM_JOB_ID={job} SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS={count} SLURM_PROCID={n} "
    "SLURM_NTASKS={count} SLURM_STEP_NUM_NODES={machines} SLURM_LOCALID={n}",
    "mpirun": "PMIX_NAMESPACE=prterun-vm-{job}@1 OMPI_COMM_WORLD_SIZE={count} "
    "OMPI_COMM_WORLD_RANK={n} OMPI_COMM_WORLD_LOCAL_SIZE={of_machine}",
}


def each_runs(
    folder: Path, launcher: str, script: str, count: int = 4, machines: int = 1
) -> list[tuple[int, str, str]]:
    """Exit code and output of each process, which runs the script by a command of its own."""
    (folder / "script.py").write_text(script, encoding="utf-8")
    command = ("-m", "harness", "run", "--lane=virtual-gpu", "--topology=2xh100:2", "--")
    job, of_machine = free_port(), count // machines
    started = []
    for n in range(count):
        place = {"n": n, "count": count, "machines": machines, "of_machine": of_machine}
        words = STARTED[launcher].format(job=job, **place).split()
        started.append(
            subprocess.Popen(
                (sys.executable, *command, sys.executable, "script.py"),
                cwd=folder,
                env=os.environ | dict(word.split("=") for word in words),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [each.communicate(timeout=300) for each in started]
    return [(each.wait(), *output) for each, output in zip(started, outputs, strict=True)]


@pytest.mark.long
@pytest.mark.parametrize("launcher", STARTED)
def test_commands_that_a_launcher_starts_meet(tmp_path: Path, launcher: str) -> None:
    first = 'import time; time.sleep(os.environ["RANK"] != "3")\nparts ='
    ran = each_runs(tmp_path, launcher, TRAIN.replace("parts =", first, 1) + LATER)
    assert [(code, output) for code, output, _ in ran] == [(0, f"{line}\n") for line in lines()]


@pytest.mark.long
def test_commands_that_a_launcher_starts_name_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUAL_TPU_DEADLINE", "2")
    step, does, first = HANGS["skips"]
    script = HANGING.replace("WHEN", str(step)).replace("OTHERWISE", does)
    for code, _, errors in each_runs(tmp_path, "srun", script):
        assert code
        assert f"xla-harness: virtual GPU: the job can't go on: {first}" in errors


@pytest.mark.parametrize(
    ("count", "machines", "message"),
    [
        (3, 1, "srun has started 3 processes: expected 4 for 2xh100:2@device, 2 for 2xh100:2@node"),
        (4, 2, "srun has started processes on several machines: the ranks of a job on virtual"),
    ],
)
def test_commands_that_can_not_meet(
    tmp_path: Path, count: int, machines: int, message: str
) -> None:
    for code, output, errors in each_runs(tmp_path, "srun", "", count, machines):
        assert (code, output) == (2, "")
        assert message in errors


@pytest.mark.parametrize("visible", ["0", "0,1,1", "0,1,2,3,4", "GPU-8932f937"])
def test_a_list_that_contradicts_the_topology(project: Project, visible: str) -> None:
    project.write("test_inner.py", "def test_x(): pass\n")
    ran = project.run("--lane=virtual-gpu", "--topology=2xh100:4", CUDA_VISIBLE_DEVICES=visible)
    assert ran.code == 2
    assert ran.shows(
        f"lane virtual-gpu, topology 2xh100:4: CUDA_VISIBLE_DEVICES={visible} is not all of the 4 "
        "devices of a node: expected it unset, or 0 to 3, or another topology"
    )


@pytest.mark.long
@pytest.mark.parametrize("visible", ["3,1,0,2", "", "-1"])
def test_a_list_that_hides_no_virtual_device(tmp_path: Path, visible: str) -> None:
    """Also within a process, where an empty list hides the real cards only."""
    (tmp_path / "count.py").write_text(
        f"import os; os.environ['CUDA_VISIBLE_DEVICES'] = {visible!r}\n"
        "import jax; print(len(jax.devices()))"
    )
    ran = run(tmp_path, "--", sys.executable, "count.py", topology="h100:4", visible=visible)
    assert (ran.returncode, ran.stdout) == (0, "4\n"), ran.stderr


def test_a_real_card_is_refused_unless_it_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    layout = Topology.parse("h100:8")
    for shown in ({}, {"CUDA_VISIBLE_DEVICES": "0"}):
        why = variables.contradiction(layout, shown, tmp_path)
        assert why.startswith(f"this machine has a real GPU, {tmp_path}/nvidia0")
        assert "hide it by CUDA_VISIBLE_DEVICES=-1, or use lane gpu" in why
    assert variables.contradiction(layout, {"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == ""
