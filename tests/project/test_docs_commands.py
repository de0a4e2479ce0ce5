"""Every command that README and the documents show exists, takes those options, and runs."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support.paths import ROOT
from support.shown import Shown, in_blocks, in_sentences, run_all

from harness import cli

BLOCKS = in_blocks()
INLINE = in_sentences()
OTHERS = {"cd", "git", "kubectl", "paste", "pip", "uv", ".ci/run", "reports/scalar.py"}  # not ours
CASE = "suites/spmd_specs/test_scalars_fsdpv2.py::test_scalar_parameter_shards[cpu-4]"
STANDS_FOR = {
    "CASE": CASE,
    "DIR": "history",
    "IMAGE": "images.example.com/torch-xla:2.9.0",
    "reports/history": "history",
    "NAME": "2.9.0",
    "SITE": "site",
    "...": "tests/test_model.py",
    "path/to/test.py": "tests/test_model.py",
    "test.py": "tests/test_model.py",
    "suites/": "suites/collectives",
}
# What is only parsed, by how it begins, and why.
NOT_RUN = {
    "pytest suites/ --lane tpu --junitxml": "needs a TPU: see test_lane_tpu",
    "pytest tests/": "it is what runs now",
    "xla-harness ci collect": "needs the cells of a night: see test_collect",
    "xla-harness ci history fetch": "a branch of another repository: see test_history_branch",
    "xla-harness ci history push": "a branch of another repository: see test_history_branch",
    "xla-harness ci comment": "asks GitHub: see test_comment",
    "xla-harness ci issues": "asks GitHub: see test_issues_sync",
    "xla-harness ci jobset fetch": "asks a cluster: see test_jobset_collect",
    "xla-harness bisect": "environments of several stacks, minutes: see test_bisect",
    "xla-harness matrix": "environments of several stacks, minutes: see test_matrix",
    "xla-harness qualify": "environments of two stacks, minutes: see test_matrix",
    "xla-harness survive": "runs tests of the reader's in a new environment: see test_survive",
    "xla-harness sensitivity": "runs tests hundreds of times: see test_sensitivity",
    "xla-harness run": "starts a script of the reader's: see test_run and test_launchers",
    "xla-harness stacks create": "an environment of GBs: see test_stacks_environments",
    "xla-harness stacks lock": "asks an index of packages: see test_stacks",
    "xla-harness fuzz --budget": "searches for minutes: see test_fuzz",
    "xla-harness fuzz --framework": "searches for minutes: see test_fuzz_dtensor",
    "xla-harness fuzz --stacks": "environments of stacks, minutes: see test_fuzz_torch_xla",
    "xla-harness reduce CASE": "reduces for minutes: see test_reduce",
    "xla-harness reduce suites/": "reduces for minutes: see test_reduce",
    "xla-harness repro suites/": "runs the case: see test_repro, and the tutorial's below",
}
# A verdict, or an update with something left to decide: 1 is an answer too.
ANSWERS_1 = {"verdict", "known"}


def why_not_run(shown: Shown) -> str:
    text = " ".join(shown.words)
    return next((why for start, why in NOT_RUN.items() if text.startswith(start)), "")


def cheap(shown: Shown) -> tuple[str, ...]:
    """The same command, so that it takes seconds and changes nothing but its folder.

    Tests are collected, not run; a report of theirs is not part of it.
    """
    words = [STANDS_FOR.get(word, word) for word in shown.words]
    if shown.program == "pytest":
        own = [w for w in words[1:] if not w.startswith("--junitxml=")]
        if "-n" in own:
            del own[own.index("-n") : own.index("-n") + 2]
        return ("pytest", *own, "--collect-only", "-q")
    if words[1:3] == ["known", "update"]:
        words.append("--dry-run")
    return tuple(words)


OURS = [shown for shown in BLOCKS if shown.program not in OTHERS]
RUN = sorted({cheap(shown) for shown in OURS if not why_not_run(shown)})


def test_there_are_commands() -> None:
    """What the search finds has not become nothing."""
    assert len(OURS) > 40
    assert len(INLINE) > 10
    assert {shown.program for shown in BLOCKS} <= OTHERS | {"xla-harness", "pytest"}


@pytest.mark.parametrize("shown", dict.fromkeys(OURS), ids=str)
def test_its_options_exist(
    shown: Shown, pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("fixtures", "reports"):  # of the clone, or made by the commands before it
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path)
    if shown.program == "pytest":
        pytestconfig._parser.parse(shown.words[1:])  # raises UsageError
        return
    own, behind = cli._split(list(shown.words[1:]))
    if own == ["--version"]:
        return
    parsed = cli._parser().parse_args(own)
    assert not behind or "arguments" in parsed
    pytestconfig._parser.parse(behind)


def commands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return {}


@pytest.mark.parametrize("shown", dict.fromkeys(INLINE), ids=str)
def test_what_a_sentence_names_exists(shown: Shown, pytestconfig: pytest.Config) -> None:
    """Placeholders can't be parsed; commands and options can be looked up."""
    words = [word.strip("[]").rstrip(",") for word in shown.words]
    options = {word.partition("=")[0] for word in words if word.startswith("--") and word != "--"}
    if shown.program == "pytest":
        known = {name for option in _pytest_options(pytestconfig) for name in option}
    else:
        parser, rest = cli._parser(), words[1:]
        while rest and (children := commands(parser)) and not rest[0].startswith("-"):
            if rest[0].isupper():
                break
            parser = children[rest.pop(0)]
        known = set(parser._option_string_actions)
    assert options - known == set()


