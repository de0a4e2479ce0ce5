"""``docs/migration.md``, from recorded runs: ``uv run python docs/generate/migration.py``.

With a report of each stack, of the base first, it records those before, without what the page does
not show: ``reports/matrix/*/virtual-tpu.xml``, as ``xla-harness qualify`` leaves them.
"""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from junitparser import JUnitXml, Properties

from harness.diagnosis.signature import first_line, generalised
from harness.junit.report import Report, read
from harness.render.comparison_github import effects
from harness.render.comparison_text import versions
from harness.render.github_markup import code, link, plain, table
from harness.verdicts.compare import compare
from harness.verdicts.comparison import ComparedCase, Comparison
from harness.verdicts.effects import Effect, effect_on

ROOT = Path(__file__).parents[2]
BASE, CANDIDATE = "2.9.0", "torch_tpu-0.2.0"
MOST_LINES = 15  # of a program that stands on the page
SHOWN = frozenset(
    "id area lane topology framework upstream expectation expected expected_by actual outcome"  # noqa: SIM905
    " outcome_detail failure layer signal".split()
)
FRAME = f"""\
<!-- Made by docs/generate/migration.py from the reports in fixtures/migration/: do not edit it. -->

# Moving from torch_xla to TorchTPU

What works, what breaks and what is not available after moving from torch_xla to TorchTPU
(`torch_tpu`): both are asked the same, with the same data, and judged by the same oracles. The
[glossary](glossary.md) has the words. This command asks again; it needs no TPU:

```text
uv run xla-harness qualify {BASE} {CANDIDATE}
```
"""
NOT_AVAILABLE = (
    "Cases that are not available after moving ask through modules of torch_xla that TorchTPU does "
    "not have, as `torch_xla.distributed.spmd`. Where TorchTPU has something in their place, that "
    "is asked by a case of its own in another row."
)
# What a reader looks for comes first.
ORDER = (
    Effect.BROKEN,
    Effect.NOT_AVAILABLE,
    Effect.SKIPPED,
    Effect.BROKEN_ON_BOTH,
    Effect.FLAKY,
    Effect.FIXED,
    Effect.WORKS_ON_BOTH,
    Effect.ONLY_AFTER,
)
# The cases of one test with the same effect and the same cause, by these three; of a file's tests
# that are not available, by the file.
Tests = Mapping[tuple[Effect, str, str], Sequence[ComparedCase]]


def page(base: Sequence[Report], candidate: Sequence[Report], root: Path = ROOT) -> str:
    """The page; ``root`` is the folder that the cases' ids start at.

    It says so where a side has no report, or where both ask the same frameworks.
    """
    if not (base and candidate):
        missing = " and ".join(
            name for name, of in ((BASE, base), (CANDIDATE, candidate)) if not of
        )
        return f"{FRAME}\nThere is no recorded run of {missing} yet.\n"
    found = compare(base, candidate)
    if found.move is None:
        return f"{FRAME}\nThe recorded runs are not of two frameworks.\n"
    lines = [
        "## By area",
        "",
        f"From {plain(found.base.name)} to {plain(found.candidate.name)}, in cases.",
        "",
        NOT_AVAILABLE,
        "",
        *effects(found),
        *_areas(found),
        *_broken(found, root),
        "## What was compared",
        "",
        *table(
            ("", plain(found.base.name), plain(found.candidate.name)),
            (tuple(map(plain, row)) for row in versions(found)),
        ),
    ]
    return FRAME + "\n" + "\n".join(lines).rstrip() + "\n"


def recorded(name: str) -> list[Report]:
    """The recorded report of a stack, if there is one."""
    path = _recorded(name)
    return [read(path)] if path.exists() else []


def record(report: str, name: str) -> None:
    """Keep what the page shows of a stack's report."""
    xml = JUnitXml.fromfile(report)
    for suite in xml:
        suite.hostname = "runner"
        for case in suite:
            if (properties := case.child(Properties)) is None:
                file = f"{case.name.replace('.', '/')}.py"  # that can't be collected: the cause
                for result in case.result:
                    result.text = re.sub(f"/[^']*/(?={re.escape(file)})", "", result.text)
                continue
            case.system_out = case.system_err = ""
            for result in case.result:
                result.text = None
            for each in [*properties]:
                if each.name not in SHOWN:
                    properties.remove(each)
                each.value = first_line(each.value)
    xml.write(str(_recorded(name)))


