"""A case as one script: what it takes along, that it ends as the case does, what it refuses."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest
from support.commands import run_program
from support.paths import ROOT

from harness.errors import BadInputError
from harness.isolation import ranks
from harness.job import ranks as job_ranks
from harness.model.case import Case
from harness.model.outcome import Kind
from harness.model.topology import Target, Topology
from harness.oracles import gloo
from harness.repro import cases, check
from harness.repro.check import Ending
from harness.repro.standins import gloo as short_gloo
from harness.repro.standins import job_ranks as short_job_ranks
from harness.repro.standins import ranks as short_ranks

FILES = {
    "pytest.ini": "[pytest]\nxla_expectations = expectations\nxla_preload =\n",
    "expectations/tiny.toml": """
[[expectation]]
cases = ["suites/tiny/test_tiny.py::test_sum[*]"]
issue = "pytorch/xla#12"
reason = "sums are rounded"
signature = "sum is 12"

[[expectation]]
cases = ["suites/tiny/test_tiny.py::test_crash[*]"]
issue = "pytorch/xla#12"
reason = "it aborts"
outcome = "crashed"
signature = "SIGABRT"
""",
    "fixtures/stacks/old.toml": 'python = "3.11"\n[pins]\ntorch = "2.0.0"\ntorch_xla = "2.0.0"\n',
    "fixtures/stacks/old.txt": "torch==2.0.0 \\\ntorch-xla==2.0.0 \\\nnumpy==1.0.0\n",
    "suites/__init__.py": "",
    "suites/tiny/__init__.py": '"""Tiny."""\n',
    "suites/tiny/conftest.py": """
import pytest
from suites.tiny.words import Word

@pytest.fixture
def total(topology) -> int:
    return topology.total

@pytest.fixture
def log(total: int):
    lines = [f"{total} devices"]
    yield lines
    lines.append("end")
    assert lines != ["4 devices", "end"], "torn down"

@pytest.fixture(params=["a", "b"])
def letter(request):
    return Word(request.param)
""",
    "suites/tiny/words.py": '''
from __future__ import annotations
from dataclasses import dataclass
LIMIT = 3

@dataclass(frozen=True)
class Word:
    """A word.

    More about words.
    """

    text: str
    times: int = 1

    def repeated(self) -> str:
        return self.text * self.times * LIMIT

    def never_called(self) -> str:
        return unused()

def unused() -> str:
    return "unused"
''',
    "suites/tiny/sums.py": """
from collections.abc import Sequence
LIMIT = 12
TABLE = {"one": 1}
TABLE["two"] = 2
CALLS = 0

def called():
    global CALLS
    CALLS += 1
    return CALLS

def add(values: Sequence[int], start: int = 0) -> int:
    # What a comment says stays.
    return min(sum(values, start), LIMIT)  # noqa: FURB123
