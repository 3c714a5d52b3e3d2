"""Every mistake in data and settings is one readable error with the way out; never a library's traceback or a gap."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.scenarios import says, small_pipeline, texts_of, tokenizer_folder, write_jsonl
from torchtitan_zephon import (
    Batch,
    ConfigError,
    Dataset,
    FunctionError,
    Pipeline,
    RecordError,
    SourceError,
    StaticMixtureWorkSource,
    TokenEstimation,
    TokenizerError,
)  # fmt: skip
from torchtitan_zephon.ops.tokenize import Tokenize, check_vocabulary
from torchtitan_zephon.ops.tokenizer_files import load_tokenizer
from torchtitan_zephon.read import files
from torchtitan_zephon.read.settings import SourceConfig
from torchtitan_zephon.state import decode_stream

Sources = dict[str, Path]


# ---- paths and files


def fill_with(tmp_path: Path, files_of: dict[str, bytes]) -> Path:
    for name, content in files_of.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content)
    return tmp_path / "in"


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ({}, ["no data file", "it is empty"]),
        ({"a.txt": b"x", "b.pdf": b"y"}, ["found only .pdf, .txt"]),
        ({"a.jsonl.gz": b"x"}, ["a.jsonl.gz' is no gzip file", "Give it the ending"]),
        ({"a.jsonl": b"{}", "b.parquet": b"x"}, ["holds both jsonl and parquet"]),
        ({"a.jsonl": b"", "b.jsonl": b""}, ["all 2 files", "are empty"]),
        ({"a.parquet": b"not parquet"}, ["a.parquet", "not a readable Parquet file"]),
    ],
)
def test_a_folder_that_cannot_be_a_source_is_refused(
    tmp_path: Path, content: dict[str, bytes], parts: list[str]
) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(SourceError) as error:
        small_pipeline({"news": fill_with(tmp_path, content)}).explain()
    says(error, *parts)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere", "there is no file or folder 'nowhere'"),
        ("nowhere/*.jsonl", "at 'nowhere/*.jsonl'"),
        ("memory://nowhere/data", "there is nothing at 'memory://nowhere/data'"),
        ("", "has no path"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_by_name(path: str, said: str) -> None:
    with pytest.raises(SourceError) as error:
        small_pipeline({"news": path}).explain()
    says(error, "source 'news'", said)


# ---- records


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('{"text": "cut', ["not valid JSON"]),
        ("[1, 2]", ["must be a JSON object; this one is an array"]),
        ("null", ["this one is null"]),
        ('"text"', ["this one is a string"]),
        ('{"text": "a"} {"text": "b"}', ["not valid JSON"]),
        ('{"text": "a",}', ["not valid JSON"]),
        ('{"text": NaN}', ["not valid JSON"]),
        ('{"text": "\\ud83d"}', ["not valid JSON"]),
        ('{"text": null}', ["field 'text' must be a string; it is null"]),
        ('{"text": 5}', ["it is a int ('5')"]),
        ('{"text": ["a"]}', ["it is a list"]),
        ('{"Text": "a", "id": 1}', ["there is no field 'text'", "'Text', 'id'", "field = "]),
        ("{}", ["the record's fields: none"]),
    ],
)
def test_a_bad_line_is_an_error_with_source_shard_and_byte(tmp_path: Path, line: str, parts: list[str]) -> None:
    good = json.dumps({"text": "fine"}) + "\n"
    (tmp_path / "x.jsonl").write_text(good * 2 + line + "\n" + good, "utf-8")
    rank = small_pipeline({"news": tmp_path / "x.jsonl"}).for_rank(0, 1)
    with pytest.raises(RecordError) as error:
        next(iter(rank))
    says(error, "source 'news', shard 'x.jsonl'", f"line at byte {2 * len(good)}", *parts)
    assert (error.value.source, error.value.shard) == ("news", "x.jsonl")


def test_bytes_that_are_no_utf8_are_a_bad_line(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"text": "fine"}\n{"text": "\xff"}\n')
    with pytest.raises(RecordError, match="line at byte 17: not valid JSON"):
        next(iter(small_pipeline({"news": tmp_path / "x.jsonl"})))


@pytest.mark.parametrize(
    ("column", "parts"), [("body", ["no column 'text'", "'body'"]), ("text", ["holds int64, neither text"])]
)
def test_a_parquet_column_that_is_missing_or_no_text_is_refused(tmp_path: Path, column: str, parts: list[str]) -> None:
    pq.write_table(pa.table({column: [1, 2, 3]}), tmp_path / "x.parquet")
    with pytest.raises(SourceError) as error:
        small_pipeline({"news": tmp_path / "x.parquet"}).explain()
    says(error, "x.parquet", *parts)


def test_a_source_of_nothing_but_empty_texts_is_refused_and_never_spins(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", [""] * 50)
    with pytest.raises(SourceError, match="no usable document"):
        next(iter(small_pipeline({"news": tmp_path / "x.jsonl"})))


def test_a_failing_function_names_the_record_and_chains_its_cause(sources: Sources) -> None:
    def odd(record: dict[str, Any]) -> dict[str, Any]:
        return {"text": record["text"] if record["id"] != 40 else record["missing"]}

    with pytest.raises(FunctionError) as error:
        list(zip(range(200), small_pipeline(sources).map(odd), strict=False))
    says(error, "map function", "odd", "KeyError: 'missing'", "source '", "shard '", "line at byte")
    assert isinstance(error.value.__cause__, KeyError)


def test_a_map_that_returns_no_record_is_an_error(sources: Sources) -> None:
    with pytest.raises(RecordError, match=r"must return a record .* it returned NoneType") as error:
        next(iter(small_pipeline(sources).map(lambda r: None, identity="none")))  # type: ignore[arg-type, return-value]
    says(error, "source 'news', shard '", "line at byte ", "map function none")


@pytest.mark.parametrize("repeat", [True, False])
def test_a_filter_that_drops_a_whole_source_is_refused_by_name_and_never_spins(sources: Sources, repeat: bool) -> None:
    pipeline = small_pipeline(sources, repeat=repeat).filter(lambda r: "1" not in r["text"][:1], identity="no 1")
    assert next(iter(pipeline)).step == 1
    pipeline.close()
    for name in sources:
        write_jsonl(sources[name] / "0.jsonl", texts_of(5, first=1000))
        (sources[name] / "1.jsonl").unlink()
        with pytest.raises(SourceError, match=rf"source '{name}': no usable document.* [1-9]\d* filtered"):
            next(iter(small_pipeline(sources, repeat=repeat).filter(lambda r: r["text"][0] != "1", identity="no 1")))
        write_jsonl(sources[name] / "1.jsonl", texts_of(80))


@pytest.mark.parametrize("workers", [1, 8])
def test_of_two_bad_lines_the_first_in_the_stream_is_the_error_whatever_the_workers(
    tmp_path: Path, workers: int
) -> None:
    def late(record: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.001 * (record["id"] % 3))
        return record

    lines = [json.dumps({"id": i, "text": text}) for i, text in enumerate(texts_of(400))]
    lines[250] = lines[350] = "{"
    (tmp_path / "x.jsonl").write_text("\n".join(lines), "utf-8")
    estimate = {"token_estimation": TokenEstimation(sample_bytes=1)}  # or it would be met before the first batch
    pipeline = small_pipeline({"x": tmp_path / "x.jsonl"}, workers=workers, lanes=1, shuffle_chunks=False, **estimate)
    taken: list[Batch] = []
    with pytest.raises(RecordError) as error:
        taken.extend(pipeline.map(late, identity="late"))
    assert len(taken) > 10
    says(error, f"line at byte {sum(len(line) + 1 for line in lines[:250])}")


def test_a_file_cut_while_the_job_runs_is_an_error_not_a_short_read(sources: Sources) -> None:
    rank = small_pipeline(sources).for_rank(0, 1)
    iterator = iter(rank)
    next(iterator)
    for shard in (*sources["news"].iterdir(), *sources["wiki"].iterdir()):
        shard.write_bytes(shard.read_bytes()[:1000])
    with pytest.raises(SourceError, match="the file was changed or cut while the job runs"):
        list(zip(range(2000), iterator, strict=False))


def test_after_an_error_the_stream_goes_on_raising_instead_of_leaving_a_gap(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "' + "fine " * 3000 + '"}\n{"text": "cut\n')
    rank = small_pipeline({"news": tmp_path / "x.jsonl"}, shuffle_records=False).for_rank(0, 1)
    for _ in range(3):
        with pytest.raises(RecordError):
            list(zip(range(10**4), rank, strict=False))
    assert decode_stream(rank.state_dict()["stream"]).step == rank.step


# ---- found by breaking the work, and mended


def test_a_parquet_text_that_is_no_utf8_is_an_error_with_its_row(tmp_path: Path) -> None:
    texts = pa.array([b"fine"] * 50 + [b"\xff\xfe"], pa.binary())
    column = pa.Array.from_buffers(pa.string(), len(texts), texts.buffers())
    pq.write_table(pa.table({"text": column}), tmp_path / "x.parquet")
    with pytest.raises(RecordError):
        next(iter(small_pipeline({"news": tmp_path / "x.parquet"})))


BARREN = """
import sys
from pathlib import Path
from tests.scenarios import small_pipeline
pipeline = small_pipeline({"s": Path(sys.argv[1])}).tokenize(tokenizer_id=sys.argv[2], add_bos=False, add_eos=False)
next(iter(pipeline))
"""


def ended(code: str, *arguments: object) -> str:
    """What ``code`` wrote to stderr; it must end within 20 s."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=20).stderr


