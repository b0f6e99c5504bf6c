"""A hub with one data set, on the loopback: the requests that `datasets` makes to load it, and no more."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAME, COMMIT = "owner/name", "c0ffee" + "0" * 34


def _answer(path: str, files: Mapping[str, bytes]) -> tuple[bytes, dict[str, str]] | None:
    api, resolve = f"/api/datasets/{NAME}/", f"/datasets/{NAME}/resolve/"
    if path.startswith(f"{api}revision/"):
        siblings = [{"rfilename": f} for f in files]
        found: Any = {"id": NAME, "sha": COMMIT, "siblings": siblings, "private": False, "tags": [], "downloads": 0}
    elif path.startswith(f"{api}tree/"):
        found = [
            {"type": "file", "path": f, "size": len(b), "oid": hashlib.sha1(b).hexdigest()} for f, b in files.items()
        ]
    elif path.startswith(resolve) and (name := path.removeprefix(resolve).partition("/")[2]) in files:
        return files[name], {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(files[name]).hexdigest()}"'}
    else:
        return None
    return json.dumps(found).encode(), {"Content-Type": "application/json"}


@contextmanager
def serve(files: Mapping[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serve the data set's files; gives the address and the paths that were asked for, which grow."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _respond(self, *, body: bool) -> None:
            path = self.path.partition("?")[0]
            paths.append(path)
            data, headers = _answer(path, files) or (b"", {"X-Error-Code": "EntryNotFound"})
            self.send_response(200 if data else 404)
            for key, value in (headers | {"Content-Length": str(len(data))}).items():
                self.send_header(key, value)
            self.end_headers()
            if body:
                self.wfile.write(data)

        def do_GET(self) -> None:
            self._respond(body=True)

        def do_HEAD(self) -> None:
            self._respond(body=False)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", paths
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
