"""What a user sees when the virtual TPU can't be had: one line that says why, and no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.project import Project, Ran

from harness.lanes.virtual import library

BUILD = Path(library.__file__).with_name("plugin") / "build.py"
CASE = "@pytest.mark.lanes('virtual-tpu')\ndef test_x(): pass"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--topology=2y4"], "topology '2y4': expected DEVICES or SLICESxDEVICES, as 4 or 2x4"),
        (["--topology=2x0"], "topology '2x0': expected"),
        (["--topology=:2x4"], "topology ':2x4': expected"),
        (
            ["--topology=v6:2x4"],
            "generation 'v6': expected one of v4, v5e, v5p, v6e, tpu7x, a100",
        ),
        (["--topology=v6:4"], "did you mean v6e?"),
        (["--topology=trillium:4"], "generation 'trillium': expected one of v4, v5e, v5p, v6e"),
        (["--topology=4097"], "topology 4097: expected 4096 devices at most"),
        (["--topology=65x64"], "topology 65x64: expected 4096 devices at most"),
        (["--lane=cpu", "--topology=v4:4"], "topology v4:2x2x1: lane cpu has no generations"),
        (["--lane=virtual-tpu,cpu"], "expected one --lane and one --topology"),
        (["--lane=virtual_tpu"], "lane 'virtual_tpu': expected one of cpu, virtual-tpu"),
    ],
)
def test_bad_option(project: Project, options: list[str], message: str) -> None:
    project.write("test_plain.py", "def test_x(): pass")
    ran = refused(project, "--lane=virtual-tpu", *options, message=message)
    assert ran.shows("xla-harness: ")


@pytest.mark.parametrize(
    ("markers", "message"),
    [
        ("lanes('virtual-tpu')\n@pytest.mark.topologies('v7:2')", "generation 'v7': expected"),
        ("lanes('virtual-tpu')\n@pytest.mark.topologies('99x99')", "expected 4096 devices at most"),
        ("lanes('cpu')\n@pytest.mark.topologies('v4:4')", "lane cpu has no generations"),
    ],
)
def test_bad_marker(project: Project, markers: str, message: str) -> None:
    project.write("test_inner.py", f"@pytest.mark.{markers}\ndef test_x(): pass")
    refused(project, message=message)


def refused(project: Project, *options: str, message: str, **environment: str) -> Ran:
    ran = project.run(*options, **environment)
    assert ran.code == 2, ran.stdout + ran.stderr
    assert ran.shows(message), ran.stdout + ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr
    assert "site-packages" not in ran.stdout + ran.stderr
    return ran


def plugins_folder(project: Project) -> Path:
    """A package ``xla_plugins`` that hides the installed one."""
    folder = project.path / "hiding" / "xla_plugins" / "xla_cpu_pjrt"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    return folder


@pytest.mark.parametrize("test", [CASE, "def test_x(): pass"], ids=["case", "foreign"])
def test_a_missing_backend(project: Project, test: str) -> None:
    hiding = plugins_folder(project).parents[1]
    project.write("test_inner.py", test)
    message = "lane virtual-tpu: xla_cpu_pjrt.so is missing: expected the package xla-cpu-pjrt=="
    refused(project, "--lane=virtual-tpu", message=message, PYTHONPATH=str(hiding))


def test_a_backend_that_is_no_library(project: Project) -> None:
    folder = plugins_folder(project)
    (folder / "xla_cpu_pjrt.so").write_text("not a library at all")
    project.write("test_inner.py", CASE)
    message = "lane virtual-tpu: VIRTUAL_TPU_BACKEND can't be loaded:"
    refused(project, message=message, PYTHONPATH=str(folder.parents[1]))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "long api[] = {0, 0, 24, 0, 1L << 32};\nvoid *GetPjrtApi(void) { return api; }",
            "is PJRT 0.1; this plugin was compiled for 0.",
        ),
        ("int nothing;", "exports no GetPjrtApi"),
        ("void *GetPjrtApi(void) { return 0; }", "has a GetPjrtApi that returns NULL"),
    ],
)
def test_another_backend(project: Project, source: str, message: str) -> None:
    folder = plugins_folder(project)
    compile_library(folder / "xla_cpu_pjrt.so", source)
    project.write("test_inner.py", CASE)
    refused(project, message=message, PYTHONPATH=str(folder.parents[1]))


def compile_library(target: Path, source: str) -> None:
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(target)]
    subprocess.run(command, input=source, text=True, check=True)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "libvirtual_tpu.so is missing: it is compiled when xla-harness is installed"),
        (
            'const char *virtual_tpu_version(void) { return "0.0.0"; }',
            "libvirtual_tpu.so is version 0.0.0, expected ",
        ),
        ("int nothing;", "expected the plugin: "),
    ],
    ids=["missing", "old", "foreign"],
)
def test_another_plugin(project: Project, source: str, message: str) -> None:
    plugin = project.path / "libvirtual_tpu.so"
    if source:
        compile_library(plugin, source)
    project.write(
        "conftest.py",
        f"from harness.lanes.virtual import library\nlibrary.PLUGIN = Path({str(plugin)!r})\n",
    )
    project.write("test_inner.py", CASE)
    refused(project, message=f"lane virtual-tpu: {message}" if not source else message)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"CC": "no-such-compiler -O1"},
            "xla-harness: no C compiler 'no-such-compiler': the virtual TPU is compiled when",
        ),
        ({"CC": "false"}, "xla-harness: the virtual TPU does not compile: false -std=c17"),
        (
            {"PYTHONPATH": "hiding"},
            "xla-harness: pjrt_c_api.h is missing: expected the package xla-cpu-pjrt",
        ),
    ],
    ids=["none", "failing", "no header"],
)
def test_no_plugin_is_half_built(
    project: Project, environment: dict[str, str], message: str
) -> None:
    plugins_folder(project)
    folder = project.path / "target"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, BUILD, folder / "libvirtual_tpu.so", "-shared"],
        cwd=project.path,
        env={"PATH": "/usr/bin:/bin"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(folder.iterdir()) == []


def test_a_failed_build_keeps_the_old_plugin(tmp_path: Path) -> None:
    old = tmp_path / "libvirtual_tpu.so"
    old.write_text("old")
    command = [sys.executable, str(BUILD), str(old), "-shared"]
    assert subprocess.run(command, env={"CC": "false"}, check=False).returncode == 1
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(old.name, "old")]
