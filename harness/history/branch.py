"""A history on a branch of a git repository: fetched into a folder, and added to without a race.

A run's file never changes once it is written, unless it was damaged, so two recorders can't
conflict: the new tree has the files of both, in whatever order they push.
"""

from __future__ import annotations

import base64
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

from harness.errors import BadInputError
from harness.history.format import check_bytes
from harness.history.names import RunFile, SetAside
from harness.history.storage import Folder, listed
from harness.history.store import fault_of, put

_TRIES = 12
_TOKEN = "GITHUB_TOKEN"
_AUTHOR = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in (("NAME", "xla-harness"), ("EMAIL", "xla-harness@localhost"))
}


_AT_ONCE = 500  # blobs that are in memory at once


@dataclass(frozen=True)
class Fetched:
    """Result of a fetch: the number of runs in the folder, the branch's unusable files."""

    runs: int
    set_aside: tuple[SetAside, ...]


@dataclass(frozen=True)
class Pushed:
    """Result of a push. ``set_aside`` are files of the folder that were not pushed."""

    new: tuple[str, ...]
    replaced: tuple[str, ...]  # the branch had them damaged
    set_aside: tuple[SetAside, ...]


class Branch:
    """Branch of a remote, which is an address, a path or the name of a remote of this clone."""

    def __init__(self, remote: str, name: str) -> None:
        """Remember the branch; raise BadInputError for what git would take for an option."""
        if remote.startswith("-") or name.startswith("-"):
            raise BadInputError(f"{remote} {name}: expected a remote and a branch of git")
        self.remote, self.name = _resolved(remote), name

    def fetch(self, folder: Path) -> Fetched:
        """Put the branch's runs into the folder. No branch: none yet.

        What is good here stays as it is. A run that is damaged on the branch comes too, unless it
        is here: whatever reads the folder then names it.
        """
        # The branch has them: if a power cut takes them here, their checksums say so.
        files = Folder(folder, lasting=False)
        with tempfile.TemporaryDirectory(prefix="history-") as scratch:
            git = _Git(Path(scratch), self.remote)
            head = git.fetch(self.name)
            blobs = git.files(head) if head else {}
            theirs = listed(blobs)
            aside = list(theirs.set_aside)
            wanted = {
                place: blobs[place.name] for place in theirs.places if not _is_good(files, place)
            }
            for place, content in git.contents(wanted):
                try:
                    check_bytes(place, content)
                except ValueError as error:
                    aside.append(SetAside(place.name, str(error)))
                    files.add(place.name, content)
                else:
                    put(files, place, content)
        return Fetched(len(files.listed().places), tuple(aside))

    def push(self, folder: Path) -> Pushed:
        """Add the folder's runs to the branch, and replace those that are damaged there.

        A run that is damaged here is not pushed. One that is there with other bytes, as another
        version of a library writes them, stays as it is there.

        Raises BadInputError when the remote refuses.
        """
        files = Folder(folder)
        ours = files.listed()
        faults = {place: fault_of(files, place) for place in ours.places}
        aside = [*ours.set_aside, *filter(None, faults.values())]
        good = [place for place, fault in faults.items() if not fault]
        with tempfile.TemporaryDirectory(prefix="history-") as scratch:
            git = _Git(Path(scratch), self.remote)
            blobs = git.blobs(folder, good)
            for number in range(_TRIES):
                head = git.fetch(self.name)
                there = git.files(head) if head else {}
                new = {place for place in good if place.name not in there}
                damaged = {
                    place
                    for place, content in git.contents(_others(blobs, there))
                    if not _is_whole(place, content)
                }
                if not new | damaged:
                    return Pushed((), (), tuple(aside))
                git.blobs(folder, new | damaged, write=True)
                commit = git.commit(head, {each: blobs[each] for each in sorted(new | damaged)})
                refusal = git.push(commit, self.name)
                if not refusal:
                    return Pushed(_names(new), _names(damaged), tuple(aside))
                time.sleep(random.uniform(0, 0.2 * (number + 1)))  # noqa: S311 - no secret
        raise BadInputError(f"{self.remote} {self.name}: refused {_TRIES} times: {refusal}")


def _is_good(files: Folder, place: RunFile) -> bool:
    return files.has(place.name) and not fault_of(files, place)


def _is_whole(place: RunFile, content: bytes) -> bool:
    try:
        check_bytes(place, content)
    except ValueError:
        return False
    return True


def _others(blobs: Mapping[RunFile, str], there: Mapping[str, str]) -> dict[RunFile, str]:
    """Return the branch's blobs of files that have other bytes here."""
    same = ((place, there.get(place.name, blob), blob) for place, blob in blobs.items())
    return {place: local for place, local, blob in same if local != blob}


def _names(places: Iterable[RunFile]) -> tuple[str, ...]:
    return tuple(sorted(place.name for place in places))


