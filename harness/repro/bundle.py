"""Tree shaking: the definitions that a case needs, out of all modules."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from dataclasses import dataclass, field

import libcst as cst

from harness.repro import edits
from harness.repro.edits import Edited, Plan
from harness.repro.free_names import Bound, names_of_definitions, names_of_imports
from harness.repro.nodes import walk
from harness.repro.resolve import Meaning, Ref, Target, meaning
from harness.repro.source import Import, Imported, Module, Sources, Statement
from harness.repro.uses import Use, UsesReader


@dataclass(frozen=True)
class Named:
    """A place in an expression for whatever the target is called in the script."""

    target: Target
    spelling: str


@dataclass(frozen=True)
class Written:
    """A place in an expression for one that stands in a module."""

    module: Module
    node: cst.BaseExpression
    uses: list[Use]


Expression = tuple[str | Named | Written, ...]


@dataclass
class Unit:
    """A statement of a module that is part of the script."""

    module: Module
    statement: Statement
    plan: Plan
    removable: dict[str, cst.FunctionDef] = field(default_factory=dict)  # methods without a user
    uses: list[Use] = field(default_factory=list)
    inner_imports: list[Import] = field(default_factory=list)


class Bundle:
    """Grows by what is required; then everything gets its name."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.plans: dict[Ref, Plan] = {}  # of definitions that were planned by somebody else
        self.members: dict[Ref, set[str]] = {}  # methods of a class that are called from outside
        self.units: dict[Statement, Unit] = {}
        self.imports: dict[Bound, str] = {}  # with the names they got
        self.depends: dict[str, set[str]] = {}  # module to those that it takes from
        self._refs: dict[Ref, str] = {}  # with the spelling that is asked for
        self._names: dict[Ref, str] = {}
        self._opened: set[str] = set()
        self._words: set[str] = set()  # attributes, and texts that may name one
        self._reserved: set[str] = {"main", "start_runtime"}

    def reserve(self, names: Iterable[str]) -> None:
        """Names that nothing else in the script may have."""
        self._reserved.update(names)

    def require(self, target: Target, spelling: str = "", asked_by: str = "") -> Named:
        """Have the target in the script, if possible under the name ``spelling``."""
        if isinstance(target, Imported):
            bound = spelling or target.attribute or target.module.rpartition(".")[2]
            self.imports.setdefault((bound, target), "")
            return Named(target, bound)
        module = self.sources.module(target.module)
        ref = Ref(module.name, target.name)
        self._open(module)
        if asked_by:
            self.depends.setdefault(asked_by, set()).add(module.name)
        self._refs[ref] = self._refs.get(ref) or spelling
        for statement in module.definitions[ref.name]:
            self._add(module, statement, self.plans.get(ref), self.members.get(ref, set()))
        return Named(ref, ref.name)

    def expression(self, module: Module, node: cst.BaseExpression) -> Expression:
        """Return an expression from a module's source, with everything that it needs."""
        self._open(module)
        uses = UsesReader(module, node, (), self.sources.is_local).uses
        self._require_all(module, uses)
        return (Written(module, node, uses),)

    def finish(self) -> None:
        """Add the methods that something names, until nothing is missing."""
        grown = True
        while grown:
            grown = False
            for unit in list(self.units.values()):
                for name in sorted(unit.removable.keys() & self._words):
                    member = unit.removable.pop(name)
                    unit.plan.removed.discard(member)
                    self._read(unit, member)
                    grown = True

    def meaning(self, module: Module, use: Use) -> Meaning | None:
        """Return what a name of the module stands for; None for a builtin."""
        resolved = meaning(self.sources, module, use)
        if resolved is None and hasattr(builtins, use.name):
            self._reserved.add(use.name)
        if resolved is not None and isinstance(resolved.target, Imported) and resolved.target.root:
            for other in module.roots(use.name):
                self.require(other, use.name)
        return resolved

    def settle_names(self, first: str) -> None:
        """Give everything a name of its own; module ``first`` has the first choice."""
        nodes = (node for unit in self.units.values() for node in walk(unit.statement))
        everywhere = {n.value for n in nodes if isinstance(n, cst.Name)} | self._reserved
        self.imports = names_of_imports(self.imports, self._reserved, everywhere)
        taken = {*self._reserved, *self.imports.values()}
        self._names = names_of_definitions(self._refs, first, taken, everywhere)

    def name(self, target: Target, spelling: str = "") -> str:
        """Return the target's name in the script, or "" if the script does not have it."""
        if isinstance(target, Imported):
            return self.imports[spelling, target]
        return self._names.get(Ref(self.sources.module(target.module).name, target.name), "")

    def text(self, expression: Expression) -> str:
        """Return the expression's text with the script's names."""
        return "".join(map(self._text, expression))

    def _text(self, part: str | Named | Written) -> str:
        if isinstance(part, Named):
            return self.name(part.target, part.spelling)
        if isinstance(part, Written):
            plan = Plan()
            self.rename(part.module, plan, part.uses)
            edited = part.node.visit(Edited(plan))
            assert isinstance(edited, cst.BaseExpression)
            return part.module.code(edited)
        return part

    def rename(self, module: Module, plan: Plan, uses: Iterable[Use]) -> None:
        """Give the names that stand for something global those of the script."""
        for use in uses:
            meaning = self.meaning(module, use)
            if meaning is not None:
                name = self.name(meaning.target, meaning.spelling)
                if name and name != module.code(meaning.node):
                    plan.replace(meaning.node, cst.Name(name))

    def _open(self, module: Module) -> None:
        """Add the effects of importing a module, which happen whatever is used of it."""
        if module.name in self._opened:
            return
        self._opened.add(module.name)
        self.depends.setdefault(module.name, set())
        for name, imported in module.unused_imports.items():
            if not self.sources.is_local(imported.module):
                self.require(imported, name)
        for statement in module.effects:
            self._add(module, statement, None, set())

    def _add(
        self, module: Module, statement: Statement, plan: Plan | None, members: set[str]
    ) -> None:
        if statement in self.units:
            return
        unit = Unit(module, statement, plan or edits.plain(module, statement))
        self.units[statement] = unit
        if unit.plan.is_context:
            self.require(Imported("contextlib", "contextmanager"))
        if isinstance(statement, cst.ClassDef) and self._has_own_bases_only(module, statement):
            methods = (m for m in statement.body.body if isinstance(m, cst.FunctionDef))
            own = {m.name.value: m for m in methods if m.name.value not in members}
            unit.removable = {n: m for n, m in own.items() if not n.startswith("__")}
        unit.plan.removed.update(unit.removable.values())
        self._read(unit, statement)

    def _read(self, unit: Unit, node: cst.CSTNode) -> None:
        reader = UsesReader(unit.module, node, unit.plan.removed, self.sources.is_local)
        unit.uses += reader.uses
        unit.inner_imports += reader.inner_imports
        self._words |= reader.words
        self._require_all(unit.module, reader.uses)

    def _require_all(self, module: Module, uses: Iterable[Use]) -> None:
        for use in uses:
            if (meaning := self.meaning(module, use)) is not None:
                self.require(meaning.target, meaning.spelling, module.name)

    def _has_own_bases_only(self, module: Module, node: cst.ClassDef) -> bool:
        """Return whether all bases are in the script, so only the script calls its methods."""
        for base in node.bases:
            meaning = None
            if isinstance(base.value, cst.Name):
                meaning = self.meaning(module, Use(base.value.value, base.value))
            if meaning is None or not isinstance(meaning.target, Ref):
                return False
        return True
