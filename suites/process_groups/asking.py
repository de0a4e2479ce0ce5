"""A case's questions put to a framework's backend and to its oracles: gloo and NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from harness.model.topology import Target
from suites.process_groups.jobs import Question, check, over_framework, over_gloo
from suites.shared.backends import BACKENDS
from suites.shared.groups import Groups


def ask(
    subtests: pytest.Subtests,
    target: Target,
    questions: Mapping[str, Question],
    groups: Groups = (),
    options: Mapping[str, Any] | None = None,
) -> None:
    """Ask one job over gloo and one on the target's framework; each question is a subtest.

    gloo comes first: it must agree with NumPy before either may judge. Groups are created with the
    options that the framework needs, unless others are given.
    """
    oracle = over_gloo(questions, target.topology.total, groups)
    for name, answers in oracle.items():
        check(answers, questions[name].expected)
    if options is None:
        options = BACKENDS[target.framework].group_options
    answers_of = over_framework(questions, target, groups, options)
    for name, question in questions.items():
        with subtests.test(name):
            check(answers_of[name], question.expected)
