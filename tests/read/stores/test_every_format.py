"""Every format in a bucket: the stream of the same files on a disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.read.stores.conftest import Bucket
from tests.read.test_every_format import STEPS, WRITERS, pipeline_over
from tests.scenarios import global_batches
from tests.servers.s3 import put_folder


@pytest.mark.parametrize("name", WRITERS)
def test_a_bucket_gives_the_stream_of_the_disk_on_any_ranks_and_through_a_stop(
    name: str, tmp_path: Path, bucket: Bucket
) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    local = WRITERS[name](folder)
    straight, state = global_batches(pipeline_over(local), 1, STEPS)
    put_folder(bucket.server, bucket.name, tmp_path)
    remote = pipeline_over(local._replace(path=bucket.url(str(local.path.relative_to(tmp_path)))))
    first, stopped = global_batches(remote, 2, 2)
    rest, end = global_batches(remote, 4, STEPS - 2, stopped)
    assert (first + rest, end) == (straight, state)
