"""Bad records that are left out: counted exactly, the same on any ranks and workers and through any stops."""

from __future__ import annotations

import gzip
import json
import logging
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from tests.scenarios import global_batches, rank_steps, says, small_pipeline, texts_of, write_jsonl
from torchtitan_zephon import FunctionError, Pipeline, RecordError, SourceConfig, SourceError
from torchtitan_zephon.bad_records import BadRecordSettings
from torchtitan_zephon.balance import Balance, Read
from torchtitan_zephon.documents import read_documents
from torchtitan_zephon.metrics import Gauges
from torchtitan_zephon.ops.functions import Function
from torchtitan_zephon.plan.chunking import Chunk
from torchtitan_zephon.read.files import Manifest, Shard
from torchtitan_zephon.read.jsonl import JsonlReader
from torchtitan_zephon.read.source import Source
from torchtitan_zephon.read.store import LocalStore
from torchtitan_zephon.state import decode_lane
from torchtitan_zephon.text_of import text_of

MOST = 4000
"""max_record_bytes of these tests; a good record has at most about 300."""
RECORDS = 500
KINDS: dict[str, dict[str, int]] = {
    "lines": {"line": 20, "field": 10, "size": 5},
    "rows": {"column": 5, "field": 5, "size": 5},
    "tokens": {"ids": 15, "size": 5},
    "packed": {"line": 20, "field": 10, "size": 5},
}
"""By source, how many of its records are bad, by kind: 1 % of each kind of damage."""
WITH_FUNCTIONS = {name: {**kinds, "function": 5, "result": 5} for name, kinds in KINDS.items()}


def lines() -> list[bytes]:
    damage = {
        3: lambda n: b'{"id": %d, "text": "cut' % n,
        13: lambda n: b'{"id": %d, "text": "\xff\xfe"}' % n,
        23: lambda n: b'{"id": %d, "text": NaN}' % n,
        33: lambda n: b'{"id": %d, "text": "\\ud800"}' % n,
        43: lambda n: b'{"id": %d, "text": null}' % n,
        53: lambda n: b'{"id": %d, "content": "of another dump"}' % n,
        63: lambda n: json.dumps({"id": n, "text": "far too long " * 400}).encode(),
        73: lambda n: b'{"id": %d, "text": ""}' % n,
    }
    good = (
        json.dumps({"id": n, "text": text}, ensure_ascii=False).encode() for n, text in enumerate(texts_of(RECORDS))
    )
    return [damage.get(n % 100, lambda _, line=line: line)(n) for n, line in enumerate(good)]


def rows() -> pa.Table:
    def value(n: int, text: str) -> bytes | None:
        return {3: b"\xff\xfe", 13: None, 23: b"far too long " * 400, 33: b""}.get(n % 100, text.encode())

    texts = pa.array([value(n, text) for n, text in enumerate(texts_of(RECORDS, first=1000))], pa.binary())
    return pa.table({"id": range(RECORDS), "text": texts.view(pa.string())})


