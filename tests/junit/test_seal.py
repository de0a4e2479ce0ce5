"""A report that was damaged is never read as another answer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.project import Project

from harness import cli
from harness.errors import BadInputError
from harness.history.run import read_run
from harness.junit.report import Report, read
from harness.junit.seal import sealed

FLIPS = 200
CASES = """
pytestmark = [pytest.mark.lanes("cpu")]
@pytest.mark.parametrize("n", range(3))
def test_x(n): assert n != 1 or os.environ.get("GOOD")
"""


@pytest.fixture
def reports(project: Project) -> tuple[Path, Path]:
    """The base's report, and the candidate's, in which a case regressed."""
    project.write("test_inner.py", CASES)
    base = project.path / "base.xml"
    base.write_bytes(project.run(GOOD="1").junit.read_bytes())
    return base, project.run().junit


def _flip(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _unsealed(content: bytes) -> bytes:
    return content[: content.index(b"\n<?xla-harness")]


def _answers(report: Report) -> dict[str, str]:
    return {key: str(result.outcome) for key, result in report.results.items()}


@pytest.mark.parametrize("seed", range(2))
def test_a_flipped_bit_is_an_error_or_no_change(reports: tuple[Path, Path], seed: int) -> None:
    base, _ = reports
    chance, whole, answers = random.Random(seed), base.read_bytes(), _answers(read(base))
    for _ in range(FLIPS):
        base.write_bytes(_flip(whole, chance))
        try:
            report = read(base)
        except BadInputError:
            continue
        assert report.faults or _answers(report) == answers


def test_no_flipped_bit_qualifies(
    reports: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Also of a report from before there were seals, where a property's name can be lost."""
    base, candidate = reports
    chance, whole = random.Random(4), base.read_bytes()
    command = ["qualify", str(base), str(candidate), "--no-attribution", "--reruns=0"]
    command += ["--out", str(tmp_path / "out")]
    assert cli.main(command) == 1
    for content in (whole, _unsealed(whole)):
        for _ in range(6):
            base.write_bytes(_flip(content, chance))
            assert cli.main(command) in (1, 2, 3)
        at = content.index(b'name="outcome"') + len(b'name="')
        base.write_bytes(content[:at] + b"k" + content[at + 1 :])
        capsys.readouterr()
        assert cli.main(command) != 0
        assert str(base) in capsys.readouterr().err


def test_a_report_that_was_changed(reports: tuple[Path, Path]) -> None:
    base, _ = reports
    text = base.read_text(encoding="utf-8")
    base.write_text(text.replace('value="passed"', 'value="failed"'), encoding="utf-8")
    with pytest.raises(BadInputError, match="the report is damaged, or was changed"):
        read(base)
    with pytest.raises(BadInputError, match="the report is damaged, or was changed"):
        read_run(base)
    # With its own seal, or without any, it is a report of its own.
    changed = base.read_text(encoding="utf-8")
    for whole in (
        _unsealed(changed.encode()).decode(),
        sealed(_unsealed(changed.encode()).decode()),
    ):
        base.write_text(whole, encoding="utf-8")
        assert set(_answers(read(base)).values()) == {"failed"}