def _recorded(name: str) -> Path:
    return ROOT / "fixtures" / "migration" / f"{name}.xml"


def _tests(cases: Sequence[ComparedCase]) -> Tests:
    """Cases that are one row, in the order of their importance."""
    found: dict[tuple[Effect, str, str], list[ComparedCase]] = defaultdict(list)
    for case in cases:
        if has := effect_on(case):
            test = case.id.partition("[")[0]
            name = test.partition("::")[0] if has is Effect.NOT_AVAILABLE else test
            found[has, name, generalised(case.failure)].append(case)
    return dict(sorted(found.items(), key=lambda item: (ORDER.index(item[0][0]), *item[0][1:])))


def _areas(found: Comparison) -> Iterator[str]:
    """A table for each area: a row for each test, effect and cause, with a case that decides it."""
    for area in sorted({case.area for case in found.cases}):
        tests = _tests([case for case in found.cases if case.area == area])
        if tests:
            yield from (f"## Area {plain(area)}", "")
            head = ("effect", "cases", "upstream", "the first case", "what it says")
            yield from table(head, (_row(effect, cases) for (effect, *_), cases in tests.items()))


def _row(effect: Effect, cases: Sequence[ComparedCase]) -> tuple[str, ...]:
    first = cases[0]
    says = code(first_line(first.failure))
    return str(effect), str(len(cases)), _upstream(cases), code(first.id), says


def _broken(found: Comparison, root: Path) -> Iterator[str]:
    """What is broken by moving: what it says, and the program."""
    broken: dict[str, list[Sequence[ComparedCase]]] = defaultdict(list)
    for (of, name, _), cases in _tests(found.cases).items():
        if of is Effect.BROKEN:
            broken[name].append(cases)
    if not broken:
        return
    yield from ("## What breaks", "", "`repro` writes a case as a program that runs alone.", "")
    stack = shlex.quote(found.candidate.name)
    for name, causes in broken.items():
        yield from (f"### {code(name)}", "", *map(_cause, causes), "")
        commands = (
            f"uv run xla-harness repro {shlex.quote(c[0].id)} --stack {stack}" for c in causes
        )
        yield from ("```text", *commands, "```", "")
        if program := _program(root, name):
            yield from ("```python", *program, "```", "")


def _cause(cases: Sequence[ComparedCase]) -> str:
    first = cases[0]
    where = f" at {plain(first.layer)}" if first.layer else ""
    known = f" ({_upstream(cases)})" if first.issues else ""
    says = code(first_line(first.failure))
    return f"- {len(cases)} case{'s' * (len(cases) > 1)}{where}{known}: {says}"


def _upstream(cases: Sequence[ComparedCase]) -> str:
    """Their issues and findings, linked."""
    issues = dict.fromkeys(issue for case in cases for issue in case.issues)
    return ", ".join(_finding(issue) or link(issue) for issue in issues)


def _finding(cause: str) -> str:
    word, _, name = cause.partition(" ")
    described = f"\n## {name}\n" in (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    return f"[{cause}](findings.md#{name})" if word == "finding" and described else ""


def _program(root: Path, name: str) -> list[str]:
    """The lines of a test; none for one that is too long or not there any more."""
    file, _, function = name.partition("::")
    path = root / file
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == function.rpartition("::")[2]:
            start = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            lines = text.splitlines()[start - 1 : node.end_lineno]
            return lines if len(lines) <= MOST_LINES else []
    return []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="make docs/migration.md from recorded runs")
    parser.add_argument("reports", nargs="*", metavar="REPORT", help=f"of {BASE}, of {CANDIDATE}")
    reports = parser.parse_args().reports
    if len(reports) not in {0, 2}:
        parser.error(f"two reports, of {BASE} and of {CANDIDATE}, or none")
    for report, name in zip(reports, (BASE, CANDIDATE), strict=False):
        record(report, name)
    (ROOT / "docs" / "migration.md").write_text(page(recorded(BASE), recorded(CANDIDATE)))
