"""Which lanes `xla-harness qualify` asks unless it is told."""

from __future__ import annotations

import argparse

import pytest
from support.paths import ROOT

from harness.commands import qualify
from harness.matrix.sides import not_asked
from harness.verdicts.comparison import Comparison, Side

LIBTPU = {"jaxlib": "1", "libtpu": "1"}


@pytest.mark.parametrize(
    ("command", "lanes"),
    [
        (("2.8.0", "2.9.0"), {"virtual-tpu": (), "cpu": ("virtual-tpu",), "tpu-aot": ()}),
        (("jax-0.7.2", "jax-0.8.3"), {"virtual-tpu": (), "cpu": ("virtual-tpu",), "tpu-aot": ()}),
        (("2.4.0", "2.9.0"), {"virtual-tpu": (), "cpu": ("virtual-tpu",)}),  # without libtpu
        (("2.8.0", "2.9.0", "--lanes", "cpu"), {"cpu": ()}),
    ],
)
def test_libtpu_is_asked_where_both_stacks_have_it(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], lanes: dict[str, tuple[str, ...]]
) -> None:
    monkeypatch.chdir(ROOT)
    parser = argparse.ArgumentParser()
    qualify.add(parser)
    cells = qualify._qualification(parser.parse_args(command))[0].cells
    for stack in command[:2]:
        assert {c.lane: c.elsewhere for c in cells if c.stack.name == stack} == lanes


@pytest.mark.parametrize(
    ("base", "candidate", "lanes"),
    [
        (LIBTPU, LIBTPU, ("cpu", "virtual-tpu", "tpu-aot", "tpu")),
        (LIBTPU, {"jaxlib": "1"}, ("cpu", "virtual-tpu")),
    ],
)
def test_what_was_not_asked(
    base: dict[str, str], candidate: dict[str, str], lanes: tuple[str, ...]
) -> None:
    sides = (Side(name, pins, {}, (), {}) for name, pins in (("a", base), ("b", candidate)))
    comparison = Comparison(base=next(sides), candidate=next(sides), findings=())
    assert not_asked(comparison) == lanes
