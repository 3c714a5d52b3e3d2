"""Data sets on the Hugging Face hub, by ``huggingface_hub``: one commit of a repository, found at first use.

Two ways to write a path. ``hf://OWNER/NAME[@REVISION]/CONFIG/SPLIT`` means what ``datasets`` would load
(``configs.py``); ``hf://datasets/OWNER/NAME[@REVISION]/PATH`` is a file, folder or glob of the repository, as in
``HfFileSystem``. The hub answers a read with a link to where the file lies, which is kept for the file's next range
until it expires. HF_ENDPOINT, HF_TOKEN and HF_HOME are read by huggingface_hub itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import SourceError
from .clients import IDLE_S, PART_BYTES, Entry, Take
from .configs import chosen_files
from .faults import asked

_URL = re.compile(
    r"hf://(?P<plain>datasets/)?(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<rest>.*))?"
)
COMMIT = re.compile(r"[0-9a-f]{40}")
_EXPIRED = frozenset({400, 401, 403, 404, 410})
"""What a link answers when its time is over."""


class HubClient:
    """The files of one commit. ``url``: the plain path that the given one stands for, with the commit.

    Raises ``SourceError``.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        import huggingface_hub

        if not hasattr(huggingface_hub.get_session(), "stream"):
            raise ImportError(f"{huggingface_hub.__version__} is too old")
        self._hub, self._options = huggingface_hub, options
        self._api = huggingface_hub.HfApi(endpoint=options.get("endpoint"))
        match = _URL.fullmatch(url)
        if match is None or match["repo"].startswith(("spaces/", "models/", "buckets/")):
            raise SourceError(
                f"{url!r} is no data set on the hub. Write hf://OWNER/NAME[@REVISION]/CONFIG/SPLIT, or "
                "hf://datasets/OWNER/NAME[@REVISION]/PATH for some of its files."
            )
        self._repo, rest = match["repo"], (match["rest"] or "").strip("/")
        revision = (match["revision"] or "").replace("%2F", "/") or None
        info = asked(url, "the revision", lambda: self._api.dataset_info(self._repo, revision=revision))
        self.commit = str(info.sha)
        self._folder = f"hf://datasets/{self._repo}@{self.commit}"
        self._chosen: list[Entry] | None = None
        self._links: dict[str, str] = {}
        if match["plain"]:
            self.url = f"{self._folder}/{rest}"
        else:
            self.url = self._folder
            entries = {entry.name: entry for entry in asked(url, "the names", lambda: list(self.below("", None)))}
            card = info.card_data.to_dict() if info.card_data is not None else {}
            files = chosen_files(url, card, list(entries), rest.split("/") if rest else [])
            self._chosen = [entries[name] for name in files]
            endings = {f".{name.rpartition('.')[2].lower()}" for name in files}
            self.url += "/**/*" + max(endings if len(endings) == 1 else {""})  # so that .json is named, and read

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (f"{self._folder}/", self._options)

    def place(self, url: str) -> str:
        """The path in the repository."""
        return url.removeprefix(self._folder).removeprefix("/") if url.startswith(self._folder) else url

    def look(self, path: str) -> Entry:
        """What lies at ``path``; the repository itself is a folder."""
        if not path:
            return Entry("", 0, "", True)
        for found in self._api.get_paths_info(self._repo, [path], revision=self.commit, repo_type="dataset"):
            return _entry(found)
        raise FileNotFoundError(path)

    def below(self, path: str, depth: int | None) -> Iterator[Entry]:
        """All files below a folder; of a configuration and split, only theirs. One request for 1,000 names."""
        if self._chosen is not None:
            return iter(self._chosen)
        where = {"revision": self.commit, "repo_type": "dataset"}
        tree = self._api.list_repo_tree(self._repo, path or None, recursive=True, **where)
        return (entry for entry in map(_entry, tree) if not entry.is_folder)

    def fetch(self, path: str, start: int, stop: int, tag: str, take: Take) -> None:
        """The bytes [start, stop), which a commit does not change: through the hub, or by the link it gave before."""
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        if (link := self._links.get(path)) is not None:
            status = self._stream(path, link, headers, take)
            if status not in _EXPIRED:
                return
            del self._links[path]
        hub = self._hub.hf_hub_url(
            self._repo, path, repo_type="dataset", revision=self.commit, endpoint=self._api.endpoint
        )
        self._stream(path, hub, {**self._hub.utils.build_hf_headers(token=self._api.token), **headers}, take)

    def _stream(self, path: str, url: str, headers: dict[str, str], take: Take) -> int:
        """Hand on the answer. Returns the status of a link that has expired; raises for any other fault."""
        session = self._hub.get_session()
        with session.stream("GET", url, headers=headers, timeout=IDLE_S, follow_redirects=True) as answer:
            if url == self._links.get(path) and answer.status_code in _EXPIRED:
                return int(answer.status_code)
            self._hub.utils.hf_raise_for_status(answer)
            if answer.history:
                self._links[path] = str(answer.url)
            for part in answer.iter_raw(PART_BYTES):
                take(part)
            return int(answer.status_code)


def _entry(found: Any) -> Entry:
    """A file's tag is the hash that the hub keeps: SHA-256 of a large file, git's own of a small one."""
    if (blob := getattr(found, "blob_id", None)) is None:
        return Entry(found.path, 0, "", True)
    return Entry(found.path, found.size, found.lfs.sha256 if found.lfs is not None else blob, False)


def at_commit(url: str, commit: str) -> str:
    """``url`` with its revision replaced by ``commit``, unless it names a commit itself."""
    match = _URL.fullmatch(url)
    if match is None or COMMIT.fullmatch(match["revision"] or ""):
        return url
    return f"hf://{match['plain'] or ''}{match['repo']}@{commit}" + (f"/{match['rest']}" if match["rest"] else "")
