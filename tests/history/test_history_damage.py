"""A history never lies: whatever happens to its files, an answer is right or says what it lacks."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support import junit_text
from support.github_api import GitHub, serve
from support.junit_text import case

from harness import cli
from harness.errors import BadInputError
from harness.history.format import SCHEMA, check_bytes, with_checksum
from harness.history.names import place_of, run_name, started
from harness.history.run import Run
from harness.history.store import History
from harness.junit.properties import LOST, VERSIONS
from harness.junit.result import Result
from harness.model.outcome import Kind
from harness.verdicts.nightly import judge
from harness.verdicts.regressions import state
from harness.verdicts.words import Verdict

TIME = "2026-11-{day:02}T02:30:00+00:00"
NOW = datetime.now(UTC)
FLIPS = 60  # that go the whole way through `verdict`; each bit goes through the checksum


def _report(path: Path, day: int, outcome: str = "passed", time: str = "") -> Path:
    """A report of ours with two cases, one of which comes out as said."""
    failure = {"failure": "E: sums differ"} if outcome == "failed" else {}
    cases = (case("a"), case("b", outcome, **failure))
    when = time or TIME.format(day=day)
    return junit_text.report(path, *cases, time=when, stack="2.9.0", torch_xla="2.9.0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A history of three nights; in the last one case b regressed."""
    for day, outcome in ((10, "passed"), (11, "passed"), (12, "failed")):
        report = _report(tmp_path / f"{day}.xml", day, outcome)
        assert cli.main(["record", str(report), "--history", str(tmp_path / "history")]) == 0
    return tmp_path / "history"


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


