"""A history on a branch of a git repository: fetched into a folder, and added to without a race.

A run's file never changes once it is written, so two recorders can't conflict: the files of both
are the new tree, whoever came first.
"""

from __future__ import annotations

import base64
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from harness.errors import BadInputError
from harness.results.history_files import Folder

_TRIES = 12
_TOKEN = "GITHUB_TOKEN"
_AUTHOR = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "xla-harness"), ("EMAIL", "xla-harness@localhost"))
}


class Branch:
    """One branch of a remote: an address or a path, or the name of a remote of this clone."""

    def __init__(self, remote: str, name: str) -> None:
        """Raises BadInputError for what git would take for an option."""
        if remote.startswith("-") or name.startswith("-"):
            raise BadInputError(f"{remote} {name}: expected a remote and a branch of git")
        self.remote, self.name = _resolved(remote), name

    def fetch(self, folder: Path) -> int:
        """Put the branch's runs into the folder; how many it has then. No branch: none yet."""
        with tempfile.TemporaryDirectory(prefix="history-") as scratch:
            git = _Git(Path(scratch), self.remote)
            head = git.fetch(self.name)
            if head:
                folder.mkdir(parents=True, exist_ok=True)
                git.run(f"--work-tree={folder.absolute()}", "checkout", "--force", head, "--", ".")
        return len(Folder(folder).names())

    def push(self, folder: Path) -> int:
        """Add the folder's runs to the branch; how many were new to it.

        Raises BadInputError when the remote refuses, or has another file of a run's name.
        """
        names = Folder(folder).names()
        with tempfile.TemporaryDirectory(prefix="history-") as scratch:
            git = _Git(Path(scratch), self.remote)
            blobs = {
                name: git.run("hash-object", "-w", "--", str((folder / name).absolute()))
                for name in names
            }
            for number in range(_TRIES):
                head = git.fetch(self.name)
                new = _new(blobs, git.files(head) if head else {}, self.name)
                if not new:
                    return 0
                said = git.push(git.commit(head, new), self.name)
                if not said:
                    return len(new)
                time.sleep(random.uniform(0, 0.2 * (number + 1)))  # noqa: S311 - no secret
        raise BadInputError(f"{self.remote} {self.name}: refused {_TRIES} times: {said}")


def _new(blobs: Mapping[str, str], there: Mapping[str, str], branch: str) -> dict[str, str]:
    for name, blob in blobs.items():
        if there.get(name, blob) != blob:
            raise BadInputError(f"{name}: expected what branch {branch} has, found other content")
    return {name: blob for name, blob in blobs.items() if name not in there}


class _Git:
    """A bare repository of its own, so that no clone's settings, index or hooks have a say."""

    def __init__(self, folder: Path, remote: str) -> None:
        self._folder, self._remote = folder, remote
        self.run("init", "--quiet", "--bare", ".")

    def fetch(self, branch: str) -> str:
        """The branch's commit, here from now on; "" if the remote has none of that name."""
        reference = f"refs/heads/{branch}"
        if not self.run("ls-remote", "--", self._remote, reference):
            return ""
        self.run("fetch", "--quiet", "--depth=1", "--", self._remote, reference)
        return self.run("rev-parse", "FETCH_HEAD")

    def files(self, commit: str) -> dict[str, str]:
        """Each file's blob."""
        listed = self.run("ls-tree", "-r", "-z", commit).split("\0")
        rows = (line.partition("\t") for line in listed if line)
        return {name: facts.split(" ")[2] for facts, _, name in rows}

    def commit(self, head: str, new: Mapping[str, str]) -> str:
        """A commit on ``head`` with these files more."""
        self.run("read-tree", head or "--empty")
        lines = "".join(f"100644 {blob}\t{name}\0" for name, blob in new.items())
        self.run("update-index", "-z", "--index-info", given=lines)
        parents = ["-p", head] if head else []
        return self.run("commit-tree", self.run("write-tree"), *parents, "-m", _message(new))

    def push(self, commit: str, branch: str) -> str:
        """Why the remote did not take it; "" if it did."""
        target = f"{commit}:refs/heads/{branch}"
        done = self._start("push", "--quiet", "--", self._remote, target)
        return "" if done.returncode == 0 else done.stderr.strip()

    def run(self, *arguments: str, given: str = "") -> str:
        done = self._start(*arguments, given=given)
        if done.returncode:
            raise BadInputError(f"{self._remote}: git {arguments[0]}: {done.stderr.strip()}")
        return done.stdout.rstrip("\n")

    def _start(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        own = {"GIT_DIR": str(self._folder), "GIT_TERMINAL_PROMPT": "0", **_AUTHOR}
        try:
            return subprocess.run(
                ["git", *arguments],  # noqa: S607 - the one that PATH finds
                cwd=self._folder,
                input=given,
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, **own, **_credentials(self._remote)},
            )
        except OSError as error:
            raise BadInputError(f"git: {error}") from error


def _message(new: Mapping[str, str]) -> str:
    return f"Add {len(new)} runs, {min(new)} first"


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
    """The address of a remote that this clone knows by name; a relative path from here."""
    command = ["git", "remote", "get-url", "--", remote]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BadInputError(f"git: {error}") from error
    found = done.stdout.strip() if done.returncode == 0 else remote
    return str(Path(found).absolute()) if Path(found).exists() else found
