"""A case: one pytest item with what its markers and the command line say about it."""

from __future__ import annotations

from dataclasses import dataclass

from harness.model.case_id import file_of
from harness.model.topology import Target


@dataclass(frozen=True)
class Case:
    """Pytest item as the harness knows it before it runs."""

    id: str
    target: Target
    upstream: tuple[str, ...] = ()
    environment: tuple[tuple[str, str | None], ...] = ()
    deadline: float = 60.0
    share: str | None = None
    declared: bool = True  # its markers name the lane; otherwise the command line does

    @property
    def area(self) -> str:
        """The folder below ``suites/``, or the file when it is somewhere else."""
        parts = file_of(self.id).split("/")
        if "suites" in parts[:-2]:
            return parts[parts.index("suites") + 1]
        return parts[-1]

    def may_share_with(self, other: Case | None) -> bool:
        """Return whether both cases declare that they may run in one process."""
        return (
            other is not None
            and self.share is not None
            and (self.share, self.target, self.environment)
            == (other.share, other.target, other.environment)
        )
