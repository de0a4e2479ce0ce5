"""Page of PJRT plugins: how many checks each conforms to, by level, and what fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from harness.conformance.plugin_check import Conformity
from harness.dashboard.page_maker import Build
from harness.dashboard.rows import PluginAnswer


@dataclass(frozen=True)
class PluginLevel:
    """A plugin on one level: how many checks have each result, and those that fail."""

    plugin: str
    api: str
    level: str
    counts: Sequence[int]
    failed: Sequence[PluginAnswer]


def publish(build: Build) -> None:
    """Write the page."""
    rows = []
    for (plugin, level), group in groupby(
        build.facts.plugin_answers, attrgetter("plugin", "level")
    ):
        answers = list(group)
        counts = Counter(answer.conformity for answer in answers)
        failed = [answer for answer in answers if answer.conformity == Conformity.FAILS]
        rows.append(
            PluginLevel(plugin, answers[0].api, level, [counts[c] for c in Conformity], failed)
        )
    build.page("plugins.html", "plugins.html", rows=rows, columns=list(Conformity))
