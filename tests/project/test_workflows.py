"""The workflows: checked, free of planted faults, and every step of the CPU jobs run here."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.commands import run_program
from support.paths import ROOT
from support.workflows import act, clone, run_steps

from harness.history.branch import Branch
from harness.history.store import History

GITHUB = ROOT / ".github"
PINS = GITHUB / "requirements" / "harness.txt"
WORKFLOWS = sorted(path.name for path in GITHUB.glob("workflows/*.yml"))
CHECKOUT = re.compile(r"actions/checkout@[0-9a-f]{40} # v[\d.]+")
FAULTS = {
    "unpinned action": lambda text: CHECKOUT.sub("actions/checkout@v5", text, count=1),
    "untrusted text in a shell line": lambda text: re.sub(
        r"^(\s+)run: .*$",
        r"\1run: echo '${{ github.event.pull_request.title }}'",
        text,
        count=1,
        flags=re.MULTILINE,
    ),
    "every permission": lambda text: text.replace("permissions: {}", "permissions: write-all", 1),
    "misspelt key": lambda text: text.replace("timeout-minutes:", "timeout-minute:", 1),
    "credentials left behind": lambda text: text.replace(
        "persist-credentials: false", "fetch-tags: false", 1
    ),
    "unknown output": lambda text: re.sub(r"needs\.plan\.outputs\.\w+", "needs.plan.nothing", text),
}
CASE = "suites/spmd_specs/test_scalars_fsdpv2.py"
FUNCTION = "test_train_step"


def _checks(folder: Path) -> subprocess.CompletedProcess[str]:
    return run_program(str(ROOT / ".ci" / "workflows"), str(folder))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "action.yml", tmp_path)
    return Path(shutil.copytree(GITHUB, tmp_path / ".github"))


def test_the_workflows_pass_their_checks(copy: Path) -> None:
    done = _checks(copy)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_planted_fault_is_found(copy: Path, workflow: str, fault: str) -> None:
    path = copy / "workflows" / workflow
    text = path.read_text()
    planted = FAULTS[fault](text)
    if planted == text:
        assert fault == "unknown output", "every other fault fits every workflow"
        return
    path.write_text(planted)
    assert _checks(copy).returncode != 0


@pytest.mark.parametrize("name", ["actions/setup/action.yml", "../action.yml"])
def test_a_fault_in_the_action_is_found(copy: Path, name: str) -> None:
    path = copy / name
    path.write_text(path.read_text().replace("using:", "usin:"))
    assert _checks(copy).returncode != 0


def test_a_pull_request_gets_no_secret_and_may_write_nothing() -> None:
    for name in ("ci.yml", "suites.yml"):
        text = (GITHUB / "workflows" / name).read_text()
        data = yaml.safe_load(text)
        assert "secrets" not in text
        assert "pull_request_target" not in text
        assert data["permissions"] == {}
        for job in data["jobs"].values():
            assert set(job["permissions"].items()) <= {("contents", "read")}


def test_only_a_job_that_needs_it_may_write() -> None:
    data = yaml.safe_load((GITHUB / "workflows" / "nightly.yml").read_text())
    writes = {
        (job, name)
        for job, job_data in data["jobs"].items()
        for name, level in job_data["permissions"].items()
        if level == "write"
    }
    assert writes == {
        ("publish", "contents"), ("publish", "issues"), ("deploy", "pages"), ("deploy", "id-token"),
    }  # fmt: skip


def test_what_may_write_installs_nothing_of_its_own() -> None:
    """The one step that installs is the action, without a stack: then all of it is pinned."""
    jobs = []
    for path in GITHUB.glob("workflows/*.yml"):
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            if "write" not in job.get("permissions", {}).values():
                continue
            jobs.append(f"{path.stem} {name}")
            for step in job["steps"]:
                if step.get("uses") == "./.github/actions/setup":
                    assert step["with"]["stack"] == "none", f"{path.name}: {name}"
                words = str(step.get("run", "")).split()
                ours = words[:4] == ["uv", "run", "--no-sync", "xla-harness"]
                assert ours or words[:1] in ([], ["kubectl"]), words
    assert sorted(jobs) == ["nightly deploy", "nightly publish", "survive comment", "tpu slices"]


STAND_IN = """\
#!/bin/sh
echo "$(basename "$0") $*" >> "$LOG"
"""


@pytest.mark.parametrize("stack", ["none", "2.9.0"])
def test_the_setup_without_a_stack_takes_pinned_files_only(tmp_path: Path, stack: str) -> None:
    (tmp_path / "clone/.ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci/setup", tmp_path / "clone/.ci/setup")
    (tmp_path / "bin").mkdir()
    for name in ("python", "python3", "pip", "uv", "curl"):
        (tmp_path / "bin" / name).write_text(STAND_IN)
        (tmp_path / "bin" / name).chmod(0o755)
    subprocess.run(
        [tmp_path / "clone/.ci/setup", stack],
        env={
            "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
            "LOG": str(tmp_path / "log"),
            "GITHUB_PATH": str(tmp_path / "path"),
        },
        check=True,
    )
    pip = "uv pip install --quiet"
    assert (tmp_path / "log").read_text().splitlines() == [
        "uv venv --quiet --clear .venv",
        f"{pip} --require-hashes --only-binary :all: --requirement {PINS.relative_to(ROOT)}",
        f"{pip} --no-deps --no-build-isolation --no-index --editable .",
    ]
    assert (tmp_path / "path").read_text() == f"{tmp_path / 'clone/.venv/bin'}\n"


def test_jobs_with_a_stack_install_the_same_uv() -> None:
    (entry,) = re.findall(r"^uv==.*(?:\n .*)*", PINS.read_text(), re.MULTILINE)
    assert (PINS.parent / "uv.txt").read_text() == f"# .ci/pin\n{entry}\n"
    setup = (ROOT / ".ci/setup").read_text().replace("\\\n", "")
    installs = [line for line in setup.splitlines() if re.search(r"\bpip .*install", line)]
    resolving = [line for line in installs if "--no-deps" not in line]
    assert len(resolving) == 2
    assert all("--require-hashes" in line for line in resolving)


def test_the_pins_are_what_the_project_needs() -> None:
    text = PINS.read_text()
    assert "://" not in text
    entries = [part for part in re.split(r"\n(?=\S)", text) if not part.startswith("#")]
    pinned = {}
    for entry in entries:
        line, *checksums = entry.replace("\\\n", "").split()
        assert checksums, line
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", text) for text in checksums), line
        name, version = line.split("==")
        pinned[canonicalize_name(name)] = version
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for wanted in map(
        Requirement, [*data["project"]["dependencies"], *data["build-system"]["requires"]]
    ):
        version = pinned[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(version), f"{wanted}: pinned to {version}: run .ci/pin"


def test_every_step_is_one_command() -> None:
    actions = [*GITHUB.glob("actions/*/action.yml"), ROOT / "action.yml"]
    for path in [*GITHUB.glob("workflows/*.yml"), *actions]:
        for line in re.findall(r"^\s+run: (.*)$", path.read_text(), re.MULTILINE):
            assert "${{" not in line
            assert line[0] not in "|>", f"{path.name}: more than a line"
            assert not re.search(r"&&|;", line), f"{path.name}: {line}"


def test_the_docs_say_what_can_be_given() -> None:
    docs = (ROOT / "docs/ci.md").read_text()
    events = yaml.safe_load((GITHUB / "workflows/suites.yml").read_text())[True]  # on
    inputs = events["workflow_call"]["inputs"]
    for name, given in events["workflow_dispatch"]["inputs"].items():
        assert given == {k: v for k, v in inputs[name].items() if k != "description"}
    assert [name for name in inputs if f"`{name}`" not in docs] == []
    block = re.search(r"```yaml\n(.*?)```", docs, re.DOTALL)
    assert block is not None
    example = yaml.safe_load(block[1])
    call = example["jobs"]["suites"]
    assert call["uses"].startswith("OWNER/xla-harness/.github/workflows/suites.yml@")
    assert set(call["with"]) <= set(inputs)
    for name in WORKFLOWS:
        text = (GITHUB / "workflows" / name).read_text()
        if name in ("ci.yml", "suites.yml", "nightly.yml"):
            assert [v for v in re.findall(r"vars\.(\w+)", text) if f"`{v}`" not in docs] == []


def test_the_action_and_the_workflow_around_it_have_the_same_inputs() -> None:
    docs = (ROOT / "docs/survive.md").read_text()
    action = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    workflow = yaml.safe_load((GITHUB / "workflows/survive.yml").read_text())
    inputs = workflow[True]["workflow_call"]["inputs"]
    shared = {name: action[name] for name in action if name != "out"}
    assert shared == {n: {k: v for k, v in inputs[n].items() if k != "type"} for n in shared}
    steps = workflow["jobs"]["tests"]["steps"]
    (call,) = (step for step in steps if step["uses"] == "./.xla-harness")
    assert {n: f"${{{{ inputs.{n} }}}}" for n in shared}.items() <= call["with"].items()
    for name in {**action, **inputs}:
        assert f"`{name}`" in docs
    assert all(f"| `{inputs[n]['default']}` |" in docs for n in inputs if inputs[n].get("default"))


def test_what_runs_tests_of_others_may_only_read() -> None:
    jobs = yaml.safe_load((GITHUB / "workflows/survive.yml").read_text())["jobs"]
    assert jobs["tests"]["permissions"] == {"contents": "read"}
    assert "github.token" not in str(jobs["tests"])
    assert "github.token" not in (ROOT / "action.yml").read_text()


def test_the_workflows_in_the_docs_pass_their_checks(copy: Path) -> None:
    """With a place of the harness in them, as a user writes one."""
    pages = [(ROOT / "docs" / name).read_text() for name in ("ci.md", "survive.md")]
    texts = re.findall(r"```yaml\n(.*?)```", "".join(pages), re.DOTALL)
    assert len(texts) == 6
    for number, text in enumerate(texts):
        placed = text.replace("COMMIT", "0" * 40).replace("OWNER", "someone")
        (copy / "workflows" / f"shown-{number}.yml").write_text(placed)
    done = _checks(copy)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_the_minutes_in_the_docs_are_computed() -> None:
    done = run_program(sys.executable, ".ci/shard.py", "minutes", cwd=ROOT, check=True)  # fmt: skip
    table = re.search(
        r"<!-- minutes -->\n(.*)<!-- end of minutes -->",
        (ROOT / "docs/ci.md").read_text(),
        re.DOTALL,
    )
    assert table is not None
    jobs = [line.split("|")[1] for line in table[1].splitlines()]
    assert jobs == [line.split("|")[1] for line in done.stdout.splitlines()]
    minutes = [float(line.split("|")[2]) for line in done.stdout.splitlines()[2:]]
    assert max(minutes) < 13  # and two to set up


def _recorded(folder: Path) -> Path:
    """A branch with one run: what the stack's recorded report says of the chosen cases."""
    tree = ET.parse(ROOT / "fixtures/junit/2.9.0-cpu.xml")
    for suite in tree.iter("testsuite"):
        for case in suite.findall("testcase"):
            if not case.get("name", "").startswith(f"{FUNCTION}["):
                suite.remove(case)
    tree.write(folder / "base.xml")
    History(folder / "base").record([folder / "base.xml"])
    remote = folder / "history.git"
    subprocess.run(["git", "init", "--quiet", "--bare", remote], check=True)
    assert Branch(str(remote), "history").push(folder / "base").new
    return remote


