"""Columns of packets for pandas and numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    "version": "u1",
    "source": "u1",
    "destination": "u1",
    "protocol": "u1",
    "source_port": "u2",
    "destination_port": "u2",
    "transport_offset": "u2",
    "payload_offset": "u2",
    "payload_length": "u4",
    "tcp_flags": "u1",
    "sequence": "u4",
    "acknowledgement": "u4",
    "window": "u2",
}


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
    frame: pandas.DataFrame = table.to_pandas()
    return frame


def to_numpy(columns: Columns) -> dict[str, numpy.ndarray[Any, Any]]:
    """Returns an array for each column; 0 where there is no value, and NaT for a time.

    Addresses are arrays of 16 bytes, IPv4 in the IPv6-mapped form.
    """
    import numpy

    names = columns.names
    parts: dict[str, list[bytes]] = {name: [] for name in names}
    for batch in columns:
        for name, buffer in batch.buffers().items():
            parts[name].append(buffer)
    arrays: dict[str, numpy.ndarray[Any, Any]] = {
        name: numpy.frombuffer(b"".join(parts[name]), dtype=_NUMPY_TYPES[name]) for name in names
    }
    for name in ("source", "destination"):
        arrays[name] = arrays[name].reshape(-1, 16)
    return arrays
