"""Stacks as data: read, extended, swapped, named; every mistake is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.drift import wheel
from support.paths import ROOT

from harness import cli
from harness.errors import BadInputError
from harness.matrix.attribution import differing
from harness.model.versions import ABSENT, named_by
from harness.stacks import catalogue as catalogue_module
from harness.stacks.catalogue import Catalogue, known_versions
from harness.stacks.constraints import path_of
from harness.stacks.constraints import read as read_constraints
from harness.stacks.wheels import named, stacks_of

SHIPPED = ROOT / "fixtures" / "stacks"
BASE = 'python = "3.11"\n[pins]\ntorch = "2.9.0"\ntorch_xla = "2.9.0"\njax = "0.7.1"\n'


def test_list_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stacks", "--folder", str(SHIPPED), "list"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert len(rows) == len(Catalogue(SHIPPED).stacks)
    assert all(len(line) <= 80 for line in (head, *rows))
    (newest,) = (row for row in rows if row.startswith("2.9.0-newest "))
    assert newest[head.index("jax") :].startswith("0.12.0.1 ")


def catalogue(folder: Path, **files: str) -> Catalogue:
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text)
    return Catalogue(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("python = 3.11", "key 'python': 3.11: expected a version, as '3.11'"),
        ("[pins]\njax = '1'", "key 'python' is missing: expected a version"),
        ("python = '3.11'", "key 'pins' is missing"),
        ("python = '3.11'\npins = 1", "key 'pins': 1: expected a version, a specifier"),
        ("python = '3.11'\n[pins]\njax = 1", "key 'pins.jax': 1: expected a version"),
        ("python = '3.11'\n[pins]\njax = ''", "key 'pins.jax': '': expected a version"),
        ("python = '3.11'\n[pins]\njax = 'new'", "key 'pins.jax': 'new': expected a version"),
        ("pyton = '3.11'", "unknown key 'pyton': expected cuda, disk, extends, note"),
        (
            "python = '3.11'\n[wheels]\nurl = 'x'",
            "unknown key 'wheels.url': expected 'folder', a",
        ),
        (
            "python = '3.11'\n[wheels]\nindex = 1",
            "key 'wheels.index': 1: expected 'folder', a text",
        ),
        ("extends = 'bas'", "key 'extends': 'bas': did you mean base?"),
        ("extends = 'one'", "key 'extends': 'one' extends this one"),
        ("python = '3.11'\n[pins]\njax = 'x.whl'", "key 'pins.jax': Invalid wheel filename"),
        (
            "python = '3.11'\n[pins]\njax = 'jax-1-py3-none-any.whl'",
            "jax-1-py3-none-any.whl is missing: expected a wheel",
        ),
        ("python = '3.11'\ndisk = inf", "key 'disk': inf: expected a number of GB, as 8"),
        ("python = '3.11'\ndisk = -1", "key 'disk': -1: expected a number of GB, as 8"),
        ("python = '3.11'\nnote = 1", "key 'note': 1: expected a text"),
        ("extends = []", "key 'extends': []: expected the name of a stack"),
        ("[", "one.toml: "),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadInputError) as error:
        catalogue(tmp_path, base=BASE, one=text)
    assert "one.toml: " in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("pin", "file", "message"),
    [
        ("jax", "jax-1-cp310-none-any.whl", "is for cp310: expected one for Python 3.11, as cp311"),
        ("torch", "jax-1-py3-none-any.whl", "is a wheel of jax: expected torch"),
    ],
)
def test_wrong_wheels(tmp_path: Path, pin: str, file: str, message: str) -> None:
    (tmp_path / file).write_text("")
    text = f"python = '3.11'\n[pins]\n{pin} = '{file}'\n"
    with pytest.raises(BadInputError, match="key 'pins") as error:
        catalogue(tmp_path, one=text)
    assert message in str(error.value)


def test_a_wheel_is_its_version_and_its_folder(tmp_path: Path) -> None:
    wheel(tmp_path / "w", "1.5", "")
    stack = catalogue(
        tmp_path, one="python='3.11'\n[pins]\ndrift='x/../w/drift-1.5-py3-none-any.whl'"
    )
    drift = stack.find("one")
    assert drift.requirements == ["drift==1.5"]
    assert drift.folders == [tmp_path / "w"]


def test_extending_keeps_what_is_not_said(tmp_path: Path) -> None:
    base = BASE.replace("[pins]", 'disk = 3\nnote = "n"\n[pins]')
    other = 'extends = "base"\n[pins]\njax = "0.8.0"\ntorch_xla = false\n'
    extended = catalogue(tmp_path, base=base, other=other).find("other")
    assert dict(extended.pins) == {"torch": "2.9.0", "jax": "0.8.0"}
    assert (extended.python, extended.disk, extended.note) == ("3.11", 3, "")


@pytest.mark.parametrize(
    ("text", "pins"),
    [
        ("2.9.0+jax=0.8.0", {"jax": "0.8.0", "jaxlib": "0.8.0"}),
        ("2.9.0+jax=0.8.0+jaxlib=0.8.1", {"jax": "0.8.0", "jaxlib": "0.8.1"}),
        ("2.9.0+torch-xla=2.8.0", {"torch": "2.8.0", "torch_xla": "2.8.0"}),
        ("2.9.0+libtpu=none", {"libtpu": None}),
        ("2.9.0+torch_xla=2.10.0.dev1+git7", {"torch_xla": "2.10.0.dev1+git7"}),
    ],
)
def test_swapping_on_the_command_line(text: str, pins: dict[str, str | None]) -> None:
    stacks = Catalogue(SHIPPED)
    base, stack = stacks.find("2.9.0"), stacks.find(text)
    assert {name: stack.pins.get(name) for name in pins} == pins
    untouched = base.pins.keys() - pins.keys() - {"torch"}
    assert {name: stack.pins[name] for name in untouched} == {n: base.pins[n] for n in untouched}
    assert stacks.find(stack.name).pins == stack.pins


def test_a_wheel_is_swapped_alone(tmp_path: Path) -> None:
    """A wheel of jax is none of jaxlib, which usually goes with it."""
    fork = tmp_path / "jax-0.8.3+fork-py3-none-any.whl"
    fork.touch()
    stack = Catalogue(SHIPPED).find(f"jax-0.8.3+jax={fork}")
    assert (stack.pins["jax"], stack.pins["jaxlib"]) == (str(fork), "0.8.3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2.51", "stack '2.51': did you mean 2.5.1"),
        ("zzz", "stack 'zzz': expected one of"),
        ("2.9.0+jaxx=1", "pin 'jaxx': did you mean jax"),
        ("2.9.0+jax=new", "key 'pins.jax': 'new': expected a version"),
        ("torch_tpu-0.2.0+libtpu=none", "key 'pins.libtpu' is missing"),
        ("torch_tpu-0.2.0+python=3.11", "key 'python': '3.11': expected 3.12 or later"),
        ("nowhere.toml", "nowhere.toml: "),
    ],
)
def test_unknown_names(text: str, message: str) -> None:
    with pytest.raises(BadInputError) as error:
        Catalogue(SHIPPED).find(text)
    assert message in str(error.value)


def test_between_leaves_variants_out() -> None:
    names = [stack.name for stack in Catalogue(SHIPPED).between("2.9.0", "2.6.0")]
    assert names == ["2.6.0", "2.7.0", "2.8.0", "2.9.0"]


def test_stacks_between_have_the_framework_of_both_ends() -> None:
    catalogue = Catalogue(SHIPPED)
    ends = [stack.name for stack in catalogue.between("torch_tpu-0.2.0", "2.5.1")]
    assert ends == ["2.5.1", "torch_tpu-0.2.0"]
    ends = [stack.name for stack in catalogue.between("jax-0.11.2", "2.9.0")]
    assert ends == ["2.9.0", "jax-0.11.2"]


def test_stacks_between_two_of_jax_are_all_others_of_it() -> None:
    stacks = Catalogue(SHIPPED).between("jax-0.11.2", "jax-0.7.2")
    minors = ["0.7.2", "0.8.3", "0.9.2", "0.10.2", "0.11.2"]
    assert [stack.pins["jax"] for stack in stacks] == minors
    assert {stack.framework for stack in stacks} == {"jax"}
    patch = Catalogue(SHIPPED).between("jax-0.10.2+jax=0.10.0", "jax-0.10.2")
    assert [stack.pins["jax"] for stack in patch] == ["0.10.0", "0.10.2"]


@pytest.mark.parametrize(
    ("low", "other", "between"),
    [
        ("torch_tpu-0.2.0-torch-2.12", "torch_tpu-0.2.0", ["2.12.0", "2.13.0", "2.14.0", "2.15.0"]),
        ("torch_tpu-0.2.0", "torch_tpu-0.2.0-torch-2.13", ["2.13.0", "2.14.0", "2.15.0"]),
        ("torch_tpu-0.2.0+torch=2.13.1", "torch_tpu-0.2.0-torch-2.14", ["2.13.1", "2.14.0"]),
        ("torch_tpu-0.2.0-without-jax", "torch_tpu-0.2.0-torch-2.12", ["2.12.0", "2.15.0"]),
    ],
)  # fmt: skip
def test_stacks_between_step_over_torch_where_torch_tpu_stays(
    low: str, other: str, between: list[str]
) -> None:
    stacks = Catalogue(SHIPPED).between(low, other)
    assert [stack.pins["torch"] for stack in stacks] == between
    assert {stack.name for stack in stacks} >= {low, other}


@pytest.mark.parametrize(
    ("component", "name"),
    [
        ("torch_xla", "nightly"),
        ("libtpu", "nightly"),
        ("jax", "jax-0.12.0.1"),
        ("torch_tpu", "torch_tpu-0.2.0"),
    ],
)
def test_wheels_of_a_component_run_with_the_newest_stack_of_their_framework(
    component: str, name: str
) -> None:
    assert Catalogue(SHIPPED).newest_for(component).name == name


@pytest.mark.parametrize(
    ("versions", "name"),
    [
        ({"torch_xla": "2.9.0", "torch_tpu": ABSENT}, "2.9.0"),
        ({"torch_xla": ABSENT, "torch_tpu": "0.2.0"}, "torch_tpu-0.2.0"),
        ({"torch_xla": ABSENT, "jax": "0.8.0"}, "jax-0.8.0"),
        ({"torch_xla": "2.9.0", "jax": "0.8.0"}, "2.9.0"),
        ({"torch_xla": "", "torch_tpu": ""}, ""),
    ],
)
def test_a_stack_without_a_name_is_called_by_its_framework(
    versions: dict[str, str], name: str
) -> None:
    assert named_by(versions) == name


def test_torch_is_swapped_alone_under_torch_tpu() -> None:
    base = Catalogue(SHIPPED).find("torch_tpu-0.2.0")
    older = Catalogue(SHIPPED).find("torch_tpu-0.2.0+torch=2.14.0")
    assert dict(older.pins) == {**base.pins, "torch": "2.14.0"}
    assert older.name == "torch_tpu-0.2.0+torch=2.14.0"
    assert [component.name for component in differing(base, older)] == ["torch"]


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="expected a folder of stacks"):
        Catalogue(tmp_path / "stacks")


def test_shipped_stacks_are_resolved() -> None:
    """Each has a constraint file of its pins, with checksums and without addresses."""
    for stack in Catalogue(SHIPPED).stacks:
        if stack.name == "nightly":  # a template for a folder of one's own
            continue
        assert stack.where is not None
        path = stack.where.with_suffix(".txt")
        text = path.read_text()
        assert "://" not in text
        packages = read_constraints(path)
        assert len(packages) == text.count("==")
        assert all(f"{name}==" in text for name in packages)
        blocks = text.split("==")[1:]
        assert all("--hash=sha256:" in block for block in blocks), stack.name
        for pin in ("torch", "jax", "jaxlib"):
            assert packages.get(pin) == stack.pins.get(pin), stack.name
        assert f"{stack.framework.replace('_', '-')}=={stack.version}" in text


def test_known_versions_say_what_is_not_there() -> None:
    known = {versions["torch_xla"]: versions for versions in known_versions(SHIPPED)}
    assert known["2.4.0"]["libtpu"] == "not installed"
    assert known["2.8.0"]["libtpu"] == "0.0.17"
    assert known_versions(None) == []


def nightlies(folder: Path) -> None:
    for day in ("20250901", "20250903", "20250902"):
        wheel(folder, f"2.10.0.dev{day}", "", "torch_xla")
        wheel(folder, f"2.10.0.dev{day}+cpu", "", "torch")


def test_nightly_wheels_are_stacks_in_order(tmp_path: Path) -> None:
    nightlies(tmp_path)
    stacks = stacks_of(tmp_path, Catalogue(SHIPPED).find("2.9.0"))
    assert [s.name for s in stacks] == [f"2.10.0.dev2025090{n}" for n in (1, 2, 3)]
    assert stacks[1].requirements[:2] == [
        "torch==2.10.0.dev20250902+cpu",
        "torch_xla==2.10.0.dev20250902",
    ]
    assert stacks[1].pins["jax"] == "0.7.1"
    assert named(stacks, "20250902") == named(stacks, "2.10.0.dev20250902") == 1
    with pytest.raises(BadInputError, match=r"'20250909': expected one of 2\.10\.0\.dev20250901"):
        named(stacks, "20250909")


def test_nightly_wheels_without_their_partner(tmp_path: Path) -> None:
    nightlies(tmp_path)
    (tmp_path / "torch-2.10.0.dev20250902+cpu-py3-none-any.whl").unlink()
    base = Catalogue(SHIPPED).find("2.9.0")
    with pytest.raises(BadInputError, match=r"no wheel of torch goes with .*20250902"):
        stacks_of(tmp_path, base)
    with pytest.raises(BadInputError, match=r"expected wheels of jax .* torch, torch-xla"):
        stacks_of(tmp_path, base, "jax")
    with pytest.raises(BadInputError, match="expected a folder of wheels"):
        stacks_of(tmp_path / "none", base)


@pytest.fixture
def came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of stacks that stands for the one that comes with xla-harness."""
    folder = tmp_path / "came"
    folder.mkdir()
    (folder / "base.toml").write_text(BASE)
    (folder / "newer.toml").write_text('extends = "base"\n[pins]\njax = "0.8.0"\n')
    monkeypatch.setattr(catalogue_module, "shipped", lambda name: tmp_path / "came")
    return folder


