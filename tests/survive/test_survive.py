"""Another project's tests under another version of a package: real environments, real pytest."""

from __future__ import annotations

import os
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
from support.drift import wheel
from support.owner import NEW, OLD, Owner, environment

from harness.errors import BadInputError
from harness.junit.result import Result
from harness.model.outcome import Kind
from harness.stacks import constraints
from harness.stacks.environments import plugin_path
from harness.survive.side import SideProcess, SideRun
from harness.survive.survival import proof, slower

SUITE = """
import os, pathlib, time, unittest
import drift, pytest

NEW = drift.__version__ == "2"

def first_time(name):
    path = pathlib.Path(os.environ["MARKS"], name)
    is_first = not path.exists()
    path.touch()
    return is_first

@pytest.mark.parametrize("n", [1, 2, 3])
def test_double(n): assert drift.double(n) == 2 * n

class TestHalf:
    def test_fixed(self): assert NEW
    class TestInner:
        def test_same(self): assert drift.half(4) == 2

class Case(unittest.TestCase):
    def test_broken(self): self.fail("on both")

@pytest.mark.parametrize("kind", drift.KINDS)
def test_kind(kind): pass

def test_skipped():
    if NEW: pytest.skip("not yet")

def test_slower(): time.sleep(drift.SECONDS)
def test_slow_once(): time.sleep(drift.SECONDS if first_time("slow") else 0)
def test_flaky(): assert not (NEW and first_time("flaky"))

@pytest.mark.xfail
def test_declared(): assert not NEW
"""
IMPORTING = """
from drift import old
def test_one(): pass
class TestTwo:
    def test_two(self): pass
"""
VERDICTS = {
    "test_suite.py::test_double[1]": "regressed",
    "test_suite.py::test_double[3]": "regressed",
    "test_importing.py::test_one": "regressed",
    "test_importing.py::TestTwo::test_two": "regressed",
    "test_suite.py::test_declared": "regressed",
    "test_suite.py::test_kind[b]": "missing",
    "test_suite.py::test_skipped": "missing",
    "test_suite.py::test_flaky": "flaky",
    "test_suite.py::test_slower": "slower",
    "test_suite.py::TestHalf::test_fixed": "fixed",
    "test_suite.py::Case::test_broken": "still failing",
}


@pytest.mark.parametrize("arguments", [(), ("-n", "2"), ("-x", "--tb=no", "-q")], ids=str)
def test_each_verdict(owner: Owner, arguments: tuple[str, ...]) -> None:
    owner.write(test_suite=SUITE, test_importing=IMPORTING)
    done = owner.survive("drift==2", "--", *arguments)
    assert done.returncode == 1, done.stderr
    assert owner.verdicts == VERDICTS
    assert owner.answer["moved"] == {"drift": {"from": "1", "to": "2"}}
    (loaded,) = owner.answer["loaded"]
    assert (loaded["base"]["version"], loaded["candidate"]["version"]) == ("1", "2")
    assert loaded["candidate"]["processes"] == (2 if "-n" in arguments else 1)
    assert str(owner.python.parents[2] / "cache") in loaded["candidate"]["place"]
    regressed = done.stdout.partition("- missing")[0]
    assert "2  import: ImportError: cannot import name 'old'" in regressed
    assert "regressed: 5 (1 expected)" in done.stdout
    assert (owner.folder / "answer.md").read_text().startswith("**4 regressed, 2 missing, 1 slower")
    assert owner.badge == ("drift 2", "7 tests break", "red")


@pytest.mark.parametrize(
    ("before", "after", "is_slower"),
    [(0.1, 1.0, True), (0.11, 1.05, False), (0.01, 0.99, False), (5, 49, False), (5, 50, True)],
)
def test_ten_times_and_a_second(before: float, after: float, *, is_slower: bool) -> None:
    sides = (Result("a", outcome=Kind.PASSED, duration=seconds) for seconds in (before, after))
    assert bool(slower(*sides)) == is_slower


