"""A case may damage every file that it finds: it costs only itself, and the cause is named."""

from __future__ import annotations

import pytest
from support.project import Project

HOSTILE = """\
import fcntl, glob, json, shutil, stat, tempfile
import jax.numpy as jnp

LOG = lambda: Path(os.environ["XLA_HARNESS_EVENTS"])
pytestmark = [pytest.mark.lanes("virtual-tpu"), pytest.mark.topologies(1), pytest.mark.deadline(60)]

def use():
    assert jnp.ones(4).sum() == 4

def append(data):
    use()
    with LOG().open("ab") as file:
        file.write(data)

def replaced(make):
    "All that a search for files of ours finds."
    use()
    for found in [LOG(), *map(Path, glob.glob(tempfile.gettempdir() + "/xla-harness*"))]:
        try:
            shutil.rmtree(found) if found.is_dir() else found.unlink(missing_ok=True)
            make(found)
        except OSError:
            pass

def cut():
    use()
    with pytest.raises(PermissionError):
        LOG().open("wb")

def limited():
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    use()

def no_descriptor():
    use()
    numbers = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, numbers))
    use()

def descriptors():
    use()
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and stat.S_ISREG(os.fstat(int(name)).st_mode):
                os.pwrite(int(name), b"nonsense", 0)
                os.ftruncate(int(name), 0)
        except OSError:
            pass

ATTACKS = {
    "stray": lambda: append(b"nonsense\\n"),
    "binary": lambda: append(bytes(range(256)) + b"\\n"),
    "half": lambda: (append(b'{"event": "client", "pro'), use_again()),
    "no_event": lambda: append(b'{"kind": "client"}\\n'),
    "list": lambda: append(b"[[1]]\\n"),
    "deep": lambda: append(b"[" * 100_000 + b"\\n"),
    "types": lambda: append(json.dumps({"event": "client", "by": 1, "process": "x", "thread": [],
                                        "time": None, "guard": 3}).encode() + b"\\n"),
    "long": lambda: append(b"x" * (3 << 20) + b"\\n"),
    "large": lambda: (use(), os.truncate(LOG(), 4 << 30)),
    "limited": limited,
    "no_descriptor": no_descriptor,
    "cut": cut,
    "descriptors": descriptors,
    "removed": lambda: replaced(lambda path: None),
    "folders": lambda: replaced(os.mkdir),
    "pipes": lambda: replaced(os.mkfifo),
    "zeros": lambda: replaced(lambda path: os.symlink("/dev/zero", path)),
    "loops": lambda: replaced(lambda path: os.symlink(path, path)),
    "unreadable": lambda: replaced(lambda path: os.close(os.open(path, os.O_CREAT, 0))),
}

def use_again():
    assert jnp.ones((2, 3)).sum() == 6

@pytest.mark.parametrize("attack", ATTACKS)
class TestAttack:
    def test_a(self, attack):
        ATTACKS[attack]()

    def test_beside(self, attack):
        beside()

def beside():
    use()
    cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    cache.mkdir()
    assert list(cache.iterdir()) == []
"""
# How the failures begin. What is not here costs nothing: the log is not where it can be found.
CAUSES = {
    "stray": "line {} is no event: expected JSON",
    "binary": "line {} is no event: expected JSON",
    "half": "line {} is no event: expected JSON",
    "no_event": "line {} is no event: expected by, event, guard, process, thread, time",
    "list": "line {} is no event: expected an object",
    "deep": "line {} is no event: expected JSON",
    "types": "line {} is no event: wrong type of by, guard, process, thread, time",
    "long": "line {} is no event: expected JSON",
    "large": "line {} is no event: expected JSON",
    "limited": "an event could not be written: File too large",
    "no_descriptor": "an event could not be written: Too many open files",
}
DAMAGED = "the log of its events is damaged: "


@pytest.fixture(scope="module")
def attacks(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("attacks"))


def test_no_other_case_is_hit(attacks: Project) -> None:
    """Each attack is followed by the same case of all others, in a folder that was damaged."""
    attacks.write("test_inner.py", HOSTILE)
    ran = attacks.run(TMPDIR=str(attacks.path))
    names = {name: name.partition("virtual-tpu-1-")[2].rstrip("]") for name in ran.cases}
    assert ran.code == 1, ran.stdout + ran.stderr
    failures = {}
    for name, attack in names.items():
        if ran.properties(name)["outcome"] != "passed":
            assert name.startswith("test_a["), name
            failures[attack] = ran.properties(name)["failure"]
    assert len(names) == 2 * len(set(names.values()))
    assert failures.keys() == CAUSES.keys(), ran.stdout
    for attack, cause in CAUSES.items():
        begin, _, end = cause.partition("{}")
        assert failures[attack].startswith(DAMAGED + begin), failures[attack]
        assert end in failures[attack]
    left = [path for path in attacks.path.glob("xla-harness*") if path.is_dir()]
    assert all(not any(path.iterdir()) for path in left)
