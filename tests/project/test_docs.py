"""What the documents promise exists, and what exists is documented."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import sys
import tomllib

import pytest
from _pytest.config.argparsing import Parser
from support.commands import run_program, xla_harness
from support.paths import ROOT

from harness import cli
from harness.expectations import Expectations, glob_pattern
from harness.history.format import SCHEMA
from harness.lanes import LANES
from harness.lanes.events import Events
from harness.model.versions import COMPONENTS
from harness.session.markers import MARKERS
from harness.session.options import add_options
from harness.session.record import Record
from harness.stacks.catalogue import known_versions
from harness.verdicts import upstream_file
from harness.verdicts.effects import Effect
from harness.verdicts.words import NIGHTLY, Verdict

DOCS = {path.name: path.read_text() for path in ROOT.glob("docs/*.md")}
README = (ROOT / "README.md").read_text()


def _parser() -> Parser:
    parser = Parser(_ispytest=True)
    add_options(parser)
    return parser


@pytest.fixture(scope="module")
def cases() -> list[dict[str, object]]:
    done = xla_harness("ci", "list", "--json", cwd=ROOT, check=True)
    return json.loads(done.stdout)


def test_every_option_is_documented() -> None:
    names = [
        name for group in _parser()._groups for option in group.options for name in option.names()
    ]
    assert names
    assert [name for name in names if f"`{name}" not in DOCS["cases.md"]] == []


def test_every_setting_is_documented() -> None:
    settings = [name for name in _parser()._inidict if name.startswith("xla_")]
    assert settings
    assert [name for name in settings if f"`{name}`" not in DOCS["cases.md"]] == []


@pytest.mark.parametrize("marker", [line.split("(")[0] for line in MARKERS])
def test_every_marker_is_documented(marker: str) -> None:
    assert f"`{marker}(" in DOCS["cases.md"]


@pytest.mark.parametrize(
    "name",
    [field.name for field in dataclasses.fields(Record) if field.name not in ("id", "facts")]
    + [name for lane in LANES.values() for name in lane.facts(Events())]
    + [*COMPONENTS],
)
def test_every_junit_property_is_documented(name: str) -> None:
    assert f"`{name}`" in DOCS["outcomes.md"]


@pytest.mark.parametrize("name", [*SCHEMA.names, "date", "stack"])
def test_every_column_of_a_history_is_documented(name: str) -> None:
    assert f"`{name}`" in DOCS["history.md"]


def test_every_verdict_is_documented_with_its_rule() -> None:
    rows = re.findall(
        r"^\| (.+?) \| .+ \| \[`\w+\.sql`\]\(\S+\) \|$", DOCS["history.md"], re.MULTILINE
    )
    assert sorted(word for row in rows for word in row.split(", ")) == sorted(NIGHTLY)


@pytest.mark.parametrize(
    "command", re.findall(r"^uv run xla-harness ([\w-]+)", README, re.MULTILINE)
)
def test_every_command_in_the_readme_exists(command: str) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    assert end.value.code == 0


def test_readme_starts_with_the_commands_that_ci_runs() -> None:
    """The two commands, set-up included, are also what .ci/run calls."""
    block = re.search(r"```sh\n(.+?)```", README, re.DOTALL)
    assert block is not None
    commands = [shlex.split(line, comments=True) for line in block[1].splitlines()]
    assert commands[0][:2] == ["git", "clone"]
    assert commands[1][:4] == ["pip", "install", "uv", "&&"]
    script = (ROOT / ".ci" / "run").read_text()
    for command in (commands[1][4:], commands[2]):
        assert " ".join(command) in script


def test_readme_fits_one_screen_and_starts_to_work() -> None:
    """What, for whom, a picture, the commands, the folders; the rest is in docs/."""
    assert len(README.splitlines()) <= 60
    assert "](docs/dashboard.png)" in README
    listed = set(re.findall(r"^\| \[`(\w+)/`\]", README, re.MULTILINE))
    names = run_program("git", "ls-files", cwd=ROOT, check=True).stdout.splitlines()
    folders = {name.partition("/")[0] for name in names if "/" in name}
    assert listed == {folder for folder in folders if not folder.startswith(".")}


def test_the_glossary_is_short_and_has_the_verdicts() -> None:
    terms = re.findall(r"^\| ([a-z][^|]*?) \|", DOCS["glossary.md"], re.MULTILINE)
    terms = [term for term in terms if term != "term"]
    assert len(terms) <= 42
    assert len(set(terms)) == len(terms)
    for verdict in ("regressed", "new failure", "still failing", "fixed", "missing", "flaky"):
        assert Verdict(verdict) in terms
    assert [each for each in Effect if f"*{each}*" not in DOCS["glossary.md"]] == [Effect.FLAKY]


def test_contributing_starts_with_a_case_and_is_one_page() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert re.findall(r"^## (.+)", text, re.MULTILINE)[0] == "Add a case"
    assert len(text.splitlines()) <= 60


SCHEMAS = {
    "CITATION.cff": "citation-file-format",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
    ".github/ISSUE_TEMPLATE/*-*.yml": "github-issue-forms",
}


@pytest.mark.parametrize("pattern", SCHEMAS)
def test_what_github_reads_fits_its_schema(pattern: str) -> None:
    files = sorted(ROOT.glob(pattern))
    assert files
    schema = f"vendor.{SCHEMAS[pattern]}"
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
    command += map(str, files)
    done = run_program(*command)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_citation_is_of_this_version_and_licence() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {project['version']}\n" in text
    assert f"\nlicense: {project['license']}\n" in text


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", *(f"docs/{n}" for n in DOCS)]
)
def test_links_lead_somewhere(page: str) -> None:
    text = re.sub(r"(`+).*?\1", "", (ROOT / page).read_text(), flags=re.DOTALL)  # code
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_every_dependency_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"].values()
    wanted = [*project["project"]["dependencies"], *(name for group in groups for name in group)]
    names = {re.split(r"[=<>;\s[]", requirement)[0] for requirement in wanted}
    assert [name for name in sorted(names) if name not in DOCS["dependencies.md"]] == []


def test_every_finding_that_is_expected_is_described() -> None:
    sections = set(re.findall(r"^## (\S+)", DOCS["findings.md"], re.MULTILINE))
    entries = Expectations.load(ROOT / "fixtures" / "expectations").entries
    named = {e.cause.removeprefix("finding ") for e in entries if e.cause.startswith("finding ")}
    assert named - sections == set()


def test_every_case_names_an_upstream_issue(cases: list[dict[str, object]]) -> None:
    assert [case["id"] for case in cases if not case["upstream"]] == []


def test_there_are_at_least_600_cases(cases: list[dict[str, object]]) -> None:
    assert len(cases) >= 600


def test_every_upstream_row_has_cases(cases: list[dict[str, object]]) -> None:
    ids = [str(case["id"]) for case in cases]
    for row in upstream_file.load(ROOT / "fixtures" / "upstream.toml"):
        for glob in row.cases:
            assert any(glob_pattern(glob).fullmatch(id_) for id_ in ids), glob


@pytest.mark.parametrize("suite", sorted(p.parent.name for p in ROOT.glob("suites/*/__init__.py")))
def test_every_suite_says_what_it_proves(suite: str) -> None:
    text = (ROOT / "suites" / suite / "__init__.py").read_text()
    assert "oracle" in text.lower()


def test_no_case_has_two_entries_on_any_stack(cases: list[dict[str, object]]) -> None:
    known = known_versions(ROOT / "fixtures" / "stacks")
    entries = Expectations.load(ROOT / "fixtures" / "expectations", known).entries
    for stack in known:
        expectations = Expectations(entries, stack)
        for case in cases:
            expectations.find(str(case["id"]))  # raises for two
