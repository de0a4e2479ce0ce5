"""``sensitivity --modules``: slips over all lines of modules, whether or not a case executes them.

The command runs for real, on a package and a user's tests of JAX.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT
from support.sensitivity import JAX_ALONE, Ran, sensitivity

from harness.errors import BadInputError
from harness.junit.result import Result
from harness.sensitivity import python_source
from harness.sensitivity.fault import Fault
from harness.sensitivity.python_faults import PYTHON_OPERATORS
from harness.sensitivity.python_source import folder_of, functions
from harness.sensitivity.quickest import quickest
from harness.sensitivity.rounds import _spread, _up_to_the_last
from harness.sensitivity.sample import Sample
from harness.sensitivity.score import FaultResult, FaultVerdict
from harness.sensitivity.whole_modules import read_modules, sampled

SOURCE = """\
from functools import partial
import jax

@jax.custom_vjp
def scaled(x):
    return x * 3
scaled.defvjp(lambda x: (scaled(x), None), lambda _, g: (g * 3,))

@partial(jax.jit, static_argnums=1)
def shifted(x, by):
    def inner(y):
        return y + by
    return inner(x)

def never(x):
    return x - 1

def other(x):
    return x - 1
"""
USER = """
import time
import jax, jax.numpy as jnp
from whole import numbers

def test_that_looks_at_nothing():
    jnp.ones(2).block_until_ready()
    numbers.scaled.__wrapped__(1)
    numbers.shifted.__wrapped__(1, 2)

def test_scaled():
    time.sleep(0.5)  # the cheaper case is asked first
    assert numbers.scaled(jnp.ones(2)).tolist() == [3, 3]

def test_shifted():
    time.sleep(0.5)
    assert numbers.shifted(jnp.ones(2), 2).tolist() == [3, 3]

def test_other():
    jax.block_until_ready(numbers.other(jnp.ones(2)))
