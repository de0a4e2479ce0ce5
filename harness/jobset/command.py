"""``xla-harness ci jobset``: real multi-slice jobs on GKE, from the manifest to one report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from harness.commands.output import answer, as_json, say, show
from harness.commands.parsers import (
    Commands,
    add_json,
    output_file,
    output_folder,
    whole_number,
)
from harness.errors import PARTIAL, BadInputError
from harness.jobset import job_plan, manifest, work, workers
from harness.junit import merge

_HOUR = 3600
_SECONDS = whole_number(0, 10**9)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's own commands."""
    parser.add_argument("--accelerator", metavar="NAME", help="GKE's, as tpu-v6e-slice")
    parser.add_argument("--grid", metavar="CHIPS", help="of one slice, as 2x2 or 2x2x1")
    parser.add_argument(
        "--slices",
        type=whole_number(0, 100_000),
        default=1,
        metavar="N",
        help="default: %(default)s",
    )
    parser.add_argument("--image", help="with xla-harness, the suites and the stack in it")
    parser.add_argument("--name", default="xla-harness", help="default: %(default)s")
    parser.add_argument("--namespace", default="default", help="default: %(default)s")
    parser.add_argument("--stack", default="", metavar="NAME", help="what the image's is called")
    parser.add_argument(
        "--lane", default="tpu", help="tpu (default), or virtual-tpu: a rehearsal on CPU nodes"
    )
    parser.add_argument(
        "--chips-per-host",
        type=whole_number(0, 1000),
        default=0,
        metavar="N",
        help="default: the generation's",
    )
    parser.add_argument(
        "--deadline",
        type=_SECONDS,
        default=_HOUR,
        metavar="SECONDS",
        help="of the job (%(default)s)",
    )
    parser.add_argument(
        "--wait",
        type=_SECONDS,
        default=600,
        metavar="SECONDS",
        help="that a finished worker waits to be collected (%(default)s)",
    )
    parser.set_defaults(arguments=[], run=_print)
    parser.epilog = (
        "Arguments after -- go to pytest; without them it runs suites/. fetch and merge end "
        "with 1 when a case is bad or a worker has no report, with 3 when a case can't be read."
    )
    actions = parser.add_subparsers(metavar="ACTION")
    _add_work(actions)
    _add_collect(actions)
    _add_merge(actions)


def _add_work(actions: Commands) -> None:
    action = actions.add_parser("work", help="in a pod: run pytest, keep the report for fetch")
    action.add_argument("--out", type=output_folder, required=True, metavar="DIR")
    action.add_argument("--wait", type=_SECONDS, default=600, metavar="SECONDS")
    action.set_defaults(arguments=[], run=_work)


def _add_collect(actions: Commands) -> None:
    action = actions.add_parser(
        "fetch", help="wait for a JobSet's workers, copy their reports and logs, merge them"
    )
    action.set_defaults(run=_collect)
    action.add_argument("name", metavar="NAME")
    action.add_argument("--out", type=output_folder, required=True, metavar="DIR")
    action.add_argument("--namespace", default="default", help="default: %(default)s")
    action.add_argument(
        "--timeout", type=_SECONDS, default=_HOUR, metavar="SECONDS", help="default: %(default)s"
    )
    add_json(action)


def _add_merge(actions: Commands) -> None:
    action = actions.add_parser("merge", help="several workers' reports as one")
    action.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR", help="of a worker, named as it: 1-0"
    )
    action.add_argument("--out", type=output_file, required=True, metavar="FILE")
    add_json(action)
    action.set_defaults(run=_merge)


def _print(options: argparse.Namespace) -> int:
    for name in ("accelerator", "grid", "image"):
        if not getattr(options, name):
            raise BadInputError(f"jobset: --{name} is missing")
    made = job_plan.plan(
        name=options.name,
        namespace=options.namespace,
        image=options.image,
        stack=options.stack,
        lane=options.lane,
        accelerator=options.accelerator,
        grid=options.grid,
        slices=options.slices,
        chips=options.chips_per_host,
        arguments=options.arguments,
        deadline=options.deadline,
        wait=options.wait,
    )
    if note := manifest.unsupported(made):
        say(note)
    show(as_json(manifest.manifest(made), indent=2))
    return 0


def _work(options: argparse.Namespace) -> int:
    return work.work(options.arguments, options.out, options.wait)


def _collect(options: argparse.Namespace) -> int:
    name, namespace = job_plan.name_of(options.name), job_plan.namespace_of(options.namespace)
    over = workers.collect(name, namespace, options.out, options.timeout, say)
    for worker in over:
        say(f"{worker.name}  {worker.status}")
    merged = options.out / "report.xml"
    reports = {worker.name: worker.folder / work.REPORT for worker in over}
    merged_report = merge.write(reports, merged, {worker.name: worker.status for worker in over})
    data = _as_data(merged_report, merged) | {
        "exits": {worker.name: worker.exit for worker in over}
    }
    answer(options, data, "\n".join([*merged_report.lines, str(merged)]))
    return _code(merged_report, bad=any(worker.exit for worker in over))


def _merge(options: argparse.Namespace) -> int:
    reports = {folder.name: folder / work.REPORT for folder in options.folders}
    if len(reports) < len(options.folders):
        raise BadInputError("DIR: expected a folder of each worker, found two of one name")
    merged = merge.write(reports, options.out, {})
    answer(options, _as_data(merged, options.out), "\n".join(merged.lines))
    return _code(merged)


def _code(merged: merge.Merged, *, bad: bool = False) -> int:
    if merged.bad or bad:
        return 1
    return PARTIAL if merged.faults else 0


def _as_data(merged: merge.Merged, report: Path) -> dict[str, Any]:
    """Return the data that docs/json.md describes."""
    return {
        "report": str(report),
        "workers": merged.workers,
        "missing": dict(merged.missing),
        "faults": list(merged.faults),
        "skew": list(merged.skew),
        "counts": {str(kind): count for kind, count in merged.counts.items()},
    }
