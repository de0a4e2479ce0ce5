"""Known upstream failures: read, checked, compared with outcomes, and kept up to date.

A case without an entry is expected to pass. Every entry is strict: a pass is red, and so is a
failure of another kind or with another text.
"""

from __future__ import annotations

from harness.expectations.entry import Expectation, glob_pattern, judge
from harness.expectations.entry_set import Expectations

__all__ = ["Expectation", "Expectations", "glob_pattern", "judge"]
