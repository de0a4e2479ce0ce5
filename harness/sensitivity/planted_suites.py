"""How much the suites' cases of conformance see: faults planted in each area of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.conformance.distribution import suite_run
from harness.conformance.distribution.suite_run import SuiteRun
from harness.conformance.seen import FaultSeen
from harness.errors import BadInputError
from harness.sensitivity.fault import STALE
from harness.sensitivity.measure import measure as score_of
from harness.sensitivity.operators import OPERATORS
from harness.sensitivity.runs import Request, Say
from harness.sensitivity.sample import Sample
from harness.sensitivity.score import FaultResult, FaultVerdict


def measure(
    run: SuiteRun, sample: tuple[int, int], say: Say, note: Callable[[FaultSeen], None]
) -> Sequence[FaultSeen]:
    """Plant faults in the programs of the cases, as many in each area.

    ``sample`` is the seed that chooses them, and how many. Raises BadInputError where no case can
    run.
    """
    if why := run.why_not():
        raise BadInputError(f"--faults: {why}")
    seed, count = sample
    results = list[FaultSeen]()
    with TemporaryDirectory() as name, chdir(suite_run.HOME):
        sessions = [(area, words) for area, words in run.sessions() if words][:count]
        for left, (area, words) in zip(range(len(sessions), 0, -1), sessions, strict=True):
            folder = Path(name, area.name)
            folder.mkdir()
            say(area.prefix)
            request = Request(
                paths=words,
                lane=run.lane,
                operators=(*OPERATORS, STALE),
                packages=(),
                budget=float("inf"),
                sample=Sample(seed, (count - len(results)) // left),
                jobs=run.workers,
                folder=folder,
                variables=area.variables,
            )
            for result in score_of(request, say).results:
                results.append(_seen(result, area.id(result.fault.case)))
                note(results[-1])
    return results


def _seen(result: FaultResult, id_: str) -> FaultSeen:
    fault, is_seen = result.fault, result.verdict is FaultVerdict.SEEN
    if result.verdict is FaultVerdict.NOT_RUN:
        raise RuntimeError(f"{id_}: the session with faults did not run it")
    name = f"{fault.operator} {fault.opcode} {fault.place}: {id_}"
    changes = is_seen or result.verdict is FaultVerdict.UNSEEN
    return FaultSeen(name, id_ if is_seen else "", changes, result.difference)