def test_a_source_of_one_token_documents_is_refused_and_never_spins(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", ["a"] * 100)
    assert "SourceError" in ended(BARREN, tmp_path / "x.jsonl", tokenizer_folder())


def test_a_linked_folder_in_a_source_is_read_or_refused(sources: Sources, tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "news").symlink_to(sources["news"], target_is_directory=True)
    shutil.copytree(sources["wiki"], tmp_path / "all" / "wiki")
    manifest = files.list_source("all", SourceConfig(path=str(tmp_path / "all")))
    assert len(manifest.shards) == 4


def test_a_folder_that_is_also_linked_from_its_neighbour_is_read_once_or_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "all" / "b" / "0.jsonl", texts_of(5))
    for name in ("a", "c"):
        (tmp_path / "all" / name).symlink_to(tmp_path / "all" / "b", target_is_directory=True)
    (tmp_path / "all" / "b" / "up").symlink_to(tmp_path / "all", target_is_directory=True)
    assert len(files.list_source("all", SourceConfig(path=str(tmp_path / "all"))).shards) == 1


def test_a_named_pipe_among_the_files_is_left_out_or_refused(sources: Sources) -> None:
    os.mkfifo(sources["news"] / "2.jsonl")
    code = (
        "import sys; from torchtitan_zephon import SourceConfig; from torchtitan_zephon.read.files import list_source; "
        "list_source('news', SourceConfig(path=sys.argv[1]))"
    )
    error = ended(code, sources["news"])
    assert not error or "SourceError" in error