class _Git:
    """A bare repository of its own, so that no clone's settings, index or hooks have a say."""

    def __init__(self, folder: Path, remote: str) -> None:
        self._folder, self._remote = folder, remote
        self.run("init", "--quiet", "--bare", ".")

    def fetch(self, branch: str) -> str:
        """Fetch the branch and return its commit; "" if the remote has none of that name."""
        reference = f"refs/heads/{branch}"
        if not self.run("ls-remote", "--", self._remote, reference):
            return ""
        self.run("fetch", "--quiet", "--depth=1", "--", self._remote, reference)
        return self.run("rev-parse", "FETCH_HEAD")

    def files(self, commit: str) -> dict[str, str]:
        """Return the blob of each file of the commit, by the file's name."""
        entries = self.run("ls-tree", "-r", "-z", commit).split("\0")
        rows = (line.partition("\t") for line in entries if line)
        kinds = ((name, facts.split(" ")) for facts, _, name in rows)
        return {name: blob for name, (_, kind, blob) in kinds if kind == "blob"}

    def contents(self, blobs: Mapping[RunFile, str]) -> Iterator[tuple[RunFile, bytes]]:
        """Yield the content of these blobs, read in batches."""
        rest = list(blobs.items())
        while rest:
            some, rest = rest[:_AT_ONCE], rest[_AT_ONCE:]
            given = "".join(f"{blob}\n" for _, blob in some)
            output = BytesIO(self._run("cat-file", "--batch", given=given))
            for place, _ in some:
                size = int(output.readline().split()[-1])
                yield place, output.read(size)
                output.read(1)  # the end of the line

    def blobs(
        self, folder: Path, places: Iterable[RunFile], *, write: bool = False
    ) -> dict[RunFile, str]:
        """Return git's names of these files' contents; ``write`` adds them to this repository."""
        places = list(places)
        given = "".join(f"{(folder / place.name).absolute()}\n" for place in places)
        options = ["--no-filters", "--stdin-paths", *(["-w"] if write else [])]
        digests = self.run("hash-object", *options, given=given).split() if places else []
        return dict(zip(places, digests, strict=True))

    def commit(self, head: str, new: Mapping[RunFile, str]) -> str:
        """Return a new commit on ``head`` in which these files are added or replaced."""
        self.run("read-tree", head or "--empty")
        lines = "".join(f"100644 {blob}\t{place.name}\0" for place, blob in new.items())
        self.run("update-index", "-z", "--index-info", given=lines)
        parents = ["-p", head] if head else []
        return self.run("commit-tree", self.run("write-tree"), *parents, "-m", _message(new))

    def push(self, commit: str, branch: str) -> str:
        """Push the commit; return why the remote rejected it, or "" on success."""
        target = f"{commit}:refs/heads/{branch}"
        done = self._start("push", "--quiet", "--", self._remote, target)
        return "" if done.returncode == 0 else _text(done.stderr) or "git push failed"

    def run(self, *arguments: str, given: str = "") -> str:
        return _text(self._run(*arguments, given=given))

    def _run(self, *arguments: str, given: str = "") -> bytes:
        done = self._start(*arguments, given=given)
        if done.returncode:
            raise BadInputError(f"{self._remote}: git {arguments[0]}: {_text(done.stderr)}")
        return done.stdout

    def _start(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[bytes]:
        own = {"GIT_DIR": str(self._folder), "GIT_TERMINAL_PROMPT": "0", **_AUTHOR}
        try:
            return subprocess.run(
                ["git", *arguments],  # noqa: S607 - the one that PATH finds
                cwd=self._folder,
                input=os.fsencode(given),
                capture_output=True,
                check=False,
                env={**os.environ, **own, **_credentials(self._remote)},
            )
        except OSError as error:
            raise BadInputError(f"git: {error}") from error


def _text(output: bytes) -> str:
    return os.fsdecode(output).strip("\n")


def _message(new: Mapping[RunFile, str]) -> str:
    return f"Add {len(new)} runs, {min(new).name} first"


def _credentials(remote: str) -> dict[str, str]:
    """GitHub's token, for its own server only, and by the environment: an argument is public."""
    token, server = os.environ.get(_TOKEN, ""), os.environ.get("GITHUB_SERVER_URL", "")
    if not token or not server or urlsplit(remote)[:2] != urlsplit(server)[:2]:
        return {}
    basic = base64.b64encode(f"x-access-token:{token}".encode()).decode()
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"http.{server}/.extraheader",
        "GIT_CONFIG_VALUE_0": f"AUTHORIZATION: basic {basic}",
    }


def _resolved(remote: str) -> str:
    """Return the address of a remote that this clone knows by name, or an absolute path."""
    command = ["git", "remote", "get-url", "--", remote]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BadInputError(f"git: {error}") from error
    address = done.stdout.strip() if done.returncode == 0 else remote
    return str(Path(address).absolute()) if Path(address).exists() else address
