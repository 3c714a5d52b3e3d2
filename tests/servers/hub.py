"""A server that speaks the part of the Hugging Face hub's API which ``huggingface_hub`` uses to read repositories.

Information on a repository, its tree in pages, paths-info, and ``resolve`` with ranges: small files at once, large ones
by a redirect to a signed link that expires. Commits, branches, private and gated repositories are as on the hub.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import yaml

TOKEN = "hf_" + "t" * 34
LARGE_BYTES = 4096
"""From here on a file is kept as LFS, so it has a SHA-256 and is read by a link."""


@dataclass
class Repo:
    """Its commits, the newest last; each maps paths to contents. ``refs``: branches and tags."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    private: bool = False
    gated: bool = False


@dataclass
class Hub:
    """What the server at ``url`` has. ``link_uses``: how often a link can be used; ``page``: names in one."""

    url: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    link_uses: int = 10**9
    page: int = 1000
    links: dict[str, int] = field(default_factory=dict)
    leaked: list[str] = field(default_factory=list)
    """Tokens that came with a request for a link, which belongs to another host."""

    def push(self, name: str, files: Mapping[str, bytes | str], ref: str = "main") -> str:
        """A commit with just these files, to ``datasets/OWNER/NAME`` or a model's name. Returns the commit."""
        repo = self.repos.setdefault(name, Repo())
        content = {path: data.encode() if isinstance(data, str) else data for path, data in files.items()}
        commit = hashlib.sha1(f"{name} {len(repo.commits)}".encode()).hexdigest()
        repo.commits[commit] = content
        repo.refs[ref] = commit
        return commit

    def environment(self, home: os.PathLike[str]) -> dict[str, str]:
        """What makes huggingface_hub talk to this server, with its files in the folder ``home``."""
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": ""}


class _Refused(Exception):
    def __init__(self, status: int, code: str, message: str = "") -> None:
        self.status, self.code, self.message = status, code, message