def tokens() -> pa.Table:
    def value(n: int) -> list[int] | None:
        return {3: [2, -1], 13: [384, 5], 23: None, 33: [7] * 501, 43: []}.get(n % 100, [2 + n % 300] * (1 + n % 40))

    return pa.table({"id": range(RECORDS), "text": pa.array(map(value, range(RECORDS)), pa.list_(pa.int64()))})


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("damaged")
    half = RECORDS // 2
    for part in (0, 1):
        path = folder / "lines" / f"{part}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\n".join(lines()[half * part : half * (part + 1)]) + b"\n\n")
    pq.write_table(rows(), folder / "rows.parquet", row_group_size=90)
    pq.write_table(tokens(), folder / "tokens.parquet", row_group_size=120)
    (folder / "packed.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines())))
    names = {"lines": "lines", "rows": "rows.parquet", "tokens": "tokens.parquet", "packed": "packed.jsonl.gz"}
    return {source: folder / name for source, name in names.items()}


def fail_or_drop(record: dict[str, Any]) -> Any:
    if record["id"] % 100 == 83:
        raise KeyError("no such key")
    return None if record["id"] % 100 == 93 else record


def skipping(sources: dict[str, Path], functions: bool = False, **options: Any) -> Pipeline:
    pipeline = small_pipeline(sources, **{"lanes": 4, "global_batch_size": 8, **options})
    pipeline = pipeline.options(on_bad_record="skip", max_bad_fraction=0.5, max_record_bytes=MOST)
    if functions:
        pipeline = pipeline.map(fail_or_drop).filter(lambda record: record["id"] % 100 != 99, identity="not 99")
    return pipeline


def balance_of(pipeline: Pipeline, degree: int) -> Balance:
    """The balance of a whole pass, summed over the ranks."""
    total = Balance()
    for rank in range(degree):
        stream = pipeline.for_rank(rank, degree)
        rank_steps(stream, 10**6)
        total.add(stream.balance)
    return total


def numbers(read: Read) -> dict[str, int]:
    return {kind: of_kind.number for kind, of_kind in read.refused.items()}


@pytest.mark.parametrize("functions", [False, True])
def test_each_kind_is_counted_exactly_by_source_on_any_ranks_and_workers(
    sources: dict[str, Path], functions: bool
) -> None:
    expected = WITH_FUNCTIONS if functions else KINDS
    for degree, workers in ((1, 1), (2, 3), (4, 2)):
        total = balance_of(skipping(sources, functions, repeat=False, workers=workers), degree)
        assert {name: numbers(read) for name, read in total.sources.items()} == expected
        for read in total.sources.values():
            assert read.records == RECORDS == read.documents + read.empty + read.filtered + read.num_refused
            assert (read.empty, read.filtered) == (5, 5 * functions)
        assert total.tokens_held == 0 and "refused (column 5, field 25" in str(total)


LINES = {
    "good": b'{"id": %d, "text": "some text"}',
    "blank": b"  ",
    "empty": b'{"id": %d, "text": ""}',
    "cut": b'{"id": %d, "te',
    "null": b'{"id": %d, "text": null}',
    "large": b'{"id": %d, "text": "' + b"x" * 100 + b'"}',
    "failing": b'{"id": 83, "text": "%d"}',
    "dropped": b'{"id": 99, "text": "%d"}',
}


@given(st.lists(st.sampled_from([*LINES]), max_size=30), st.integers(1, 300), st.booleans(), st.booleans())
def test_all_records_are_accounted_for_however_they_are_cut(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str], size: int, final: bool, functions: bool
) -> None:
    data = b"\n".join(LINES[kind].replace(b"%d", b"%d" % n) for n, kind in enumerate(kinds)) + b"\n" * final
    path = tmp_path_factory.getbasetemp() / "property.jsonl"
    path.write_bytes(data)
    reader = JsonlReader(
        Manifest(LocalStore(path.parent), "jsonl", (Shard(path.name, len(data), ""),)), SourceConfig(), 90
    )
    source = Source("s", text_of("text"), reader)
    calls = (Function("map", fail_or_drop, "m"), Function("filter", lambda record: record["id"] != 99, "f"))
    total = Read()
    for start in range(0, len(data), size):
        chunk = Chunk(0, 0, 0, 0, start, min(start + size, len(data)), 0)
        policy = BadRecordSettings(on_bad_record="skip")
        read = read_documents(source, chunk, calls if functions else (), policy).read
        assert read.records == read.documents + read.empty + read.filtered + read.num_refused
        total.add(read)
    times = Counter(kinds)
    assert total.records == len(kinds) - times["blank"]
    assert (total.empty, total.filtered) == (times["empty"], times["dropped"] * functions)
    expected = {"line": times["cut"], "field": times["null"], "size": times["large"]}
    expected["function"] = times["failing"] * functions
    assert numbers(total) == {kind: count for kind, count in expected.items() if count}


def test_the_good_records_give_the_batches_that_they_give_alone(sources: dict[str, Path], tmp_path: Path) -> None:
    good = [line for n, line in enumerate(lines()) if n % 100 not in (3, 13, 23, 33, 43, 53, 63)]
    blank = [line if line in good else b" " * len(line) for line in lines()]  # the cut into chunks stays the same
    (tmp_path / "lines").mkdir()
    half = RECORDS // 2
    for part in (0, 1):
        data = b"\n".join(blank[half * part : half * (part + 1)]) + b"\n\n"
        (tmp_path / "lines" / f"{part}.jsonl").write_bytes(data)
    damaged, clean = (
        skipping({"lines": path}, repeat=False).options(shares="estimated")
        for path in (sources["lines"], tmp_path / "lines")
    )
    assert global_batches(damaged, 1, 1000)[0] == global_batches(clean, 2, 1000)[0]


