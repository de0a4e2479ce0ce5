"""Code before a script's imports: metadata, a comment on the case, and the environment."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import packages_distributions

from packaging.utils import canonicalize_name

from harness.isolation.case_environment import full_environment
from harness.lanes import DEFAULT_LANE, LANES
from harness.model.case import Case
from harness.model.provenance import Modified
from harness.model.topology import Target
from harness.model.versions import ABSENT, installed
from harness.printable import folded
from harness.repro.edits import WIDTH
from harness.repro.values import quoted

_TORCH = ("torch", "torch_xla", "numpy")  # numpy: torch_xla takes any version of it
_PAIRS = {"jax": "jaxlib", "jaxlib": "jax"}
_ADDED_TO = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")  # as in harness.isolation.case_environment
_RUN = "uv run FILE, or python FILE where the packages above are installed"
_RUN_ON_LANE = "xla-harness run {} -- python FILE, or python FILE on such devices"
_RUN_EACH = (
    "xla-harness run {} -- python FILE, or once for each rank on such devices, as by torchrun"
)
_RUN_MODIFIED = "python FILE, where these are installed as they were when the case ran"


@dataclass(frozen=True)
class About:
    """Contents of the comment at the top of a script."""

    case: Case
    expected: str
    observed: str
    where: str  # lane, topology and versions
    upstream: Sequence[str]  # issues, as owner/repo#1
    modified: Sequence[Modified] = ()  # what the case ran with, and no index of packages has


def metadata(modules: Iterable[str], pins: Mapping[str, str], python: str) -> str:
    """PEP 723's block: ``pins``, or the installed version, of what the modules come from."""
    short = ".".join(python.split(".")[:2])
    lines = ["# /// script", f'# requires-python = "=={short}.*"', "# dependencies = ["]
    for name in _distributions(modules):
        version = pins.get(canonicalize_name(name)) or installed(name)
        if version != ABSENT:
            lines.append(f'#     "{name}=={version.partition("+")[0]}",')
    return "\n".join([*lines, "# ]", "# ///", ""])


def _distributions(modules: Iterable[str]) -> list[str]:
    known = packages_distributions()
    others = set(modules) - set(sys.stdlib_module_names)
    packages = {known[module][0] for module in others if module in known}
    packages |= {_PAIRS[name] for name in packages if name in _PAIRS}
    always = _TORCH if packages & {*_TORCH[:2]} else _TORCH[2:]
    names = {canonicalize_name(name) for name in always}
    return [*always, *sorted(name for name in packages if canonicalize_name(name) not in names)]


def comment(about: About) -> str:
    """Return the comment: the case, its issues, what is expected, what was observed and where."""
    fields = {
        "Case": about.case.id,
        "Upstream": "\n".join(map(_link, about.upstream)),
        "Expected": about.expected,
        "Observed": about.observed,
        "Where": about.where,
        "Modified": _modified(about.modified),
        "Run": _run(about),
    }
    lines = ["#"]
    for name, value in fields.items():
        first, rest = f"# {name + ':':<10}", f"#{'':<11}"
        for line in value.splitlines():
            lines += folded(line, WIDTH, first, rest)
            first = rest
    return "\n".join([*lines, ""])


def _run(about: About) -> str:
    target = about.case.target
    if target.lane != DEFAULT_LANE:
        how = _RUN_EACH if target.topology.processes else _RUN_ON_LANE
        return how.format(" ".join(options_of(target)))
    return _RUN_MODIFIED if about.modified else _RUN


def options_of(target: Target) -> list[str]:
    """Return the options with which ``xla-harness run`` starts a script as the case was."""
    return ["--lane", target.lane, "--topology", str(target.topology)]


def _modified(modified: Sequence[Modified]) -> str:
    """Describe modified components, which pins can't express: they have a release's number."""
    if not modified:
        return ""
    released = ", ".join(f"{component.name} {component.version}" for component in modified)
    return "\n".join(
        [
            *map(str, modified),
            f"Nothing is known of the released {released}, which uv run FILE installs.",
        ]
    )


def _link(issue: str) -> str:
    repository, _, number = issue.partition("#")
    return f"https://github.com/{repository}/issues/{number}"


def environment(case: Case, *, uses_jax: bool) -> str:
    """Statements that set the variables of lane cpu, and the case's own.

    Those of any other lane are the plugin's, which ``xla-harness run`` sets.
    """
    own = dict(case.environment)
    sets, others = [], []
    is_set_here = case.target.lane == DEFAULT_LANE
    variables = full_environment(case, LANES[DEFAULT_LANE]) if is_set_here else own
    for name, value in variables.items():
        if name.startswith("XLA_HARNESS_") or (name.startswith("JAX_") and not uses_jax):
            continue  # nobody would read it
        if value is None:
            others.append(f'os.environ.pop("{name}", None)')
        elif name in _ADDED_TO and name in own:
            before = f'os.environ.get("{name}", "")'
            others.append(f'os.environ["{name}"] = {before} + {quoted(f" {own[name]}")}')
        else:
            sets.append(f"    {name}={quoted(value)},")
    return "\n".join([*(["os.environ.update(", *sets, ")"] if sets else []), *others, ""])
