"""The issues of a repository that the harness keeps."""

from __future__ import annotations

from typing import Any

from harness.errors import BadInputError
from harness.github_api import GitHubRepository
from harness.issues.actions import Action, Issue

LABEL = "xla-regression"


class Issues:
    """The issues of one repository that have our label."""

    def __init__(self, repository: str) -> None:
        """Raise BadInputError for what is no repository."""
        self._github = GitHubRepository(repository)
        self._path = f"{self._github.path}/issues"

    def all(self) -> list[Issue]:
        """Open and closed, of every page; pull requests are none."""
        address = f"{self._path}?state=all&labels={LABEL}&per_page=100"
        entries = self._github.pages(address)
        return [_issue(address, data) for data in entries if not _is_pull_request(data)]

    def carry_out(self, action: Action) -> int:
        """Do it; the issue's number. An issue is written before it is commented on."""
        fields: dict[str, Any] = {"title": action.title, "body": action.body}
        fields = {name: text for name, text in fields.items() if text}
        if action.kind == "open":
            self._label()
            made = self._github.send("POST", self._path, {**fields, "labels": [LABEL]})
            return _issue(self._path, made).number
        if action.kind in ("close", "reopen"):
            fields["state"] = "closed" if action.kind == "close" else "open"
        self._github.send("PATCH", f"{self._path}/{action.number}", fields)
        if action.comment:
            address = f"{self._path}/{action.number}/comments"
            self._github.send("POST", address, {"body": action.comment})
        return action.number

    def _label(self) -> None:
        """Create the label by which the issues are found again, if it is missing."""
        label = {"name": LABEL, "color": "b60205", "description": "kept by xla-harness"}
        self._github.send("POST", f"{self._github.path}/labels", label, known=(422,))


def _issue(address: str, data: Any) -> Issue:
    """Return an issue from the API's data; raise BadInputError if it is none."""
    try:
        number, title, body = data["number"], data["title"], data["body"] or ""
        is_open = data["state"] == "open"
    except (KeyError, TypeError) as error:
        raise BadInputError(f"{address}: expected an issue, its answer has no {error}") from error
    if type(number) is not int or not isinstance(title, str) or not isinstance(body, str):
        raise BadInputError(f"{address}: expected an issue with a number, a title and a body")
    return Issue(number, is_open, title, body)


def _is_pull_request(data: Any) -> bool:
    return isinstance(data, dict) and "pull_request" in data
