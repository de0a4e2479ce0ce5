"""Version ranges that tell stacks apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import Version

from harness.expectations.condition import Condition, Versions, contains, version_of
from harness.model.versions import LEADING

# A framework first: it is what the entries are about.
_ORDER = (*LEADING, "jaxlib", "libtpu", "torch", "python")


def separate(
    keep: Sequence[Versions], drop: Sequence[Versions], unmeasured: Sequence[Versions] = ()
) -> tuple[str, str] | None:
    """Return a component and its range that has all stacks of ``keep`` and none of ``drop``.

    The range leaves out ``unmeasured`` stacks, too, unless the component has the same version in
    ``keep``. Returns None if no single component separates the two.
    """
    for component in _ORDER:
        wanted = _versions(keep, component)
        unwanted = _versions(drop, component)
        if not wanted or len(_installed(keep, component)) < len(keep) or wanted & unwanted:
            continue
        others = _versions(unmeasured, component) - wanted
        specifier = between(sorted(wanted), sorted(unwanted | others))
        if not specifier and len(_installed(drop, component)) < len(drop):
            specifier = f">={_short(min(wanted))}"  # which a stack without it is not
        return component, specifier
    return None


def only(stack: Versions) -> tuple[str, str]:
    """Return the framework of the stack and the range with its version only."""
    component, version = framework_of(stack)
    return component, f"=={version.public}"


def between(keep: Sequence[Version], drop: Sequence[Version]) -> str:
    """Return the widest range, "" for any, that has the versions ``keep`` and none of ``drop``.

    It ends at the first version outside, so a nightly between two releases belongs to the range
    only if it is older than that version.
    """
    first, last = min(keep), max(keep)
    parts = [f">={_short(first)}"] if any(version < first for version in drop) else []
    if above := [version for version in drop if version > last]:
        end = f"<{_short(min(above))}"
        # <2.8 leaves out the pre-releases of 2.8 as well.
        parts.append(end if contains(end, str(last)) else f"<={last}")
    parts += [f"!={version}" for version in drop if first < version < last]
    return ",".join(parts)


def narrow(condition: Condition, component: str, text: str) -> dict[str, str]:
    """Return the condition's ranges with that component's narrowed by ``text``."""
    ranges = dict(condition.ranges)
    ranges[component] = _simplified([*_split(ranges.get(component, "")), *_split(text)])
    return ranges


def without(known: Sequence[Versions], given: Sequence[Versions]) -> list[Versions]:
    """Return those of ``known`` whose framework, in its version, none of ``given`` has."""
    seen = {(name, Version(version.public)) for name, version in map(framework_of, given)}
    return [
        stack
        for stack in known
        if any(name in stack for name in LEADING)
        and (framework_of(stack)[0], Version(framework_of(stack)[1].public)) not in seen
    ]


def in_order(stacks: Sequence[Versions]) -> list[Versions]:
    """Sort stacks by framework (torch_xla, torch_tpu, jax), and within each from old to new."""

    def place(stack: Versions) -> tuple[int, Version, list[tuple[str, str]]]:
        component, version = framework_of(stack)
        return LEADING.index(component), version, sorted(stack.items())

    return sorted(stacks, key=place)


def framework_of(stack: Versions) -> tuple[str, Version]:
    """Return the framework of a stack and its version.

    Raises KeyError for a stack without a framework.
    """
    for name in LEADING:
        if (version := version_of(stack.get(name, ""))) is not None:
            return name, version
    raise KeyError(f"expected a version of {' or '.join(LEADING)}")


def text_of(ranges: Mapping[str, str]) -> str:
    """Return the ranges in words, for messages."""
    return str(Condition(tuple(ranges.items()))) or "any stack"


def _installed(stacks: Sequence[Versions], component: str) -> list[Version]:
    versions = (version_of(stack.get(component, "")) for stack in stacks)
    # Without the local part (+git123), which ranges can't have.
    return [Version(version.public) for version in versions if version is not None]


def _versions(stacks: Sequence[Versions], component: str) -> set[Version]:
    return set(_installed(stacks, component))


def _short(version: Version) -> str:
    """2.8 for 2.8.0."""
    if str(version) != version.base_version:
        return str(version)
    release = list(version.release)
    while len(release) > 2 and release[-1] == 0:
        release.pop()
    return ".".join(map(str, release))


def _split(text: str) -> list[Specifier]:
    # Not list(SpecifierSet(text)), which loses their order.
    return [Specifier(part) for part in text.split(",") if part.strip()]


def _simplified(parts: Sequence[Specifier]) -> str:
    """Return the same range without the parts that others imply."""
    kept = list(dict.fromkeys(parts))
    for part in parts:
        rest = [other for other in kept if other != part]
        if part in kept and rest and _implied(part, rest):
            kept = rest
    return ",".join(map(str, sorted(kept, key=lambda p: "><=!".find(p.operator[0]))))


def _implied(part: Specifier, rest: Sequence[Specifier]) -> bool:
    opposite = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "!=": "==", "==": "!="}
    if part.operator not in opposite or part.version.endswith("*"):
        return False
    outside = f"{opposite[part.operator]}{part.version}"
    return SpecifierSet(",".join([outside, *map(str, rest)])).is_unsatisfiable()