def _write(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def _verdict(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main(["verdict", "latest", "--history", str(folder)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# Bits


def test_no_flipped_bit_passes_the_checksum(folder: Path) -> None:
    """Each bit of a file, one at a time."""
    path = _files(folder)[-1]
    place = place_of(path.relative_to(folder).as_posix())
    content = bytearray(path.read_bytes())
    check_bytes(place, bytes(content))
    for at in range(len(content)):
        for bit in range(8):
            content[at] ^= 1 << bit
            with pytest.raises(ValueError):
                check_bytes(place, bytes(content))
            content[at] ^= 1 << bit


@pytest.mark.long
def test_a_flipped_bit_never_changes_a_verdict_unsaid(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(6)
    before = _verdict(folder, capsys)
    assert (before[0], before[2]) == (1, "")
    for _ in range(FLIPS):
        path = chance.choice(_files(folder)[1:])
        whole = path.read_bytes()
        content = bytearray(whole)
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        _write(path, bytes(content))
        after = _verdict(folder, capsys)
        assert path.name in after[2], "nobody said that a file was damaged"
        _write(path, whole)
    assert _verdict(folder, capsys) == before


def test_the_run_in_question_is_damaged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No older run is judged in its place."""
    path = _files(folder)[-1]
    _write(path, path.read_bytes()[:-1])
    code, out, err = _verdict(folder, capsys)
    assert (code, out) == (2, "")
    assert f"set aside: {path.relative_to(folder)}: damaged" in err
    assert "record it again, or name another run" in err


def test_values_that_no_recorder_writes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file with a right checksum whose writer was wrong: it alone does not count."""
    path = _files(folder)[0]
    place = place_of(path.relative_to(folder).as_posix())
    table = pq.ParquetFile(path).read().replace_schema_metadata(SCHEMA.metadata)
    for name, value in (("outcome", "qassed"), ("run", "20261110T023000_000000Z-0000002-0")):
        column = [value] * table.num_rows
        index = table.schema.get_field_index(name)
        changed = table.set_column(index, SCHEMA.field(name), [column])
        _write(path, with_checksum(changed, place))
        code, _, err = _verdict(folder, capsys)
        assert code == 1
        assert f"set aside: {place.name}: column '{name}': expected " in err
    # Not even columns that are others spoil the answer from the rest.
    _write(path, b"")
    other = replace(place, run=place.run.replace("Z-0", "Z-1"))
    pq.write_table(table.select(["run"]), tmp_path / "other.parquet")
    (folder / other.name).write_bytes((tmp_path / "other.parquet").read_bytes())
    assert _verdict(folder, capsys)[0] == 1


def test_a_run_in_the_folder_of_another_stack_or_date(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy forges nothing there, and does not get into the way of the original."""
    before = _verdict(folder, capsys)
    path = _files(folder)[-1]
    other_stack = path.parent.parent / "stack=2.8.0" / path.name
    other_date = folder / "date=2026-11-13" / "stack=2.9.0" / path.name
    for target in (other_stack, other_date):
        target.parent.mkdir(parents=True)
        shutil.copy(path, target)
    code, out, err = _verdict(folder, capsys)
    assert (code, out) == before[:2]
    for target in (other_stack, other_date):
        assert f"set aside: {target.relative_to(folder)}: " in err


# The baseline


def _flipped(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    _write(path, bytes(content))


def _loop(path: Path, target: str = "") -> None:
    path.unlink()
    path.symlink_to(target or path.name)


def _folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _old_name(path: Path) -> None:
    path.rename(path.with_name("baseline.parquet"))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: _write(path, path.read_bytes()[:-100]),
    "empty": lambda path: _write(path, b""),
    "of another kind": lambda path: _write(path, b"<testsuite/>"),
    "of another run": lambda path: _write(path, _files(path.parents[2])[0].read_bytes()),
    "link to itself": _loop,
    "link to nothing": lambda path: _loop(path, "nowhere"),
    "folder": _folder_instead,
    "renamed": _old_name,
}


def _says_nothing_good(answer: tuple[int, str, str], name: str) -> None:
    code, out, err = answer
    assert code == 3
    assert "Nothing regressed" not in out
    assert "Can't tell: date=2026-11-11/stack=2.9.0/" in " ".join(out.split())
    assert f"set aside: date=2026-11-11/stack=2.9.0/{name}" in err


@pytest.mark.long
def test_a_flipped_bit_of_the_only_baseline(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it nothing shows that the case worked before."""
    chance = random.Random(4)
    _files(folder)[0].unlink()
    path = _files(folder)[0]
    whole = path.read_bytes()
    assert "Refused: 1 regressed." in _verdict(folder, capsys)[1]
    for _ in range(FLIPS):
        _flipped(path, chance)
        _says_nothing_good(_verdict(folder, capsys), path.name)
        _write(path, whole)


@pytest.mark.parametrize("damage", DAMAGE)
def test_any_damage_of_the_only_baseline(
    folder: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _files(folder)[1]
    DAMAGE[damage](path)
    _files(folder)[0].unlink()
    _says_nothing_good(_verdict(folder, capsys), "baseline" if damage == "renamed" else path.name)
    assert cli.main(["ci", "query", "SELECT 1", "--history", str(folder)]) == 3


def test_damage_that_decides_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a later run measured every case, the verdict stands, and the file is named."""
    again = _report(folder.parent / "13.xml", 13, "failed")
    assert cli.main(["record", str(again), "--history", str(folder)]) == 0
    path = _files(folder)[0]
    _write(path, path.read_bytes()[:-1])
    code, out, err = _verdict(folder, capsys)
    assert (code, "Nothing regressed, nothing is missing." in out) == (3, True)
    assert path.name in err
    # Of a broken case nobody knows whether it ever worked, if only the damaged file had it.
    broken = _report(folder.parent / "14.xml", 14, "failed")
    text = broken.read_text(encoding="utf-8").replace("a.py::b", "a.py::c")
    broken.write_text(
        text.replace('"b"', '"c"').replace("</testsuite>", case("b") + "</testsuite>")
    )
    assert cli.main(["record", str(broken), "--history", str(folder)]) == 0
    code, out, _ = _verdict(folder, capsys)
    assert (code, "Can't tell:" in out, "new failure" in out) == (3, True, True)


# A damaged run again


@pytest.mark.parametrize("content", [b"", b"PAR1", None], ids=["empty", "cut", "flipped"])
def test_a_damaged_run_is_recorded_again(
    folder: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    before, path = _verdict(folder, capsys), _files(folder)[-1]
    whole = path.read_bytes()
    _write(path, whole[:99] + bytes([whole[99] ^ 1]) + whole[100:] if content is None else content)
    assert _verdict(folder, capsys)[0] == 2
    again = ["record", str(folder.parent / "12.xml"), "--history", str(folder)]
    for word in ("replaced", "known"):
        assert cli.main(again) == 0
        assert f"  {word}  " in capsys.readouterr().out.replace("known     ", "known  ")
        assert _verdict(folder, capsys) == before
    assert path.read_bytes() == whole
    assert len(_files(folder)) == 3


# Order


def _run(digest: str, answers: int, outcome: Kind = Kind.PASSED, second: int = 0) -> Run:
    """A run of four cases, of which some were lost with their cell."""

    def case(number: int) -> Result:
        lost = number >= answers
        return Result(
            id=f"a.py::{number}", area="x", lane="cpu", topology="4",
            outcome=Kind.SKIPPED if lost else outcome, expected=False, duration=1.0,
            message="", signature="" if outcome is Kind.PASSED else "E", layer="", upstream=(),
            properties={LOST: "cell"} if lost else {},
        )  # fmt: skip

    time = datetime(2026, 11, 12, 2, 30, second, tzinfo=UTC)
    cases = tuple(case(number) for number in range(4))
    return Run(time, "2.9.0", "", "", dict.fromkeys(VERSIONS, ""), cases, digest * 64)


@pytest.mark.parametrize("digest", "05af")
def test_a_night_with_its_late_cells_is_the_later_run(tmp_path: Path, digest: str) -> None:
    """Both have one start; the digests' order must not matter, nor which is recorded first."""
    before = replace(_run("1", 4), time=datetime(2026, 11, 11, tzinfo=UTC))
    part, whole, after = _run("9", 3), _run(digest, 4), _run("3", 4, Kind.FAILED, second=1)
    for order in (1, -1):
        history = History(tmp_path / str(order))
        history.add([before, *[part, whole][::order]])
        connection = history.connect()
        assert history.find("latest")[0] == whole.name
        assert state(connection).regressions == ()
        assert len(judge(connection, [part.name]).of(Verdict.MISSING)) == 1
        assert judge(connection, [whole.name]).of(Verdict.MISSING) == ()
        history.add([after])
        (regression,) = state(history.connect()).regressions
        assert {each.before for each in regression.members} == {whole.name}


def test_names_sort_by_time() -> None:
    time = datetime(2026, 11, 12, 2, 30, tzinfo=UTC)
    names = [
        run_name(time, 0, "f" * 64),
        run_name(time, 9, "f" * 64),
        run_name(time, 1662, "0" * 64),
        run_name(time, 10_000, "0" * 64),
        run_name(time.replace(microsecond=1), 0, "0" * 64),
    ]
    assert names == sorted(names)
    assert [started(name) for name in names] == sorted(started(name) for name in names)


# Dates that can't be

NEVER = [
    "0001-01-01T00:00:00",
    "0001-01-01T00:00:00+03:00",
    "1970-01-01T00:00:00Z",
    "2014-12-31T23:59:59Z",
    "2099-01-01T00:00:00Z",
    f"{NOW + timedelta(days=2):%Y-%m-%dT%H:%M:%SZ}",
]


@pytest.mark.parametrize("time", NEVER, ids=range(len(NEVER)))
def test_a_time_that_cannot_be_is_refused(
    folder: Path, tmp_path: Path, time: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _files(folder)
    dated, plain = _report(tmp_path / "dated.xml", 1, time=time), tmp_path / "12.xml"
    assert cli.main(["record", str(dated), "--history", str(folder)]) == 2
    assert f"{dated}: attribute 'timestamp': expected " in capsys.readouterr().err
    assert cli.main(["record", str(plain), "--time", time, "--history", str(folder)]) == 2
    assert capsys.readouterr().err.startswith("xla-harness: --time: expected ")
    night = ["ci", "collect", str(tmp_path), "--night", "[]", "--lanes", "cpu", "--time", time]
    assert cli.main([*night, "--history", str(folder)]) == 2
    assert capsys.readouterr().err.startswith("xla-harness: --time: expected ")
    assert _files(folder) == before


def test_a_program_cannot_add_one_either(tmp_path: Path) -> None:
    far = replace(_run("1", 4), time=datetime(2099, 1, 1, tzinfo=UTC))
    with pytest.raises(BadInputError, match="expected a time from 2015-01-01"):
        History(tmp_path).add([_run("2", 4), far])
    assert _files(tmp_path) == []


def test_a_run_of_the_future_hides_no_other(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, path = _verdict(folder, capsys), _files(folder)[0]
    far = folder / "date=2099-01-01/stack=2.9.0" / "20990101T000000_000000Z-0000002-000000000000"
    far.parent.mkdir(parents=True)
    shutil.copy(path, far.with_suffix(".parquet"))
    code, out, err = _verdict(folder, capsys)
    assert (code, out) == before[:2]
    assert "date=2099-01-01" in err
    assert "expected a time from 2015-01-01 to a day from now" in err


# Names that can't be

BAD_NAMES = [
    b"date=2026-13-45/stack=2.9.0/20261345T000000Z-000000000000.parquet",
    b"date=/stack=/x.parquet",
    b"date=2026-11-12/stack=__HIVE_DEFAULT_PARTITION__/20261112T000000Z-000000000000.parquet",
    b"date=__HIVE_DEFAULT_PARTITION__/stack=2.9.0/20261112T000000Z-000000000000.parquet",
    b"date=2026-11-12/stack=\xff\xfe/20261112T000000Z-000000000000.parquet",
    b"date=2026-11-12/stack=%FF/20261112T000000Z-000000000000.parquet",
    b"date=2026-11-12/stack=2.9.0/\xc3(.parquet",
    b"date=2026-11-12/stack=%1B[2J/20261112T000000Z-000000000000.parquet",
    b"date=2026-11-12/stack=2.9.0/<script>alert(1)</script>.parquet",
    b"elsewhere.parquet",
]


@pytest.fixture
def github() -> Iterator[GitHub]:
    with serve() as server:
        yield server


def _commands(folder: Path) -> dict[str, tuple[list[str], set[int]]]:
    """Every command that reads a history, and how it may end."""
    out, history = folder.parent / "out", ["--history", str(folder)]
    report = str(folder.parent / "12.xml")
    night = '[{"stack": "2.9.0", "wheels": ""}]'
    collect = ["ci", "collect", str(out), "--night", night, "--lanes", "cpu"]
    to = ["--remote", str(folder.parent / "remote.git")]
    qualify = ["--out", str(out / "q"), "--markdown", str(out / "m")]
    return {
        "verdict": (["verdict", "latest", *history], {1}),
        "query": (["ci", "query", "SELECT count(*) FROM cases", *history], {3}),
        "dashboard": (["dashboard", "--out", str(out / "site"), *history], {3}),
        "issues": (
            ["ci", "issues", "sync", "--repo", "owner/xla-harness", "--dry-run", *history],
            {0},
        ),
        "qualify": (["qualify", "latest", report, *qualify, *history], {0}),
        "push": (["ci", "history", "push", str(folder), *to], {3}),
        "collect": ([*collect, "--time", "2026-11-13T02:30:00Z", *history], {0, 3}),
    }


def test_each_command_names_what_it_leaves_out(
    folder: Path,
    github: GitHub,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names that can't be, and a damaged file: each costs itself, and no command ends early."""
    os.system(f"git init --quiet --bare {folder.parent}/remote.git")
    monkeypatch.setenv("GITHUB_API_URL", github.address)
    monkeypatch.setenv("GITHUB_TOKEN", "t")
    _write(_files(folder)[0], b"")
    for name in BAD_NAMES:
        path = os.path.join(os.fsencode(folder), name)  # noqa: PTH118 - bytes
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        with open(path, "wb"):  # noqa: PTH123
            pass
    for line, codes in _commands(folder).values():
        code = cli.main(line)
        captured = capsys.readouterr()
        assert code in codes, captured.err
        left_out = [text for text in captured.err.splitlines() if text.startswith("set aside: ")]
        assert len(left_out) == len(BAD_NAMES) + 1, captured.err
        assert all(text.isprintable() for text in left_out)
    page = (folder.parent / "out/site/index.html").read_text()
    assert "11 files of the history left out" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;.parquet</code>: its name" in page
    assert "<script>alert" not in page


def test_a_stack_that_no_engine_can_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["record", str(_report(tmp_path / "x.xml", 1)), "--history", str(tmp_path / "h")]
    assert cli.main([*line, "--stack", "__HIVE_DEFAULT_PARTITION__"]) == 2
    assert "and not __HIVE_DEFAULT_PARTITION__" in capsys.readouterr().err
    assert not (tmp_path / "h").exists()


def test_a_folder_that_cannot_be_listed_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even root may be kept from listing a folder, so the system call is ours."""
    scandir, hidden = os.scandir, {"date=2026-11-10"}

    def refuse(path: str) -> object:
        if Path(path).name in hidden:
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    code, _, err = _verdict(folder, capsys)
    assert (code, err) == (1, "set aside: date=2026-11-10: can't be listed: Permission denied\n")
    hidden.add(folder.name)
    code, out, err = _verdict(folder, capsys)
    assert (code, out, "history: can't be listed: Permission denied" in err) == (2, "", True)


def test_a_pipe_is_not_waited_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _files(folder)[0]
    path.unlink()
    os.mkfifo(path)
    code, _, err = _verdict(folder, capsys)
    assert (code, f"set aside: {path.relative_to(folder)}: damaged" in err) == (1, True)


def test_nothing_but_files_that_cannot_be(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def only(name: Callable[[Path], Path]) -> None:
        for path in _files(folder):
            path.rename(name(path))

    only(lambda path: path.with_name(f"x{path.name}"))
    assert cli.main(["ci", "query", "SELECT 1", "--history", str(folder)]) == 2
    assert "; set aside: date=2026-11-10/stack=2.9.0/x2026" in capsys.readouterr().err
