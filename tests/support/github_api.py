"""GitHub's REST API for issues on this machine: pages, limits, refusals, and what was asked."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MOST_BODY = 65_536
MOST_TITLE = 256


@dataclass
class GitHub:
    """One repository. ``refusals`` are status and headers of the next answers."""

    repository: str
    address: str = ""
    labels: set[str] = field(default_factory=set)
    issues: list[dict[str, Any]] = field(default_factory=list)
    comments: list[tuple[int, str]] = field(default_factory=list)  # the index from 1 is the id
    persons: set[int] = field(default_factory=set)  # ids of comments that no workflow wrote
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    refusals: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    refused: tuple[str, ...] = ("GET", "POST", "PATCH")  # methods
    page_size: int = 100
    raw: tuple[bytes, dict[str, str]] | None = None  # an answer to every list, as it is
    elsewhere: str = ""  # where the next page is said to be, by a broken server

    def writes(self) -> list[tuple[str, str, Any]]:
        """The requests that change something."""
        return [request for request in self.requests if request[0] != "GET"]

    def add(self, title: str, body: str, *labels: str, state: str = "open") -> dict[str, Any]:
        issue = {"number": len(self.issues) + 1, "title": title, "body": body, "state": state}
        issue["labels"] = [{"name": label} for label in labels]
        self.issues.append(issue)
        return issue


@contextmanager
def serve(repository: str = "owner/xla-harness") -> Iterator[GitHub]:
    """A server for one repository, on a free port of this machine."""
    github = GitHub(repository)

    class Handler(_Handler):
        state = github

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    github.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield github
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    state: GitHub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._handle("GET")

    def do_POST(self) -> None:
        self._handle("POST")

    def do_PATCH(self) -> None:
        self._handle("PATCH")

    def _handle(self, method: str) -> None:
        size = int(self.headers.get("Content-Length", 0))
        data: Any = json.loads(self.rfile.read(size)) if size else None
        self.state.requests.append((method, self.path, data))
        self.state.tokens.add(self.headers.get("Authorization", ""))
        if self.state.refusals and method in self.state.refused:
            status, headers = self.state.refusals.pop(0)
            self._answer(status, {"message": "refused"}, headers)
            return
        url = urllib.parse.urlsplit(self.path)
        base = f"/repos/{self.state.repository}"
        if not url.path.startswith(f"{base}/"):
            self._answer(404, {"message": "Not Found"})
            return
        parts = url.path.removeprefix(f"{base}/").split("/")
        query = dict(urllib.parse.parse_qsl(url.query))
        match (method, *parts):
            case ("GET", "issues"):
                self._list(query)
            case ("POST", "labels"):
                self._label(data["name"])
            case ("POST", "issues"):
                self._create(data)
            case ("PATCH", "issues", number):
                self._change(int(number), data)
            case (_, "issues", *_, "comments") | (_, "issues", "comments", _):
                self._comment(method, parts, query, data)
            case _:
                self._answer(404, {"message": "Not Found"})

    def _raw(self, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        here = f"{self.state.address}{self.path}"
        for name, text in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, text.replace("ADDRESS", here))
        self.end_headers()
        self.wfile.write(body)

    def _list(self, query: dict[str, str]) -> None:
        if self.state.raw is not None:
            self._raw(*self.state.raw)
            return
        wanted = set(filter(None, query.get("labels", "").split(",")))
        listed = [
            issue
            for issue in reversed(self.state.issues)
            if query.get("state", "open") in ("all", issue["state"])
            and wanted <= {label["name"] for label in issue["labels"]}
        ]
        self._page(f"/repos/{self.state.repository}/issues", query, listed)

    def _page(self, path: str, query: dict[str, str], listed: list[dict[str, Any]]) -> None:
        size = min(int(query.get("per_page", 30)), self.state.page_size)
        page = int(query.get("page", 1))
        headers = {}
        if page * size < len(listed):
            following = urllib.parse.urlencode({**query, "page": page + 1})
            host = self.state.elsewhere or self.state.address
            headers["Link"] = f'<{host}{path}?{following}>; rel="next", <{host}{path}>; rel="last"'
        self._answer(200, listed[(page - 1) * size : page * size], headers)

    def _comment(self, method: str, parts: list[str], query: dict[str, str], data: Any) -> None:
        comments, persons = self.state.comments, self.state.persons
        match (method, *parts[1:]):
            case ("GET", number, "comments"):
                listed = [
                    {"id": i, "body": body, "user": {"type": "User" if i in persons else "Bot"}}
                    for i, (issue, body) in enumerate(comments, 1)
                    if issue == int(number)
                ]
                self._page(f"/repos/{self.state.repository}/{'/'.join(parts)}", query, listed)
            case ("POST", number, "comments") if self._valid({"title": "none", **data}):
                comments.append((int(number), data["body"]))
                self._answer(201, {"id": len(comments)})
            case ("PATCH", "comments", number) if self._valid({"title": "none", **data}):
                comments[int(number) - 1] = (comments[int(number) - 1][0], data["body"])
                self._answer(200, {"id": int(number)})

    def _label(self, name: str) -> None:
        known = name in self.state.labels
        self.state.labels.add(name)
        self._answer(422 if known else 201, {"message": "already_exists"} if known else {})

    def _create(self, data: dict[str, Any]) -> None:
        if not self._valid(data):
            return
        issue = self.state.add(data["title"], data.get("body", ""), *data.get("labels", []))
        self._answer(201, issue)

    def _change(self, number: int, data: dict[str, Any]) -> None:
        if not 0 < number <= len(self.state.issues):
            self._answer(404, {"message": "Not Found"})
        elif self._valid({"title": "as it is", **data}):
            self.state.issues[number - 1].update(data)
            self._answer(200, self.state.issues[number - 1])

    def _valid(self, data: dict[str, Any]) -> bool:
        good = 0 < len(data["title"]) <= MOST_TITLE and len(data.get("body", "")) <= MOST_BODY
        if not good:
            self._answer(422, {"message": "Validation Failed"})
        return good

    def _answer(self, status: int, data: object, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
