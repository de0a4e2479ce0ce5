"""Environments: real ones, made by uv; killed, raced for, and refused with a reason."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
import sys
import time
from datetime import date
from pathlib import Path

import pytest
from support.commands import run_program
from support.drift import GOOD, NO_DOUBLE, Drift, wheel
from uv import find_uv_bin

from harness.stacks import uv

pytestmark = pytest.mark.measures_coverage


def wait_for(path: Path, pattern: str) -> Path:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        match = next(path.glob(pattern), None)
        if match is not None:
            return match
        time.sleep(0.01)
    raise AssertionError(f"no {pattern} in {path}")


def environments(drift: Drift) -> list[Path]:
    return sorted((drift.cache / "environments").glob("*/stack.json"))


@pytest.fixture
def alone(drift: Drift, tmp_path: Path) -> Drift:
    """With a cache that no other test uses."""
    return Drift(drift.path, tmp_path / "cache")


def test_create_show_list_remove(alone: Drift) -> None:
    alone.stack("one", pins='drift = "1"')
    wheel(alone.path / "wheels", "1", GOOD)
    created = alone.run("stacks", "create", "one")
    assert created.returncode == 0, created.stderr
    python = Path(created.stdout.strip())
    assert "one: resolving" in created.stderr
    assert re.search(r"one: ready after \d+ s", created.stderr)
    code = "import drift, importlib.util as i; print(drift.double(2), i.find_spec('harness'))"
    done = run_program(python, "-Ic", code, check=True)
    assert done.stdout == "4 None\n"
    assert list(alone.cache.glob("environments/*.partial-*")) == []
    constraints = (alone.path / "fixtures" / "stacks" / "one.txt").read_text()
    assert re.search(r"^drift==1 \\\n +--hash=sha256:[0-9a-f]{64}$", constraints, re.MULTILINE)
    assert "://" not in constraints

    again = alone.run("stacks", "create", "one")
    assert (again.stdout, again.stderr) == (created.stdout, "")
    assert "environment " + str(python.parents[1]) in alone.run("stacks", "show", "one").stdout
    assert re.search(r"^one .* yes$", alone.run("stacks", "list").stdout, re.MULTILINE)

    removed = alone.run("stacks", "remove", "one")
    assert "one: 1 environments removed" in removed.stdout
    assert not python.exists()
    assert re.search(r"^one .* -$", alone.run("stacks", "list").stdout, re.MULTILINE)


@pytest.mark.long
def test_another_pin_is_another_environment(drift: Drift) -> None:
    drift.stack("1", GOOD)
    first = drift.run("stacks", "create", "1").stdout
    file = drift.stack("1", pins='drift = "2"')
    wheel(drift.path / "wheels", "2", NO_DOUBLE)
    stale = drift.run("stacks", "create", "1")
    assert stale.returncode == 2
    assert "has drift 1, 1.toml pins drift==2: run `xla-harness stacks lock 1`" in stale.stderr
    assert drift.run("stacks", "lock", "1").stdout.endswith("packages\n")
    assert drift.run("stacks", "create", "1").stdout not in ("", first)
    file.unlink()


@pytest.mark.long
def test_killed_create_leaves_nothing_that_looks_finished(alone: Drift) -> None:
    alone.stack("1", GOOD)
    with alone.start("stacks", "create", "1") as process:
        wait_for(alone.cache, "environments/*.partial-*")
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert environments(alone) == []
    again = alone.run("stacks", "create", "1")
    assert again.returncode == 0, again.stderr
    assert "removing what an interrupted create left" in again.stderr
    assert len(environments(alone)) == 1
    assert list(alone.cache.glob("environments/*.partial-*")) == []


@pytest.mark.long
def test_two_creators(alone: Drift) -> None:
    alone.stack("1", GOOD)
    assert alone.run("stacks", "lock", "1").returncode == 0
    slow = alone.path / "slow-uv"  # so that the second one comes while the first is at it
    slow.write_text(f'#!/bin/sh\nsleep 2\nexec "{uv.executable()}" "$@"\n')
    slow.chmod(0o755)
    with alone.start("stacks", "create", "1", UV=str(slow)) as first:
        wait_for(alone.cache, "environments/*.partial-*")
        second = alone.run("stacks", "create", "1")
        output, errors = first.communicate()
    assert first.returncode == second.returncode == 0, errors + second.stderr
    assert output == second.stdout
    assert "1: another process is making this environment, waiting for it" in second.stderr
    assert errors.count("ready after") == 1
    assert "ready after" not in second.stderr


def without(path: Path, package: str) -> None:
    """Take a package and its checksums out of a constraint file."""
    text = path.read_text()
    assert re.search(rf"^{package}==", text, re.MULTILINE)
    path.write_text(re.sub(rf"^{package}==.*\n(?:    .*\n)*", "", text, flags=re.MULTILINE))


@pytest.mark.long
def test_a_constraint_file_that_lacks_what_the_harness_needs(alone: Drift) -> None:
    """A stack's own is refused; one in the cache, of a swap, is made again."""
    for name in "12":
        alone.stack(name, GOOD)
        assert alone.run("stacks", "lock", name).returncode == 0
    own = alone.path / "fixtures" / "stacks" / "1.txt"
    assert alone.run("stacks", "create", "1+drift=2").returncode == 0
    (swap,) = (alone.cache / "constraints").glob("1+drift=2*.txt")
    for path in (own, swap):
        without(path, "pydantic")
    refused = alone.run("stacks", "create", "1")
    assert refused.returncode == 2
    assert "1.txt: has pydantic not at all, xla-harness pins pydantic" in refused.stderr
    assert "xla-harness stacks lock 1" in refused.stderr
    assert alone.run("stacks", "create", "1+drift=2").returncode == 0
    assert "\npydantic==" in swap.read_text()


