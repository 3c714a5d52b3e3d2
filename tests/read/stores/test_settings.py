"""How remote files are reached: what can be set, and that secrets cannot."""

from __future__ import annotations

import pytest

from torchtitan_zephon import ConfigError, RunSettings
from torchtitan_zephon.read.stores.settings import StorageSettings


@pytest.mark.parametrize("name", ["key", "secret", "token", "password", "account_key", "sas_token", "connection_string",
                                  "aws_secret_access_key", "credential", "headers"])  # fmt: skip
@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "hf", "sftp"])
def test_a_secret_is_refused_by_name_with_where_it_belongs(scheme: str, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"zephon\.storage\.{scheme}\.{name} is a secret") as error:
        RunSettings(storage={scheme: {name: "very-secret-value"}})
    assert "keep it in" in str(error.value)
    assert "very-secret-value" not in str(error.value)


def test_an_unknown_key_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"zephon\.storage\.s3\.endpoint: no such key. Did you mean 'endpoint_url'"):
        RunSettings(storage={"s3": {"endpoint": "http://x"}})


def test_another_name_of_a_protocol_names_the_first() -> None:
    with pytest.raises(ConfigError, match=r"write zephon\.storage\.az, which is for abfs:// too"):
        RunSettings(storage={"abfs": {"anon": True}})


def test_every_name_of_a_protocol_is_reached_in_the_same_way() -> None:
    settings = StorageSettings(storage={"s3": {"anon": True}, "gs": {"anon": True}})
    assert settings.options("s3") == settings.options("s3a") == {"anon": True}
    assert settings.options("gs") == settings.options("gcs") == {"token": "anon"}
    assert settings.options("az") == {}
