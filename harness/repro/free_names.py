"""Names for what comes together in one script from several modules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from harness.repro.resolve import Ref
from harness.repro.source import Imported

Bound = tuple[str, Imported]  # an import and the name that a module gives it


def names_of_imports(
    imports: Iterable[Bound], taken: Collection[str], everywhere: Collection[str]
) -> dict[Bound, str]:
    """Choose a name for each import: its own if that is free; the same object has one name.

    ``taken`` are names that mean something else, ``everywhere`` all that occur in any function.
    """
    names: dict[Bound, str] = {}
    owners: dict[str, str] = {}
    for bound, imported in sorted(imports, key=lambda pair: not pair[1].root):
        if owners.get(bound) == imported.path or (imported.root and bound in owners):
            names[bound, imported] = bound
            continue
        parent = imported.module.rpartition(".")[2]
        name = _free(bound, f"{parent}_{bound}", {*taken, *owners}, everywhere)
        names[bound, imported] = name
        owners[name] = imported.path
    return names


def names_of_definitions(
    refs: Mapping[Ref, str], first: str, taken: Collection[str], everywhere: Collection[str]
) -> dict[Ref, str]:
    """Choose the definitions' names: as requested, or their own; module ``first`` goes first."""
    names: dict[Ref, str] = {}
    for ref in sorted(refs, key=lambda ref: ref.module != first):
        other = f"{ref.module.rpartition('.')[2]}_{ref.name.lstrip('_')}"
        names[ref] = _free(refs[ref] or ref.name, other, {*taken, *names.values()}, everywhere)
    return names


def _free(wanted: str, other: str, taken: Collection[str], everywhere: Collection[str]) -> str:
    if wanted not in taken:
        return wanted
    numbered = (f"{wanted}_{number}" for number in range(2, 1000))
    return next(n for n in (other, *numbered) if n not in taken and n not in everywhere)
