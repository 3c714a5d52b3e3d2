"""``gs://`` through gcsfs, from an emulator where ``pip install gcp-storage-emulator`` has put one.

The emulator knows no preconditions, so that another generation is refused is not tested here.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from torchtitan_zephon.read.files import place_of
from torchtitan_zephon.read.listing import list_files
from torchtitan_zephon.read.stores.settings import StorageSettings

EMULATOR = shutil.which("gcp-storage-emulator")
pytestmark = pytest.mark.skipif(EMULATOR is None, reason="needs gcp-storage-emulator")
DATA = os.urandom(500_000)


@pytest.fixture
def settings() -> Iterator[StorageSettings]:
    gcsfs = pytest.importorskip("gcsfs")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [str(EMULATOR), "start", "--host=127.0.0.1", f"--port={port}", "--in-memory", "--default-bucket=corpus"]
    emulator = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(300):
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        fs = gcsfs.GCSFileSystem(token="anon", endpoint_url=url)
        fs.pipe_file("corpus/a/x.jsonl", DATA)
        fs.pipe_file("corpus/a/b/y.jsonl", b'{"text": "y"}\n')
        yield StorageSettings(storage={"gs": {"anon": True, "endpoint_url": url}})
    finally:
        emulator.terminate()
        emulator.wait(10)


def test_files_are_listed_and_ranges_read(settings: StorageSettings) -> None:
    for path, names in {
        "gs://corpus/a": ["b/y.jsonl", "x.jsonl"],
        "gs://corpus/a/*.jsonl": ["x.jsonl"],
        "gs://corpus/a/x.jsonl": ["x.jsonl"],
    }.items():
        store, below = place_of("s", path, "", settings)
        assert [file.name for file in list_files("s", path, store, below).files] == names
        assert store.read("x.jsonl", 1000, 400_000) == DATA[1000:400_000]
        assert store.read("x.jsonl", 0, 2**30) == DATA
