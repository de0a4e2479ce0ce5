"""The page about moving to TorchTPU: its rows are facts, and what is not one is refused."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.commands import run_program
from support.paths import ROOT

from harness.errors import BadInputError
from harness.junit.report import read
from harness.stacks.catalogue import Catalogue
from harness.stacks.environments import Environments

MADE = runpy.run_path(str(ROOT / "docs" / "generate" / "migration.py"))
FOLDER: Path = MADE["FOLDER"]
page: Callable[..., str] = MADE["page"]
ROWS: Sequence[dict[str, Any]] = tomllib.loads((FOLDER / "apis.toml").read_text())["api"]
REPLACEMENTS = sorted({name for row in ROWS for name in row["instead"]})
# Prints, as JSON, which of the names in its arguments do not exist.
RESOLVE = """
import json, pkgutil, sys
missing = []
for name in sys.argv[1:]:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        missing.append(name)
print(json.dumps(missing))
"""
# Prints the names that a user of torch_tpu has beside torch's, as JSON.
PUBLIC = """
import importlib, json
from torch_tpu._internal.public_api import _PUBLIC_MODULES as modules
names = [f"{module}.{name}" for module, spec in modules.items() for name in spec.exports]
for module in ("torch_tpu._internal.export", "torch_tpu._internal.sync"):
    names += [f"{module}.{name}" for name in importlib.import_module(module).__all__]
print(json.dumps(sorted(names)))
"""


def run(python: Path | str, program: str, names: Iterable[str] = ()) -> list[str]:
    """Run the program and return the list that it prints last."""
    done = run_program(python, "-c", program, *names, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_a_row_has_both_verdicts_with_their_cases() -> None:
    text = page()
    row = next(line for line in text.splitlines() if line.startswith("| `dist.reduce`<br>"))
    before, after = re.findall(r"\*\*(\w+)\*\* \[\d+\]\(#case-(\d+)\)", row)
    assert (before[0], after[0]) == ("works", "works")
    cases = "suites/process_groups/test_collectives.py::test_world[virtual-tpu-4@chip-"
    assert f'<a id="case-{before[1]}"></a>`{cases}torch_xla-reduce]`' in text
    assert f'<a id="case-{after[1]}"></a>`{cases}torch_tpu-all_reduce]`' in text
    assert (
        "**broken** [111](#case-111): [torch-tpu-has-no-coalescing]"
        "(findings.md#torch-tpu-has-no-coalescing)"
    ) in re.sub(r"\d+\]\(#case-\d+", "111](#case-111", text)
    assert "| `torch_xla.launch`<br>no case decides | " in text


def test_the_page_counts_its_rows() -> None:
    text = page()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    after = [row.rpartition("<br>")[2] for row in rows]
    counts = {
        word: sum(cell.startswith(word) for cell in after)
        for word in ("**works**", "**broken**", "no case decides")
    }
    works, broken, none = counts.values()
    assert len(ROWS) == len(rows) == works + broken + none
    assert min(counts.values()) > 5
    introduction = " ".join(text.partition("##")[0].split())
    assert (
        f"Of {len(rows)} rows {works} work after moving, {broken} are broken, and no case decides "
        f"{none}."
    ) in introduction


def test_cases_are_still_there() -> None:
    ids = {row[key] for row in ROWS for key in ("before", "after") if key in row}
    assert len(ids) > 100
    for test in {id_.partition("[")[0] for id_ in ids}:
        file, *_, function = test.split("::")
        assert f"def {function}(" in (ROOT / file).read_text(), test


def test_names_exist_in_torch_xla() -> None:
    assert run(sys.executable, RESOLVE, sorted({row["name"] for row in ROWS})) == []


@pytest.mark.long
def test_names_exist_in_torch_tpu() -> None:
    """The recorded names are those of the wheel, and each replacement exists beside it."""
    environment = Environments().existing(
        Catalogue(ROOT / "fixtures" / "stacks").find(MADE["CANDIDATE"])
    )
    if environment is None:
        pytest.skip("the stack has no environment")
    assert run(environment.python, PUBLIC) == (FOLDER / "names.txt").read_text().split()
    assert run(environment.python, RESOLVE, REPLACEMENTS) == []


CASE = "suites/process_groups/test_collectives.py::test_world[virtual-tpu-4@chip-torch_%s]"
GATHER, ELSEWHERE = CASE % "xla-all_gather", CASE % "tpu-all_gather"
# What of the file is replaced, by what, and the message about it.
WRONG = {
    "unknown case": (GATHER, f"{GATHER}s", f"key 'before': '{GATHER}s': did you mean {GATHER}"),
    "case of the other stack": (GATHER, ELSEWHERE, f"key 'before': '{ELSEWHERE}': did you mean"),
    "unknown replacement": (
        "torch.tpu.ops.ragged_dot",
        "torch.tpu.ops.ragged_dots",
        "key 'instead': 'torch.tpu.ops.ragged_dots': did you mean torch.tpu.ops.ragged_dot",
    ),
    "unknown key": ("use = ", "uses = ", "unknown key 'uses': expected after, before, instead"),
    "no topic": ('topic = "Export"\n', "", "key 'topic' is missing: expected a text"),
    "no list": ("instead = []", 'instead = ""', "key 'instead': '': expected a list of full names"),
    "twice": (
        'use = "with all_to_all"',
        'use = "in groups of ranks"',
        "key 'use': 'torch_xla.stablehlo.exported_program_to_stablehlo': expected a row for each",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_row_is_refused(name: str, tmp_path: Path) -> None:
    right, wrong, message = WRONG[name]
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    text = (tmp_path / "apis.toml").read_text()
    assert right in text
    (tmp_path / "apis.toml").write_text(text.replace(right, wrong, 1))
    with pytest.raises(BadInputError) as refusal:
        page(tmp_path)
    assert re.match(rf"{tmp_path}/apis\.toml#\d+: .*{re.escape(message)}", str(refusal.value))


def test_recording_keeps_verdicts_and_no_text(tmp_path: Path) -> None:
    report, target = tmp_path / "report.xml", tmp_path / "recorded.xml"
    text = (ROOT / "fixtures" / "junit" / "2.9.0-virtual-tpu.xml").read_text()
    uncollected = (
        '<testcase classname="" name="suites.test_x" time="0"><error message="collection failure">'
        "/home/me/suites/test_x.py</error></testcase></testsuite>"
    )
    report.write_text(text.replace("</testsuite>", uncollected, 1))
    MADE["record"](report, target)
    before, after = read(report), read(target)
    assert [(r.id, r.works, r.expectation) for r in after.results.values()] == [
        (r.id, r.works, r.expectation) for r in before.results.values()
    ]
    assert before.uncollected
    assert not any(result.message for result in after.results.values())
    assert "/home/me" not in target.read_text()
