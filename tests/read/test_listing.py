"""Which files are read: one rule for a folder, a glob and a single file, and everything else is said or refused."""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios import global_batches, small_pipeline, texts_of, write_jsonl
from torchtitan_zephon import SourceConfig, SourceError
from torchtitan_zephon.read.files import Manifest, list_source
from torchtitan_zephon.read.listing import left_out_text, once
from torchtitan_zephon.read.walk import File, LeftOut, Reason, place_of

WAYS = ["{}", "{}/**", "{}/**/*", "{}/**/*.jsonl", "{}/**/**/*.jsonl"]
"""A folder, and globs for everything in it."""
ROOT = Path(__file__).parents[2]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def listed(way: str, folder: Path) -> Manifest:
    return list_source("s", SourceConfig(path=way.format(folder)))


def names_of(manifest: Manifest) -> list[str]:
    return [shard.name for shard in manifest.shards]


def left(manifest: Manifest, reason: Reason) -> dict[str, str]:
    """The names that were left out for ``reason``, and what they are read as."""
    return {name: of for name, why, of in manifest.left_out if why is reason}


def refusal(path: Path | str) -> str:
    with pytest.raises(SourceError) as refused:
        list_source("s", SourceConfig(path=str(path)))
    return str(refused.value)


def linked(link: Path, target: Path | str) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


# ---- hidden names, other types


def test_hidden_names_are_left_out_and_said(way: str, tmp_path: Path) -> None:
    hidden = [".hidden.jsonl", "_meta.jsonl", ".cache/x.jsonl", "_temporary/0/x.jsonl", "a/_x/x.jsonl"]
    for name in (*hidden, "a/x.jsonl", "lost+found/x.jsonl"):
        write_jsonl(tmp_path / name, [name])
    manifest = listed(way, tmp_path)
    assert names_of(manifest) == ["a/x.jsonl"]
    found = set(left(manifest, Reason.HIDDEN))
    assert found == {".hidden.jsonl", "_meta.jsonl", ".cache/", "_temporary/", "a/_x/", "lost+found/"}


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("_temporary/*.jsonl", ["x.jsonl"]),
        ("*/_temporary/*.jsonl", ["a/_temporary/x.jsonl"]),
        ("**/_temporary/*.jsonl", ["_temporary/x.jsonl", "a/_temporary/x.jsonl"]),
        ("_*.jsonl", ["_meta.jsonl"]),
        ("_temporary", ["x.jsonl"]),
        ("_meta.jsonl", ["_meta.jsonl"]),
        (".[a-z]*", [".hidden.jsonl"]),
    ],
)
def test_hidden_names_are_read_where_the_path_names_them(path: str, names: list[str], tmp_path: Path) -> None:
    for name in ("_temporary/x.jsonl", "a/_temporary/x.jsonl", "_meta.jsonl", ".hidden.jsonl", "b.jsonl"):
        write_jsonl(tmp_path / name, [name])
    assert names_of(list_source("s", SourceConfig(path=f"{tmp_path}/{path}"))) == names


def test_files_of_another_type_are_left_out_and_counted(tmp_path: Path) -> None:
    for n in range(7):
        (tmp_path / f"{n}.crc").touch()
    for name in ("README.md", "dataset_info.json", "x.jsonl.aria2"):
        (tmp_path / name).write_text("no", "utf-8")
    write_jsonl(tmp_path / "x.jsonl", ["x"])
    for path in (str(tmp_path), f"{tmp_path}/*"):
        text = list_source("s", SourceConfig(path=path)).files_text()
        assert text == (
            f"read from {str(tmp_path)!r}: 'x.jsonl'\n"
            "left out: 10 of another type: '0.crc', '1.crc', '2.crc', '3.crc', '4.crc' and 5 more"
        )
    assert not list_source("s", SourceConfig(path=f"{tmp_path}/*.jsonl")).left_out


