"""One night's site: every publisher in turn, the first page last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.dashboard.changes import Change
from harness.dashboard.facts import Facts
from harness.dashboard.render import Renderer
from harness.dashboard.site import Site
from harness.history.names import SetAside
from harness.verdicts.upstream import Row


@dataclass
class Build:
    """What a publisher is given: facts in, pages out."""

    facts: Facts
    site: Site
    changes: Sequence[Change]
    rows: Sequence[Row] = ()  # of upstream.toml: issues in an engineer's words
    address: str = ""  # where the site will be, for the feed; "" keeps its links relative
    set_aside: Sequence[SetAside] = ()  # files of the history that are not in the facts

    @cached_property
    def render(self) -> Renderer:
        """The templates."""
        return Renderer(self.facts.run)

    def page(self, template: str, path: str, key: str = "", **values: object) -> None:
        """Publish a page; ``key`` as for ``Site.write``."""
        self.site.write(path, self.render.page(template, path, **values), key)