def test_states_are_the_same_bytes_through_stops_at_every_step_and_on_other_ranks(sources: dict[str, Path]) -> None:
    pipeline = skipping(sources, global_batch_size=32, local_batch_size=8)
    steps = 12
    expected, end = global_batches(pipeline, 1, steps)
    records = [decode_lane(data, int(lane), list(sources)).start.records for lane, data in end["lane"].items()]
    assert all(sum(counted.num_refused for counted in of_lane.values()) for of_lane in records)
    state, found = None, []
    for step in range(steps):
        batches, state = global_batches(pipeline, (2, 4, 1)[step % 3], 1, state)
        found += batches
    assert found == expected
    assert state == end


def test_figures_after_a_resume_count_from_the_beginning_of_the_stream(sources: dict[str, Path]) -> None:
    pipeline = skipping(sources, global_batch_size=32)
    whole = pipeline.for_rank(0, 1)
    rank_steps(whole, 12)
    state = whole.state_dict()
    rank_steps(whole, 1)
    again = pipeline.for_rank(0, 1)
    again.load_state_dict(state)
    rank_steps(again, 1)
    assert whole.figures is not None and again.figures is not None
    assert again.figures.refused == whole.figures.refused
    assert sum(again.figures.refused) > again.balance.read.num_refused


@pytest.mark.parametrize("runner", ["thread", "process"])
def test_the_metric_is_the_number_of_bad_records(sources: dict[str, Path], runner: Any) -> None:
    stream = skipping(sources, repeat=False).options(runner=runner).for_rank(0, 1)
    rank_steps(stream, 10**6)
    found = Gauges(stream).read()
    for name, kinds in KINDS.items():
        assert found[f"zephon/bad_records/{name}"] == sum(kinds.values()) == stream.balance.sources[name].num_refused


def test_a_run_that_a_bad_record_ended_continues_with_skip(sources: dict[str, Path]) -> None:
    strict = small_pipeline({"lines": sources["lines"]}, lanes=2, global_batch_size=2, local_batch_size=1)
    strict = strict.options(max_record_bytes=MOST)
    stream = strict.for_rank(0, 1)
    taken: list[Any] = []
    with pytest.raises(RecordError, match='on_bad_record = "skip", which a resume can do too'):
        taken += rank_steps(stream, 100)
    lenient = strict.options(on_bad_record="skip", max_bad_fraction=0.5)
    expected, _ = global_batches(lenient, 1, 20)
    rest, _ = global_batches(lenient, 1, 5, stream.state_dict())
    step = json.loads(stream.state_dict()["stream"])["step"]
    assert rest == expected[step : step + 5]


def test_without_skip_the_state_says_nothing_of_records(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts_of(200))
    _, strict = global_batches(small_pipeline({"a": path}, lanes=2), 1, 30)
    assert all(b"records" not in state for state in strict["lane"].values())
    _, lenient = global_batches(small_pipeline({"a": path}, lanes=2).options(on_bad_record="skip"), 1, 30)
    start = json.loads(lenient["lane"]["00000"])["start"]
    assert start["records"]["a"]["refused"] == {} and start["records"]["a"]["read"] > 0


def test_too_many_bad_records_end_the_run_where_a_segment_ends_with_examples(tmp_path: Path) -> None:
    texts = [text[:40] for text in texts_of(4000)]
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    data = path.read_bytes().split(b"\n")
    for n in range(0, 4000, 50):
        data[n] = data[n][:-3]
    path.write_bytes(b"\n".join(data))
    pipeline = small_pipeline({"a": path}, lanes=1, global_batch_size=1, local_batch_size=1)
    with pytest.raises(SourceError) as error:
        global_batches(pipeline.options(on_bad_record="skip"), 1, 5000)
    says(error, "lane 0, source 'a': ", "records were left out as bad (line ", "max_bad_fraction = 0.01")
    says(error, "line: shard 'a.jsonl', line at byte ", "not valid JSON", "raise max_bad_fraction and resume")
    bad, read = map(int, re.findall(r"([\d,]+) of ([\d,]+) records", str(error.value).replace(",", ""))[0])
    assert read >= 1000 and 0.01 < bad / read < 0.04
    assert len(global_batches(pipeline.options(on_bad_record="skip", max_bad_fraction=0.05), 1, 1000)[0]) == 1000