def test_beside_reruns_of_a_plugin(owner: Owner) -> None:
    """Then a test that passes at its second attempt is none that a candidate breaks."""
    owner.write(test_suite=SUITE)
    done = owner.survive("drift==2", "--", "--reruns", "1", "-k", "flaky or double or slow_once")
    assert done.returncode == 1, done.stderr
    assert owner.verdicts == {each: word for each, word in VERDICTS.items() if "double" in each}


def test_nothing_broke(owner: Owner) -> None:
    owner.write(test_suite=SUITE)
    done = owner.survive("drift==2", "--", "-k", "test_same or declared")
    assert done.returncode == 0, done.stderr
    (declared,) = owner.answer["tests"]
    assert (declared["test"], declared["expected"]) == ("test_suite.py::test_declared", True)
    assert "Nothing broke." in done.stdout
    assert owner.badge == ("drift 2", "works", "brightgreen")
    assert "drift 1 -> 2, which 1 of 1 test processes had loaded" in done.stdout


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGSEGV)"])
def test_a_test_that_ends_pytest(owner: Owner, end: str) -> None:
    owner.write(
        test_end=f"""
        import drift, os, signal
        def test_before(): pass
        def test_ends():
            if drift.__version__ == "2": {end}
        def test_after(): assert drift.__version__ == "1"
        """
    )
    assert owner.survive("drift==2", "--", "test_end.py").returncode == 1
    assert owner.verdicts == {
        "test_end.py::test_ends": "regressed",
        "test_end.py::test_after": "regressed",
    }


def test_a_conftest_that_the_candidate_breaks(owner: Owner) -> None:
    owner.write(conftest="from drift import old", test_two="def test_a(): pass\ndef test_b(): pass")
    done = owner.survive("drift==2", "--", "test_two.py")
    assert done.returncode == 1, done.stderr
    assert owner.verdicts == {
        "test_two.py::test_a": "regressed",
        "test_two.py::test_b": "regressed",
    }
    assert "2  import: ImportError: cannot import name 'old'" in done.stdout


def test_a_test_that_hangs(owner: Owner) -> None:
    owner.write(
        test_hang="""
        import time
        def test_a(): pass
        def test_b(): time.sleep(99)
        def test_c(): pass
        """
    )
    os.chdir(owner.folder)
    start = time.monotonic()
    out, arguments = owner.folder / "out", ["test_hang.py"]
    run = SideProcess("candidate", owner.python, out, arguments, lambda _: None).run(limit=4)
    assert time.monotonic() - start < 30
    outcomes = {each: str(result.outcome) for each, result in run.results.items()}
    assert outcomes == {"test_hang.py::test_a": "passed", "test_hang.py::test_b": "hung"}
    assert "test_hang.py" in run.output.partition("Fatal Python error: Aborted")[2]  # its stack
    assert "stopped after 4 s" in run.cut


@pytest.mark.long
def test_thousands(owner: Owner) -> None:
    owner.write(
        test_many="""
        import drift, pytest
        @pytest.mark.parametrize("n", range(3000))
        def test_many(n): assert drift.__version__ == "1" or n % 2
        """
    )
    done = owner.survive("drift==2", "--", "-q")
    assert done.returncode == 1, done.stderr
    assert owner.answer["counts"] == {"regressed": 1500, "unchanged": 1500}


@pytest.mark.long
def test_an_editable_project(owner: Owner) -> None:
    """Its sources are those in the folder, on both sides, and a change of them counts at once."""
    (owner.folder / "src").mkdir()
    (owner.folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "theirs"\nversion = "3"\ndependencies = ["drift"]\n'
        '[tool.hatch.build.targets.wheel]\nonly-include = ["src"]\nsources = ["src"]\n'
    )
    source = owner.folder / "src" / "theirs.py"
    source.write_text("import drift\nquadruple = lambda n: 2 * drift.double(n)\n")
    (owner.folder / "own").mkdir()
    (owner.folder / "own" / "wheels").symlink_to(owner.python.parents[2] / "wheels")
    python = environment(owner.folder / "own", "pytest==9.0.2", "drift==1", "-e", str(owner.folder))
    (owner.folder / "tests").mkdir()
    owner.write(
        **{"tests/test_theirs": "import theirs\ndef test_3(): assert theirs.quadruple(3) == 12"}
    )
    assert owner.survive("drift==2", "--", "tests", python=python).returncode == 1
    assert owner.verdicts == {"tests/test_theirs.py::test_3": "regressed"}
    assert "assert 18 == 12" in owner.answer["tests"][0]["failure"]
    source.write_text("quadruple = lambda n: 4 * n\nimport drift\n")
    done = owner.survive("drift==2", "--", "tests", python=python)
    assert done.returncode == 0, done.stdout + done.stderr
    assert owner.answer["reused"] == {"base": "", "candidate": ""}
    (owner.folder / "pyproject.toml").touch()
    assert owner.survive("drift==2", "--", "tests", python=python).returncode == 0
    assert all(owner.answer["reused"].values())  # though it was installed again


