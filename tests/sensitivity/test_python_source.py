"""Where slips in Python are planted, and that the function that runs is changed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.sensitivity.python_faults import difference, lines_by_place, plant
from harness.sensitivity.python_source import functions

Load = Callable[[str], ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Import a package of one module with this source; its name is new for each test."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def load(source: str) -> ModuleType:
        name = f"source_{abs(hash(tmp_path))}"
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(source)
        return importlib.import_module(name)

    return load


def lines_with_a_slip(module: ModuleType) -> set[int]:
    """Return the lines of the statements in which some operator has a place."""
    return {
        lines[0]
        for name in functions(module.__name__)
        for places in lines_by_place(name).values()
        for lines in places
    }


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("def f(x):\n    if x > 1:\n        raise ValueError(x + 1)\n    return x", {2, 4}),
        ("def f(x):\n    log.warning(1 + x)\n    x = g(y=1)", {3}),
        ("def f(x):\n    warnings.warn(1 + x)\n    y = x.log(1)", {3}),
        ("def f(x):\n    print(1 + x)\n    y = x.print(1)", {3}),
        ("def rank_error(x):\n    return x + 1\ndef err_msg(x):\n    return x + 1", set()),
        ("def f(x):\n    msg = x + 1\n    return x + 1", {3}),
        ("def _own_repr(x):\n    return x + 1\ndef _add_pp_rule(x):\n    return x + 1", set()),
        ("def reproduced(x):\n    return x + 1", {2}),
        ("def f(x):\n    x = g(help=1 + 1)\n    x = g(helped=1)", {3}),
        (
            "class A:\n    def __repr__(self):\n        return 1\n    def f(x):\n        f(1)",
            {5},
        ),
        ("def f(x):\n    if not isinstance(x, int) and x > 1:\n        raise ValueError", set()),
        ("def f(x):\n    if type(x) is A:\n        msg = 1\n        raise ValueError", set()),
        ("def f(x):\n    if isinstance(x, int):\n        return 1", {2, 3}),
        ("def f(x):\n    if callable(x):\n        raise V\n    else:\n        x += 1 + 1", {2, 5}),
        ("def _lower_gpu(x):\n    return 1", set()),
        ("def _gpu_or_tpu(x):\n    return 1", {2}),
        ("def f(x):\n    def triton(y):\n        return 1\n    return x", {4}),
        ("def f(x):\n    if x == 'cuda':\n        g(1)\n    else:\n        g(2)", {2, 5}),
        ("def f(x):\n    if kind() == 'NEURON':\n        g(1)\n    return g(2)", {2, 4}),
        ("def f(x):\n    if x != 'cuda':\n        g(1)", {2, 3}),
        ("def f(x):\n    if x in ('cuda', 'tpu'):\n        g(1)", {2, 3}),
        ("if TYPE_CHECKING:\n    def f(x):\n        return 1", set()),
        ("def f(x):\n    assert x > 1, x + 1", {2}),
        ("def f(x):\n    y = g(x, x)\n    return None", set()),  # which no slip would change
        ("def f(x):\n    y: Literal[1] = x\n    def g(z: 1 + 1) -> 2 + 2: z", set()),
    ],
)
def test_what_is_left_out(load: Load, source: str, lines: set[int]) -> None:
    assert lines_with_a_slip(load(f"TYPE_CHECKING = False\n{source}\n")) == {n + 1 for n in lines}


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("a = x + 1\nb = a * 2\nif b > 1:\n    a = 3\nreturn x", {6}),
        ("a = x + 1\nb = a * 2\nreturn b", {2, 3, 4}),
        ("a = x + 1\ndef g():\n    return a\nreturn g", {2, 4, 5}),
        ("a, b = x + 1, 2\nreturn b", {2, 3}),
        ("a = f(x, 1)\nb = x[1]\nc = x.y + 1", {2, 3, 4}),  # which do more, or fail
        ("global a\na = x + 1", {3}),
        ("a = x + 1\nreturn locals()", {2, 3}),
        ("class A:\n    b = 1\nreturn A", {3, 4}),
        ("a = 1\na += x\nreturn x", {4}),
        ("a = 1\na += x\ndel a", {2}),
    ],
)
def test_variables_that_nothing_reads(load: Load, body: str, lines: set[int]) -> None:
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    assert lines_with_a_slip(load(f"def f(x):\n{indented}")) == lines


METHODS = """
from jax._src.util import use_cpp_method

