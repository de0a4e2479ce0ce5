"""A component that is not the released one is named: in the header, in JUnit and in a script."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import time
from pathlib import Path

import pytest
from support.commands import run_program, xla_harness
from support.paths import ROOT
from support.project import Project

CODE = (
    "from harness.model.provenance import modified_components as found; print(*found(), sep='\\n')"
)


def installed(folder: Path, text: str = "") -> Path:
    """A folder of installed packages with libtpu in it, as an installer leaves it."""
    package, about = folder / "libtpu", folder / "libtpu-7.0.dist-info"
    package.mkdir(parents=True)
    about.mkdir()
    (package / "__init__.py").write_text(text)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: libtpu\nVersion: 7.0\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
    row = f"libtpu/__init__.py,sha256={digest.decode()},{len(text)}\n"
    (about / "RECORD").write_text(f"{row}libtpu-7.0.dist-info/RECORD,,\n")
    return folder


def found(*folders: Path) -> str:
    """What a process with these folders on its path says."""
    path = os.pathsep.join([*map(str, folders), str(ROOT)])
    done = run_program(
        sys.executable, "-c", CODE, env=os.environ | {"PYTHONPATH": path}, check=True
    )
    return "\n".join(line for line in done.stdout.splitlines() if line.startswith("libtpu"))


def test_an_installed_distribution_is_not_named(tmp_path: Path) -> None:
    folder = installed(tmp_path)
    assert found(folder) == ""
    later = time.time() + 60
    os.utime(folder / "libtpu" / "__init__.py", (later, later))  # touched, and the same
    assert found(folder) == ""


def test_another_folder_on_the_path(tmp_path: Path) -> None:
    folder, patched = installed(tmp_path / "site"), tmp_path / "patched"
    (patched / "libtpu").mkdir(parents=True)
    (patched / "libtpu" / "__init__.py").touch()
    assert (
        found(patched, folder)
        == f"libtpu 7.0 from {patched}/libtpu (not the installed distribution)"
    )


@pytest.mark.parametrize("text", ["longer", "12345678"])
def test_a_file_that_was_changed(tmp_path: Path, text: str) -> None:
    """By its size, or, where that is the same, by its hash."""
    folder = installed(tmp_path, "87654321")
    time.sleep(0.02)
    (folder / "libtpu" / "__init__.py").write_text(text)
    why = "changed since it was installed: libtpu/__init__.py"
    assert found(folder) == f"libtpu 7.0 from {folder}/libtpu ({why})"


@pytest.mark.parametrize(
    ("file", "content", "origin"),
    [
        (
            "direct_url.json",
            {"url": "file:///x/libtpu.whl", "archive_info": {}},
            "file:///x/libtpu",
        ),
        ("direct_url.json", {"url": "https://me:secret@a.b/c", "vcs_info": {}}, "https://a.b/c"),
    ],
    ids=["wheel", "repository"],
)
def test_an_installation_by_address(
    tmp_path: Path, file: str, content: dict[str, object], origin: str
) -> None:
    folder = installed(tmp_path)
    (folder / "libtpu-7.0.dist-info" / file).write_text(json.dumps(content))
    assert found(folder).startswith(f"libtpu 7.0 from {origin}")
    assert "secret" not in found(folder)


def test_a_source_tree(tmp_path: Path) -> None:
    folder = installed(tmp_path)
    (folder / "libtpu-7.0.dist-info" / "RECORD").unlink()
    assert found(folder) == f"libtpu 7.0 from {folder}/libtpu (a source tree)"


@pytest.fixture
def patched(project: Project) -> str:
    """A project whose PYTHONPATH has a libtpu of its own."""
    project.write("patched/libtpu/__init__.py", "")
    project.write(
        "test_inner.py",
        """\
        pytestmark = pytest.mark.lanes("cpu")
        def test_x(record_property): record_property("modified", "by the test")
        """,
    )
    return os.pathsep.join([str(project.path / "patched"), os.environ.get("PYTHONPATH", "")])


@pytest.mark.parametrize("how", [(), ("-n1",)], ids=["", "xdist"])
def test_the_header_and_junit_name_it(project: Project, patched: str, how: tuple[str, ...]) -> None:
    ran = project.run(*how, PYTHONPATH=patched)
    place = f"from {project.path}/patched/libtpu (not the installed distribution)"
    header = ran.stdout.partition("test_inner.py")[0]
    assert "xla-harness: libtpu " in header
    assert place in header
    properties = ran.properties("test_x")
    assert place in properties["modified"]
    assert properties["test:modified"] == "by the test"
    assert ran.junit.read_text().count(place) == 2  # of the case and of the report


def test_nothing_is_said_of_released_components(project: Project, patched: str) -> None:
    del patched
    ran = project.run()
    assert "not the installed" not in ran.stdout
    assert "modified" not in ran.properties("test_x")


def test_a_script_claims_nothing_of_the_release(project: Project, patched: str) -> None:
    project.write("test_inner.py", '@pytest.mark.lanes("cpu")\ndef test_plain(): assert 0')
    done = xla_harness(
        "repro",
        "--no-run",
        "test_inner.py::test_plain[cpu-4]",
        cwd=project.path,
        env=os.environ | {"PYTHONPATH": patched},
        check=True,
    )
    text = " ".join(done.stdout.replace("#", " ").split())
    assert "Modified: libtpu" in text
    assert f"from {project.path}/patched/libtpu (not the installed distribution)" in text
    assert "Nothing is known of the released libtpu" in text
    assert "or python FILE where the packages above are installed" not in text