def _first_part() -> tuple[str, str]:
    """Return the first part of the harness's tests in ci.yml, as 1/4, and its smallest file."""
    code = "import shard as s; n = s.part_count(); p = s.parts(n)[0]; print(n, min(p, key=p.get))"
    done = run_program(sys.executable, "-c", code, cwd=ROOT / ".ci", check=True)
    count, path = done.stdout.split()
    return f"1/{count}", Path(path).name


@pytest.mark.long
def test_every_step_of_ci_runs_in_a_clean_clone(tmp_path: Path) -> None:
    repository = clone(tmp_path / "clone")
    part, file = _first_part()
    ran = act(
        repository,
        "workflow_dispatch",
        "ci.yml",
        tmp_path / "artifacts",
        [
            *("--input", f"arguments={CASE} -k {FUNCTION} -n 0"),
            *("--matrix", f"part:{part}", "--matrix", "lane:cpu", "--matrix", "python:3.11"),
        ],
        variables={"HISTORY_REMOTE": str(_recorded(tmp_path))},
        environment={
            "PYTEST_ADDOPTS": f"-k {file}",
            "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache"),  # it compares contents, not places
        },
    )
    # One small test file covers less than the gate asks for, and nothing else may fail.
    assert set(ran.names("failure")) == {"Gate"}, ran.text[-8000:]
    gate = r"Coverage failure: total of \d+ is less than fail-under=90"
    assert re.search(gate, ran.text), ran.text[-8000:]
    files = ("workflows/ci.yml", "workflows/suites.yml", "actions/setup/action.yml")
    wanted = [name for file in files for name in run_steps(GITHUB / file)]
    assert len(wanted) > 10
    assert [name for name in wanted if name not in ran.names()] == ["Gate"]
    checks = [step.name for step in ran.steps if step.job.endswith("workflows, documents")]
    assert [name for name in checks if name in wanted] == ["Harness", "Checks"]
    junit = list((tmp_path / "artifacts").glob("junit-2.9.0-cpu-*/2.9.0/*.xml"))
    assert len(junit) == 2
    assert re.search(r"Qualified on [a-z, -]+: nothing regressed", ran.text)
