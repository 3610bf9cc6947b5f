"""The tables that a corpus's results are, as Parquet."""

from __future__ import annotations

import pyarrow
import pyarrow.parquet

from typing import Any

_TIME = pyarrow.timestamp("ns", "UTC")

#: Columns that every row of ``flows`` and ``packets`` has before those of the compiled part.
_WHERE = [
    pyarrow.field("file", pyarrow.string(), nullable=False),
    pyarrow.field("part", pyarrow.uint32(), nullable=False),
]


def _counts(*names: str) -> list[pyarrow.Field]:
    return [pyarrow.field(name, pyarrow.uint64(), nullable=False) for name in names]


POLICIES = pyarrow.schema(
    [
        pyarrow.field("file", pyarrow.string(), nullable=False),
        pyarrow.field("policy", pyarrow.string(), nullable=False),
        *_counts(
            "packets_in", "bytes_in", "packets_out", "bytes_out", "super_packets", "merged", "absorbed_acks", "held_at_cuts"
        ),
    ]
)

REASONS = pyarrow.schema(
    [
        pyarrow.field("file", pyarrow.string(), nullable=False),
        pyarrow.field("policy", pyarrow.string(), nullable=False),
        pyarrow.field("reason", pyarrow.string(), nullable=False),
        *_counts("packets"),
    ]
)

FILES = pyarrow.schema(
    [
        pyarrow.field("file", pyarrow.string(), nullable=False),
        ("size", pyarrow.uint64()),
        ("modified", pyarrow.string()),
        ("checksum", pyarrow.string()),
        ("parts", pyarrow.uint32()),
        ("packets", pyarrow.uint64()),
        ("bytes", pyarrow.uint64()),
        ("first_time", _TIME),
        ("last_time", _TIME),
        ("interfaces", pyarrow.list_(pyarrow.string())),
        ("cut_short", pyarrow.string()),
        ("error", pyarrow.string()),
        ("error_packet", pyarrow.uint64()),
        ("error_offset", pyarrow.uint64()),
    ]
)


def _writer(path: str, schema: pyarrow.Schema) -> Any:
    return pyarrow.parquet.ParquetWriter(path, schema, compression="zstd")


class Parts:
    """A table that is written batch by batch, from the compiled part's columns."""

    def __init__(self, path: str, file: str, part: int) -> None:
        """Begins without a file: rows make it."""
        self.path = path
        self.rows = 0
        self._file = file
        self._part = part
        self._writer: Any = None

    def add(self, columns: Any) -> None:
        """Writes a batch."""
        batch = pyarrow.record_batch(columns)
        count = batch.num_rows
        where = [
            pyarrow.repeat(pyarrow.scalar(self._file), count),
            pyarrow.repeat(pyarrow.scalar(self._part, pyarrow.uint32()), count),
        ]
        schema = pyarrow.schema([*_WHERE, *batch.schema])
        if self._writer is None:
            self._writer = _writer(self.path, schema)
        self._writer.write_batch(pyarrow.RecordBatch.from_arrays([*where, *batch.columns], schema=schema))
        self.rows += count

    def close(self) -> None:
        """Ends the file."""
        if self._writer is not None:
            self._writer.close()


class Rows:
    """A table that is written row by row, in groups."""

    #: Rows in a group.
    GROUP = 65_536

    def __init__(self, path: str, schema: pyarrow.Schema) -> None:
        """Begins a file, which may stay without rows."""
        self._schema = schema
        self._writer = _writer(path, schema)
        self._columns: list[list[Any]] = [[] for _ in schema]

    def add(self, *row: Any) -> None:
        """Adds a row."""
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
        if len(self._columns[0]) >= self.GROUP:
            self._write()

    def _write(self) -> None:
        arrays = [pyarrow.array(column, kind.type) for column, kind in zip(self._columns, self._schema)]
        self._writer.write_table(pyarrow.Table.from_arrays(arrays, schema=self._schema))
        self._columns = [[] for _ in self._schema]

    def close(self) -> None:
        """Writes what is left, and ends the file."""
        if self._columns[0]:
            self._write()
        self._writer.close()
