"""What a client's library raises, in words: a fault that may pass by itself, or an error with the way out.

The libraries (botocore, aiohttp, httpx, google-auth, azure-core, huggingface_hub) have no class in common. So a fault
is told by its HTTP status, its service's code and the names of its classes, along the chain of causes. The error
itself is not chained: its text may hold a signed link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ...errors import SourceError, redacted
from ..retry import RemoteFault, with_retries
from .clients import Changed
from .url import scheme_of

T = TypeVar("T")

_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524})
_PASSING_CODES = frozenset({
    *("SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequestsException"),
    *("RequestTimeout", "RequestTimeoutException", "InternalError", "ServiceUnavailable", "ServerBusy"),
})  # fmt: skip
_PASSING_CLASSES = frozenset({
    *("TimeoutError", "ConnectionError", "FSTimeoutError", "HTTPClientError", "ResponseStreamingError"),
    *("ClientConnectionError", "ClientPayloadError", "IncompleteRead", "IncompleteReadError", "ResponseParserError"),
    *("TransportError", "ProtocolError", "ServiceRequestError", "ServiceResponseError", "ChecksumError"),
    *("ChunkedEncodingError", "ContentDecodingError"),
})  # fmt: skip
_LASTING_CLASSES = frozenset({"ClientConnectorCertificateError", "UnsupportedProtocol", "SSLCertVerificationError"})
"""Of those, what stays as it is."""
_NO_CREDENTIALS = frozenset({
    *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"),
    *("DefaultCredentialsError", "ClientAuthenticationError", "CredentialUnavailableError", "LocalTokenNotFoundError"),
})  # fmt: skip
_EXPIRED_CLASSES = frozenset({"TokenRetrievalError", "SSOTokenLoadError", "UnauthorizedSSOTokenError", "RefreshError"})
_EXPIRED_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
_REGION_CODES = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})

LOGIN = {
    "s3": "s3fs takes them from AWS_PROFILE, AWS_ACCESS_KEY_ID and its like, ~/.aws, or the machine's role. For a "
    "public bucket write [zephon.storage.s3] anon = true.",
    "gs": "gcsfs takes them from GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth application-default login`, or the "
    "machine's account. For a public bucket write [zephon.storage.gs] anon = true.",
    "az": "adlfs takes them from AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_ACCOUNT_NAME with "
    "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or `az login`.",
    "hf": "huggingface_hub takes a token from HF_TOKEN, or from `hf auth login`.",
}
_HUB = {
    "RepositoryNotFoundError": "the hub has no such data set, or it is private and this user may not see it. Look for "
    "a misspelt name (OWNER/NAME).",
    "GatedRepoError": "the data set is gated: its page on the hub asks for an agreement. Accept it there, then give a "
    "token of the same user.",
    "RevisionNotFoundError": "the data set has no such revision. Name a branch, tag or commit that its page lists, or "
    "leave @REVISION out.",
    "DisabledRepoError": "the hub has disabled the data set.",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set. Unset it, or give the folder of a copy on this machine.",
    "HFValidationError": "that is no name of a data set (OWNER/NAME).",
}
"""The hub's own errors, the more special behind the more general."""
_ALSO = {"gcs": "gs", "s3a": "s3", "abfs": "az", "abfss": "az", "adl": "az"}
_A_LINK = "A signed link is valid for a time; have a new one made, or give what its service takes in the link."


def asked(url: str, what: str, ask: Callable[[], T]) -> T:
    """``ask()``, with faults that may pass waited out. Raises ``OSError`` if they do not, else ``SourceError``."""

    def in_our_words() -> T:
        try:
            return ask()
        except (RemoteFault, SourceError):
            raise
        except Exception as error:  # the libraries have no class in common
            told = in_words(error, url, scheme_of(url))
        raise told

    return with_retries(in_our_words, url, what)


def in_words(error: Exception, url: str, scheme: str) -> OSError | SourceError:
    """``error``, met while reading ``url``, as a ``RemoteFault`` or a ``SourceError``."""
    own = {cls.__name__ for cls in type(error).__mro__}
    names = own.union(*({cls.__name__ for cls in type(link).__mro__} for link in _chain(error)))
    status, code = _status(error), _code(error)
    login = LOGIN.get(_ALSO.get(scheme, scheme), _A_LINK)
    said = f"{status} " * (status is not None) + (code or redacted(f"{type(error).__name__}: {error}")[:300])
    if isinstance(error, Changed) or status in (412, 416) or code in ("ConditionNotMet", "PreconditionFailed"):
        return changed(url)
    if code in _EXPIRED_CODES or names & _EXPIRED_CLASSES or "expired" in str(error).lower():
        return SourceError(f"{url!r} cannot be read: the credentials have expired ({said}). Renew them; {login}")
    if hub := _HUB.keys() & names:
        return SourceError(f"{url!r} cannot be read: {_HUB[max(hub, key=list(_HUB).index)]} {login}")
    if names & _NO_CREDENTIALS:
        return SourceError(f"{url!r} cannot be read: there are no credentials ({said}). {login}")
    if code in _REGION_CODES or status in (301, 307):
        return SourceError(
            f"{url!r} cannot be read: the bucket lies in another region than the one that was asked ({said}). Name its "
            'region with [zephon.storage.s3] region = "...", AWS_DEFAULT_REGION or the profile.'
        )
    if code in _PASSING_CODES or status in _PASSING_STATUS or _passes(names if status is None else own):
        return RemoteFault(said)
    if status == 404:
        what = f"no bucket {url.split('/')[2]!r}" if code == "NoSuchBucket" else "nothing there"
        return SourceError(
            f"{url!r}: there is {what}. Look for a misspelt name; or the object was removed, or another service is "
            "asked (endpoint_url) than the one that has it."
        )
    if status in (401, 403):
        return SourceError(
            f"{url!r} cannot be read: access is refused ({said}). The credentials in use may not read it, or there is "
            f"nothing of this name and they may not know. {login}"
        )
    return SourceError(f"{url!r} cannot be read: {said}.")


def changed(url: str) -> SourceError:
    """The error for a file that was replaced."""
    return SourceError(
        f"{url!r} has changed since this job listed it, and one stream must not mix two versions. Put the file back, "
        "or begin a run of its own with the new one; write new data under new names."
    )


def _passes(names: set[str]) -> bool:
    return bool(names & _PASSING_CLASSES) and not names & _LASTING_CLASSES


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _status(error: Exception) -> int | None:
    """The HTTP status that an error, or one behind it, has."""
    for link in _chain(error):
        response = getattr(link, "response", None)
        if isinstance(response, dict):
            found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:
            places = (response, "status_code"), (link, "status_code"), (link, "status"), (link, "code")
            found = next((number for of, name in places if _is_status(number := getattr(of, name, None))), None)
        if _is_status(found):
            return int(found)
    kinds: tuple[tuple[type[Exception], int], ...] = ((FileNotFoundError, 404), (PermissionError, 403))
    return next((status for kind, status in kinds if isinstance(error, kind)), None)


def _is_status(value: Any) -> bool:
    return isinstance(value, int) and 100 <= value <= 599


def _code(error: Exception) -> str:
    """The word by which the service calls it, '' if it has none."""
    for link in _chain(error):
        response = getattr(link, "response", None)
        found = response.get("Error", {}).get("Code") if isinstance(response, dict) else getattr(link, "error_code", "")
        if isinstance(found, str) and found and not found.isdigit():
            return found
    return ""
