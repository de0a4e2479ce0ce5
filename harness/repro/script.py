"""The script's text: header, environment, imports, definitions, and ``main``."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from harness.repro.definitions import definitions
from harness.repro.edits import WIDTH
from harness.repro.header import About, comment, environment, metadata
from harness.repro.layout import import_block, without_notes
from harness.repro.source import Imported
from harness.repro.steps import Step, Steps

_SKIPS = re.compile(r"pytest\.(skip|importorskip)\b")
_END = """
if __name__ == "__main__":
    main()
    print("passes")
"""
EXIT_SKIPPED = 77  # as of the tests of GNU Automake
_END_WITH_SKIPS = f"""
if __name__ == "__main__":
    try:
        main()
    except pytest.skip.Exception as reason:
        print(reason)
        raise SystemExit({EXIT_SKIPPED}) from None
    print("passes")
"""


def text(about: About, steps: Steps, pins: Mapping[str, str], python: str) -> str:
    """Return the whole script. ``pins`` are versions by distribution; others are as installed."""
    bundle, module = steps.bundle, steps.item.module.__name__
    bundle.require(Imported("os", root=True), "os")
    if steps.starts_runtime:
        bundle.require(Imported("torch_xla", root=True), "torch_xla")
        steps.xr = bundle.require(Imported("torch_xla", "runtime"), "xr")
    bundle.settle_names(module)
    parts = [import_block(bundle.imports), definitions(bundle, module)]
    parts += [_start_runtime(steps)] if steps.starts_runtime else []
    end = _END_WITH_SKIPS if _SKIPS.search(parts[1]) else _END
    parts += [_main(steps), end]
    body = "\n\n\n".join(part.strip() for part in parts if part.strip()) + "\n"
    body = without_notes(body)
    future = "from __future__ import annotations\n\n" if _has_annotations(body) else ""
    set_up = environment(about.case, uses_jax="jax" in _packages(body))
    return (
        f"{metadata(_packages(body), pins, python)}{comment(about)}\n"
        f"{future}import os\n\n{set_up}\n{body}"
    )


def _start_runtime(steps: Steps) -> str:
    """Return what the fixture start_runtime does (``harness.frameworks.torch_xla``)."""
    assert steps.xr is not None
    xr = steps.bundle.text((steps.xr,))
    return "\n".join(
        (
            "def start_runtime(*, spmd):",
            "    if spmd:",
            f"        {xr}.use_spmd()",
            "    torch_xla.device()",
            f"    assert {xr}.global_runtime_device_count() == {steps.target.topology.total}",
        )
    )


def _main(steps: Steps) -> str:
    lines, indent = ["def main():"], "    "
    for step in steps.steps:
        value, used = steps.bundle.text(step.value), _is_used(steps, step)
        if step.is_context:
            lines.append(f"{indent}with {value}{f' as {step.name}' if used else ''}:")
            indent += "    "
        elif used or step.name != "topology":
            lines.append(_wrapped(indent, f"{step.name} = {value}" if used else value))
    return "\n".join(lines)


def _is_used(steps: Steps, step: Step) -> bool:
    later = steps.steps[steps.steps.index(step) + 1 :]
    texts = [steps.bundle.text(other.value) for other in later]
    names = {n.id for t in texts for n in ast.walk(ast.parse(t)) if isinstance(n, ast.Name)}
    return step.name in names


def _wrapped(indent: str, call: str) -> str:
    """Return a call on one line, or with one argument a line."""
    (statement,) = ast.parse(call).body
    value = statement.value if isinstance(statement, ast.Assign | ast.Expr) else None
    if len(indent + call) <= WIDTH or not isinstance(value, ast.Call):
        return indent + call
    arguments = [ast.get_source_segment(call, node) or "" for node in value.args]
    arguments += [
        f"{keyword.arg}={ast.get_source_segment(call, keyword.value)}" for keyword in value.keywords
    ]
    inner = [f"{indent}    {argument}," for argument in arguments]
    return "\n".join([indent + call[: call.index("(") + 1], *inner, f"{indent})"])


def _packages(body: str) -> set[str]:
    """Return the packages that the script imports anywhere."""
    packages = set()
    for node in ast.walk(ast.parse(body)):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            packages.add(node.module.partition(".")[0])
    return packages


def _has_annotations(body: str) -> bool:
    nodes = list(ast.walk(ast.parse(body)))
    arguments = [node.annotation for node in nodes if isinstance(node, ast.arg)]
    return any(isinstance(node, ast.AnnAssign) for node in nodes) or any(arguments)