def entry(path: str, data: bytes) -> dict[str, Any]:
    """A file as the tree and paths-info show it."""
    git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    found: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": git}
    if len(data) >= LARGE_BYTES:
        found["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return found


def folders_of(files: Mapping[str, bytes]) -> set[str]:
    return {"/".join(path.split("/")[:n]) for path in files for n in range(1, path.count("/") + 1)}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hub: Hub

    def handle_request(self) -> None:
        split = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = parse_qs(split.query)
        try:
            if match := re.fullmatch(
                r"/api/(dataset|model)s/(.+?)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.*))?)?", split.path
            ):
                kind, name, what, revision, rest = match.groups()
                repo, name = self.repo(kind, name)
                commit = self.commit(repo, unquote(revision or "main"))
                if what in (None, "revision"):
                    self.send_json(self.info(repo, name, commit))
                elif what == "tree":
                    self.tree(repo.commits[commit], unquote(rest or ""), query)
                else:
                    self.send_json(self.paths(repo.commits[commit], parse_qs(body.decode()).get("paths", [])))
            elif match := re.fullmatch(r"/(datasets/)?((?:[^/]+/)?[^/]+)/resolve/([^/]+)/(.+)", split.path):
                self.resolve(*match.groups())
            elif match := re.fullmatch(r"/cdn/(\w+)", split.path):
                self.cdn(match[1], query)
            else:
                raise _Refused(404, "")
        except _Refused as refused:
            headers = {"X-Error-Code": refused.code, "X-Error-Message": refused.message}
            self.send(refused.status, json.dumps({"error": refused.message}).encode(), headers)

    def repo(self, kind: str, name: str) -> tuple[Repo, str]:
        """Raises for one that is not there, or not for this user."""
        full = f"datasets/{name}" if kind == "dataset" else name
        repo = self.hub.repos.get(unquote(full))
        if repo is None or (repo.private and not self.authorized):
            raise _Refused(404 if self.authorized else 401, "RepoNotFound", "Repository not found")
        return repo, name

    @property
    def authorized(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def commit(self, repo: Repo, revision: str) -> str:
        found = repo.refs.get(revision, revision)
        if found not in repo.commits:
            raise _Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return found

    def info(self, repo: Repo, name: str, commit: str) -> dict[str, Any]:
        files = repo.commits[commit]
        head = re.match(rb"---\n(.*?)\n---", files.get("README.md", b""), re.DOTALL)
        card = yaml.safe_load(head[1]) if head else {}
        return {
            "_id": "0", "id": name, "sha": commit, "private": repo.private, "gated": "auto" if repo.gated else False,
            "disabled": False, "downloads": 0, "likes": 0, "tags": [], "cardData": card,
            "siblings": [{"rfilename": path} for path in files],
        }  # fmt: skip

    def tree(self, files: dict[str, bytes], below: str, query: dict[str, list[str]]) -> None:
        if below and below not in folders_of(files):
            raise _Refused(404, "EntryNotFound", f"{below} does not exist")
        inside = sorted(p for p in {*files, *folders_of(files)} if p.startswith(f"{below}/" if below else ""))
        if query.get("recursive", ["false"])[0].lower() != "true":
            inside = [p for p in inside if "/" not in p.removeprefix(f"{below}/" if below else "")]
        first = int(query.get("cursor", ["0"])[0])
        page = [self.shown(files, path) for path in inside[first : first + self.hub.page]]
        headers = {}
        if first + self.hub.page < len(inside):
            link = (
                f"http://{self.headers['Host']}{urlsplit(self.path).path}?recursive=true&cursor={first + self.hub.page}"
            )
            headers["Link"] = f'<{link}>; rel="next"'
        self.send_json(page, headers)

    def paths(self, files: dict[str, bytes], paths: list[str]) -> list[dict[str, Any]]:
        return [self.shown(files, path) for path in paths if path in files or path in folders_of(files)]

    def shown(self, files: dict[str, bytes], path: str) -> dict[str, Any]:
        if path in files:
            return entry(path, files[path])
        return {"type": "directory", "path": path, "size": 0, "oid": hashlib.sha1(path.encode()).hexdigest()}

    def resolve(self, datasets: str | None, name: str, revision: str, path: str) -> None:
        repo, _ = self.repo("dataset" if datasets else "model", name)
        if repo.gated and not self.authorized:
            raise _Refused(401, "GatedRepo", f"Access to {name} is restricted")
        commit = self.commit(repo, unquote(revision))
        data = repo.commits[commit].get(unquote(path))
        if data is None:
            raise _Refused(404, "EntryNotFound", "Entry not found")
        known = entry(path, data)
        etag = known.get("lfs", known)["oid"]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        if "lfs" not in known:
            self.send_range(data, headers)
            return
        signature = f"secret{len(self.hub.links)}"
        self.hub.links[signature] = self.hub.link_uses
        host = self.headers["Host"].replace("127.0.0.1", "localhost")  # another host, as the hub's own is
        link = f"http://{host}/cdn/{etag}?X-Amz-Signature={signature}&X-Amz-Expires=3600"
        headers |= {"Location": link, "X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{etag}"'}
        self.send(302, b"", headers)

    def cdn(self, oid: str, query: dict[str, list[str]]) -> None:
        signature = query.get("X-Amz-Signature", [""])[0]
        if (token := self.headers.get("Authorization")) is not None:
            self.hub.leaked.append(token)
        left = self.hub.links.get(signature, 0)
        if left <= 0:
            raise _Refused(403, "", "Request has expired")
        self.hub.links[signature] = left - 1
        for repo in self.hub.repos.values():
            for files in repo.commits.values():
                for path, data in files.items():
                    if len(data) >= LARGE_BYTES and entry(path, data)["lfs"]["oid"] == oid:
                        self.send_range(data, {"ETag": f'"{oid}"'})
                        return
        raise _Refused(404, "")

    def send_range(self, data: bytes, headers: dict[str, str]) -> None:
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            start, stop = int(match[1]), min(int(match[2] or len(data)) + 1, len(data))
            if start >= len(data):
                raise _Refused(416, "")
            span = f"bytes {start}-{stop - 1}/{len(data)}"
            self.send(206, data[start:stop], {**headers, "Content-Range": span})
        else:
            self.send(200, data, headers)

    def send_json(self, value: Any, headers: Mapping[str, str] | None = None) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def send(self, status: int, data: bytes, headers: Mapping[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, quote(value, safe=" !\"#$%&'()*+,-./:;<=>?@[]^_`{|}~"))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass

    do_GET = do_HEAD = do_POST = handle_request


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@contextmanager
def start_hub() -> Iterator[Hub]:
    """A hub without a repository."""
    hub = Hub()
    with _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub})) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
