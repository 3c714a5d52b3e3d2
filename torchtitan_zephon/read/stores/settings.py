"""How remote files are reached: run settings, as the same files give the same stream from anywhere.

Secrets are no settings: each client takes them from where its users keep them (``docs/storage.md``), so that no job
file, log or checkpoint holds one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError, nearest
from ...settings import setting

OPTIONS: dict[str, tuple[str, ...]] = {
    "s3": ("anon", "endpoint_url", "profile", "region", "requester_pays"),
    "gs": ("anon", "endpoint_url", "project", "requester_pays"),
    "az": ("account_name", "account_host", "anon"),
    "hf": ("endpoint",),
}
"""By protocol, what can be set; of other protocols of fsspec, whatever their file system takes."""
_SAME = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "http": "https"}
_SECRET = ("key", "secret", "token", "password", "credential", "connection_string", "sas", "auth", "header", "cookie")
_WHERE = {
    "s3": "AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or `gcloud auth application-default login`",
    "az": "AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, or `az login`",
    "hf": "HF_TOKEN, or `hf auth login`",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StorageSettings:
    """The part of the run settings that says how remote files are reached."""

    storage: dict[str, dict[str, Any]] = setting(
        {},
        "By protocol, how it is reached: `[zephon.storage.s3]` takes `anon`, `endpoint_url`, `profile`, `region`, "
        "`requester_pays`. Keys and passwords are refused here; docs/storage.md says where they are kept.",
    )

    cache_folder: str = setting(
        "",
        "Folder on a local disk where parts of remote files are kept for all ranks of the node, later epochs and later "
        "runs; relative to the TOML file. None, if empty.",
    )
    cache_bytes: int = setting(64 * 2**30, "Most bytes kept there; what was used longest ago goes first.", low=2**20)

    @property
    def reach(self) -> str:
        """The same for settings that reach files in the same way."""
        return repr((self.storage, self.cache_folder, self.cache_bytes))

    def options(self, scheme: str) -> dict[str, Any]:
        """What its client is made with."""
        given = dict(self.storage.get(_SAME.get(scheme, scheme), {}))
        if given.get("anon") and scheme in ("gs", "gcs"):
            given["token"] = "anon"
        if scheme in ("gs", "gcs"):
            given.pop("anon", None)
        return given

    def check_storage(self) -> None:
        """Raise ``ConfigError`` for a secret, or an option that its protocol does not have."""
        for scheme, options in self.storage.items():
            check_options(scheme, options)


LOCAL = StorageSettings()
"""Nothing special."""


def check_options(scheme: str, options: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for a secret among the ``options`` of a protocol, or one that it does not have."""
    where = f"zephon.storage.{scheme}"
    if scheme in _SAME:
        raise ConfigError(f"{where}: write zephon.storage.{_SAME[scheme]}, which is for {scheme}:// too.")
    for name in options:
        if any(word in name.lower() for word in _SECRET):
            raise ConfigError(
                f"{where}.{name} is a secret, and a job file is read by many and kept with the run. Remove it here, "
                f"and keep it in {_WHERE.get(scheme, 'what the client of this protocol reads it from')}."
            )
        if scheme in OPTIONS and name not in OPTIONS[scheme]:
            raise ConfigError(f"{where}.{name}: no such key. {nearest(name, OPTIONS[scheme])}")