class A:
    @use_cpp_method()
    def f(x):
        return 1
    @property
    @use_cpp_method()
    def g(x):
        return 1
    @use_cpp_method(False)
    def h(x):
        return 1
"""


def test_methods_in_whose_place_is_cpp_are_left_out(load: Load) -> None:
    assert lines_with_a_slip(load(METHODS)) == {14}


def test_an_assert_has_its_condition_but_not_its_message(load: Load) -> None:
    module = load("def f(x):\n    assert x > 1, x + 2\n")
    (name,) = functions(module.__name__)
    assert {kind: len(of) for kind, of in lines_by_place(name).items() if of} == {
        "python-comparison": 1,
        "python-number": 1,
    }


def test_the_lines_of_a_statement(load: Load) -> None:
    source = "def f(x):\n  y = g(\n    1,\n  )\n  @h(2)\n  def i():\n    return x\n  return i\n"
    module = load(source)
    (name,) = functions(module.__name__)
    places = lines_by_place(name)
    assert places["python-number"] == [range(2, 5), range(5, 7)]
    assert places["python-result-left-out"] == [range(7, 8), range(8, 9)]


WRAPPED = """
import functools

TABLE = {}

def registers(function):
    TABLE["rule"] = function

def hides(function):
    return lambda *xs: function(*xs)

class Holder:
    def __init__(self, function):
        functools.update_wrapper(self, function)
        self._function = function
    def __call__(self, x):
        return self._function(x)

@functools.lru_cache
def cached(x):
    return x + 1

@Holder
def held(x):
    return x + 1

@hides
def hidden(x):
    return x + 1

@registers
def rule(x):
    return x + 1

def nested(x):
    def inner(y):
        return [z + 1 for z in (y,)][0]
    return inner(x)

def by_lambda(x):
    return (lambda y: y + 1)(x)

def recursive(x):
    return recursive(x - 1) if x > 5 else x + 1

class Owner:
    def names_its_class(self, x):
        return x + 1 if isinstance(self, Owner) else 0
    @property
    def value(self):
        return self.x
    @value.setter
    def value(self, x):
        self.x = x + 1
    @classmethod
    def of(cls, x):
        return x + 1
    def __secret(self, x):
        return super().__hash__() * 0 + x + 1
    def secret(self, x):
        return self.__secret(x)

def through_setter(x):
    owner = Owner()
    owner.value = x
    return owner.value
"""


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("cached", lambda module: module.cached(5)),
        ("held", lambda module: module.held(5)),
        ("hidden", lambda module: module.hidden(5)),
        ("rule", lambda module: module.TABLE["rule"](5)),
        ("nested", lambda module: module.nested(5)),
        ("by_lambda", lambda module: module.by_lambda(5)),
        ("recursive", lambda module: module.recursive(5)),
        ("Owner.names_its_class", lambda module: module.Owner().names_its_class(5)),
        ("Owner.value", lambda module: module.through_setter(5)),
        ("Owner.of", lambda module: module.Owner.of(5)),
        ("Owner.__secret", lambda module: module.Owner().secret(5)),
    ],
)
def test_the_function_that_runs_is_changed(
    load: Load, function: str, call: Callable[[Any], int]
) -> None:
    module = load(WRAPPED)
    name = max(name for name in functions(module.__name__) if name.split(":")[1] == function)
    assert call(module) == 6
    importlib.reload(module)  # a cache has the number
    addition = len(lines_by_place(name)["python-arithmetic"]) - 1
    assert plant(name, "python-arithmetic", 0 if "secret" in name else addition)
    assert call(module) == 4


def test_a_name_without_a_function_is_not_changed(load: Load) -> None:
    module = load("def f(x):\n    return 1 + x\n\nf = None\n")
    (name,) = functions(module.__name__)
    assert not plant(name, "python-arithmetic", 0)


def test_a_change_like_another_line_is_shown(load: Load) -> None:
    module = load("def f(x):\n    y = x + 1\n    y = x - 1\n    y = x + 1\n    return y\n")
    (name,) = functions(module.__name__)
    assert difference(name, "python-arithmetic", 2) == ["-    y = x + 1", "+    y = x - 1"]
