"""Stacks with JAX's CUDA plugin, and what a machine with an NVIDIA card lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.installed import install
from support.paths import ROOT
from support.project import Project

from harness.errors import BadInputError
from harness.matrix.attribution import differing, swapped
from harness.matrix.plan import cells
from harness.stacks.catalogue import Catalogue, versions_of
from harness.stacks.constraints import read
from harness.stacks.doctor import packages_fit
from harness.stacks.gpu_checks import machine

SHIPPED = Catalogue(ROOT / "fixtures" / "stacks")
NAMES = [
    f"jax-{version}-cuda{cuda}"
    for version in ("0.8.3", "0.9.2", "0.10.2", "0.11.2", "0.12.0.1")
    for cuda in (12, 13)
]


@pytest.mark.parametrize("name", NAMES)
def test_stack_is_jax_and_the_plugin_without_nvidias_libraries(name: str) -> None:
    stack = SHIPPED.find(name)
    jax, _, cuda = name.removeprefix("jax-").partition("-cuda")
    versions = versions_of(stack)
    assert {name for name, text in versions.items() if text == jax} == {
        *("jax", "jaxlib", f"jax_cuda{cuda}_plugin", f"jax_cuda{cuda}_pjrt")
    }
    assert versions["libtpu"] == "not installed"
    assert stack.where is not None
    resolved = read(stack.where.with_suffix(".txt"))
    assert resolved[f"jax-cuda{cuda}-pjrt"] == jax
    assert not [package for package in resolved if package.startswith("nvidia")]


def test_jax_and_cuda_are_swapped_apart() -> None:
    base, candidate = SHIPPED.find("jax-0.10.2-cuda12"), SHIPPED.find("jax-0.12.0.1-cuda13")
    components = differing(base, candidate)
    assert [component.name for component in components] == ["jax", "cuda"]
    jax, cuda = (swapped(base, candidate, component) for component in components)
    assert jax.name == "jax-0.10.2-cuda12+jax=0.12.0.1"
    assert set(jax.requirements) >= {"jaxlib==0.12.0.1", "jax_cuda12_pjrt==0.12.0.1"}
    assert cuda.name == "jax-0.10.2-cuda12+cuda=13"
    assert set(cuda.requirements) >= {"jaxlib==0.10.2", "jax_cuda13_plugin==0.10.2"}
    assert SHIPPED.find(cuda.name).requirements == cuda.requirements
    assert not SHIPPED.find("jax-0.10.2-cuda12+cuda=none").cuda


def test_stacks_between_have_the_cuda_of_the_later() -> None:
    names = [stack.name for stack in SHIPPED.between("jax-0.10.2-cuda12", "jax-0.12.0.1-cuda13")]
    assert names == ["jax-0.10.2-cuda12", "jax-0.11.2-cuda13", "jax-0.12.0.1-cuda13"]


def test_lanes_for_libtpu_are_not_planned() -> None:
    lanes = ["virtual-gpu", "gpu-aot", "tpu-aot"]
    planned = cells(SHIPPED.find("jax-0.10.2-cuda12"), lanes, 1)
    assert [cell.lane for cell in planned] == ["virtual-gpu", "gpu-aot"]
    assert [cell.lane for cell in cells(SHIPPED.find("jax-0.10.2"), lanes, 1)] == [
        *("virtual-gpu", "tpu-aot")
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "cuda='12'\n[pins]\njax='0.11.2'\njaxlib='0.11.2'\njax-cuda13-pjrt='0.11.2'",
            "jax_cuda12_plugin 0.11.2, jax_cuda12_pjrt 0.11.2, jax_cuda13_pjrt 0.11.2: expected",
        ),
        (
            "[pins]\njaxlib='0.11.2'\njax_cuda12_pjrt='0.10.2'",
            "jax_cuda12_pjrt 0.10.2 is for jaxlib 0.10.2, found jaxlib 0.11.2",
        ),
        ("cuda='12'\n[pins]\njax='0.11.2'", "key 'pins.jaxlib' is missing: expected a version"),
        ("cuda='11'\n[pins]\njaxlib='0.1'", "key 'cuda': '11': expected '12' or '13', or false"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.toml").write_text(f"python='3.12'\n{text}\n")
    with pytest.raises(BadInputError) as error:
        Catalogue(tmp_path).find("mine")
    assert f"{tmp_path}/mine.toml: {message}" in str(error.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jax-0.10.2-cuda21", "did you mean jax-0.10.2-cuda1"),
        ("jax-0.10.2-cuda12+cuda=14", "cuda='14': did you mean 13"),
    ],
)
def test_typos(name: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        SHIPPED.find(name)


def test_plugin_for_another_jaxlib_ends_a_run_before_its_first_case(project: Project) -> None:
    project.write(
        "test_inner.py",
        '@pytest.mark.lanes("cpu")\n@pytest.mark.topologies(1)\ndef test_case(topology): pass\n',
    )
    site = project.path / "site"
    ran = project.run(PYTHONPATH=install(site, "jax_cuda12_plugin", {}, version="0.4.1"))
    assert ran.code == 2
    assert ran.shows("jax_cuda12_plugin 0.4.1 is for jaxlib 0.4.1, found jaxlib ")


def test_doctor_names_the_libraries_that_a_card_needs(tmp_path: Path) -> None:
    needs = "Requires-Dist: nvidia-cudnn-cu12<10.0,>=9.8; extra == 'with-cuda'\n"
    for name in ("jax", "jaxlib", "jax_cuda12_pjrt"):
        install(tmp_path, name, {}, version="0.11.2")
    install(tmp_path, "jax_cuda12_plugin", {}, version="0.11.2", needs=needs)
    checks = {check.subject: check for check in packages_fit(tmp_path)}
    assert checks["CUDA plugin"].value == "0.11.2, CUDA 12"
    remedy = checks["NVIDIA libraries"].remedy
    assert remedy.startswith("nvidia-cudnn-cu12<10.0,>=9.8: a card needs them")
    install(tmp_path, "nvidia_cudnn_cu12", {}, version="9.10")
    assert "NVIDIA libraries" not in {check.subject for check in packages_fit(tmp_path)}
    install(tmp_path, "jax_cuda13_pjrt", {}, version="0.11.2")
    (plugin,) = (check for check in packages_fit(tmp_path) if check.subject == "CUDA plugin")
    assert plugin.needed
    assert plugin.remedy.endswith("expected the plugin of one CUDA, found those of 12 and 13")


VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"


def test_doctor_names_what_a_machine_with_a_card_lacks(tmp_path: Path) -> None:
    (none,) = machine(tmp_path, {})
    assert (none.value, none.needed) == ("none", False)
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / "dev" / name).touch()
    checks = {check.subject: check for check in machine(tmp_path, {})}
    assert checks["GPU"].value == "2 cards"
    assert checks["NVIDIA driver"].remedy.startswith("load NVIDIA's kernel module")
    driver = tmp_path / "proc/driver/nvidia/version"
    driver.parent.mkdir(parents=True)
    driver.write_text(VERSION)
    checks = {check.subject: check for check in machine(tmp_path, {})}
    assert checks["NVIDIA driver"].value == "570.86.15"
    assert checks["NVIDIA driver"].remedy.startswith("no libcuda.so.1")
    (tmp_path / "libcuda.so.1").touch()
    here = {"LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0,2", "JAX_PLATFORMS": "cpu"}
    checks = {check.subject: check for check in machine(tmp_path, here)}
    assert not checks["NVIDIA driver"].remedy
    assert checks["CUDA_VISIBLE_DEVICES"].remedy == "there is no card 2: expected 0 to 1"
    assert checks["JAX_PLATFORMS"].remedy.startswith("JAX looks for no GPU")
    (check,) = (c for c in machine(tmp_path, {"CUDA_VISIBLE_DEVICES": ""}) if "CUDA" in c.subject)
    assert check.remedy == "it hides every card: unset CUDA_VISIBLE_DEVICES"
