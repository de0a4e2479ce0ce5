"""GitHub's REST API for issues: pages, limits, and errors in words."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from harness.errors import BadInputError
from harness.issues.plan import Action, Issue

LABEL = "xla-regression"
_REPOSITORY = re.compile(r"[\w-][\w.-]*/(?!\.\.?$)[\w.-]+")
_NEXT = re.compile(r'<([^>]+)>;\s*rel="next"')
_TIMEOUT = 30  # seconds
_TRIES = 5
_LONGEST_WAIT = 120  # seconds; a longer limit is said instead


class Issues:
    """The issues of one repository that bear our label."""

    def __init__(self, repository: str) -> None:
        """Address and token are a runner's, ``GITHUB_API_URL`` and ``GITHUB_TOKEN``.

        Raises BadInputError for what is no repository.
        """
        if not _REPOSITORY.fullmatch(repository):
            raise BadInputError(f"--repo {repository!r}: expected OWNER/NAME")
        self._base = os.environ.get("GITHUB_API_URL", "https://api.github.com").rstrip("/")
        self._token = os.environ.get("GITHUB_TOKEN", "")
        self._path = f"{self._base}/repos/{repository}"

    def all(self) -> list[Issue]:
        """Open and closed, of every page; pull requests are none."""
        return [
            Issue(data["number"], data["state"] == "open", data["title"], data["body"] or "")
            for data in self._pages(f"{self._path}/issues?state=all&labels={LABEL}&per_page=100")
            if "pull_request" not in data
        ]

    def carry_out(self, action: Action) -> int:
        """Do it; the issue's number. An issue is written before it is commented on."""
        fields: dict[str, Any] = {"title": action.title, "body": action.body}
        fields = {name: text for name, text in fields.items() if text}
        if action.kind == "open":
            self._label()
            made = self._send("POST", f"{self._path}/issues", {**fields, "labels": [LABEL]})
            return int(made["number"])
        if action.kind in ("close", "reopen"):
            fields["state"] = "closed" if action.kind == "close" else "open"
        self._send("PATCH", f"{self._path}/issues/{action.number}", fields)
        if action.comment:
            address = f"{self._path}/issues/{action.number}/comments"
            self._send("POST", address, {"body": action.comment})
        return action.number

    def _label(self) -> None:
        """The label, made if need be: with it the issues are found again."""
        said = {"name": LABEL, "color": "b60205", "description": "kept by xla-harness issues sync"}
        self._send("POST", f"{self._path}/labels", said, known=(422,))

    def _pages(self, address: str) -> Iterator[dict[str, Any]]:
        while address:
            entries, link = self._answer("GET", address, None)
            yield from entries
            match = _NEXT.search(link)
            address = match[1] if match else ""
            if address and urlsplit(address)[:2] != urlsplit(self._base)[:2]:
                raise BadInputError(f"{self._base}: its next page is elsewhere: {address}")

    def _send(
        self, method: str, address: str, data: Mapping[str, Any], known: tuple[int, ...] = ()
    ) -> Any:
        return self._answer(method, address, data, known)[0]

    def _answer(
        self,
        method: str,
        address: str,
        data: Mapping[str, Any] | None,
        known: tuple[int, ...] = (),
    ) -> tuple[Any, str]:
        """The answer and its Link. What was refused for its rate is tried again when it may be.

        A write that failed otherwise is not tried again: it may have been carried out.
        """
        for _ in range(_TRIES):
            try:
                with urllib.request.build_opener(_Stay()).open(
                    self._request(method, address, data), timeout=_TIMEOUT
                ) as answer:
                    return json.load(answer), answer.headers.get("Link", "")
            except urllib.error.HTTPError as error:
                if error.code in known:
                    return {}, ""
                wait = _wait(error)
                if wait is None or wait > _LONGEST_WAIT:
                    raise BadInputError(_said(method, address, error)) from error
                time.sleep(wait)
            except (OSError, ValueError) as error:
                raise BadInputError(f"{method} {address}: {error}") from error
        raise BadInputError(f"{method} {address}: refused {_TRIES} times for its rate")

    def _request(
        self, method: str, address: str, data: Mapping[str, Any] | None
    ) -> urllib.request.Request:
        headers = {
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
            "User-Agent": "xla-harness",
        }
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        body = None if data is None else json.dumps(data).encode()
        return urllib.request.Request(address, body, headers, method=method)  # noqa: S310 - GitHub's


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a write would become a read, and the token would go elsewhere."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _wait(error: urllib.error.HTTPError) -> float | None:
    """Seconds until a request that was refused for its rate may be made; None for other errors."""
    if error.code not in (403, 429):
        return None
    if (after := error.headers.get("Retry-After", "")).isdigit():
        return float(after)
    if error.headers.get("X-RateLimit-Remaining") == "0":
        reset = error.headers.get("X-RateLimit-Reset", "")
        return max(float(reset) - time.time(), 0) + 1 if reset.isdigit() else None
    return None


def _said(method: str, address: str, error: urllib.error.HTTPError) -> str:
    text = error.read(2000).decode("utf-8", "replace")
    return f"{method} {address}: {error.code} {error.reason}: {' '.join(text.split())}"