""",
    "suites/tiny/test_tiny.py": '''
from __future__ import annotations
import os, time
from pathlib import Path
import pytest
from suites.tiny import sums
from suites.tiny.words import LIMIT, Word

pytestmark = [pytest.mark.lanes("cpu", "virtual-tpu"), pytest.mark.upstream("pytorch/xla#11")]
twice = pytest.mark.parametrize("make", [lambda w: w + w, str.upper], ids=["twice", "upper"])

@pytest.mark.parametrize("values", [(5, 6), (7, 8)], ids=["low", "high"])
def test_sum(values: tuple[int, ...], total: int):
    """Adds up.

    All of the words stay here.
    """
    got = sums.add(values, total)
    assert got == sum(values) + total, f"sum is {got} below {sums.LIMIT} not {LIMIT}"

def test_clash(): raise ValueError(f"{LIMIT} {sums.add([99])} {Word('w').repeated()}")

CALLS = 5

def test_global(): raise ValueError(f"{sums.called()} {sums.called()} {CALLS}")

def test_log(log: list[str], tmp_path: Path, monkeypatch):
    monkeypatch.setattr(os, "sep", "!")
    assert not list(tmp_path.iterdir())
    assert log == [], f"log is {log}{os.sep}"

def test_teardown(log): pass

@pytest.mark.parametrize("word", [Word("x", 2)], ids=["x"])
class TestWord:
    END = "."

    @pytest.fixture
    def shout(self):
        yield "!"

    def _all(self, word): return word.repeated() + self.END

    @twice
    def test_repeated(self, word: Word, shout: str, make):
        assert self._all(word) == "", make(self._all(word) + shout)

    def test_other(self, word): assert unused_here()

def test_letter(letter): assert not letter.repeated(), letter.text

@pytest.mark.environment(TINY="1", GONE=None)
def test_environment(): raise KeyError(os.environ["TINY"], os.environ.get("GONE"))

@pytest.mark.parametrize("number", [float("inf"), -0.5])
@pytest.mark.parametrize("key", sums.TABLE)
def test_table(key, number): raise ValueError(f"{sums.TABLE[key]} {number}")

@pytest.mark.deadline(1)
def test_hang(): time.sleep(600)

def test_crash(): os.abort()

def test_passes(): assert sums.add([1]) == 1

def test_raises():
    with pytest.raises(ValueError): sums.add([])

def test_only_under_pytest(): assert os.environ["PYTEST_CURRENT_TEST"]

def test_skips(): pytest.skip("not today")

def test_capsys(capsys): pass

def test_request(request): assert request.node

def test_module(): assert sums

def test_tensors():
    import torch
    assert torch.ones(3).sum() == 3

@pytest.mark.lanes("virtual-tpu")
@pytest.mark.topologies("2@chip")
@pytest.mark.frameworks("jax")
def test_ranks(topology):
    from harness.job.ranks import run_ranks
    def devices(rank):
        import jax
        return rank, len(jax.local_devices()), len(jax.devices())
    assert run_ranks(devices, topology) == [(0, 1, 2), (1, 1, 2)]
    assert run_ranks(lambda rank: os.environ["WORLD_SIZE"], topology) == ["2", "2"]

@pytest.mark.lanes("virtual-tpu")
@pytest.mark.topologies("2@chip")
def test_rank_raises(topology):
    from harness.job.ranks import run_ranks
    def quotient(rank):
        time.sleep(rank)
        return 1 // rank
    run_ranks(quotient, topology)

@pytest.mark.lanes("tpu-aot")
@pytest.mark.topologies("v6e:2x2")
def test_compiles(): pass

@pytest.mark.lanes("virtual-tpu")
@pytest.mark.frameworks("jax")
def test_devices(xla_target):
    import jax
    (device,) = {each.device_kind for each in jax.devices()}
    raise ValueError(device, len(jax.devices()), str(xla_target.framework))

@pytest.mark.lanes("virtual-tpu")
@pytest.mark.frameworks("jax")
def test_dies():
    import os, jax
    jax.numpy.ones(3) + 1
    os.abort()

def unused_here(): return 1
''',
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


WRITE = """
import json, sys
from harness.errors import BadInputError
from harness.repro import cases
from harness.repro.write import write
from harness.session.listing import collect
items = {item.nodeid.split("test_tiny.py::")[1]: item for item in collect(["suites"])}
found = {}
for case in sys.argv[1:]:
    try: found[case] = write(cases.describe(items[case], items), None)
    except BadInputError as error: found[case] = f"refused: {error}"