@pytest.mark.parametrize(
    "config",
    [{"bos_token": {"id": 1}}, {"bos_token": 5}, {"added_tokens_decoder": {"3": {"special": True}}}, ["<s>"], None],
    ids=str,
)
def test_a_tokenizer_config_of_another_shape_is_refused_by_file(tmp_path: Path, config: Any) -> None:
    shutil.copytree(tokenizer_folder(), tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json"):
        load_tokenizer(str(tmp_path / "tokenizer"))


def test_weights_whose_sum_is_not_finite_are_refused_or_work(sources: Sources) -> None:
    assert next(iter(small_pipeline(sources, weights={"news": 1e308, "wiki": 1e308}))).step == 1


@pytest.mark.parametrize(
    "setting", [{"seq_len": "32"}, {"seq_len": 32.0}, {"local_batch_size": "2"}, {"global_batch_size": 8.0}], ids=str
)
def test_a_number_of_the_wrong_type_is_refused_by_name(sources: Sources, setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        next(iter(small_pipeline(sources, **setting)))


# ---- settings


@pytest.mark.parametrize(
    ("mixture", "parts"),
    [
        ({"news": -1.0, "wiki": 1.0}, ["weight of source 'news' is -1.0"]),
        ({"news": 0.0, "wiki": 1.0}, ["is 0.0", "To leave a source out"]),
        ({"news": float("nan"), "wiki": 1.0}, ["is nan"]),
        ({"news": float("inf"), "wiki": 1.0}, ["is inf"]),
        ({"news": 1.0, "wikki": 1.0}, ["'wikki', which is no dataset", "Did you mean 'wiki'?"]),
        ({"news": 1.0}, ["dataset 'wiki' has no weight"]),
    ],
)
def test_a_mixture_that_makes_no_sense_is_refused(
    sources: Sources, mixture: dict[str, float], parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        small_pipeline(sources, weights=mixture)
    says(error, *parts)


def test_two_datasets_of_one_name_are_refused(sources: Sources) -> None:
    with pytest.raises(ConfigError, match="two datasets are named 'a'"):
        StaticMixtureWorkSource(datasets=[Dataset("a", "x"), Dataset("a", "y")], mixture={"a": 1})


@pytest.mark.parametrize(
    ("options", "degree", "parts"),
    [
        (
            {"lanes": 8, "global_batch_size": 16},
            3,
            ["lanes = 8", "over 3 data-parallel ranks", "2 or 4 ranks", "the global batch a multiple of 3"],
        ),
        (
            {"lanes": 8, "global_batch_size": 20},
            2,
            ["global_batch_size = 20", "global batch of 16 or 24", "4 or 10 lanes"],
        ),
        (
            {"lanes": 8, "global_batch_size": 16, "local_batch_size": 3},
            2,
            ["local_batch_size = 3", "16 / 2 = 8", "2 or 4"],
        ),
        ({"lanes": 8, "global_batch_size": -1}, 1, ["grows with the number of GPUs"]),
    ],
)
def test_a_layout_that_does_not_divide_is_refused_with_the_nearest_that_does(
    sources: Sources, options: dict[str, int], degree: int, parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        small_pipeline(sources, **options).for_rank(0, degree)  # type: ignore[arg-type]
    says(error, *parts)


def test_a_sequence_of_one_token_is_refused(sources: Sources) -> None:
    with pytest.raises(ConfigError, match="seq_len = 1 must be 2 or more"):
        small_pipeline(sources, seq_len=1).explain()


def test_a_pipeline_without_a_stage_says_which(sources: Sources) -> None:
    source = StaticMixtureWorkSource(datasets=[Dataset.from_path("news", str(sources["news"]))], mixture={"news": 1})
    with pytest.raises(ConfigError, match="no batch stage"):
        next(iter(Pipeline(source)))
    with pytest.raises(ConfigError, match="no pack_flat stage"):
        next(iter(Pipeline(source).tokenize(tokenizer_id=str(tokenizer_folder())).batch(microbatch_size=1)))


def test_a_tokenizer_that_is_missing_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"cannot be loaded.*tokenizer\.json"):
        load_tokenizer(str(tmp_path))
    tokenize = Tokenize(load_tokenizer(str(tokenizer_folder())))
    check_vocabulary(tokenize, 384)
    with pytest.raises(TokenizerError, match="ids up to 383, but the model's vocabulary has 300 entries"):
        check_vocabulary(tokenize, 300)