def test_a_project_without_stacks_has_those_that_came_along(came: Path) -> None:
    assert [stack.name for stack in Catalogue(None).stacks] == ["base", "newer"]
    assert all(stack.shipped for stack in Catalogue(None).stacks)
    assert not any(stack.shipped for stack in Catalogue(came).stacks)  # a clone's own folder


def test_stacks_of_a_project_extend_and_replace_those_that_came_along(
    tmp_path: Path, came: Path
) -> None:
    del came
    own = tmp_path / "own"
    own.mkdir()
    loaded = catalogue(own, mine='extends = "newer"\n[pins]\nlibtpu = "0.0.23"\n')
    assert dict(loaded.find("mine").pins) == {**loaded.find("newer").pins, "libtpu": "0.0.23"}
    assert [stack.name for stack in loaded.stacks] == ["mine"]
    assert {stack.name for stack in loaded.every} == {"mine", "newer", "base"}
    loaded = catalogue(own, base=BASE.replace("0.7.1", "0.1.0"))
    assert loaded.find("base").pins["jax"] == "0.1.0"
    assert loaded.find("mine").pins["jax"] == loaded.find("newer").pins["jax"] == "0.8.0"


def test_an_unknown_name_says_where_it_was_looked_for(tmp_path: Path, came: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    both = rf"'newr': did you mean newer, .*\? \({own} and {came}\)"
    with pytest.raises(BadInputError, match=f"stack {both}"):
        catalogue(own, mine='extends = "newer"').find("newr")
    with pytest.raises(BadInputError, match=f"mine.toml: key 'extends': {both}"):
        catalogue(own, mine='extends = "newr"')


def test_what_came_along_is_not_written_to(
    tmp_path: Path, came: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["stacks", "lock", "newer"]) == 2
    assert "stack newer: it came with xla-harness" in capsys.readouterr().err
    cache = tmp_path / "cache"
    assert path_of(Catalogue(None).find("newer"), cache) == cache / "constraints" / "newer.txt"
    (came / "newer.txt").touch()
    assert path_of(Catalogue(None).find("newer"), cache) == came / "newer.txt"
