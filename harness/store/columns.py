"""Rows to Arrow and back: one schema per table, derived from the row's annotations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_type_hints

import pyarrow as pa

from harness.store.rows import TABLES, Row

_TYPES: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    list[int]: pa.list_(pa.int32()),
    list[float]: pa.list_(pa.float32()),
    dict[str, str]: pa.map_(pa.string(), pa.string()),
}


def schema_of(row: type[Row]) -> pa.Schema:
    """The Arrow schema of a row type. Everything is nullable; NaN is stored as null."""
    hints = get_type_hints(row)
    return pa.schema([(name, _TYPES[hints[name]]) for name in row.__struct_fields__])


SCHEMAS: dict[str, pa.Schema] = {name: schema_of(row) for name, row in TABLES.items()}


def to_arrow(table: str, rows: Sequence[Row]) -> pa.Table:
    """Rows of one table as Arrow."""
    columns = []
    for column in SCHEMAS[table]:
        values: list[Any] = [getattr(row, column.name) for row in rows]
        if pa.types.is_map(column.type):
            values = [list(value.items()) for value in values]
        columns.append(pa.array(values, column.type, from_pandas=pa.types.is_floating(column.type)))
    return pa.Table.from_arrays(columns, schema=SCHEMAS[table])


def conform(table: str, data: pa.Table) -> pa.Table:
    """Fit a table of another version to today's schema: absent columns are null, unknown ones dropped.

    Raises pyarrow.ArrowInvalid or pyarrow.ArrowNotImplementedError where a column has another type.
    """
    if data.schema.equals(SCHEMAS[table]):
        return data
    columns = [
        data.column(field.name).cast(field.type)
        if field.name in data.schema.names
        else pa.nulls(data.num_rows, field.type)
        for field in SCHEMAS[table]
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMAS[table])


def without_nan(data: pa.Table) -> pa.Table:
    """NaN as null, as `to_arrow` has it."""
    import pyarrow.compute as pc

    for i, column in enumerate(data.schema):
        if pa.types.is_floating(column.type):
            values = data.column(i)
            data = data.set_column(i, column, pc.if_else(pc.is_nan(values), pa.scalar(None, column.type), values))
    return data


def up_to(table: str, data: pa.Table, step: int) -> pa.Table:
    """The rows that a cell resumed at `step` keeps."""
    import pyarrow.compute as pc

    names = SCHEMAS[table].names
    if "checkpoint_step" in names:
        return data.filter(pc.less(data.column("checkpoint_step"), step))
    return data.filter(pc.less_equal(data.column("step"), step)) if "step" in names else data
