"""An S3 server, moto in a process of its own, and the environment in which clients find it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def start_s3() -> Iterator[str]:
    """The URL of a server without a bucket."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, **quiet, env={**os.environ, **KEYS})  # type: ignore[call-overload]
    try:
        _wait_for(f"http://127.0.0.1:{port}/moto-api/", server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)


def _wait_for(url: str, server: subprocess.Popen[bytes], seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            assert server.poll() is None and time.monotonic() < end, "the S3 server did not start"
            time.sleep(0.1)


def environment(url: str) -> dict[str, str]:
    """What makes any S3 client talk to the server at ``url``; no file of this user is read."""
    return {**KEYS, "AWS_ENDPOINT_URL": url, "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}


def client(url: str) -> Any:
    """A plain client of the server at ``url``."""
    import boto3

    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=url, **keys)


def make_bucket(url: str, bucket: str) -> None:
    """An empty bucket."""
    client(url).create_bucket(Bucket=bucket)


def put(url: str, bucket: str, objects: Mapping[str, bytes]) -> None:
    """Write objects, by their keys."""
    s3 = client(url)
    for key, data in objects.items():
        s3.put_object(Bucket=bucket, Key=key, Body=data)


def put_folder(url: str, bucket: str, folder: Path, below: str = "") -> None:
    """Write the files of ``folder`` under their relative paths, behind ``below``."""
    files = {below + str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    put(url, bucket, files)
