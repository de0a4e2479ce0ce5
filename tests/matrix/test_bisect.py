"""The search itself: the right answer, in the fewest questions, honest about what it can't know."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import BadInputError
from harness.matrix.attribution import Swap, differing, swapped, unsettled, verdict
from harness.matrix.bisect import StackState, bisect
from harness.stacks.stack import Stack

G, B, U = StackState.GOOD, StackState.BAD, StackState.UNKNOWN


@given(st.integers(2, 200), st.data())
def test_finds_the_change(count: int, data: st.DataObject) -> None:
    first_bad = data.draw(st.integers(1, count - 1))
    measured: list[int] = []

    def ask(name: str) -> StackState:
        measured.append(int(name))
        return B if int(name) >= first_bad else G

    point = bisect([str(n) for n in range(count)], ask)
    assert (int(point.good), int(point.bad)) == (first_bad - 1, first_bad)
    assert point.changes == 1
    assert len(measured) == len(set(measured)) <= 2 + math.ceil(math.log2(count))


@given(st.lists(st.sampled_from([G, B, U]), max_size=20))
def test_neighbours_differ_and_unmeasured_ones_are_named(inner: list[StackState]) -> None:
    answers = [G, *inner, B]
    names = [str(n) for n in range(len(answers))]
    point = bisect(names, lambda name: answers[int(name)])
    good, bad = int(point.good), int(point.bad)
    assert (answers[good], answers[bad]) == (G, B)
    assert good < bad
    assert all(answers[n] == U for n in range(good + 1, bad))
    assert point.between == tuple(names[good + 1 : bad])


@given(st.lists(st.sampled_from([G, B, U]), max_size=12))
def test_asking_all_counts_every_change(inner: list[StackState]) -> None:
    answers = [G, *inner, B]
    point = bisect([str(n) for n in range(len(answers))], lambda n: answers[int(n)], every=True)
    known = [a for a in answers if a != U]
    assert point.changes == sum(a != b for a, b in pairwise(known))
    assert len(point.answers) == len(answers)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([B, B], "0 is bad: expected it to be good"),
        ([G, G], "1 is good: expected it to be bad"),
        ([U, B], "0 is not measured"),
    ],
)
def test_ends_must_be_what_they_say(answers: list[StackState], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        bisect(["0", "1"], lambda name: answers[int(name)])


def stack(name: str, **pins: str) -> Stack:
    return Stack(name, "3.11", pins)


A = stack("A", torch="2.9", torch_xla="2.9", jax="0.7", jaxlib="0.7", libtpu="0.1", numpy="2")
C = stack("C", torch="2.5", torch_xla="2.5", jax="0.4", jaxlib="0.4", numpy="2")


def test_components_are_swapped_whole() -> None:
    components = differing(A, C)
    assert [c.name for c in components] == ["torch_xla", "jax", "libtpu"]
    made = [swapped(A, C, component) for component in components]
    assert [s.name for s in made] == ["A+torch_xla=2.5", "A+jax=0.4", "A+libtpu=none"]
    assert dict(made[0].pins) == {**A.pins, "torch": "2.5", "torch_xla": "2.5"}
    assert "libtpu" not in made[2].pins
    assert dict(swapped(C, A, components[2]).pins) == {**C.pins, "libtpu": "0.1"}


def test_what_one_framework_needs_is_swapped_with_it() -> None:
    """JAX 0.9 does not require absl, which its Pallas imports: without it nothing is measured."""
    old = stack("old", jax="0.9", jaxlib="0.9", **{"absl-py": "2"})
    new = stack("new", jax="0.10", jaxlib="0.10")
    (component,) = differing(old, new)
    assert component.name == "jax"
    assert dict(swapped(new, old, component).pins) == dict(old.pins)
    assert dict(swapped(old, new, component).pins) == dict(new.pins)
    (added,) = differing(stack("kernels", jax="0.10", jaxlib="0.10", tokamax="1"), new)
    assert added.name == "tokamax"


def test_another_python_is_a_component() -> None:
    other = Stack("D", "3.12", A.pins)
    (component,) = differing(A, other)
    assert component.name == "python"
    assert swapped(A, other, component).python == "3.12"


@pytest.mark.parametrize(
    ("into_base", "into_candidate", "sentence"),
    [
        ({"jax": Swap.WORKS, "torch_xla": Swap.SAME}, {}, "torch_xla"),
        ({"jax": Swap.SAME, "torch_xla": Swap.SAME}, {}, "jax or torch_xla, each alone"),
        ({"jax": Swap.OTHER}, {"jax": Swap.WORKS, "libtpu": Swap.SAME}, "jax, not alone"),
        ({"jax": Swap.WORKS}, {"jax": Swap.SAME}, "undecided: no single component"),
        (
            {"jax": Swap.UNKNOWN, "torch": Swap.OTHER, "libtpu": Swap.UNKNOWN},
            {"jax": Swap.UNKNOWN, "torch": Swap.SAME, "libtpu": Swap.UNKNOWN},
            "undecided: nothing was measured with jax or libtpu swapped",
        ),
        ({"jax": Swap.WORKS}, {"jax": Swap.UNKNOWN}, "undecided: nothing was measured with jax"),
    ],
)
def test_who_carries_it(
    into_base: dict[str, Swap], into_candidate: dict[str, Swap], sentence: str
) -> None:
    assert verdict(into_base, into_candidate).startswith(sentence)


def test_the_other_direction_is_asked_only_where_needed() -> None:
    swaps = {"one": {"jax": Swap.SAME}, "two": {"jax": Swap.WORKS}}
    assert unsettled(["one", "two", "three"], swaps) == ["two", "three"]
