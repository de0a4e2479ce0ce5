"""What a plugin answered: to each check, and all together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.conformance.jax_programs import PLANNED, VERSION
from harness.conformance.plugin_check import LEVELS, Conformity, level_of

STACK_MARK = "@"  # in an id, it comes before the name of the stack that asked


@dataclass(frozen=True)
class CheckAnswer:
    """A plugin's answer to one check.

    Attributes:
        id: the check's, and the stack that asked if one was named: ``jax_programs/a/b@jax-0.9.2``.
        result: what it says of the plugin.
        kind: how the check failed: failed, crashed or hung; "" if it did not.
        detail: what is wrong or missing, in a sentence.
        steps: the functions of the plugin that it called, the last one last.
        output: the end of what the plugin printed.
        program: the program that a check which fails has run last, and its operands.
        seconds: how long the check took.
    """

    id: str
    title: str
    result: Conformity
    kind: str = ""
    detail: str = ""
    steps: tuple[str, ...] = ()
    output: str = ""
    program: str = ""
    seconds: float = 0.0

    @property
    def level(self) -> int:
        """The number of the check's level."""
        return level_of(self.id).number

    @property
    def check(self) -> str:
        """The check's id, without the stack that asked."""
        return self.id.partition(STACK_MARK)[0]

    @property
    def stack(self) -> str:
        """The stack in whose environment the check ran; "" for this one."""
        return self.id.partition(STACK_MARK)[2]


@dataclass(frozen=True)
class Conformance:
    """All answers of one plugin, and what it says of itself."""

    name: str
    plugin: Mapping[str, Any]
    answers: Sequence[CheckAnswer]
    # By the number of a level, the functions, operators and types that no check of it uses.
    uncovered: Mapping[int, Sequence[str]] = field(default_factory=dict)

    def counts(self, level: int | None = None) -> Counter[Conformity]:
        """Return how many checks have each result, of one level or of all."""
        return Counter(a.result for a in self.answers if level in (None, a.level))

    @property
    def conforms(self) -> bool:
        """Whether no check failed."""
        return not self.counts()[Conformity.FAILS]

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "format": 1,
            "name": self.name,
            "plugin": dict(self.plugin),
            "levels": {
                str(level.number): {
                    "about": level.about,
                    **{str(result): self.counts(level.number)[result] for result in Conformity},
                }
                for level in LEVELS
            },
            "mustpass": {"version": VERSION, "planned": PLANNED},
            "checks": [asdict(answer) for answer in self.answers],
            "uncovered": {str(level): list(names) for level, names in self.uncovered.items()},
        }