print(json.dumps(found))
"""
ENDINGS = {
    "test_sum[cpu-4-high]": "failed: AssertionError: sum is 12 below 12 not 3",
    "test_clash[cpu-4]": "failed: ValueError: 3 12 www",
    "test_global[cpu-4]": "failed: ValueError: 1 2 5",
    "test_log[cpu-4]": "failed: AssertionError: log is ['4 devices']!",
    "test_teardown[cpu-4]": "failed: AssertionError: torn down",
    "TestWord::test_repeated[cpu-4-upper-x]": "failed: AssertionError: XXXXXX.!",
    "TestWord::test_repeated[cpu-4-twice-x]": "failed: AssertionError: xxxxxx.!xxxxxx.!",
    "test_letter[cpu-4-b]": "failed: AssertionError: b",
    "test_environment[cpu-4]": "failed: KeyError: ('1', None)",
    "test_table[cpu-4-two-inf]": "failed: ValueError: 2 inf",
    "test_passes[cpu-4]": "passed",
    "test_skips[cpu-4]": "skipped: not today",
}
REFUSED = {
    "test_capsys[cpu-4]": "fixture 'capsys' is pytest's or a plugin's",
    "test_request[cpu-4]": "a script has no pytest request",
    "test_module[cpu-4]": "sums is used as a value: a script has no module suites.tiny.sums",
    "test_compiles[tpu-aot-v6e:2x2]": "lane tpu-aot runs none: xla-harness reduce makes",
}


def run(folder: Path, *line: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return run_program(sys.executable, *line, cwd=folder, env=clean | {"GONE": "still here"})


def repro(folder: Path, case: str, *options: str) -> subprocess.CompletedProcess[str]:
    case = case if "/" in case else f"suites/tiny/test_tiny.py::{case}"
    return run(folder, "-m", "harness", "repro", case, *options)


@pytest.fixture(scope="module")
def scripts(tiny: Path) -> dict[str, str]:
    """Scripts, or why there is none, by case; all from one process."""
    done = run(tiny, "-c", WRITE, *ENDINGS, *REFUSED)
    assert done.returncode == 0, done.stderr
    scripts: dict[str, str] = json.loads(done.stdout)
    return scripts


@pytest.mark.measures_coverage
@pytest.mark.parametrize("case", ENDINGS)
def test_script(tiny: Path, scripts: dict[str, str], case: str) -> None:
    path = tiny / "script.py"
    path.write_text(scripts[case])
    ending = check.of_script(path, Case(case, Target("cpu", Topology(1, 4))), Ending(Kind.PASSED))
    assert str(ending) == ENDINGS[case]


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "ending"),
    [
        ("test_sum[cpu-4-high]", "failed: AssertionError: sum is 12 below 12 not 3"),
        ("test_hang[cpu-4]", "hung: no result after"),
        ("test_crash[cpu-4]", "crashed: SIGABRT"),
        ("test_raises[cpu-4]", "failed: Failed: DID NOT RAISE"),
        ("test_passes[cpu-4]", "passed"),
        ("test_devices[virtual-tpu-4-jax]", "failed: ValueError: ('TPU v6 lite', 4, 'jax')"),
        ("test_dies[virtual-tpu-4-jax]", "crashed: SIGABRT"),
        ("test_ranks[virtual-tpu-2@chip-jax]", "passed"),
        (
            "test_rank_raises[virtual-tpu-2@chip]",
            "failed: RankError: rank 0 of 2 raised ZeroDivisionError",
        ),
    ],
)
def test_ends_as_the_case_does(tiny: Path, case: str, ending: str) -> None:
    done = repro(tiny, case, "--check")
    assert f"the script ends as the case does: {ending}" in done.stderr, done.stderr
    assert done.returncode == 0


@pytest.mark.measures_coverage
def test_a_script_that_ends_otherwise(tiny: Path) -> None:
    done = repro(tiny, "test_only_under_pytest[cpu-4]", "--check")
    assert done.returncode == 1
    assert "ends otherwise\n  case    passed\n  script  failed: KeyError" in done.stderr


@pytest.mark.measures_coverage
def test_has_what_it_needs_and_no_more(tiny: Path) -> None:
    done = repro(tiny, "test_sum[cpu-4-low]", "--no-run", "--out", "script.py")
    text = (tiny / "script.py").read_text()
    assert (done.returncode, done.stdout) == (0, "")
    assert "import suites" not in text
    assert "harness" not in text
    assert "pytest" not in text
    assert "unused" not in text
    assert "class Word" not in text
    assert "def sums_add(values, start=0):\n    # What a comment says stays.\n" in text
    assert 'TABLE["two"] = 2' in text, "importing the module does that"
    assert "noqa" not in text
    assert "    All of the words stay here." in text
    assert "test_sum(values=(5, 6), total=total)" in text


def test_methods_that_nobody_names_stay_behind(scripts: dict[str, str]) -> None:
    text = scripts["TestWord::test_repeated[cpu-4-upper-x]"]
    assert "def repeated" in text
    assert "never_called" not in text
    assert "test_other" not in text
    assert '    """A word."""' in text
    assert 'word=Word(text="x", times=2)' in text
    assert "make=str.upper" in text


@pytest.mark.measures_coverage
def test_header(tiny: Path) -> None:
    text = repro(tiny, "test_sum[cpu-4-high]").stdout
    for line in (
        "# Case:     suites/tiny/test_tiny.py::test_sum[cpu-4-high]",
        "# Upstream: https://github.com/pytorch/xla/issues/12",
        "#           https://github.com/pytorch/xla/issues/11",
        "# Expected: it passes (sum: Adds up., values (7, 8))",
        "# Observed: failed at verification: AssertionError: sum is 12 below 12 not 3",
        "#           sums are rounded",
        "# Where:    lane cpu, topology 4 (4 devices)",
        f"#           torch {version('torch')}, torch_xla {version('torch_xla')}, jax ",
        '    CPU_NUM_DEVICES="4",',
    ):
        assert line in text


def test_header_of_a_case_that_was_not_run(scripts: dict[str, str]) -> None:
    assert (
        "# Observed: not run; declared: failed, matching sum is 12\n"
        in scripts["test_sum[cpu-4-high]"]
    )


def test_environment_stands_before_the_imports(scripts: dict[str, str]) -> None:
    text = scripts["test_environment[cpu-4]"]
    assert 'os.environ.pop("GONE", None)\n' in text
    assert text.index('TINY="1"') < text.index("def test_environment")


@pytest.mark.measures_coverage
def test_out_that_cannot_be_written(tiny: Path) -> None:
    done = repro(tiny, "test_passes[cpu-4]", "--no-run", "--out", "no/such/folder")
    assert done.returncode == 2
    assert "--out: 'no/such/folder': expected a file in a folder that exists" in done.stderr


def test_pins_of_a_stack(tiny: Path) -> None:
    text = repro(tiny, "test_tensors[cpu-4]", "--stack", "old").stdout
    assert '# requires-python = "==3.11.*"' in text
    assert '#     "torch==2.0.0",\n#     "torch_xla==2.0.0",\n#     "numpy==1.0.0",\n' in text
    text = repro(tiny, "test_passes[cpu-4]", "--stack", "old").stdout
    assert '# dependencies = [\n#     "numpy==1.0.0",\n# ]' in text
    unknown = repro(tiny, "test_passes[cpu-4]", "--stack", "odl")
    assert unknown.returncode == 2
    assert "did you mean old?" in unknown.stderr


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        ("suites/tiny/test_tiny.py::test_*", ["suites/tiny/test_tiny.py"]),
        ("*/test_tiny.py::test_x", ["suites/tiny/test_tiny.py"]),
        ("*tiny.py::*", ["suites/tiny/test_tiny.py"]),
        ("suites/*::test_x", ["suites/tiny/test_tiny.py"]),
        ("suites*sum[cpu-4-low]", ["suites/tiny/test_tiny.py"]),
        ("suites/*/test_other.py::*", None),
        ("*hidden*::test_x", None),
    ],
)
def test_a_pattern_is_of_the_file_too(
    tiny: Path, pattern: str, files: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stars match slashes, as those of all patterns of cases do."""
    monkeypatch.chdir(tiny)
    for name in (".hidden/test_hidden.py", "env/test_hidden.py", "env/pyvenv.cfg"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    if files is None:
        with pytest.raises(BadInputError, match="no such file"):
            cases._files(pattern)
    else:
        assert cases._files(pattern) == files


@pytest.mark.measures_coverage
@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            "test_sun[cpu-4-low]",
            "no such case; did you mean\n  suites/tiny/test_tiny.py::test_sum[",
        ),
        (
            "/suites/tiny/test_tiny.py::test_x",
            "case '/suites/tiny/test_tiny.py::test_x': no such file",
        ),
        ("suites/tiny/test_tony.py::test_x", "no such file; did you mean\n  suites/tiny/test_tiny"),
        ("test_sum[cpu-4-*]", "it matches\n  suites/tiny/test_tiny.py::test_sum[cpu-4-low]\n"),
    ],
)
def test_wrong_choice(tiny: Path, case: str, message: str) -> None:
    done = repro(tiny, case, "--no-run")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.measures_coverage