def test_json_is_read_where_a_file_or_a_glob_names_it(tmp_path: Path) -> None:
    for name in ("a.json", "b.JSON", "c.jsonl"):
        write_jsonl(tmp_path / name, [name])
    assert names_of(list_source("s", SourceConfig(path=f"{tmp_path}/*.json"))) == ["a.json"]
    assert names_of(list_source("s", SourceConfig(path=f"{tmp_path}/b.JSON"))) == ["b.JSON"]
    for path in (str(tmp_path), f"{tmp_path}/*", f"{tmp_path}/*.[jJ]*"):
        assert left(list_source("s", SourceConfig(path=path)), Reason.OTHER_TYPE).keys() == {"a.json", "b.JSON"}
    (tmp_path / "c.jsonl").unlink()
    assert "is read if the path names it, as in FOLDER/*.json" in refusal(tmp_path)


def test_packed_json_is_read_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "c4.00000-of-00001.json.gz").write_bytes(gzip.compress(b'{"text": "one"}\n'))
    for path in (tmp_path / "c4.00000-of-00001.json.gz", f"{tmp_path}/*.json.gz"):
        assert names_of(list_source("s", SourceConfig(path=str(path)))) == ["c4.00000-of-00001.json.gz"]
    assert "found only .gz" in refusal(tmp_path)


def test_a_folder_that_a_glob_matches_is_left_out_with_the_way_to_read_it(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "part-0" / "x.jsonl", ["x"])
    assert "1 folder, where the path asks for files: 'part-0/'" in refusal(f"{tmp_path}/part-*")
    assert "add /** to the glob" in refusal(f"{tmp_path}/part-*")
    assert names_of(list_source("s", SourceConfig(path=f"{tmp_path}/part-*/**"))) == ["part-0/x.jsonl"]
    linked(tmp_path / "part-1", "part-0")
    write_jsonl(tmp_path / "part-2.jsonl", ["y"])
    manifest = list_source("s", SourceConfig(path=f"{tmp_path}/part-*"))
    assert (names_of(manifest), left(manifest, Reason.FOLDER)) == (["part-2.jsonl"], {"part-0/": "", "part-1/": ""})


# ---- one file, several names


def test_a_link_is_read_under_its_own_name(way: str, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "4d7a").write_bytes(b'{"text": "x"}\n')
    linked(tmp_path / "named.jsonl", "blobs/4d7a")
    assert names_of(listed(way, tmp_path)) == ["named.jsonl"]


