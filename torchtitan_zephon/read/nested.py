"""Fields of fields in Arrow's tables: where a path such as ``meta.text`` leads, and the values there.

As in a record (``text_of.value_at``), a name that holds a dot and is there as it stands wins over the path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa


def steps_to(columns: pa.Schema | pa.StructType, field: str) -> tuple[int, ...]:
    """The number of the column, then of the field in it, and so on. Raises ``KeyError`` if there is none."""
    names = [column.name for column in _fields(columns)]
    if field in names:
        return (names.index(field),)
    head, _, rest = field.partition(".")
    if head not in names or not pa.types.is_struct(kind := _fields(columns)[names.index(head)].type):
        raise KeyError(field)
    return (names.index(head), *steps_to(kind, rest))


def type_at(schema: pa.Schema, field: str) -> pa.DataType:
    """The type of ``field``, which is there."""
    kind: pa.Schema | pa.DataType = schema
    for step in steps_to(schema, field):
        kind = _fields(kind)[step].type
    return kind


def leaves_of(schema: pa.Schema, field: str) -> range:
    """The numbers of the leaf columns of ``field``, which is there, in a Parquet file of this schema."""
    kind: pa.Schema | pa.DataType = schema
    first = 0
    for step in steps_to(schema, field):
        first += sum(num_leaves(column.type) for column in _fields(kind)[:step])
        kind = _fields(kind)[step].type
    return range(first, first + num_leaves(kind))


def num_leaves(kind: pa.DataType) -> int:
    """How many leaf columns a column of this type has."""
    if isinstance(kind, pa.BaseExtensionType):
        return num_leaves(kind.storage_type)
    if pa.types.is_struct(kind):
        return sum(num_leaves(column.type) for column in _fields(kind))
    if pa.types.is_map(kind):
        return num_leaves(kind.key_type) + num_leaves(kind.item_type)
    nested = hasattr(kind, "value_type") and not pa.types.is_dictionary(kind)
    return num_leaves(kind.value_type) if nested else 1


def column_at(batch: pa.RecordBatch, field: str) -> pa.Array:
    """The values of ``field``, which is there; null below a null."""
    first, *further = steps_to(batch.schema, field)
    array = batch.column(first)
    for step in further:
        array = array.flatten()[step]
    return array


def times_in(schema: pa.Schema, field: str) -> int:
    """How many columns ``field`` may lie in: those of one name; 0 if it is not there."""
    try:
        steps = steps_to(schema, field)
    except KeyError:
        return 0
    return int(schema.names.count(schema.names[steps[0]]))


def top_of(names: Sequence[str], field: str) -> str:
    """The column, of those with these names, that ``field`` is or lies in."""
    return field if field in names else field.partition(".")[0]


def names_in(columns: pa.Schema | pa.StructType, before: str = "") -> Iterator[str]:
    """The names of all columns, each followed by the paths of its fields."""
    for column in _fields(columns):
        yield before + column.name
        if pa.types.is_struct(column.type):
            yield from names_in(column.type, f"{before}{column.name}.")


def _fields(columns: pa.Schema | pa.StructType) -> list[pa.Field]:
    count = len(columns) if isinstance(columns, pa.Schema) else columns.num_fields
    return [columns.field(i) for i in range(count)]
