"""Steps of a script: the case's fixtures in their order, then its body."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import libcst as cst
import pytest

from harness.errors import BadInputError
from harness.model.topology import Target
from harness.repro import edits
from harness.repro.bundle import Bundle, Expression, Named
from harness.repro.edits import Plan
from harness.repro.resolve import Ref
from harness.repro.source import Imported, Module
from harness.repro.values import source_of

_OWN = ("xla_target", "topology", "start_runtime", "tpu_events", "host_work")
_DIRECT = "get_direct_param_fixture_func"  # pytest's own, behind a parameter
_PYTEST = ("tmp_path", "monkeypatch", "subtests")


@dataclass(frozen=True)
class Step:
    """A line of ``main``: ``name = value``, or ``with value as name:`` around all that follows."""

    value: Expression
    name: str = ""
    is_context: bool = False


@dataclass
class Steps:
    """Steps of a script; making them adds the code that they need to the bundle."""

    bundle: Bundle
    item: pytest.Function
    target: Target
    steps: list[Step] = field(default_factory=list)
    xr: Named | None = None  # torch_xla.runtime, for start_runtime
    starts_runtime: bool = False
    _done: set[str] = field(default_factory=set)
    _plans: dict[str, Plan] = field(default_factory=dict)  # of classes, by name

    def plan(self) -> None:
        """Fill in ``steps``, and have the bundle require all."""
        item, info = self.item, self.item._fixtureinfo
        self.bundle.reserve(
            {n for n in item.fixturenames if not self._is_parameter(n)} | {"case", *_OWN}
        )
        function = self._test()
        for name in item.fixturenames:
            if not self._is_parameter(name):
                autouse = name not in info.argnames and name not in function[1]
                self._fixture(name, optional=autouse)
        parameters = self._arguments(function[1])
        self.steps.append(Step((*function[0], "(", *_listed(parameters), ")")))
        for ref in self.bundle.members:  # now that all that is asked of the class is known
            self.steps.insert(0, Step((self.bundle.require(ref), "()"), "case"))
        self.bundle.finish()

    def _is_parameter(self, name: str) -> bool:
        """Return whether the name is a value of ``parametrize``, not a fixture."""
        if name not in self.item.callspec.params or name == "xla_target":
            return False
        definitions = self.item._fixtureinfo.name2fixturedefs.get(name)
        return not definitions or definitions[-1].func.__name__ == _DIRECT

    def _test(self) -> tuple[Expression, list[str]]:
        """Return the expression that calls the test, and the names of its parameters."""
        item = self.item
        module = self.bundle.sources.module(item.module.__name__)
        classes = [node.name for node in item.listchain() if isinstance(node, pytest.Class)]
        if len(classes) > 1:
            raise BadInputError(f"{item.nodeid}: a class inside a class is not supported")
        if classes:
            node, plan = self._class(module, classes[0])
            names = edits.take_fixtures(module, plan, _member(node, item.originalname))
            self.bundle.members[Ref(module.name, node.name.value)].add(item.originalname)
            return (f"case.{item.originalname}",), names
        ref = Ref(module.name, item.originalname)
        plan, names, _ = self._function(module, item.originalname, whole=True)
        self.bundle.plans[ref] = plan
        return (self.bundle.require(ref),), names

    def _class(self, module: Module, name: str) -> tuple[cst.ClassDef, Plan]:
        (node,) = module.definitions[name]
        assert isinstance(node, cst.ClassDef)
        if name not in self._plans:
            self._plans[name] = edits.plain(module, node)
            ref = Ref(module.name, name)
            self.bundle.plans[ref] = self._plans[name]
            self.bundle.members[ref] = set()
        return node, self._plans[name]

    def _function(
        self, module: Module, name: str, *, whole: bool = False
    ) -> tuple[Plan, list[str], cst.FunctionDef]:
        *_, node = module.definitions[name]
        if not isinstance(node, cst.FunctionDef):
            raise BadInputError(f"{module.where(node)}: expected {name} to be a function")
        plan = edits.plain(module, node, whole=whole)
        return plan, edits.take_fixtures(module, plan, node), node

    def _fixture(self, name: str, *, optional: bool = False) -> None:
        """Set the fixture up, and those that it needs before it."""
        if name in self._done or name in ("request", "self", "param"):
            return
        self._done.add(name)
        if name in _OWN:
            self._own(name)
        elif name in _PYTEST:
            self._pytest(name)
        else:
            self._users(name, optional=optional)

    def _own(self, name: str) -> None:
        size = self.target.topology
        if name == "topology":
            counts = f"slices={size.slices}, devices={size.devices}, total={size.total}"
            self._simple_namespace("topology", counts)
        elif name == "start_runtime":
            self.starts_runtime = True  # it is the script's own function of that name
        elif name == "host_work":
            kind = self.bundle.require(Imported("harness.model.host_work", "HostWork"))
            self.steps.append(Step((kind, "(print)"), name))
        elif name == "tpu_events":
            raise BadInputError(
                f"{self.item.nodeid}: tpu_events counts what the plugin of the harness was asked"
            )

    def _simple_namespace(self, name: str, fields: str) -> None:
        kind = self.bundle.require(Imported("types", "SimpleNamespace"))
        self.steps.append(Step((kind, f"({fields})"), name))

    def _pytest(self, name: str) -> None:
        if name == "tmp_path":
            path = self.bundle.require(Imported("pathlib", "Path"))
            self.bundle.require(Imported("tempfile", root=True), "tempfile")
            self.steps.append(Step((path, "(tempfile.mkdtemp())"), name))
        elif name == "subtests":  # the first one that fails ends the script
            kind = self.bundle.require(Imported("types", "SimpleNamespace"))
            null = self.bundle.require(Imported("contextlib", "nullcontext"))
            self.steps.append(Step((kind, "(test=lambda *_, **options: ", null, "())"), name))
        else:
            self.bundle.require(Imported("pytest", root=True), "pytest")
            self.steps.append(Step(("pytest.MonkeyPatch.context()",), name, is_context=True))

    def _users(self, name: str, *, optional: bool) -> None:
        definitions = self.item._fixtureinfo.name2fixturedefs.get(name)
        if not definitions:
            raise BadInputError(f"{self.item.nodeid}: fixture {name!r} can't be found")
        function: Any = inspect.unwrap(definitions[-1].func)
        function = getattr(function, "__func__", function)
        if not self.bundle.sources.is_local(function.__module__):
            if optional:
                return  # a plugin's own, around every test
            raise BadInputError(f"{self.item.nodeid}: fixture {name!r} is pytest's or a plugin's")
        if name in definitions[-1].argnames:
            raise BadInputError(f"{self.item.nodeid}: fixture {name!r} overrides one that it uses")
        module = self.bundle.sources.module(function.__module__)
        owner = function.__qualname__.rpartition(".")[0]
        if owner:
            node, plan = self._class(module, owner)
            member = _member(node, function.__name__)
            names = edits.take_fixtures(module, plan, member)
            self.bundle.members[Ref(module.name, owner)].add(function.__name__)
            is_context = edits.yields(member)
        else:
            plan, names, member = self._function(module, function.__name__)
            self.bundle.plans[Ref(module.name, function.__name__)] = plan
            is_context = plan.is_context
        for needed in definitions[-1].argnames:
            if not self._is_parameter(needed):
                self._fixture(needed)
        called: Named | str = f"case.{function.__name__}"
        if not owner:
            called = self.bundle.require(Ref(module.name, function.__name__), f"{name}_fixture")
        arguments = _listed(self._arguments(names, name))
        self.steps.append(Step((called, "(", *arguments, ")"), name, is_context=is_context))

    def _arguments(self, names: list[str], fixture: str = "") -> list[Expression]:
        """Fixtures by position, values by name, and so is all that follows one."""
        arguments: list[Expression] = []
        by_name = False
        for name in names:
            by_name = by_name or name == "param" or self._is_parameter(name)
            pad = (f"{name}=",) if by_name else ()
            arguments.append((*pad, *self._argument(name, fixture)))
        return arguments

    def _argument(self, name: str, fixture: str) -> Expression:
        if name == "param":
            return source_of(self.bundle, self.item, fixture)
        if name == "xla_target":
            if "topology" not in self._done:
                self._fixture("topology")
            kind = self.bundle.require(Imported("types", "SimpleNamespace"))
            framework = f', framework="{self.target.framework}"' if self.target.framework else ""
            return (kind, f'(lane="{self.target.lane}", topology=topology{framework})')
        if self._is_parameter(name):
            return source_of(self.bundle, self.item, name)
        return (name,)


def _member(node: cst.ClassDef, name: str) -> cst.FunctionDef:
    for member in node.body.body:
        if isinstance(member, cst.FunctionDef) and member.name.value == name:
            return member
    raise BadInputError(f"class {node.name.value}: {name} is inherited, which is not supported")


def _listed(arguments: list[Expression]) -> Expression:
    return tuple(piece for argument in arguments for piece in (", ", *argument))[1:]