@pytest.mark.parametrize("case", REFUSED)
def test_refused(scripts: dict[str, str], case: str) -> None:
    assert scripts[case].startswith("refused: ")
    assert REFUSED[case] in scripts[case]


@pytest.mark.long
@pytest.mark.parametrize(
    "case",
    [
        "suites/dtensor/test_read_back.py::test_requires_grad[cpu-4-trained]",
        "suites/collectives/test_export_all_reduce.py::test_signature[cpu-4-functional]",
    ],
)
def test_real_case(case: str) -> None:
    done = repro(ROOT, case, "--check")
    assert done.returncode == 0, done.stderr
    assert "ends as the case does: failed: " in done.stderr


@pytest.mark.parametrize(
    ("ending", "other", "same"),
    [
        (
            Ending(Kind.FAILED, "ValueError: at 0x12\nmore"),
            Ending(Kind.FAILED, "ValueError: at 0x3"),
            True,
        ),
        (Ending(Kind.FAILED, "a.b.ValueError: x"), Ending(Kind.FAILED, "ValueError: x"), True),
        (Ending(Kind.FAILED, "ValueError: x"), Ending(Kind.FAILED, "ValueError: y"), False),
        (Ending(Kind.FAILED, "ValueError: x"), Ending(Kind.FAILED, "TypeError: x"), False),
        (Ending(Kind.FAILED, "assert 1 == 2"), Ending(Kind.FAILED, "AssertionError"), True),
        (Ending(Kind.FAILED, "AssertionError: x"), Ending(Kind.FAILED, "AssertionError"), False),
        (Ending(Kind.CRASHED, signal="SIGSEGV"), Ending(Kind.CRASHED, signal="SIGABRT"), False),
        (Ending(Kind.HUNG), Ending(Kind.HUNG, "elsewhere"), True),
        (Ending(Kind.FAILED, "x"), Ending(Kind.PASSED), False),
    ],
)
def test_endings_that_are_alike(ending: Ending, other: Ending, *, same: bool) -> None:
    assert ending.is_like(other) == other.is_like(ending) == same


