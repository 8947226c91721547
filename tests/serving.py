"""A server on this machine that stands in for the origins of data and for the Hugging Face hub."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Origin:
    """What a server serves, and what it was asked for.

    Attributes:
        url: its address.
        files: contents by path, such as "/set.zip".
        hub: contents by repository ("datasets/OWNER/NAME" or "OWNER/NAME") and file.
        breaks: number of bytes after which a reply breaks off, once for each entry.
        ranges: the Range headers of the requests for files, None without.
        lies: whether the hub states the checksum of another file.
    """

    def __init__(self) -> None:
        self.url = ""
        self.files: dict[str, bytes] = {}
        self.hub: dict[str, dict[str, bytes]] = {}
        self.breaks: list[int] = []
        self.ranges: list[str | None] = []
        self.lies = False

    def sha256(self, content: bytes) -> str:
        return "0" * 64 if self.lies else hashlib.sha256(content).hexdigest()

    def describe(self, path: str) -> Any:
        """The hub's description of a repository or of its tree; None for other paths."""
        for repo, files in self.hub.items():
            kind = "" if repo.startswith("datasets/") else "models/"
            if not path.startswith(f"/api/{kind}{repo}"):
                continue
            lfs = {name: {"sha256": self.sha256(c), "size": len(c), "pointerSize": 1}
                   for name, c in files.items()}  # fmt: skip
            if "/tree/" in path:
                return [{"type": "file", "path": name, "size": len(c), "oid": "0" * 40,
                         "lfs": {"oid": lfs[name]["sha256"], "size": len(c), "pointerSize": 1}}
                        for name, c in files.items()]  # fmt: skip
            siblings = [{"rfilename": name, "size": len(c), "blobId": "0" * 40, "lfs": lfs[name]}
                        for name, c in files.items()]  # fmt: skip
            name = repo.removeprefix("datasets/")
            return {"id": name, "_id": "0", "sha": COMMIT, "private": False, "tags": [],
                    "siblings": siblings}  # fmt: skip
        return None

    def content(self, path: str) -> bytes | None:
        if path in self.files:
            return self.files[path]
        found = re.fullmatch(r"/(.+)/resolve/[^/]+/(.+)", path)
        return self.hub.get(found[1], {}).get(found[2]) if found else None


@contextmanager
def serving() -> Iterator[Origin]:
    """A running server."""
    origin = Origin()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(head=True)

        def do_GET(self) -> None:
            self.answer(head=False)

        def answer(self, *, head: bool) -> None:
            path = self.path.partition("?")[0]
            described, content = origin.describe(path), origin.content(path)
            if described is not None:
                self.send(200, json.dumps(described).encode(), "application/json", head=head)
            elif content is not None:
                self.send_file(path, content, head=head)
            else:
                self.send(200 if path == "/" else 404, b"", "text/plain", head=head)

        def send_file(self, path: str, content: bytes, *, head: bool) -> None:
            wanted = self.headers.get("Range")
            if not head:
                origin.ranges.append(wanted)
            first = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
            if wanted and first >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            kind = "text/html" if content.startswith(b"<html") else "application/octet-stream"
            digest, length = origin.sha256(content), len(content)
            extra = {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            extra |= {"X-Linked-ETag": f'"{digest}"', "X-Linked-Size": str(length)}
            if wanted:
                extra["Content-Range"] = f"bytes {first}-{length - 1}/{length}"
            rest = content[first:]
            cut = origin.breaks.pop(0) if origin.breaks and not head else len(rest)
            self.send(206 if wanted else 200, rest, kind, extra, head=head, cut=cut)

        def send(
            self,
            code: int,
            body: bytes,
            kind: str,
            extra: dict[str, str] | None = None,
            *,
            head: bool,
            cut: int | None = None,
        ) -> None:
            self.send_response(code)
            headers = {"Content-Type": kind, "Content-Length": str(len(body)), **(extra or {})}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if not head:
                self.wfile.write(body[:cut])
            if cut is not None and cut < len(body):
                self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        origin.url = f"http://127.0.0.1:{server.server_port}"
        yield origin
        server.shutdown()