"""
CASES = ("test_other", "test_scaled", "test_shifted", "test_that_looks_at_nothing")
OPERATORS = "python-result-left-out,python-arithmetic,python-argument-left-out"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole_modules")
    (folder / "whole").mkdir()
    (folder / "whole" / "__init__.py").touch()
    (folder / "whole" / "numbers.py").write_text(SOURCE)
    (folder / "whole" / "rest.py").write_text("def rest(x):\n    return x * 2\n")
    (folder / "test_whole.py").write_text(USER)
    modules = ["whole.numbers:s*", "whole.numbers:never", "whole.numbers:other", "whole.r*"]
    (folder / "modules.toml").write_text(f"whole = {modules}\n")
    return folder


@pytest.fixture(scope="module")
def ran(folder: Path) -> Ran:
    options = ["test_whole.py", "--modules=modules.toml", f"--operators={OPERATORS}", "-n2"]
    options += ["--json=s.json", "--junitxml=s.xml", "--budget=14m", "--fail-under=50"]
    options += ["--smallest=quick.txt", "--seconds=3600"]
    (folder / "chosen.txt").write_text("".join(f"test_whole.py::{name}\n" for name in CASES))
    chosen = ["--cases=chosen.txt", "--shard=1/1"]
    ran = sensitivity(folder, *options, behind=["--topology=1", *chosen, *JAX_ALONE])
    assert ran.code == 1, ran.stderr
    return ran


@pytest.fixture(scope="module")
def report(folder: Path, ran: Ran) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "s.json").read_text())
    return data


@pytest.mark.long
def test_a_slip_is_seen_if_any_case_sees_it(report: dict[str, Any]) -> None:
    verdicts = defaultdict(list)
    for fault in report["faults"]:
        verdicts[fault["program"].split(":")[1]].append(fault["verdict"])
    assert verdicts == {
        "scaled": ["seen", "seen"],
        "shifted": ["seen", "seen", "seen"],
        "never": ["not executed", "not executed"],
        "other": ["not seen", "not seen"],
        "rest": ["not executed", "not executed"],
    }
    counts = {len(fault["cases"]) for fault in report["faults"] if fault["verdict"] == "seen"}
    assert max(counts) == 2  # the one that looks at nothing before


def test_cases_that_execute_something_are_the_smallest_set(
    report: dict[str, Any], ran: Ran, folder: Path
) -> None:
    lines = (folder / "quick.txt").read_text().splitlines()
    assert lines == report["smallest"]
    assert sorted(lines) == [f"test_whole.py::{name}" for name in CASES]


def test_the_quickest_cases() -> None:
    places = {
        "cheap": {("m:f:1", 2), ("m:f:1", 3)},
        "twin": {("m:f:1", 2), ("m:f:1", 3)},
        "other": {("n:g:1", 2)},
        "dear": {("n:g:1", 2), ("m:f:1", 2), ("m:h:5", 7)},
        "idle": set[tuple[str, int]](),
    }
    cost = {"cheap": 1.0, "twin": 1.1, "other": 2.0, "dear": 9.0, "idle": 0.1}
    assert quickest(places, cost, 4) == ["cheap", "other"]
    # What another case executes already is worth half as much: the twin comes last.
    assert quickest(places, cost, 100) == ["cheap", "other", "twin", "dear"]
    assert quickest(places, cost, 11, ["twin"]) == ["twin", "other", "cheap"]
    assert quickest(places, cost, 0.5, ["unknown"]) == ["unknown"]


@pytest.mark.parametrize(
    ("options", "needs"), [((), "--smallest"), (("--smallest=q",), "--modules")]
)
def test_seconds_alone_are_an_error(folder: Path, options: Sequence[str], needs: str) -> None:
    ran = sensitivity(folder, "test_whole.py", "--seconds=5", *options)
    assert (ran.code, needs in ran.stderr) == (2, True)


def test_what_no_case_executes_counts_as_not_seen(report: dict[str, Any], ran: Ran) -> None:
    numbers = report["modules"]["whole.numbers"]
    assert (numbers["seen"], numbers["not seen"], numbers["not executed"]) == (5, 2, 2)
    assert report["modules"]["whole.rest"]["percent"] == 0
    assert report["all modules"]["percent"] == 45.5
    assert "less than 50 % of the faults were seen in all modules" in ran.stderr
    assert "whole.numbers:never 16\n" in ran.stdout
    assert "whole.rest:rest 2\n" in ran.stdout


def test_what_was_not_seen_is_shown_with_all_cases(
    report: dict[str, Any], ran: Ran, folder: Path
) -> None:
    fault = next(fault for fault in report["faults"] if fault["verdict"] == "not seen")
    assert fault["cases"] == ["test_whole.py::test_other"]
    assert fault["difference"][0] == "-    return x - 1"
    report_text = (folder / "s.xml").read_text()
    assert report_text.count("<failure") == 1  # of all modules together
    for text in (ran.stdout, report_text):
        assert "test_whole.py::test_other" in text
        assert "-    return x - 1" in text
        assert "whole.numbers:never 16" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("whole = ['whole.number']", "module 'whole.number': did you mean whole.numbers"),
        ("whole = ['whole.numbers:nevr']", "function 'whole.numbers:nevr': did you mean never"),
        ("whole = 'whole.numbers'", "whole: expected a list of modules"),
        ("nowhere = ['nowhere.numbers']", "package 'nowhere': expected an installed package"),
        ("whole = [", "expected TOML"),
    ],
)
def test_bad_entries(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    path = tmp_path / "modules.toml"
    path.write_text(text)
    with pytest.raises(BadInputError, match=message):
        read_modules(path, ())


UNUSED = """\
from functools import cache

def _dead():
    return _dead()
def _called():
    return 1
def public():
    return _called()
def _at_import():
    return _passed_on
def _passed_on():
    return 1
@cache
def _decorated():
    return 1
def __getattr__(name):
    raise AttributeError(name)
class Owner:
    def _method(self):
        return 1
    def _in_class(self):
        return _in_class()
def _in_class():
    return 1
def _discarded(x):
    if x:
        return x
    def inner():
        return x
    return inner()
def calls():
    _discarded(1)
    _read(1)
    return _read(2)
def _read(x):
    return x
