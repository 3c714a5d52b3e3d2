"""No error holds a secret, in whatever shape it comes."""

from __future__ import annotations

import pytest

from torchtitan_zephon import ConfigError, SourceError
from torchtitan_zephon.errors import RecordError, redacted

SECRETS = [
    ("s3://AKIAIOSFODNN7EXAMPLE:{}@bucket/x.jsonl", "bucket/x.jsonl"),
    ("https://user:{}@host:8080/x.jsonl", "@host:8080/x.jsonl"),
    ("https://user:{}@host/x.jsonl?a=b", "https://***@host/x.jsonl?***"),
    ("'https://host/x.jsonl?X-Amz-Algorithm=a&X-Amz-Signature={}&X-Amz-Expires=9' is gone", "' is gone"),
    ("https://host/x?Expires=1&Signature={}&Key-Pair-Id=K", "https://host/x?***"),
    ("https://a.blob.core.windows.net/c/x.parquet?sv=2020-08-04&sig={}", "x.parquet?***"),
    ("SharedAccessSignature=sv=1&sig={}", "sv"),
    ("?sv=2020-08-04&se=2026&sig={}%3D", "se=2026"),
    ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey={}==;", "AccountName=a"),
    ("Authorization: Bearer {}", "Authorization"),
    ("{{'Authorization': 'Basic {}'}}", "Authorization"),
    ("AWS4-HMAC-SHA256 Credential=AKIA/2026, SignedHeaders=host, Signature={}", "AWS4-HMAC-SHA256"),
    ("aws_secret_access_key = {}", "aws_secret_access_key"),
    ("secret='{}'", "secret"),
    ('{{"private_key": "{}"}}', "private_key"),
    ("hf_token={}", "hf_token"),
]


@pytest.mark.parametrize(("text", "stays"), SECRETS)
def test_a_secret_is_left_out_and_the_rest_stays(text: str, stays: str) -> None:
    secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
    text = text.format(secret)
    assert secret not in redacted(text)
    assert stays in redacted(text)


@pytest.mark.parametrize("secret", ["hf_" + "a" * 34, "AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE", "ya29.a0AfH-x_y",
                                    "eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJ"])  # fmt: skip
def test_a_token_is_known_by_its_own_shape(secret: str) -> None:
    assert redacted(f"it said {secret} and no more") == "it said *** and no more"


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/part-?.jsonl",
        "abfs://container@account.dfs.core.windows.net/x",
        "hf://Salesforce/wikitext@main/wikitext-2-raw-v1/train",
        "source 'x' has no field 'token'; it has 'secret', 'text'",
        "the largest token: 5; bos_token = '<s>'; 100 tokens",
        "file '/data/a@b:c/x.jsonl', line at byte 5",
        "gs://bucket/x.parquet",
        "http://localhost:8080/a@b/x.jsonl",
    ],
)
def test_what_is_no_secret_is_said_as_it_is(text: str) -> None:
    assert redacted(text) == text


def test_a_user_alone_in_a_link_may_be_a_token() -> None:
    assert redacted("https://abcdef@host/x") == "https://***@host/x"


def test_every_error_of_ours_is_redacted() -> None:
    link = "https://host/x?sig=abc"
    for error in (
        SourceError(f"{link} is gone"),
        ConfigError(f"a = {link!r}", "b"),
        RecordError("bad", source="s", shard=link, place="line 1"),
    ):
        assert "abc" not in str(error) and "abc" not in repr(error)