@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_a_file_under_two_names_is_read_once_under_the_first_and_said(way: str, kind: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", ["x"])
    for name in ("latest.jsonl", "z/again.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        if kind == "link":
            (tmp_path / name).symlink_to(tmp_path / "x.jsonl")
        else:
            (tmp_path / name).hardlink_to(tmp_path / "x.jsonl")
    manifest = listed(way, tmp_path)
    assert names_of(manifest) == ["latest.jsonl"]
    assert left(manifest, Reason.SECOND_NAME) == {"x.jsonl": "latest.jsonl", "z/again.jsonl": "latest.jsonl"}
    assert "2 second name of a file that is read: 'x.jsonl' (is 'latest.jsonl'), " in manifest.files_text()


def test_two_files_that_are_alike_are_two_files(way: str, tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        write_jsonl(tmp_path / name, ["the same"])
    assert len(listed(way, tmp_path).shards) == 2


def test_where_files_are_not_numbered_none_is_taken_for_another() -> None:
    files = [File("b", 5, (7, 0)), File("a", 5, (7, 0))]
    assert once(files) == ([files[1], files[0]], [])


def test_where_folders_are_not_numbered_they_are_told_apart_by_their_real_paths(tmp_path: Path) -> None:
    unnumbered = os.stat_result([0o40755, 0, 7, *[0] * 7])
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    linked(tmp_path / "c", "a")
    a, b, c = (place_of(str(tmp_path / name), unnumbered) for name in "abc")
    assert a == c != b
    assert place_of("a", (tmp_path / "a").stat()) == place_of("c", (tmp_path / "c").stat())


# ---- linked folders, loops


def test_a_link_to_a_folder_above_is_left_out_and_said(way: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "all" / "a" / "x.jsonl", ["x"])
    write_jsonl(tmp_path / "secret.jsonl", ["beside the source"])
    linked(tmp_path / "all" / "a" / "up", "..")
    linked(tmp_path / "all" / "here", ".")
    linked(tmp_path / "all" / "far-up", tmp_path)
    manifest = listed(way, tmp_path / "all")
    assert names_of(manifest) == ["a/x.jsonl"]
    assert left(manifest, Reason.LOOP).keys() == {"a/up/", "far-up/", "here/"}


def test_a_folder_keeps_its_own_path_whatever_links_lead_to_it(way: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "all" / "m" / "deep" / "x.jsonl", ["x"])
    for link, target in {"a": "m", "b/c": "../m/deep", "z": "m"}.items():
        linked(tmp_path / "all" / link, target)
    manifest = listed(way, tmp_path / "all")
    assert names_of(manifest) == ["m/deep/x.jsonl"]
    assert left(manifest, Reason.SECOND_WAY) == {"a/": "m/", "b/c/": "m/deep/", "z/": "m/"}


def test_a_folder_elsewhere_is_read_under_the_first_link_to_it(way: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "elsewhere" / "deep" / "x.jsonl", ["x"])
    write_jsonl(tmp_path / "elsewhere" / "y.jsonl", ["y"])
    linked(tmp_path / "elsewhere" / "deep" / "round", "..")
    write_jsonl(tmp_path / "all" / "z.jsonl", ["z"])
    for link, target in {"b": "elsewhere", "c": "elsewhere", "a": "elsewhere/deep"}.items():
        linked(tmp_path / "all" / link, tmp_path / target)
    manifest = listed(way, tmp_path / "all")
    assert names_of(manifest) == ["a/x.jsonl", "b/y.jsonl", "z.jsonl"]
    assert left(manifest, Reason.SECOND_WAY) == {"b/deep/": "a/", "c/": "b/"}
    assert left(manifest, Reason.LOOP).keys() == {"a/round/"}


def test_links_that_lead_through_each_other_end(way: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_jsonl(tmp_path / name / "x.jsonl", [name])
        for other in ("a", "b"):
            linked(tmp_path / name / f"to-{other}", f"../{other}")
    assert names_of(listed(way, tmp_path)) == ["a/x.jsonl", "b/x.jsonl"]


def test_a_glob_through_a_link_finds_what_only_this_way_matches(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x" / "y" / "0.jsonl", ["0"])
    linked(tmp_path / "link", "x/y")
    assert names_of(list_source("s", SourceConfig(path=f"{tmp_path}/*/0.jsonl"))) == ["link/0.jsonl"]
    manifest = list_source("s", SourceConfig(path=f"{tmp_path}/**/y/*.jsonl"))
    assert (names_of(manifest), left(manifest, Reason.SECOND_WAY)) == (["x/y/0.jsonl"], {"link/": "x/y/"})
    linked(tmp_path / "y", "x")
    write_jsonl(tmp_path / "x" / "1.jsonl", ["1"])
    assert names_of(list_source("s", SourceConfig(path=f"{tmp_path}/**/y/*.jsonl"))) == ["x/y/0.jsonl", "y/1.jsonl"]


# ---- what cannot be read


@pytest.mark.parametrize("name", ["gone.jsonl", "gone.parquet", "gone", "gone.v2", "a/gone.jsonl"])
def test_a_link_that_leads_nowhere_is_refused_if_it_may_have_been_data(way: str, name: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", ["x"])
    linked(tmp_path / name, "nothing")
    if name == "gone.parquet" and way.endswith(".jsonl"):
        assert names_of(listed(way, tmp_path)) == ["x.jsonl"]
        return
    text = refusal(way.format(tmp_path))
    assert f"{str(tmp_path / name)!r} is a link that leads nowhere, to 'nothing'. Mend it or move it away" in text


def test_a_link_to_nothing_that_is_plainly_no_data_is_left_out_and_said(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", ["x"])
    for name in ("README.md", "info.json", ".#lock"):
        linked(tmp_path / name, "nothing")
    manifest = list_source("s", SourceConfig(path=str(tmp_path)))
    assert names_of(manifest) == ["x.jsonl"]
    assert left(manifest, Reason.OTHER_TYPE).keys() == {"README.md", "info.json"}
    assert left(manifest, Reason.HIDDEN).keys() == {".#lock"}
    assert names_of(list_source("s", SourceConfig(path=f"{tmp_path}/**/*.jsonl"))) == ["x.jsonl"]


def test_links_that_lead_to_each_other_are_refused(way: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", ["x"])
    linked(tmp_path / "a.jsonl", "b.jsonl")
    linked(tmp_path / "b.jsonl", "a.jsonl")
    text = refusal(way.format(tmp_path))
    assert f"{str(tmp_path / 'a.jsonl')!r} cannot be read: Too many levels of symbolic links" in text
    assert "There are 1 more such names" in text


@pytest.mark.parametrize("path", ["gone.jsonl", "gone"])
def test_a_path_that_is_a_link_to_nothing_is_refused_as_that(path: str, tmp_path: Path) -> None:
    linked(tmp_path / path, "nothing")
    assert "is a link that leads nowhere, to 'nothing'" in refusal(tmp_path / path)


@pytest.mark.parametrize(("kind", "said"), [("pipe", "a named pipe"), ("socket", "a socket"), ("device", "a device")])
@pytest.mark.parametrize("named", [False, True])
def test_what_is_no_file_is_refused_if_it_is_named_like_data(
    way: str, kind: str, said: str, named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "x.jsonl", ["x"])
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    for name in ("s", "s.jsonl"):
        if kind == "pipe":
            os.mkfifo(name)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(name)
        else:
            Path(name).symlink_to("/dev/null")
    text = refusal(tmp_path / "s.jsonl" if named else way.format(tmp_path))
    assert f"{str(tmp_path / 's.jsonl')!r} is {said}, no file" in text
    (tmp_path / "s.jsonl").unlink()
    manifest = list_source("s", SourceConfig(path=str(tmp_path)))
    assert left(manifest, Reason.OTHER_TYPE).keys() == {"s"}


# ---- permissions, as a user who has not all of them

AS_NOBODY = """
import os, sys
from torchtitan_zephon import SourceConfig, SourceError
from torchtitan_zephon.read import sample
from torchtitan_zephon.read.files import list_source
sample.MOST_SAMPLED_SHARDS = int(sys.argv[2])
if os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
try:
    print(*(shard.name for shard in list_source("s", SourceConfig(path=sys.argv[1])).shards))
except SourceError as error:
    print("refused:", error)
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that anybody may enter, unlike ``tmp_path``."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        for part in ("a/x.jsonl", "b/y.jsonl", "c/z.jsonl"):
            write_jsonl(Path(name, part), [part])
        yield Path(name)
        for folder in Path(name).iterdir():
            folder.chmod(0o700)


def as_nobody(path: Path | str, most_sampled: int = 4096) -> str:
    command = [sys.executable, "-c", AS_NOBODY, str(path), str(most_sampled)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert not done.stderr, done.stderr
    return done.stdout.strip()


def test_a_user_without_special_rights_reads_what_is_there(public: Path) -> None:
    assert as_nobody(public) == "a/x.jsonl b/y.jsonl c/z.jsonl"


@pytest.mark.parametrize("mode", [0o000, 0o111, 0o444])  # not listed, entered only, listed only
def test_a_subfolder_without_permission_is_refused(way: str, mode: int, public: Path) -> None:
    (public / "b").chmod(mode)
    text = as_nobody(way.format(public))
    assert text.startswith(f"refused: source 's': '{public}/b")
    assert "cannot be read: Permission denied. Without it the source would not be whole." in text
    assert as_nobody(f"{public}/[ac]/*") == "a/x.jsonl c/z.jsonl"


@pytest.mark.parametrize("most_sampled", [4096, 1])
def test_a_file_without_permission_is_refused_sampled_or_not(way: str, most_sampled: int, public: Path) -> None:
    (public / "b" / "y.jsonl").chmod(0)
    text = as_nobody(way.format(public), most_sampled)
    assert f"'{public}/b/y.jsonl' cannot be read: Permission denied" in text


@pytest.mark.parametrize("path", ["b", "b/y.jsonl", "b/*.jsonl", "b/deeper/*.jsonl", "link.jsonl"])
def test_a_path_into_a_folder_without_permission_is_refused(path: str, public: Path) -> None:
    (public / "link.jsonl").symlink_to("b/y.jsonl")
    (public / "b").chmod(0)
    text = as_nobody(public / path)
    assert text.startswith("refused: source 's': ")
    assert "Permission denied" in text


def test_a_hidden_folder_without_permission_is_left_out(public: Path) -> None:
    (public / "b").rename(public / "_b")
    (public / "_b").chmod(0)
    assert as_nobody(public) == "a/x.jsonl c/z.jsonl"


# ---- names


def test_a_name_that_is_not_utf8_is_refused_with_its_bytes(way: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", ["x"])
    for name in (b"caf\xe9.jsonl", b"caf\xe9/y.jsonl"):
        path = tmp_path / os.fsdecode(name)
        write_jsonl(path, ["x"])
        text = refusal(way.format(tmp_path))
        assert "has a name that is not UTF-8" in text
        assert repr(name) in text
        assert "Rename it" in text
        text.encode()
        path.unlink()
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).touch()
    listed(way, tmp_path).files_text().encode()


@pytest.mark.parametrize("name", ["a\nb.jsonl", "a\x1b[31mb.jsonl", "a\x7f.jsonl", "a\x85.jsonl", "\u2028.jsonl"])
def test_a_control_character_in_a_name_is_refused(way: str, name: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", ["x"])
    write_jsonl(tmp_path / name, ["y"])
    text = refusal(way.format(tmp_path))
    assert f"{str(tmp_path / name)!r} has a control character in its name" in text
    assert text.isprintable()
    (tmp_path / name).rename(tmp_path / f"{name}.txt")
    assert listed(way, tmp_path).files_text().replace("\n", "").isprintable()


def test_letters_spaces_and_signs_of_any_script_are_read(way: str, tmp_path: Path) -> None:
    names = ["a b.jsonl", "a\u3000b.jsonl", "ä'\"#%.jsonl", "東京/🚀.jsonl"]
    for name in names:
        write_jsonl(tmp_path / name, [name])
    assert sorted(names_of(listed(way, tmp_path))) == sorted(names)


def test_a_stream_over_such_names_saves_and_continues(tmp_path: Path) -> None:
    for n, name in enumerate(["a: b -> c.jsonl", "ä'\"#%{}.jsonl", "東京/🚀.jsonl"]):
        write_jsonl(tmp_path / name, texts_of(60, first=100 * n))
    pipeline = small_pipeline({"s": tmp_path})
    whole, _ = global_batches(pipeline, 1, 8)
    head, state = global_batches(pipeline, 2, 4)
    assert head + global_batches(pipeline, 4, 4, state)[0] == whole


def test_names_are_those_of_the_file_system_whatever_the_locale(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "東京" / "ä.jsonl", ["x"])
    code = (
        "import sys; from torchtitan_zephon import SourceConfig; from torchtitan_zephon.read.files import list_source; "
        "m = list_source('s', SourceConfig(path=sys.argv[1])); "
        "print(ascii(m.shards[0].name), open(m.path(0), 'rb').read(), sys.getfilesystemencoding())"
    )
    plain = {**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", code, tmp_path], env=plain, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.startswith(ascii("東京/ä.jsonl"))
    assert "utf-8" not in done.stdout, "this is no test where all locales are UTF-8"


# ---- how it is said


def test_reasons_are_said_in_one_order_with_counts_and_the_first_names() -> None:
    names = [LeftOut(f"{n}.md", Reason.OTHER_TYPE) for n in range(1200)]
    text = left_out_text((*names, LeftOut("_x/", Reason.HIDDEN), LeftOut("b", Reason.SECOND_NAME, "a")))
    assert text == (
        "1 second name of a file that is read: 'b' (is 'a'); 1 hidden: '_x/'; 1,200 of another type: "
        "'0.md', '1.md', '2.md', '3.md', '4.md' and 1,195 more"
    )
    assert left_out_text(()) == ""


def test_files_read_are_named_with_their_folder(tmp_path: Path) -> None:
    for n in range(7):
        write_jsonl(tmp_path / f"{n}.jsonl", [str(n)])
    assert list_source("s", SourceConfig(path=str(tmp_path))).files_text() == (
        f"read from {str(tmp_path)!r}: '0.jsonl', '1.jsonl', '2.jsonl', '3.jsonl', '4.jsonl' and 2 more"
    )