@pytest.mark.long
@pytest.mark.parametrize("pins", ['drift = "../../wheels/drift-1-py3-none-any.whl"', 'drift = "1"'])
def test_a_wheel_that_was_built_again(alone: Drift, pins: str) -> None:
    """Under the same name and version: what runs is the file that is there now."""
    alone.stack("1", GOOD, pins=pins)
    assert alone.run("stacks", "lock", "1").returncode == 0
    own, path = alone.path / "fixtures/stacks/1.txt", alone.path
    locked, answers = own.read_text(), []
    for code in (GOOD, NO_DOUBLE, ""):
        path = wheel(alone.path / "wheels", "1", code) if code else path
        done = alone.run("stacks", "create", "1")
        assert done.returncode == 0, done.stderr
        python = Path(done.stdout.strip())
        ran = run_program(python, "-c", "import drift; print(drift.double(3))", check=True)
        manifest = json.loads((python.parents[1] / "stack.json").read_text())
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert manifest["wheels"] == {path.name: digest}
        answers.append((ran.stdout.strip(), python))
    assert [answer for answer, _ in answers] == ["6", "9", "9"]
    assert answers[1][1] == answers[2][1] != answers[0][1]
    assert own.read_text() == locked


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ('drift = "1"\npytest = "<8"', "the pins don't fit together"),
        ('drift = "7"', "drift==7"),
        ('no-such-package-of-anyone = "1"', "no-such-package-of-anyone"),
    ],
)
def test_pins_that_conflict(drift: Drift, pins: str, message: str) -> None:
    wheel(drift.path / "wheels", "1", GOOD)
    drift.stack("bad", pins=pins)
    done = drift.run("stacks", "lock", "bad")
    assert done.returncode == 2
    assert "xla-harness: stack bad: " in done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (drift.path / "fixtures" / "stacks" / "bad.txt").exists()
    assert list((drift.path / "fixtures" / "stacks").glob(".lock*")) == []