@pytest.mark.parametrize(
    ("long", "short"),
    [(ranks, short_ranks), (gloo, short_gloo), (job_ranks, short_job_ranks)],
)
def test_standins_have_the_same_functions(long: ModuleType, short: ModuleType) -> None:
    for name in ("fork_ranks", "run_ranks"):
        function = getattr(long, name, None)
        if function is not None and function.__module__ == long.__name__:
            assert inspect.signature(getattr(short, name)) == inspect.signature(function)
    assert short.RankError.__bases__ == long.RankError.__bases__


@pytest.mark.long
def test_a_real_case_in_short() -> None:
    """jaxlib's XLA executes what the short modules read, as the harness's own do."""
    case = "test_reduce_scatter_dimension_and_scale[cpu-4--1--2.0]"
    done = repro(ROOT, f"suites/collectives/test_gather_scatter.py::{case}", "--check")
    assert done.returncode == 0, done.stderr
    assert "ends as the case does: passed" in done.stderr
    assert len(done.stdout.splitlines()) < 430


@pytest.mark.measures_coverage
def test_short_ranks() -> None:
    """In a process of its own, where nothing but this forks."""
    program = """
import os, time
from harness.repro.standins.ranks import RankError, fork_ranks
print(fork_ranks(lambda rank: rank * rank, 3, deadline=9))
def one(rank):
    if rank == 1: raise ValueError("mine")
    time.sleep(60)
def die(rank):
    if rank == 0: os._exit(3)
    time.sleep(60)
for fn in (one, die, lambda rank: time.sleep(60)):
    try: fork_ranks(fn, 2, deadline=1)
    except RankError as error: print(str(error).splitlines()[0], "mine" in str(error))
"""
    start = time.monotonic()
    done = run_program(sys.executable, "-c", program)
    assert done.stdout.splitlines() == [
        "[0, 1, 4]",
        "rank 1 of 2 raised ValueError: mine True",
        "rank 0 of 2 died False",
        "rank 0, 1 of 2 still running after 1 s False",
    ], done.stderr
    assert time.monotonic() - start < 30