_at_import()
"""


@pytest.fixture
def unused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a package of a public module, of what exports from it, and of private modules."""
    package = tmp_path / "unused_functions"
    python_source.path_of.cache_clear()  # the package has another path in each test
    (package / "_inner").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from unused_functions._inner.own import (\n  public,\n)\n"
        "from unused_functions.rest import _dead\n"
    )
    (package / "rest.py").write_text(UNUSED)
    (package / "_inner" / "__init__.py").write_text("from unused_functions._inner.own import off\n")
    (package / "_inner" / "own.py").write_text("def off(): return 1\ndef public(): return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "modules.toml").write_text("unused_functions = ['unused_functions.*']\n")
    return tmp_path / "modules.toml"


def test_functions_that_nothing_calls(unused: Path) -> None:
    """An import calls nothing; that of a public name into a public module is an export."""
    chosen = read_modules(unused, ())
    left = {
        name.split(":")[1]
        for module in ("unused_functions.rest", "unused_functions._inner.own")
        for name in functions(module).keys() - set(chosen[module])
    }
    assert left == {"_dead", "_at_import", "off"}


def test_results_that_nothing_reads(unused: Path) -> None:
    slips = sampled(read_modules(unused, ()), ["python-result-left-out"], Sample(0, 99))
    of_function = [slip.place[1] for slip in slips if "_discarded" in slip.fault.program]
    first = UNUSED.splitlines().index("def _discarded(x):") + 1
    assert sorted(of_function) == [first + 4, first + 5]
    assert [slip for slip in slips if "_read" in slip.fault.program]


def test_tests_of_another_package_are_an_error(folder: Path) -> None:
    """And no share of 0 %: the command may have found another copy of it than the tests import."""
    (folder / "others.toml").write_text('whole = ["whole.rest"]\n')
    options = ["test_whole.py", "--modules=others.toml", "-n1"]
    ran = sensitivity(folder, *options, behind=["--topology=1", "-k=nothing", *JAX_ALONE])
    assert ran.code == 2
    assert "test_whole.py" in ran.stderr
    assert "no case executes a line of the modules" in ran.stderr
    assert str(folder / "whole" / "rest.py") in ran.stderr


def test_the_package_in_the_current_folder_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the tests import it, also where the command's own path does not have that folder."""
    (tmp_path / "jax").mkdir()
    monkeypatch.chdir(tmp_path)
    installed = folder_of("jax")
    assert installed.endswith("site-packages/jax/"), "a folder of that name is no package"
    (tmp_path / "jax" / "__init__.py").touch()
    assert folder_of("jax") == f"{tmp_path}/jax/"


def test_only_a_package_of_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(BadInputError, match="package 'hole': did you mean whole"):
        read_modules(folder / "modules.toml", ("hole",))
    assert set(read_modules(folder / "modules.toml", ("whole",))) == {"whole.numbers", "whole.rest"}


def test_the_files_of_this_project_are_of_installed_packages() -> None:
    chosen = read_modules(ROOT / "fixtures" / "modules.toml", ("jax", "torch_xla"))
    assert {"jax._src.lax.parallel", "torch_xla.distributed.spmd.xla_sharding"} <= set(chosen)


def test_modules_take_turns_and_the_seed_decides(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    modules = read_modules(folder / "modules.toml", ())

    def sample(seed: int, most: int) -> list[tuple[str, str, int]]:
        slips = sampled(modules, PYTHON_OPERATORS, Sample(seed, most))
        return [(slip.fault.program, slip.fault.operator, slip.fault.place) for slip in slips]

    assert [name.partition(":")[0] for name, _, _ in sample(3, 2)] in (
        ["whole.numbers", "whole.rest"],
        ["whole.rest", "whole.numbers"],
    )
    assert sample(3, 99)[:7] == sample(3, 7)
    assert len(set(sample(3, 99))) == len(sample(3, 99)) == len(sample(4, 99))
    assert sample(3, 99) != sample(4, 99)


def test_cases_of_other_files_and_functions_come_first() -> None:
    ids = ["a.py::f[1]", "a.py::f[2]", "a.py::g", "b.py::f"]
    results = [Result(id_) for id_ in ids]
    others = ["b.py::f", "a.py::g"]
    assert [result.id for result in _spread(results, ())] == ["a.py::f[1]", *others, "a.py::f[2]"]
    assert _spread(results, ["a.py::f[2]"])[0].id == "a.py::f[2]"


def test_a_sample_that_the_budget_cut_ends_at_its_last_slip() -> None:
    def result(verdict: FaultVerdict, cases: tuple[str, ...] = ()) -> FaultResult:
        return FaultResult(Fault(0, "", "m:f:1", "python-flag", 0), "m", verdict, cases=cases)

    never, seen = result(FaultVerdict.NOT_EXECUTED), result(FaultVerdict.SEEN, ("case",))
    assert _up_to_the_last([never, seen, never]) == [never, seen, never]
    assert _up_to_the_last([never, seen, never, result(FaultVerdict.NOT_RUN)]) == [never, seen]
    assert _up_to_the_last([never, result(FaultVerdict.NOT_RUN)]) == []
