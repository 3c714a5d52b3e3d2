"""The errors of the clients' libraries: what may pass is tried again, what stays is told with the way out."""

from __future__ import annotations

import pytest

from torchtitan_zephon import SourceError
from torchtitan_zephon.read.retry import RemoteFault
from torchtitan_zephon.read.stores.clients import Changed
from torchtitan_zephon.read.stores.faults import in_words

botocore = pytest.importorskip("botocore.exceptions")
aiohttp = pytest.importorskip("aiohttp")
httpx = pytest.importorskip("httpx")
yarl = pytest.importorskip("yarl")
azure = pytest.importorskip("azure.core.exceptions")
gcsfs = pytest.importorskip("gcsfs.retry")
google = pytest.importorskip("google.auth.exceptions")
URL = "s3://bucket/x.jsonl"


def of_s3(status: int, code: str) -> Exception:
    answer = {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return botocore.ClientError(answer, "GetObject")  # type: ignore[no-any-return]


def of_azure(status: int, code: str) -> Exception:
    error = azure.HttpResponseError(message=code)
    error.status_code, error.error_code = status, code
    return error  # type: ignore[no-any-return]


def of_http(status: int) -> Exception:
    link = yarl.URL("https://host/x?sig=very-secret")
    info = aiohttp.RequestInfo(link, "GET", {}, link)
    return aiohttp.ClientResponseError(info, (), status=status)  # type: ignore[no-any-return]


PASSING = [
    of_s3(503, "SlowDown"), of_s3(500, "InternalError"), of_s3(400, "RequestTimeout"), of_s3(429, "Throttling"),
    botocore.EndpointConnectionError(endpoint_url="http://x"), botocore.ReadTimeoutError(endpoint_url="http://x"),
    botocore.IncompleteReadError(actual_bytes=1, expected_bytes=2), botocore.ConnectionClosedError(endpoint_url="x"),
    aiohttp.ClientPayloadError("cut"), aiohttp.ServerDisconnectedError(), of_http(502), of_http(429), TimeoutError(),
    httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("cut"), httpx.ConnectError("no route"), ConnectionResetError(),
    azure.ServiceResponseError("cut"), azure.IncompleteReadError("cut"), of_azure(503, "ServerBusy"),
    gcsfs.HttpError({"code": 503, "message": "busy"}), gcsfs.ChecksumError(),
]  # fmt: skip
LASTING = [
    (of_s3(403, "AccessDenied"), "s3", "access is refused"),
    (of_s3(403, "SignatureDoesNotMatch"), "s3", "access is refused"),
    (of_s3(400, "ExpiredToken"), "s3", "have expired"),
    (of_s3(404, "NoSuchBucket"), "s3", "no bucket 'bucket'"),
    (of_s3(301, "PermanentRedirect"), "s3", "another region"),
    (of_s3(412, "PreconditionFailed"), "s3", "has changed"),
    (of_s3(416, "InvalidRange"), "s3", "has changed"),
    (botocore.NoCredentialsError(), "s3", "AWS_PROFILE"),
    (botocore.ProfileNotFound(profile="x"), "s3", "there are no credentials"),
    (FileNotFoundError("x"), "gs", "there is nothing there"),
    (PermissionError("x"), "gs", "GOOGLE_APPLICATION_CREDENTIALS"),
    (google.DefaultCredentialsError("none"), "gs", "there are no credentials"),
    (google.RefreshError("invalid_grant"), "gs", "have expired"),
    (gcsfs.HttpError({"code": 401, "message": "x"}), "gcs", "access is refused"),
    (of_azure(403, "AuthorizationPermissionMismatch"), "abfs", "AZURE_STORAGE_CONNECTION_STRING"),
    (of_azure(412, "ConditionNotMet"), "az", "has changed"),
    (azure.ClientAuthenticationError("no"), "az", "there are no credentials"),
    (of_http(403), "https", "A signed link is valid for a time"),
    (of_http(404), "https", "there is nothing there"),
    (Changed(), "memory", "has changed"),
    (ValueError("odd: token=very-secret"), "memory", "ValueError: odd: token=***"),
]


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_what_may_pass_is_a_fault_to_wait_out(error: Exception) -> None:
    assert isinstance(in_words(error, URL, "s3"), RemoteFault)


@pytest.mark.parametrize(("error", "scheme", "said"), LASTING, ids=repr)
def test_what_stays_is_told_with_the_way_out(error: Exception, scheme: str, said: str) -> None:
    told = in_words(error, URL, scheme)
    assert isinstance(told, SourceError)
    assert said in str(told)
    assert "very-secret" not in str(told)
    assert str(told).startswith(repr(URL))


def test_the_cause_of_an_error_is_looked_at_too() -> None:
    error = OSError("s3fs said so")
    error.__cause__ = of_s3(403, "AccessDenied")
    assert "403 AccessDenied" in str(in_words(error, URL, "s3"))
