"""The page about moving to TorchTPU, made of ``fixtures/migration/`` while the site is built.

To record the reports in that folder again::

    uv run xla-harness qualify 2.9.0 torch_tpu-0.2.0
    uv run python docs/generate/migration.py reports/matrix/{2.9.0,torch_tpu-0.2.0}/virtual-tpu.xml
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from junitparser import JUnitXml, Properties
from pydantic import Field

from harness.errors import BadInputError, nearest
from harness.junit.report import read
from harness.junit.result import Result
from harness.render.github_markup import code, link, plain, table
from harness.tables import Table, Text, read_tables

_ROOT = Path(__file__).parents[2]
FOLDER = _ROOT / "fixtures" / "migration"
BASE, CANDIDATE = "2.9.0", "torch_tpu-0.2.0"
_ALIASES = {
    "torch.distributed": "dist",
    "torch_xla.core.xla_model": "xm",
    "torch_xla.distributed.spmd": "xs",
    "torch_xla.runtime": "xr",
}
_NO_CASE = "no case decides"
Results = Mapping[str, Result]
_RECORDED = frozenset(
    "id area lane topology framework expectation expected_by actual outcome".split()  # noqa: SIM905
)


class Api(Table):
    """A row: an API of torch_xla, what takes its place, and the cases that decide."""

    topic: Text = Field(description="a text")
    name: Text = Field(description="a full name")
    instead: tuple[Text, ...] = Field(description="a list of full names", strict=False)
    use: Text = Field(default="", description="a text")
    note: Text = Field(default="", description="a text")
    before: Text = Field(default="", description="the id of a case")
    after: Text = Field(default="", description="the id of a case")


def page(folder: Path = FOLDER) -> str:
    """Return the page. Raises BadInputError naming the file, the row and the key."""
    before, after = _recorded(folder, BASE), _recorded(folder, CANDIDATE)
    apis = load(folder, before, after)
    ids = sorted({id_ for api in apis for id_ in (api.before, api.after) if id_})
    numbers = {id_: number for number, id_ in enumerate(ids, 1)}
    lines = [_introduction([after.get(api.after) for api in apis])]
    for topic, group in groupby(apis, key=lambda api: api.topic):
        rows = (
            (
                f"{_use(api)}<br>{_answer(before.get(api.before), numbers)}",
                f"{_instead(api)}<br>{_answer(after.get(api.after), numbers)}",
            )
            for api in group
        )
        lines += [f"## {plain(topic)}", "", *table(("torch_xla", "TorchTPU"), rows)]
    lines += ["## Cases", ""]
    lines += (f'{number}. <a id="case-{number}"></a>{code(id_)}' for id_, number in numbers.items())
    return "\n".join([*lines, ""])


def _recorded(folder: Path, stack: str) -> Results:
    """Return the results of the cases that the stack measured, by id."""
    results = read(folder / f"{stack}.xml").results.values()
    return {result.id: result for result in results if result.measured}


def load(folder: Path, before: Results, after: Results) -> list[Api]:
    """Return the rows of ``apis.toml``.

    Raises BadInputError naming the row and the key: a case that its stack did not measure, a name
    of TorchTPU that ``names.txt`` does not have, or a row that is there twice.
    """
    names = (folder / "names.txt").read_text().split()
    rows = dict[tuple[str, str], Api]()
    for where, api in read_tables(folder / "apis.toml", "api", Api):
        own = [name for name in api.instead if name.startswith(("torch.tpu.", "torch_tpu."))]
        _check(where, "instead", own, names)
        _check(where, "before", filter(None, [api.before]), before)
        _check(where, "after", filter(None, [api.after]), after)
        if rows.setdefault((api.name, api.use), api) is not api:
            raise BadInputError(f"{where}: key 'use': {api.name!r}: expected a row for each use")
    return list(rows.values())


def _check(where: str, key: str, values: Iterable[str], known: Collection[str]) -> None:
    for value in values:
        if value not in known:
            raise BadInputError(f"{where}: key {key!r}: {value!r}: {nearest(value, known)}")


def _introduction(results: Sequence[Result | None]) -> str:
    counts = Counter(map(_verdict, results))
    aliases = ", ".join(f"`{alias}` is `{name}`" for name, alias in _ALIASES.items())
    return f"""\
# Moving from torch_xla to TorchTPU

Each row has an API that people use in torch_xla, what to use instead in TorchTPU (`torch_tpu`), and
the cases that decide whether either works: one *before* moving, on the [stack](glossary.md)
`{BASE}`, and one *after* it, on `{CANDIDATE}`. Both ran on the [virtual TPU](virtual-tpu.md). The
number of each case leads to the [list of cases](#cases). Of {len(results)} rows {counts["works"]}
work after moving, {counts["broken"]} are broken, and no case decides {counts[_NO_CASE]}.

These commands run all cases again, without a TPU, and make a case a program of its own:

```text
uv run xla-harness qualify {BASE} {CANDIDATE}
uv run xla-harness repro CASE --stack {CANDIDATE}
```

In names {aliases}.
"""


def _name(name: str) -> str:
    """Return the name as programs spell it that import modules under their usual aliases."""
    for module, alias in _ALIASES.items():
        name = re.sub(rf"^{re.escape(module)}\.", f"{alias}.", name)
    return code(name)


def _use(api: Api) -> str:
    return ", ".join(filter(None, (_name(api.name), plain(api.use))))


def _instead(api: Api) -> str:
    names = ", ".join(map(_name, api.instead))
    return "<br>".join(filter(None, (names, api.note))) or "nothing"


def _verdict(result: Result | None) -> str:
    return _NO_CASE if result is None else "works" if result.works else "broken"


def _answer(result: Result | None, numbers: Mapping[str, int]) -> str:
    """Return the verdict, the number of the case, and the cause that an expectation declares."""
    if result is None:
        return _NO_CASE
    number = numbers[result.id]
    word, _, name = result.expectation.partition(" ")
    cause = f"[{name}](findings.md#{name})" if word == "finding" else link(result.expectation)
    verdict = f"**{_verdict(result)}** [{number}](#case-{number})"
    return verdict if result.works or not cause else f"{verdict}: {cause}"


def record(report: Path, target: Path) -> None:
    """Write to ``target`` what the page needs of a stack's report."""
    xml = JUnitXml.fromfile(str(report))
    for suite in xml:
        suite.hostname = "runner"
        for case in [*suite]:
            if (properties := case.child(Properties)) is None:
                suite.remove_testcase(case)  # a file that could not be collected
                continue
            case.system_out = case.system_err = ""
            for result in case.result:
                result.text = result.message = None
            for each in [*properties]:
                if each.name not in _RECORDED:
                    properties.remove(each)
    xml.write(str(target))


if __name__ == "__main__":
    for report, name in zip(sys.argv[1:], (BASE, CANDIDATE), strict=True):
        record(Path(report), FOLDER / f"{name}.xml")
