"""Determine which of the collected tests are cases, and which of those run here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import cast

import pytest

from harness.errors import BadInputError
from harness.expectations import Expectations
from harness.lanes import LANES
from harness.lanes.lane_protocol import RealLane
from harness.model.fit import unfit_here
from harness.model.topology import Target
from harness.session.fixtures import CASE, DEFAULT_FRAMEWORK, EXPECTATION
from harness.session.imports import Imports
from harness.session.markers import case_of, declared_targets, parametrized_target
from harness.session.options import Settings
from harness.session.refusal import stop
from harness.session.running import CASES_NEED
from harness.session.selection import Shard, shards


@dataclass
class Collected:
    """Result of collection; a pytest-xdist worker sends it to the controller."""

    left_out: Counter[str] = field(default_factory=Counter)
    unmatched: list[str] = field(default_factory=list)


COLLECTED = pytest.StashKey[Collected]()


class Collection:
    """Turns items with a target into cases, and leaves out those that do not run here."""

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        expectations: Expectations,
        imports: Imports,
    ) -> None:
        self._config = config
        self._settings = settings
        self._expectations = expectations
        self._imports = imports
        self._collected = config.stash.setdefault(COLLECTED, Collected())

    @pytest.hookimpl(tryfirst=True)  # so that lane and topology come first in the id
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        try:
            targets = declared_targets(metafunc.definition)
        except BadInputError as error:
            raise pytest.Collector.CollectError(str(error)) from None
        if targets:
            metafunc.fixturenames.append("xla_target")
            metafunc.parametrize("xla_target", targets, ids=str, indirect=True, scope="function")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        self._collected.unmatched = self._unmatched_expectations(items)
        yield
        # After -k, -m and the like, so that only what they left is counted as left out.
        try:
            self._choose(items)
            runs = () if session.config.option.collectonly else items
            for target in {item.stash[CASE].target for item in runs if CASE in item.stash}:
                self._settings.check_named_platforms(LANES[target.lane], target.topology)
        except BadInputError as error:
            items.clear()
            stop(session, str(error))

    def _unmatched_expectations(self, items: list[pytest.Item]) -> list[str]:
        selected = any("::" in argument for argument in self._config.args)
        selected = selected or self._settings.cases is not None
        if selected or self._config.getoption("lf", False):
            return []  # part of a file was collected: what is missing says nothing
        return self._expectations.unmatched((item.nodeid for item in items), self._config.rootpath)

    def _choose(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if self._is_asked_for(item) and self._runs_here(item)]
        has_cases = any(CASE in item.stash for item in chosen)
        if has_cases and (unfit := CASES_NEED or unfit_here()):
            raise BadInputError(unfit)
        if self._imports.unlaunched:
            raise BadInputError(self._imports.unlaunched)
        if self._settings.shard is not None:
            own = self._shard(chosen, self._settings.shard)
            chosen = [item for item in chosen if item.nodeid in own]
        places = {case: place for place, case in enumerate(self._settings.first_cases)}
        chosen.sort(key=lambda item: places.get(item.nodeid, len(places)))
        kept = set(chosen)
        if left_out := [item for item in items if item not in kept]:
            self._config.hook.pytest_deselected(items=left_out)
        items[:] = chosen
        if self._settings.topologies and chosen and not any(CASE in item.stash for item in chosen):
            raise BadInputError(
                f"--topology {self._config.getoption('topology')}: no test uses it: tests without "
                "a lanes marker run on a lane of xla-harness only with --lane"
            )

    def _is_asked_for(self, item: pytest.Item) -> bool:
        cases = self._settings.cases
        return item.nodeid not in self._settings.unless_cases and (
            cases is None or item.nodeid in cases
        )

    def _runs_here(self, item: pytest.Item) -> bool:
        """Make the item a case if it has a target; return False for one that is left out."""
        target, declared = self._target_of(item), declared_targets(item)
        reason = ""
        if target is not None and declared:
            reason = self._settings.why_not(target, declared, _framework(item, target))
        elif target is not None:
            reason = self._settings.why_not_plain()
        reason = reason or self._settings.why_not_long(item)
        if reason:
            self._collected.left_out[reason] += 1
            return False
        if target is None:
            return True
        target = self._settings.place(target) if declared else target
        item.stash[CASE] = case_of(item, target, self._settings.deadline)
        self._skip_elsewhere(item, target)
        item.stash[EXPECTATION] = self._expectations.find(item.nodeid)
        return True

    def _skip_elsewhere(self, item: pytest.Item, target: Target) -> None:
        """Skip a case that needs other hardware than there is."""
        if self._settings.hardware is None:
            return
        reason = cast("RealLane", LANES[target.lane]).lacks(target.topology)
        if item.get_closest_marker("emulated"):
            reason = f"about lane {LANES[target.lane].runs_cases_of} itself"
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason), append=False)

    def _shard(self, items: list[pytest.Item], shard: Shard) -> dict[str, float]:
        cases = [
            (item.nodeid, item.stash[CASE].target.lane if CASE in item.stash else "")
            for item in items
        ]
        parts = shards(cases, self._settings.durations, shard.count)
        others = len(cases) - len(parts[shard.number - 1])
        self._collected.left_out[f"other shards than {shard}"] += others
        return parts[shard.number - 1]

    def _target_of(self, item: pytest.Item) -> Target | None:
        if (target := parametrized_target(item)) is not None:
            return target
        declared = declared_targets(item)  # unittest's methods can't be parametrized
        if not declared:
            return self._settings.plain_target()
        why_not = {target: self._settings.why_not(target, declared, "") for target in declared}
        chosen = next((target for target in declared if not why_not[target]), declared[0])
        for other in declared:
            if other != chosen:
                reason = why_not[other] or f"unittest, one target: run {other} alone"
                self._collected.left_out[reason] += 1
        return chosen


def _framework(item: pytest.Item, target: Target) -> str:
    """Return the framework that a case asks; "" if it does not say so."""
    starts = "start_runtime" in getattr(item, "fixturenames", ())
    return target.framework or (DEFAULT_FRAMEWORK if starts else "")
