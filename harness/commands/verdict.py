"""``xla-harness verdict``: a run compared with the history before it."""

from __future__ import annotations

import argparse

from harness.commands.output import annotate, answer
from harness.commands.parsers import add_json, output_file
from harness.commands.query import name_set_aside
from harness.errors import PARTIAL, BadInputError
from harness.render import nightly_github, nightly_json, nightly_text
from harness.verdicts.nightly import judge


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("name", metavar="RUN", help="its name or the beginning of it, or latest")
    parser.add_argument("--history", required=True, metavar="DIR", help="a folder, or an address")
    parser.add_argument(
        "--markdown", type=output_file, metavar="FILE", help="for a CI job's summary"
    )
    parser.add_argument(
        "--annotations", action="store_true", help="print GitHub's ::error and ::warning lines too"
    )
    add_json(parser)
    parser.set_defaults(run=_run)
    parser.epilog = (
        "The exit code is 1 when a case regressed and no expectation declares it, or is missing; "
        "else 3 when a file of the history can't be read: it is named, and where it may say what "
        "worked before, there is no verdict."
    )


def _run(options: argparse.Namespace) -> int:
    from harness.history.store import History

    history = History(options.history)
    run, stacks = history.find(options.name)
    verdicts = history.ask(
        lambda connection: judge(connection, [run], set_aside=history.set_aside), stacks
    )
    name_set_aside(history.set_aside)
    if not verdicts.runs:
        raise history.unreadable(run)
    data = [nightly_json.as_data(finding) for finding in verdicts.findings]
    answer(options, data, "\n".join(nightly_text.lines(verdicts)))
    if options.annotations:
        annotate(nightly_github.annotation_lines(verdicts))
    if options.markdown:
        try:
            with options.markdown.open("a", encoding="utf-8") as file:  # as $GITHUB_STEP_SUMMARY
                file.write(nightly_github.summary(verdicts))
        except OSError as error:
            raise BadInputError(f"{options.markdown}: {error.strerror}") from error
    return verdicts.exit_code or (PARTIAL if history.set_aside else 0)