def test_few_records_are_not_judged(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"no JSON\n" * 300 + b'{"text": "the only one"}\n' * 300)
    pipeline = small_pipeline({"a": tmp_path / "a.jsonl"}, repeat=False).options(on_bad_record="skip")
    assert balance_of(pipeline, 1).sources["a"].num_refused == 300


def test_the_log_tells_the_first_of_each_kind_and_then_powers_of_ten(
    sources: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        balance_of(skipping({"lines": sources["lines"]}, repeat=False), 1)
    said = [r.getMessage() for r in caplog.records if "so far" in r.getMessage()]
    assert all(
        re.search(r"source 'lines': bad records \((line|field|size)\) .* shard '\d\.jsonl', line at", s) for s in said
    )
    assert 3 <= len(said) <= 6


def test_a_damaged_file_is_an_error_under_skip_too(tmp_path: Path) -> None:
    pq.write_table(rows(), tmp_path / "a.parquet", row_group_size=50, compression="none")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[4:2000] = b"\xff" * 1996
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(SourceError, match="row group 0"):
        balance_of(skipping({"a": tmp_path / "a.parquet"}, repeat=False), 1)


def test_a_source_of_bad_records_only_is_refused_with_their_kinds(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"content": "x"}\n' * 50)
    with pytest.raises(
        SourceError, match=r"no usable document.* refused \(field \d+\)\. The first \(field\): .*'content'"
    ):
        balance_of(skipping({"a": tmp_path / "a.jsonl"}, repeat=False), 1)


def test_bad_records_of_the_sample_are_told_before_training(sources: dict[str, Path]) -> None:
    program = skipping({"lines": sources["lines"]}).for_rank(0, 1).program
    [estimate] = program.measure()
    [said] = estimate.warnings("lines")
    assert re.match(
        r"source 'lines': \d+ of \d+ records of a sample are bad and left out\. The first \(field\): ", said
    )


def test_a_failing_function_names_the_way_out(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts_of(200))
    with pytest.raises(FunctionError, match=r"KeyError.*source 'a', shard 'a.jsonl', line at byte \d+\. .*skip"):
        global_batches(small_pipeline({"a": path}).map(fail_or_drop), 1, 50)


MEMORY = """
import resource, sys
from tests.scenarios import rank_steps, small_pipeline
from torchtitan_zephon import TokenEstimation

def peak(path):
    often = TokenEstimation(sample_bytes=2**26)  # so that some places lie outside the large line
    options = {"lanes": 1, "global_batch_size": 8, "chunk_bytes": 2**18, "token_estimation": often}
    pipeline = small_pipeline({"s": path}, repeat=False, **options).options(on_bad_record="skip")
    stream = pipeline.for_rank(0, 1)
    rank_steps(stream, 10**6)
    print(stream.balance.read, file=sys.stderr)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

print(-peak(sys.argv[1]) + peak(sys.argv[2]))
"""


def test_a_line_of_300_mb_is_left_out_without_being_in_memory(tmp_path: Path) -> None:
    small = write_jsonl(tmp_path / "small.jsonl", texts_of(800))
    large = tmp_path / "large.jsonl"
    large.write_bytes(small.read_bytes())
    with large.open("r+b") as file:  # a hole in the file, so that nothing is written
        file.seek(0, 2)
        file.write(b'{"text": "')
        file.seek(300 * 10**6, 1)
        file.write(b'"}\n{"text": "behind it"}\n')
    run = [sys.executable, "-c", MEMORY, str(small), str(large)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=True)
    assert "802 records read = 801 documents + 0 empty + 0 filtered + 1 refused (size 1)" in done.stderr
    assert float(done.stdout) < 64
