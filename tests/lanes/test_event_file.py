"""The log of a case's events, as its reader and its writers see it."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.lanes import events
from harness.lanes.event_file import FOLDER_VARIABLE, EventFile
from harness.lanes.events import EventLog

WRITES = "from harness.lanes import events; events.write('plant', {})"


def write(log: EventFile, code: str = WRITES) -> None:
    environment = {**os.environ, **log.environment}
    subprocess.run([sys.executable, "-c", code], env=environment, check=False, capture_output=True)


def test_other_processes_write_and_nobody_cuts_it() -> None:
    log = EventFile()
    write(log)
    path = Path(log.environment[events.VARIABLE])
    with pytest.raises(OSError, match="not permitted"):
        path.open("wb")
    write(log)
    assert [event.kind for event in log.read().all] == ["plant"] * 2
    assert log.read().damage == ""
    log.close()
    assert not path.exists()


def test_what_could_not_be_written_is_known() -> None:
    log = EventFile()
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9))\n"
    write(log, limit + WRITES)
    assert log.read().all == ()
    assert log.read().damage == "an event could not be written: File too large"
    log.close()


def test_a_file_stays_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    log = EventFile()
    write(log)
    assert len(log.read().all) == 1
    log.close()
    (file,) = tmp_path.iterdir()
    assert file.read_text().count('"plant"') == 1


def test_a_file_that_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    log = EventFile()
    count = log.environment[events.WRITTEN_VARIABLE]
    with Path(count).open("r+b") as file, mmap.mmap(file.fileno(), events.LEDGER.size) as ledger:
        inode, _, error = events.LEDGER.unpack(ledger[:])
        ledger[:] = events.LEDGER.pack(inode, 50, error)  # as the plugin counts
    assert log.read().damage == "it was cut: 50 bytes were written, 0 are there"
    log.close()


def test_without_room_it_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, "/nowhere")
    log = EventFile()
    write(log)
    assert len(log.read().all) == 1
    log.close()


def test_closed_by_somebody_else() -> None:
    log = EventFile()
    os.close(int(Path(log.environment[events.VARIABLE]).name))
    assert log.read().damage == "it was closed"
    log.close()


@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "nothing"])
def test_what_is_no_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "events"
    log = EventLog(path)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
    assert log.read().all == ()
    assert bool(log.read().damage) == (kind != "nothing")
