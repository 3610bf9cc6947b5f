"""Columns of packets for pandas and numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy
    import pandas

    from superpacket._superpacket import Columns

#: The type of each column that is not listed here is in its name.
_NUMPY_TYPES = {
    "number": "u8",
    "time": "M8[ns]",
    "interface": "u4",
    "link_type": "u2",
    "captured_length": "u4",
    "original_length": "u4",
    "source_mac": "u1",
    "destination_mac": "u1",
    "vlan": "u2",
    "tunnel": "S6",
    "tunnel_source": "u1",
    "tunnel_destination": "u1",
    "vni": "u4",
    "version": "u1",
    "source": "u1",
    "destination": "u1",
    "protocol": "u1",
    "ttl": "u1",
    "ip_id": "u2",
    "source_port": "u2",
    "destination_port": "u2",
    "network_offset": "u2",
    "transport_offset": "u2",
    "payload_offset": "u2",
    "payload_length": "u4",
    "tcp_flags": "u1",
    "sequence": "u4",
    "acknowledgement": "u4",
    "window": "u2",
    "segment_size": "u2",
}

#: Bytes in a value of the columns of addresses.
_ADDRESSES = {
    "source_mac": 6,
    "destination_mac": 6,
    "tunnel_source": 16,
    "tunnel_destination": 16,
    "source": 16,
    "destination": 16,
}


def _frame(table: Any) -> pandas.DataFrame:
    """Makes a DataFrame whose types are the same whatever values are missing: numbers are nullable."""
    import pandas
    import pyarrow

    nullable = {
        pyarrow.uint8(): pandas.UInt8Dtype(),
        pyarrow.uint16(): pandas.UInt16Dtype(),
        pyarrow.uint32(): pandas.UInt32Dtype(),
        pyarrow.uint64(): pandas.UInt64Dtype(),
    }
    frame: pandas.DataFrame = table.to_pandas(split_blocks=True, types_mapper=nullable.get)
    return frame


def to_pandas(columns: Columns) -> pandas.DataFrame:
    """Returns a DataFrame whose columns may be missing values."""
    import pyarrow

    try:
        table = pyarrow.table(columns)
    except pyarrow.ArrowException:
        # What is known of a capture's error is more than the stream can say.
        columns.check()
        raise
    columns.check()
    return _frame(table)


def pandas_batches(columns: Columns) -> Iterator[pandas.DataFrame]:
    """Yields DataFrames, one for each batch; their rows are numbered on."""
    import pyarrow

    rows = 0
    for batch in columns:
        frame = _frame(pyarrow.record_batch(batch))
        frame.index += rows
        rows += len(frame)
        yield frame


def to_numpy(columns: Columns) -> dict[str, numpy.ndarray[Any, Any]]:
    """Returns an array for each column; 0 where there is no value, and NaT for a time.

    Addresses are arrays of 16 bytes, IPv4 in the IPv6-mapped form, or of 6 for Ethernet.
    """
    import numpy

    names = columns.names
    batches = list(numpy_batches(columns))
    if not batches:
        return {name: _array(name, b"") for name in names}
    return {name: numpy.concatenate([batch.pop(name) for batch in batches]) for name in names}


def numpy_batches(columns: Columns) -> Iterator[dict[str, numpy.ndarray[Any, Any]]]:
    """Yields the same, batch by batch. The arrays cannot be written to."""
    for batch in columns:
        yield {name: _array(name, buffer) for name, buffer in batch.buffers().items()}


def _array(name: str, buffer: bytes) -> numpy.ndarray[Any, Any]:
    import numpy

    array: numpy.ndarray[Any, Any] = numpy.frombuffer(buffer, dtype=_NUMPY_TYPES[name])
    length = _ADDRESSES.get(name)
    return array if length is None else array.reshape(-1, length)
