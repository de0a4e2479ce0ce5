"""The harness's own tests in shards, and how long the jobs of ci.yml take.

python .ci/shard.py 2/4 [PYTEST ARGUMENTS]   run one of four parts that take equally long
python .ci/shard.py record REPORT...         keep how long each file took, from JUnit
python .ci/shard.py minutes                  what each job of ci.yml takes, by what was recorded
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from harness.session.selection import Shard, read_durations, shards

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "fixtures" / "durations-tests.json"
WORKFLOWS = ROOT / ".github" / "workflows"
KIND = "files"


def main(arguments: Sequence[str]) -> int:
    match arguments:
        case ["record", *reports] if reports:
            record([Path(report) for report in reports])
        case ["minutes"]:
            print("\n".join(minutes()))
        case [shard, *rest] if "/" in shard:
            files = sorted(parts(Shard.parse(shard).count)[Shard.parse(shard).number - 1])
            pytest = (sys.executable, "-m", "pytest", "-n0", "-m", "long or not long")
            return subprocess.run([*pytest, *files, *rest], check=False, cwd=ROOT).returncode
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


def parts(count: int) -> list[dict[str, float]]:
    """Return the test files of each shard, with their seconds; a new file has the median."""
    files = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/test_*.py"))
    return shards(((file, KIND) for file in files), read_durations(RECORDED), count)


def record(reports: Sequence[Path]) -> None:
    """Write the seconds of each file."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        for case in ET.parse(report).iter("testcase"):
            module = re.match(r"tests(\.\w+)*\.test_\w+", case.get("classname", ""))
            if module:
                seconds[f"{module[0].replace('.', '/')}.py"] += float(case.get("time", 0))
    recorded = {KIND: {file: round(taken, 1) for file, taken in sorted(seconds.items())}}
    RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")
    print(f"{RECORDED.relative_to(ROOT)}: {len(seconds)} files")


def minutes() -> list[str]:
    """Return a line for each job, without the time to set up, which depends on the cache."""
    tests = part_count()
    lines = [
        f"| tests of the harness {n}/{tests} | {sum(part.values()) / 60:.1f} |"
        for n, part in enumerate(parts(tests), 1)
    ]
    count = int(re.search(r"shard:\n.*\n.*\n\s+default: (\d+)", _text("suites.yml"))[1])  # type: ignore[index]
    durations = read_durations(ROOT / "fixtures" / "durations.json")
    for lane, cases in _cases().items():
        for number, part in enumerate(shards(((c, lane) for c in cases), durations, count), 1):
            lines.append(f"| suites {lane} {number}/{count} | {sum(part.values()) / 60:.1f} |")
    return ["| job | minutes |", "| --- | --- |", *lines]


def part_count() -> int:
    """Return in how many parts ci.yml runs the harness's tests."""
    return len(re.findall(r"\d/\d", re.search(r"part: \[(.*)\]", _text("ci.yml"))[1]))  # type: ignore[index]


def _text(workflow: str) -> str:
    return (WORKFLOWS / workflow).read_text()


def _cases() -> dict[str, list[str]]:
    """Return the cases of each lane, as collected here."""
    command = [sys.executable, "-m", "harness", "ci", "list", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    ids: defaultdict[str, list[str]] = defaultdict(list)
    for case in json.loads(done.stdout):
        ids[case["lane"]].append(case["id"])
    return ids


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
