"""``xla-harness ci skew``: which libtpu compiles what which JAX lowers."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.commands import project
from harness.commands.matrix import add_cell_options, with_paths
from harness.commands.output import answer, say
from harness.commands.parsers import add_json, names, output_folder
from harness.files import write
from harness.matrix import run
from harness.matrix.cell import Cell
from harness.stacks.environments import Environments
from harness.verdicts import skew

REPORTS = Path("reports/skew")
PROGRAMS = "suites/multislice_flash_attention/test_skew.py"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--jax", required=True, metavar="VERSIONS", help="as 0.7.1,0.8.0")
    parser.add_argument("--libtpu", required=True, metavar="VERSIONS", help="as 0.0.21,0.0.23")
    parser.add_argument("--stack", default="2.9.0", help="whose other pins are kept: %(default)s")
    parser.add_argument("--out", type=output_folder, default=REPORTS, help=f"default: {REPORTS}")
    add_cell_options(parser)
    add_json(parser)
    parser.set_defaults(run=_run)
    parser.epilog = f"Arguments behind -- are pytest's; without them it runs {PROGRAMS}."


def _run(options: argparse.Namespace) -> int:
    catalogue = project.catalogue(options.folder)
    rows, columns = names(options.libtpu), names(options.jax)
    stacks = {
        (libtpu, jax): catalogue.find(f"{options.stack}+jax={jax}+libtpu={libtpu}")
        for libtpu in rows
        for jax in columns
    }
    # Another compiler's other plan is no refusal.
    arguments = (*with_paths(options.arguments or [PROGRAMS]), "-o", "xla_golden=")
    cells = {
        key: Cell(stack, "tpu-aot", options.out / stack.slug, arguments)
        for key, stack in stacks.items()
    }
    done = run.run(
        list(cells.values()), Environments(), jobs=options.jobs, fresh=options.fresh, say=say
    )
    reports = {
        key: cell.read().results.values()
        for key, cell in cells.items()
        if str(cell) not in done.died
    }
    grid = skew.Grid({key: tuple(results) for key, results in reports.items()})
    answer(options, grid.data(), "\n".join(skew.text(grid, rows, columns)))
    write({options.out / "grid.md": skew.markdown(grid, rows, columns)})
    done.check()
    return 0
