"""What a source says of its text: a field, several, or a template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.scenarios import says
from torchtitan_zephon import ConfigError, SourceConfig
from torchtitan_zephon.settings import from_table
from torchtitan_zephon.text_of import names_in, text_of, value_at
from torchtitan_zephon.titan.job import parse_job


def test_a_template_is_read_once_for_its_fields() -> None:
    found = text_of("text", "{a} and {b.c}, {a}")
    assert found.fields == ("a", "b.c")
    assert found.joined({"a": ["1", "2"], "b.c": ["x", "y"]}) == ["1 and x, 1", "2 and y, 2"]
    assert str(found) == "template '{a} and {b.c}, {a}'"
    assert str(text_of(["a", "b"])) == "'a' + 'b'"


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{a", "expected '}'"),
        ("a}", "Single '}'"),
        ("{}", "an empty pair of braces"),
        ("{a!r}", "a conversion or format of 'a'"),
        ("{a:>10}", "a conversion or format of 'a'"),
        ("no field", "names no field"),
        ("{{a}}", "names no field"),
    ],
)
def test_a_template_that_is_none_is_refused_with_an_example(template: str, why: str) -> None:
    with pytest.raises(ConfigError) as error:
        SourceConfig(template=template)
    says(error, f"template = {template!r}", why, "{title}")


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"field": []}, "a field has a name"),
        ({"field": ["a", ""]}, "a field has a name"),
        ({"field": ["a", "b", "a"]}, "it names 'a' twice"),
        ({"field": "a", "template": "{b}"}, "keep one"),
        ({"field": 5}, "s.field = 5 is a int; expected str or list[str]"),
        ({"field": ["a", 5]}, "s.field[1] = 5 is a int; expected str"),
        ({"field": {"a": "b"}}, "expected str or list[str]"),
    ],
)
def test_a_field_that_is_none_is_refused(table: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_table(SourceConfig, table, "s")
    says(error, why)


def test_an_exact_name_wins_at_every_level() -> None:
    record = {"a": {"b.c": 1, "b": {"c": 2}, "d": None}, "a.b": {"c": 3}}
    assert value_at(record, "a.b.c") == 1
    assert value_at(record, "a.b") == {"c": 3}
    assert value_at(record, "a.d.e") is None
    with pytest.raises(KeyError):
        value_at(record, "a.b.c.d")


def test_very_many_names_are_cut() -> None:
    assert names_in({}) == "none"
    assert names_in({f"f{n:03}": n for n in range(100)}).endswith("'f029' and 70 more")


JOB = """
[training]
global_batch_size = 8
[zephon.sources.wiki]
path = "wiki.jsonl"
"""


@pytest.mark.parametrize(
    ("override", "fields"),
    [
        (("field", "meta.text"), ("meta.text",)),
        (("field", '["title", "meta.text"]'), ("title", "meta.text")),
        (("template", "{title}: {text}"), ("title", "text")),
        (("template", "{text}"), ("text",)),
    ],
)
def test_the_command_line_can_say_it(override: tuple[str, str], fields: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB, "utf-8")
    key, value = override
    arguments = ["--job.config_file", str(tmp_path / "job.toml"), f"--zephon.sources.wiki.{key}", value]
    assert parse_job(arguments, {}).recipe.sources["wiki"].text.fields == fields
