"""Platforms that the user has named: no lane replaces one without a word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.frameworks.protocol import Framework, NamedPlatforms
from harness.platforms import PLATFORMS, VARIABLE


def conflict(
    frameworks: Iterable[Framework],
    lane: str,
    variables: Mapping[str, str | None],
    environment: Mapping[str, str],
    *,
    is_chosen: bool,
) -> str:
    """Describe the setting of the user that a lane with these variables would replace, or "".

    ``environment`` is as the user left it. What an outer lane has set, whose case or command this
    process is, nobody has named. If the user has not chosen this lane, but a case declares it, then
    a platform of another lane, as ``cpu``, is only a default that the case doesn't take.
    """
    outer = environment.get(VARIABLE)
    for framework in frameworks:
        inherited = framework.environment(outer, 1) if outer in _of_lanes() else {}
        for names in framework.named_platforms(environment):
            value = names.value if names.value != inherited.get(names.setting) else ""
            if not value:
                continue
            ours = _listed(variables.get(names.variable) or "")
            theirs = _listed(value)
            default = not is_chosen and not names.wins and _is_of_lanes(framework, names)
            if ours and not default and not (ours[0] in theirs and set(theirs) <= set(ours)):
                return (
                    f"{names.setting}={value!r} names a platform that lane {lane} would replace "
                    f"by {names.variable}={variables[names.variable]!r}: expected it unset, or "
                    "another lane"
                )
            break  # what follows names nothing any more
    return ""


def without_lanes(
    frameworks: Iterable[Framework], environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment without the variables that name only platforms that lanes can have.

    Sessions that a command starts have it, each on a lane that the command has been given.
    """
    dropped = {
        names.setting
        for framework in frameworks
        for names in framework.named_platforms(environment)
        if _is_of_lanes(framework, names)
    }
    return {name: value for name, value in environment.items() if name not in dropped}


def _is_of_lanes(framework: Framework, names: NamedPlatforms) -> bool:
    """Return whether lanes can have all of these platforms."""
    variables = (framework.environment(platform, 1) for platform in _of_lanes())
    known = {name for own in variables for name in _listed(own.get(names.variable) or "")}
    return known.issuperset(_listed(names.value))


def _of_lanes() -> tuple[str, ...]:
    return ("cpu", *PLATFORMS)


def _listed(value: str) -> list[str]:
    """Return the platforms of a list such as ``tpu,cpu`` or ``mine:/path/plugin.so``."""
    parts = (part.partition(":")[0].strip().lower() for part in value.split(","))
    return [part for part in parts if part]
