"""Wrong answers of the plugin, with or without a program: about devices, memories, clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.sensitivity.fault import PLUGIN, Fault, Recorded, case_file, submitted_file

WRONG_ANSWER = "VIRTUAL_TPU_WRONG_ANSWER"  # read by the plugin; names one


@dataclass(frozen=True)
class WrongAnswer:
    """Wrong answer that the plugin can give.

    Attributes:
        name: as in the plugin's sources.
        upstream: an issue that was such a defect.
        condition: a fact of a case's report, a number that decides whether the case can get it.
        least: the smallest number with which it can.
    """

    name: str
    upstream: str
    condition: str
    least: int = 1


ANSWERS = {
    answer.name: answer
    for answer in (
        WrongAnswer("coordinates-swapped", "vllm-project/tpu-inference#915", "clients"),
        WrongAnswer("slice-index-off", "jax-ml/jax#37863", "discoveries"),
        WrongAnswer("memory-kind-wrong", "tenstorrent/tt-xla#620", "clients"),
        WrongAnswer("donated-buffer-kept", "zml/zml#748", "clients"),
        WrongAnswer("second-client-let-through", "pytorch/xla#8609", "discoveries", 2),
    )
}


def plugin_of(facts: Mapping[str, str]) -> Recorded:
    """Return the plugin as a program that has these faults; ``facts`` says which a case can get."""
    places = {
        name: ["client"]
        for name, answer in ANSWERS.items()
        if int(facts.get(answer.condition, "0")) >= answer.least
    }
    return Recorded(PLUGIN, places, "", PLUGIN)


def changes_nothing(folder: Path, fault: Fault) -> bool:
    """Return whether the case submits the same programs with a wrong answer as without it.

    It then computes the same, possibly on other devices; only a case that asks about devices sees
    the fault.
    """
    before = case_file(folder, fault.case)
    after = folder / fault.file
    paths = [submitted_file(path) for path in (before, after)]
    submissions = [
        Counter(path.read_text().splitlines()) if path.exists() else None for path in paths
    ]
    return submissions[0] == submissions[1]