def test_no_network(alone: Drift) -> None:
    alone.stack("1", GOOD)
    done = alone.run(
        *("stacks", "create", "1"),
        UV_DEFAULT_INDEX="http://127.0.0.1:9/simple",
        UV_NO_CACHE="1",
        UV_HTTP_RETRIES="0",
    )
    assert done.returncode == 2
    assert "the package index can't be reached" in done.stderr


@pytest.mark.long
def test_no_python_of_that_version(alone: Drift) -> None:
    file = alone.stack("1", GOOD)
    assert alone.run("stacks", "lock", "1").returncode == 0
    file.write_text(re.sub(r'python = ".*"', 'python = "3.7"', file.read_text()))
    settings = {"UV_PYTHON_DOWNLOADS": "never", "PYENV_ROOT": str(alone.path / "none")}
    done = alone.run("stacks", "create", "1", **settings)
    assert done.returncode == 2
    assert "that Python is not here, and uv can't fetch it" in done.stderr
    remedy = "install Python 3.7 and put it on PATH, or: uv python install 3.7"
    assert done.stderr.endswith(f"{remedy}\n")
    doctor = alone.run("stacks", "doctor", **settings)
    assert doctor.returncode == 1
    assert remedy in " ".join(doctor.stdout.split())


def test_the_running_python_is_one(alone: Drift, tmp_path: Path) -> None:
    """Whatever is on PATH, and whatever uv has installed."""
    alone.stack("1", GOOD)
    nothing = {"PATH": str(tmp_path), "UV_PYTHON_INSTALL_DIR": str(tmp_path / "none")}
    settings = {"UV": str(find_uv_bin()), "UV_PYTHON_DOWNLOADS": "never", **nothing}
    made = alone.run("stacks", "create", "1", **settings)
    assert made.returncode == 0, made.stderr
    checks = json.loads(alone.run("stacks", "doctor", "--json", "-", **settings).stdout)
    version = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    assert [(c["value"], c["remedy"]) for c in checks if c["subject"] == version] == [
        (sys.executable, "")
    ]


@pytest.mark.long
def test_python_that_pyenv_alone_has(alone: Drift, tmp_path: Path) -> None:
    """uv sees what is on PATH, where pyenv puts only what was chosen."""
    file = alone.stack("1", GOOD)
    assert alone.run("stacks", "lock", "1").returncode == 0
    file.write_text(re.sub(r'python = ".*"', 'python = "3.7"', file.read_text()))
    for version in ("3.7.9", "3.7.16", "3.70.1"):
        (tmp_path / "versions" / version / "bin").mkdir(parents=True)
        (tmp_path / "versions" / version / "bin" / "python").touch()
    settings = {"UV_PYTHON_DOWNLOADS": "never", "PYENV_ROOT": str(tmp_path)}
    folder = tmp_path / "versions" / "3.7.16" / "bin"
    remedy = f"pyenv has it, where uv does not look: export PATH={folder}:$PATH"
    assert remedy in alone.run("stacks", "create", "1", **settings).stderr
    (python,) = (
        check
        for check in json.loads(alone.run("stacks", "doctor", "--json", "-", **settings).stdout)
        if check["subject"] == "Python 3.7"
    )
    assert python["remedy"] == remedy


@pytest.mark.long
def test_python_that_uv_can_not_download(alone: Drift) -> None:
    """Not being able to fetch a Python is not the index's fault."""
    file = alone.stack("1", GOOD)
    assert alone.run("stacks", "lock", "1").returncode == 0
    file.write_text(re.sub(r'python = ".*"', 'python = "3.8"', file.read_text()))
    done = alone.run(
        *("stacks", "create", "1"),
        UV_PYTHON_DOWNLOADS="automatic",
        UV_PYTHON_INSTALL_MIRROR="http://127.0.0.1:9/",
        UV_HTTP_RETRIES="0",
    )
    assert done.returncode == 2
    assert "that Python is not here, and uv can't fetch it" in done.stderr
    assert "export PATH=" in done.stderr or "uv python install 3.8" in done.stderr