def test_tests_that_load_another_copy(owner: Owner) -> None:
    """What is installed proves nothing: the processes of the tests had the old one."""
    (owner.folder / "vendored").mkdir()
    owner.write(
        **{"vendored/drift": OLD, "test_same": "import drift\ndef test_same(): pass"},
        conftest="import sys\nsys.path.insert(0, 'vendored')",
    )
    done = owner.survive("drift==2", "--", "test_same.py")
    assert done.returncode == 2
    assert f"the tests had loaded drift 1 from {owner.folder}/vendored/drift.py" in done.stderr


def test_tests_that_load_a_copy_of_that_version(owner: Owner) -> None:
    (owner.folder / "vendored").mkdir()
    owner.write(
        **{"vendored/drift": NEW, "test_same": "def test_same(): import drift"},
        conftest="import sys\nif 'survive' in sys.prefix: sys.path.insert(0, 'vendored')",
    )
    done = owner.survive("drift==2", "--", "test_same.py")
    assert done.returncode == 2
    assert f"the tests had loaded drift 2 from {owner.folder}/vendored/drift.py" in done.stderr


def test_modules_that_the_base_can_not_import(owner: Owner) -> None:
    owner.write(test_plain="import drift\ndef test_plain(): pass", test_needs="import nowhere")
    done = owner.survive("drift==2")
    assert done.returncode == 0, done.stderr
    assert "1 module can't be imported on the base, so its tests say nothing" in done.stdout


def test_tests_that_do_not_load_it(owner: Owner) -> None:
    owner.write(test_plain="def test_plain(): pass")
    (owner.folder / "badge.json").write_text('{"message": "works"}')
    done = owner.survive("drift==2", "--", "test_plain.py")
    assert done.returncode == 2
    assert "no test process had loaded drift" in done.stderr
    assert owner.badge == ("drift 2", "no answer", "lightgrey")


def test_a_test_in_a_forked_process_counts(owner: Owner) -> None:
    """As of pytest-forked and of this plugin's lanes: the session's process loads nothing."""
    owner.write(
        test_forked="def test_forked(): import drift",
        conftest="""
        import os, pytest
        from _pytest.runner import runtestprotocol
        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(item):
            if not (child := os.fork()):
                runtestprotocol(item, log=False)
                os._exit(0)
            os.waitpid(child, 0)
            item.obj = lambda: None
        """,
    )
    done = owner.survive("drift==2", "--", "test_forked.py")
    assert done.returncode == 0, done.stderr


