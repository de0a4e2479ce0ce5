"""A case's questions put to backend "xla" and to its oracles: gloo and NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from harness.model.topology import Topology
from suites.collectives.data import Groups
from suites.process_groups.jobs import RECTANGULAR, Question, check, over_gloo, over_xla


def ask(
    subtests: pytest.Subtests,
    topology: Topology,
    questions: Mapping[str, Question],
    groups: Groups = (),
    options: Mapping[str, Any] = RECTANGULAR,
) -> None:
    """Ask one job over gloo and one on backend "xla"; each question is a subtest.

    gloo comes first: it must agree with NumPy before either may judge.
    """
    oracle = over_gloo(questions, topology.total, groups)
    for name, answers in oracle.items():
        check(answers, questions[name].expected)
    answers_of = over_xla(questions, topology, groups, options)
    for name, question in questions.items():
        with subtests.test(name):
            check(answers_of[name], question.expected)
