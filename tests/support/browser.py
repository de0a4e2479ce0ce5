"""Debian's Chromium, driven by Playwright, and a server of the site on this machine only."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
# Bytes of a page with all that it loaded.
LOADED = """
[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
    .reduce((size, entry) => size + entry.decodedBodySize, 0)
"""
# Nothing but the pages under test: no start page, no update, no look-up.
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Quiet(SimpleHTTPRequestHandler):
    """Serves a site as GitHub Pages does, and says nothing of it."""

    def log_message(self, *arguments: object) -> None:
        pass

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        page = Path(self.directory, "404.html")
        if code != HTTPStatus.NOT_FOUND or not page.exists():
            super().send_error(code, message, explain)
            return
        self.send_response(code)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(page.read_bytes())


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder's server while it runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