def _pytest_options(config: pytest.Config) -> list[Sequence[str]]:
    groups = [config._parser._anonymous, *config._parser._groups]
    return [option.names() for group in groups for option in group.options]


@pytest.mark.parametrize("start", NOT_RUN)
def test_what_is_not_run_is_shown(start: str) -> None:
    assert any(" ".join(shown.words).startswith(start) for shown in OURS)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], tuple[int, str]]:
    """All of them, in a folder that looks like a clone in which suites were run."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("suites", "docs"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "fixtures", folder / "fixtures")
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_model.py").write_text("def test_theirs(): pass\n")
    of = {stack: ROOT / "fixtures" / "junit" / f"{stack}-cpu.xml" for stack in ("2.5.1", "2.9.0")}
    copies = ["reports/suites.xml", "one.xml", "two.xml", "reports/matrix/2.9.0/cpu.xml"]
    for name, stack in [*((c, "2.9.0") for c in copies), ("reports/matrix/2.5.1/cpu.xml", "2.5.1")]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(of[stack], folder / name)
    two = folder / "two.xml"  # of another run
    two.write_text(re.sub(r'timestamp="\d{4}', 'timestamp="2027', two.read_text()))
    first = ["record", "verdict", "ci", "dashboard"]  # a history is written, then asked
    ordered = sorted(RUN, key=lambda w: first.index(w[1]) if w[1] in first else 9)
    return dict(zip(ordered, run_all(ordered, folder), strict=True))


@pytest.mark.parametrize("words", RUN, ids=" ".join)
def test_it_runs(words: tuple[str, ...], answers: dict[tuple[str, ...], tuple[int, str]]) -> None:
    code, output = answers[words]
    assert code in ({0, 1} if words[1] in ANSWERS_1 else {0}), output
    assert bool(output) != ("--out" in words and words[1] == "repro")
    assert "Traceback" not in output
    if words[0] == "pytest":
        assert "::" in output


def test_the_tutorial_shows_what_the_commands_print(
    answers: dict[tuple[str, ...], tuple[int, str]],
) -> None:
    """Where that does not depend on the machine."""
    text = (ROOT / "docs" / "tutorial.md").read_text()
    _, listed = answers["xla-harness", "stacks", "list"]
    shown = [line.rsplit(maxsplit=1)[0].strip() for line in listed.splitlines()]
    assert [line for line in shown if line not in text] == []
    _, history = answers["xla-harness", "since", "pytorch/xla#8522"]
    assert history.splitlines()[0] in text


def test_the_paths_of_the_tutorial_exist() -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text()
    assert CASE in text
    assert Path(ROOT, CASE.partition("::")[0]).is_file()
