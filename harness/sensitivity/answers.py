"""What the plugin can answer wrongly, with or without a program: devices, memories, clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.sensitivity.fault import PLUGIN, Fault, Recorded, case_file, submitted_file

WRONG_ANSWER = "VIRTUAL_TPU_WRONG_ANSWER"  # read by the plugin; names one


@dataclass(frozen=True)
class WrongAnswer:
    """One answer that can be wrong.

    Attributes:
        name: as in the plugin's sources.
        upstream: an issue that was such a defect.
        asked: a fact whose number says whether a case may be given it.
        least: from which number on.
    """

    name: str
    upstream: str
    asked: str
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
    """The plugin, as a program in which these are planted, by what a case's report says."""
    asked = {
        name: ["client"]
        for name, answer in ANSWERS.items()
        if int(facts.get(answer.asked, "0")) >= answer.least
    }
    return Recorded(PLUGIN, asked, "", PLUGIN)


def changes_nothing(folder: Path, fault: Fault) -> bool:
    """Whether the case submits the same programs with a wrong answer.

    Then it computes the same, if on other devices: only one that asks about devices can see it.
    """
    before = case_file(folder, fault.case)
    after = folder / fault.file
    told = [submitted_file(path) for path in (before, after)]
    found = [Counter(path.read_text().splitlines()) if path.exists() else None for path in told]
    return found[0] == found[1]
