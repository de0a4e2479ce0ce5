"""``xla-harness stacks``: what stacks there are, and their environments."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterable
from dataclasses import asdict

from harness.commands import project, topologies
from harness.commands.output import answer, say, show
from harness.commands.parsers import add_folder, add_json
from harness.errors import BadInputError
from harness.printable import folded
from harness.stacks import constraints, doctor, wheels
from harness.stacks.checked import Check
from harness.stacks.environments import Environments
from harness.stacks.stack import Stack

_SHOWN = ("torch", "jax", "libtpu")  # what a line of 80 columns has room for


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's own commands."""
    add_folder(parser)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    action = actions.add_parser("list", help="all stacks, and which are installed")
    add_json(action)
    action.set_defaults(run=_list)
    for name, run, text in (
        ("show", _show, "a stack's pins, wheels, constraint file and environment"),
        ("lock", _lock, "resolve stacks into their constraint files anew"),
        ("create", _create, "make the environments of stacks"),
        ("remove", _remove, "delete the environments of stacks"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("stacks", nargs="+", metavar="STACK", help="a name, or a file")
        action.set_defaults(run=run)
        if run is _create:
            action.add_argument("--wheels", default="", metavar="DIR", help="in place of their own")
    action = actions.add_parser("doctor", help="what is missing on this machine, how to get it")
    add_json(action)
    action.set_defaults(run=_doctor)
    text = "the TPU slices and GPU nodes that the installed compilers compile for"
    topologies.add(actions.add_parser("topologies", help=text))


def _list(options: argparse.Namespace) -> int:
    catalogue, environments = project.catalogue(options.folder), Environments()
    stacks = catalogue.stacks
    rows: list[tuple[str, ...]] = [("stack", "python", *_SHOWN, "installed")]
    data = []
    for stack in stacks:
        pins = (stack.pins.get(name, "-").removeprefix("==") for name in _SHOWN)
        installed = environments.existing(stack) is not None
        rows.append((stack.name, stack.python, *pins, "yes" if installed else "-"))
        own = {"name": stack.name, "python": stack.python, "pins": dict(stack.packages)}
        data.append({**own, "installed": installed})
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    if others := [stack.name for stack in catalogue.every if stack not in stacks]:
        came = "Those that came with xla-harness can be named and extended too"
        lines += folded(f"{came}: {', '.join(others)}", 80)
    answer(options, data, "\n".join(lines))
    return 0


def _show(options: argparse.Namespace) -> int:
    catalogue, environments = project.catalogue(options.folder), Environments()
    for stack in [catalogue.find(name) for name in options.stacks]:
        show("\n".join(_described(stack, environments)))
    return 0


def _described(stack: Stack, environments: Environments) -> Iterable[str]:
    yield stack.name
    yield from folded(stack.note, 78, "  ", "  ")
    yield f"  {'python':<12}{stack.python}"
    for name, pin in stack.packages.items():
        yield f"  {name:<12} {pin}" if len(name) > 11 else f"  {name:<12}{pin}"
    wheels = [*map(str, stack.folders), *([] if stack.index is False else ["the index"])]
    yield f"  {'wheels':<12}{', '.join(wheels)}"
    path = constraints.path_of(stack, environments.cache)
    summary = (
        f"{len(constraints.read(path))} packages in {path}" if path.exists() else "not resolved"
    )
    yield f"  {'constraints':<12}{summary}"
    environment = environments.existing(stack)
    yield f"  {'environment':<12}{environment.folder if environment else 'not made'}"
    for check in doctor.fit(environment.python) if environment else ():
        yield from _line(check, indent="  ")


def _lock(options: argparse.Namespace) -> int:
    catalogue, cache = project.catalogue(options.folder), Environments().cache
    stacks = [catalogue.find(name) for name in options.stacks]
    for stack in stacks:
        if stack.shipped and stack.where is not None:
            raise BadInputError(
                f"stack {stack.name}: it came with xla-harness, resolved: write a stack of your "
                f"own that extends it, as {options.folder / 'mine.toml'}"
            )
    for stack in stacks:
        say(f"{stack.name}: resolving")
        path = constraints.resolve(stack, constraints.path_of(stack, cache))
        show(f"{path}: {len(constraints.read(path))} packages")
    return 0


def _create(options: argparse.Namespace) -> int:
    catalogue, environments = project.catalogue(options.folder), Environments()
    for stack in [catalogue.find(name) for name in options.stacks]:
        show(str(environments.create(wheels.given(stack, options.wheels), say).python))
    return 0


def _remove(options: argparse.Namespace) -> int:
    catalogue, environments = project.catalogue(options.folder), Environments()
    before = shutil.disk_usage("/").free
    for name in options.stacks:
        known = {str(environment.manifest["stack"]) for environment in environments.all()}
        # One whose file is gone, or that was swapped together, is known by its environment.
        count = environments.remove(name if name in known else catalogue.find(name).name)
        show(f"{name}: {count} environments removed")
    say(f"{(shutil.disk_usage('/').free - before) / 1e9:.1f} GB freed")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    usual = project.folder_of_stacks()
    # A wheel is installed without the stacks of a clone: their disk and Pythons are not asked for.
    without = options.folder == usual and not usual.is_dir()
    stacks = [] if without else project.catalogue(options.folder).stacks
    environments = Environments()
    checks_by_subject = {"this machine": list(doctor.machine(stacks, environments))}
    checks_by_subject["this environment"] = list(doctor.here())
    for environment in environments.all():
        fits = list(doctor.fit(environment.python))
        checks_by_subject[f"environment {environment.manifest['stack']}"] = fits
    lines = []
    for name, checks in checks_by_subject.items():
        lines += [name, *(text for check in checks for text in _line(check))]
        if not checks:
            lines.append("  no torch_xla, no torch_tpu, no jax")
    data = [
        {"of": name, **asdict(check)}
        for name, checks in checks_by_subject.items()
        for check in checks
    ]
    answer(options, data, "\n".join(lines))
    return int(any(check["remedy"] and check["needed"] for check in data))


def _line(check: Check, indent: str = "") -> Iterable[str]:
    mark = "ok     " if not check.remedy else "MISSING" if check.needed else "note   "
    yield f"{indent}  {mark} {check.subject:<18}{check.value}"
    if check.remedy:
        space = f"{indent}{'':28}"
        yield from folded(check.remedy, 80, space, space)