BAD = {
    "no such version": ("drift==99", ["there is no version of drift==99", "drift==99 beside"]),
    "no such package": ("no-such-drift==1", ["no-such-drift is not among the packages of"]),
    "no requirement": ("drift=2", ["'drift=2': expected a requirement"]),
    "what is there": ("drift==1", ["drift 1 is what", "nothing moves"]),
    "nothing runs": ("drift==2", ["no test ran", "1 skipped"]),
    "no path": ("drift==2", ["no test ran", "file or directory not found: nowhere.py"]),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_input(owner: Owner, fault: str) -> None:
    owner.write(test_skipped="import drift, pytest\ndef test_skipped(): pytest.skip()")
    path = "nowhere.py" if fault == "no path" else "test_skipped.py"
    requirement, messages = BAD[fault]
    done = owner.survive(requirement, "--", path)
    assert done.returncode == 2, done.stdout
    assert [text for text in messages if text not in " ".join(done.stderr.split())] == []
    assert "Traceback" not in done.stderr


def test_a_package_that_refuses_the_candidate(owner: Owner, tmp_path: Path) -> None:
    """It is not moved to an old release that would accept anything."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "wheels").symlink_to(owner.python.parents[2] / "wheels")
    python = environment(tmp_path / "own", "pytest==9.0.2", "drift==1", "capped==1")
    owner.write(test_one="import drift\ndef test_one(): pass")
    done = owner.survive("drift==2", "--", "test_one.py", python=python)
    assert done.returncode == 2
    assert "capped" in done.stderr
    assert "the pins don't fit together" in done.stderr


def test_a_cuda_plugin_moves_too(owner: Owner, tmp_path: Path) -> None:
    """jaxlib uses none of another version than its own, which may be older than that of jax."""
    wheels = owner.python.parents[2] / "wheels"
    for version, jaxlib in (("1001", "1001"), ("1002", "1002"), ("1003", "1002")):
        extra = f"Requires-Dist: jax-cuda12-plugin=={jaxlib}; extra == 'cuda12'"
        needs = f"jaxlib=={jaxlib}\nProvides-Extra: cuda12\n{extra}"
        wheel(wheels, version, f"__version__ = '{version}'", name="jax", needs=needs)
        for name in ("jaxlib", "jax_cuda12_plugin"):
            wheel(wheels, jaxlib, "", name=name)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "wheels").symlink_to(wheels)
    python = environment(tmp_path / "own", "pytest==9.0.2", "jax[cuda12]==1001")
    owner.write(test_one="import jax\ndef test_one(): pass")
    for candidate, plugin, jaxlib in (
        ("jax==1002", "1001", "1002"),
        ("jax-cuda12-plugin==1002", "1002", "1001"),
    ):
        done = owner.survive(candidate, "--", "test_one.py", python=python)
        assert done.returncode == 2, done.stdout
        message = f"jaxlib {jaxlib} does not use jax-cuda12-plugin {plugin}: "
        assert f"{message}jax[cuda12]==VERSION moves both" in done.stderr
    done = owner.survive("jax[cuda12]==1003", "--", "test_one.py", python=python)
    assert done.returncode == 0, done.stderr
    moved = "Moved along: jax-cuda12-plugin 1001 -> 1002, jaxlib 1001 -> 1002."
    assert moved in " ".join(done.stdout.split())
    assert owner.badge == ("jax 1003", "works", "brightgreen")


def test_a_wheel_that_is_built_again(owner: Owner, tmp_path: Path) -> None:
    owner.write(test_one="import drift\ndef test_one(): assert drift.half(4) == 2")
    for code, answer in ((NEW.replace("n // 2", "n"), "1 regressed."), (NEW, "Nothing broke.")):
        path = wheel(tmp_path / "built", "2", code)
        done = owner.survive(f"drift @ {path.as_uri()}", "--", "test_one.py")
        assert answer in done.stdout, done.stderr
        assert "drift 1 -> 2" in done.stdout


def test_torch_moves_with_torch_xla(owner: Owner, tmp_path: Path) -> None:
    """torch_xla requires no torch, and is loaded only by the one that it was built for."""
    wheels = owner.python.parents[2] / "wheels"
    for version in ("1001.1.0", "1001.1.1", "1001.2.0", "1001.3.0"):
        wheel(wheels, version, f"__version__ = '{version}'", name="torch")
    for version in ("1001.1.0", "1001.2.1"):
        wheel(wheels, version, f"__version__ = '{version}'", name="torch_xla")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "wheels").symlink_to(wheels)
    packages = "torch==1001.1.0", "torch_xla==1001.1.0"
    python = environment(tmp_path / "own", "pytest==9.0.2", *packages)
    owner.write(test_one="import torch_xla\ndef test_one(): pass")
    done = owner.survive("torch==1001.2.0", "--", "test_one.py", python=python)
    assert done.returncode == 2, done.stdout
    message = "torch_xla 1001.1.0 can't be loaded with torch 1001.2.0: "
    assert f"{message}torch_xla==VERSION moves both" in done.stderr
    done = owner.survive("torch_xla==1001.2.1", "--", "test_one.py", python=python)
    assert done.returncode == 0, done.stderr
    assert "Moved along: torch 1001.1.0 -> 1001.2.0." in done.stdout
    done = owner.survive("torch==1001.1.1", "--", "test_one.py", python=python)
    assert done.returncode == 2  # no test had loaded it
    assert "no test process had loaded torch" in done.stderr


def test_a_wheel_with_two_modules() -> None:
    """Only the one of the package's name has its version; torch_xla's has torchax 0.0.4, too."""
    loaded = {"torch_xla": ("2.9.0", "/new/torch_xla/x.py"), "torchax": ("0.0.4", "/new/torchax/x")}
    run = SideRun(processes=[{"pid": 1, "ran": True, "modules": loaded}])
    modules = {"torch_xla", "torchax", "_XLAC"}
    shown = proof(run, "torch-xla", modules, "2.9.0", Path("/new"))
    assert shown is not None
    assert (shown.place, shown.processes, shown.of) == ("/new/torch_xla/x.py", 1, 1)
    with pytest.raises(BadInputError, match=r"loaded torch_xla 2\.9\.0 from .*, not 2\.8\.0"):
        proof(run, "torch-xla", modules, "2.8.0", Path("/new"))
    loaded["torchax"] = ("0.0.4", "/old/torchax/x")
    with pytest.raises(BadInputError, match=r"loaded torchax 0\.0\.4 from /old"):
        proof(run, "torch-xla", modules, "2.9.0", Path("/new"))


def test_an_older_candidate_that_needs_an_older_package(owner: Owner, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "wheels").symlink_to(owner.python.parents[2] / "wheels")
    python = environment(tmp_path / "own", "pytest==9.0.2", "drift==1", "tool==2")
    owner.write(test_one="import drift\ndef test_one(): pass")
    done = owner.survive("drift==0.5", "--", "test_one.py", python=python)
    assert done.returncode == 0, done.stderr
    assert "Moved along: tool 2 -> 1." in done.stdout


def test_no_pytest(owner: Owner, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "wheels").symlink_to(owner.python.parents[2] / "wheels")
    python = environment(tmp_path / "own", "drift==1")
    done = owner.survive("drift==2", "--", "test_one.py", python=python)
    assert done.returncode == 2
    assert f"no pytest among the packages of {python}" in done.stderr


def test_the_platform_that_computed(
    owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the processes' own word: a candidate that falls back to the CPU looks green."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "wheels").symlink_to(owner.python.parents[2] / "wheels")
    jax = f"jax=={metadata.version('jax')}"
    python = environment(tmp_path / "own", "drift==1", jax, *constraints.harness_needs())
    monkeypatch.setenv("PYTHONPATH", str(plugin_path(tmp_path)))  # for the virtual TPU
    test = "import drift, jax\ndef test_sum(): assert jax.numpy.ones(3).sum() == 3"
    falls_back = (
        "import drift, os\nif drift.__version__ == '2': os.environ['JAX_PLATFORMS'] = 'cpu'"
    )
    owner.write(test_sum=test, conftest=falls_back)
    within = ("run", "--topology", "2", "--", sys.executable, "-m", "harness")
    done = owner.survive("drift==2", "--", "test_sum.py", python=python, within=within)
    assert done.returncode == 2, done.stderr
    message = "the tests computed on tpu with what is installed, and on cpu with the candidate"
    assert message in " ".join(done.stderr.split())
    owner.write(conftest="")
    for _ in range(2):  # what a device computed is measured each time
        done = owner.survive("drift==2", "--", "test_sum.py", python=python, within=within)
        assert done.returncode == 0, done.stderr
        assert owner.answer["platforms"] == {"base": ["tpu"], "candidate": ["tpu"]}
        assert owner.answer["reused"] == {"base": "", "candidate": ""}
        assert "s with the candidate, on tpu." in " ".join(done.stdout.split())