def test_no_disk(alone: Drift) -> None:
    """Counted is what uv would have to download: here one wheel that its cache has not got."""
    wheel(alone.path / "wheels", "1", f"{GOOD}# {time.time_ns()}")
    alone.stack("huge", disk="1e9", pins='drift = "1"')
    done = alone.run("stacks", "create", "huge", UV_NO_CACHE="1")
    assert done.returncode == 2
    assert re.search(r"GB free, stack huge may take \d{9,}\.\d now", done.stderr)
    assert environments(alone) == []
    assert list(alone.cache.glob("environments/*.partial-*")) == []
    assert "XLA_HARNESS_CACHE" in done.stderr


def test_removing_what_nobody_knows(drift: Drift) -> None:
    drift.stack("one", pins='drift = "1"')
    done = drift.run("stacks", "remove", "oen")
    assert done.returncode == 2
    assert "stack 'oen': did you mean one?" in done.stderr


def test_doctor_sees_what_is_missing(drift: Drift, tmp_path: Path) -> None:
    drift.stack("1", GOOD)
    path = tmp_path / "bin"
    path.mkdir()
    (path / "uv").symlink_to(shutil.which("uv") or "uv")
    healthy = drift.run("stacks", "doctor")
    assert healthy.returncode == 0, healthy.stdout
    assert "MISSING" not in healthy.stdout
    drift.stack("2", pins='drift = "1"', disk="1e9")
    sick = drift.run("stacks", "doctor", PATH=str(path))
    assert sick.returncode == 1
    assert "MISSING C compiler" in sick.stdout
    assert "apt install gcc" in sick.stdout
    assert "MISSING disk" in sick.stdout
    assert "lanes cpu and virtual-tpu need none" in sick.stdout


def test_doctor_of_an_environment(tmp_path: Path) -> None:
    """Pins that don't fit together, in a folder of real metadata."""
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    for name, version, more in (
        ("torch", "2.8.0", ""),
        ("torch_xla", "2.9.0", ""),
        ("jax", "0.7.1", "Requires-Dist: jaxlib<=0.7.1,>=0.7.1\n"),
        ("jaxlib", "0.6.2", ""),
        ("libtpu", "0.0.12", ""),
    ):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}"
        (info / "METADATA").write_text(text)
    from harness.stacks.doctor import packages_fit

    checks = {check.subject: check for check in packages_fit(site)}
    assert checks["torch, torch_xla"].remedy == "torch_xla 2.9.0 is built for torch 2.9.0"
    assert checks["jax, jaxlib"].remedy == "jax 0.7.1 wants jaxlib<=0.7.1,>=0.7.1"


def test_doctor_reads_the_real_libtpu_and_jax() -> None:
    jax, libtpu = pytest.importorskip("jax"), pytest.importorskip("libtpu")
    from harness.stacks.doctor import built_on, here, mosaic_guard

    built = built_on(Path(libtpu.__file__).with_name("libtpu.so"))
    guard = mosaic_guard(Path(jax.__file__).parents[1])
    assert built is not None
    assert guard is not None
    subjects = {check.subject: check for check in here()}
    assert subjects["libtpu, Mosaic"].remedy == ""
    assert subjects["torch, torch_xla"].remedy == subjects["jax, jaxlib"].remedy == ""


@pytest.mark.parametrize(
    ("built", "unsure"),
    [("2025-07-30", False), ("2025-08-15", True), ("2025-09-11", False)],
    ids=["0.0.20 works", "0.0.21 refuses", "0.0.23 works"],
)
def test_doctor_is_unsure_of_a_libtpu_built_just_after_jax_asks(built: str, unsure: bool) -> None:  # noqa: FBT001
    from harness.stacks.doctor import mosaic_remark

    remark = mosaic_remark("0.7.1", "0.0.21", date.fromisoformat(built), date(2025, 8, 14))
    assert ("matrix --lanes tpu-aot --stacks 2.9.0+jax=0.7.1+libtpu=0.0.21" in remark) == unsure
