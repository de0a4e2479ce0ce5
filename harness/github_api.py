"""GitHub's REST API for one repository: its pages, its rate limits, and readable errors."""

from __future__ import annotations

import http.client
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

_REPOSITORY = re.compile(r"[\w-][\w.-]*/(?!\.\.?$)[\w.-]+")
_NEXT = re.compile(r'<([^>]+)>;\s*rel="next"')
_TIMEOUT = 30  # seconds
_TRIES = 5
_LONGEST_WAIT = 120  # seconds; a longer wait is an error instead


class GitHubRepository:
    """One repository, and the requests about it. ``path`` is its address in the API."""

    def __init__(self, repository: str) -> None:
        """Address and token are a runner's, ``GITHUB_API_URL`` and ``GITHUB_TOKEN``.

        Raises BadInputError for what is no repository.
        """
        if not _REPOSITORY.fullmatch(repository):
            raise BadInputError(f"--repo {repository!r}: expected OWNER/NAME")
        self._base = os.environ.get("GITHUB_API_URL", "https://api.github.com").rstrip("/")
        self._token = os.environ.get("GITHUB_TOKEN", "").strip()
        if not (self._token.isascii() and f"x{self._token}".isprintable()):
            raise BadInputError("GITHUB_TOKEN: expected a token: letters, digits and signs")
        self.path = f"{self._base}/repos/{repository}"

    def pages(self, address: str) -> Iterator[Any]:
        """Yield the entries of a list, of every page. Raises BadInputError if it is none."""
        seen = set[str]()
        while address:
            seen.add(address)
            entries, link = self._answer("GET", address, None)
            if not isinstance(entries, list):
                raise BadInputError(f"GET {address}: expected a list")
            yield from entries
            match = _NEXT.search(link)
            address = match[1] if match else ""
            if address in seen or (address and _origin(address) != _origin(self._base)):
                raise BadInputError(f"{self._base}: its next page is elsewhere: {address}")

    def send(
        self, method: str, address: str, data: Mapping[str, Any], known: tuple[int, ...] = ()
    ) -> Any:
        """Return the answer to a write; {} if its status is an error's that the caller knows."""
        return self._answer(method, address, data, known)[0]

    def _answer(
        self,
        method: str,
        address: str,
        data: Mapping[str, Any] | None,
        known: tuple[int, ...] = (),
    ) -> tuple[Any, str]:
        """Return the answer and its Link header; repeat a request that the rate limit refused.

        A write that failed otherwise is not repeated: it may have been carried out.
        """
        for _ in range(_TRIES):
            try:
                with urllib.request.build_opener(_Stay()).open(
                    self._request(method, address, data), timeout=_TIMEOUT
                ) as answer:
                    return json.load(answer), answer.headers.get("Link", "")
            except urllib.error.HTTPError as error:
                wait = _wait(error)
                if wait is None and error.code in known:
                    return {}, ""
                if wait is None or wait > _LONGEST_WAIT:
                    raise BadInputError(_said(method, address, error)) from error
                time.sleep(wait)
            except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
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


def _origin(address: str) -> tuple[str, str]:
    """Scheme and host; "" for what is no address."""
    try:
        return urlsplit(address)[:2]
    except ValueError:
        return "", ""


def _wait(error: urllib.error.HTTPError) -> float | None:
    """Seconds until a request that was refused for its rate may be made; None for other errors."""
    if error.code not in (403, 429):
        return None
    if (after := error.headers.get("Retry-After", "")).isdecimal():
        return float(after)
    if error.headers.get("X-RateLimit-Remaining") == "0":
        reset = error.headers.get("X-RateLimit-Reset", "")
        return max(float(reset) - time.time(), 0) + 1 if reset.isdecimal() else None
    return None


def _said(method: str, address: str, error: urllib.error.HTTPError) -> str:
    try:
        text = error.read(2000).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):  # the status says enough
        text = ""
    return f"{method} {address}: {error.code} {error.reason}: {' '.join(text.split())}"
