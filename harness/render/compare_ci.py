"""A comparison as annotations of a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from harness.diagnosis.signature import first_line
from harness.render.annotation import ANNOTATIONS, annotation
from harness.verdicts.allow import Allowed
from harness.verdicts.findings import Comparison, Verdict
from harness.verdicts.groups import basis, groups

_LEVELS = {Verdict.REGRESSED: "error", Verdict.NEWLY_UNMEASURED: "error", Verdict.FLAKY: "warning"}


def annotation_lines(comparison: Comparison, allowed: Allowed | None) -> Iterator[str]:
    """An error for each group of what refuses the candidate, a warning for what is flaky."""
    entries = allowed.entries if allowed else {}
    found = groups(f for f in comparison.of(*_LEVELS) if f.key not in entries)
    for group in found[:ANNOTATIONS]:
        first = group.first
        more = f" (and {len(group) - 1} more)" if len(group) > 1 else ""
        parts = (first.layer, *first.issues, first_line(first.failure), first.note)
        text = "; ".join(filter(None, (*parts, basis(group.findings)))) or first.verdict
        yield annotation(
            _LEVELS[first.verdict], first.key, f"{first.verdict}: {first.key}{more}", text
        )
