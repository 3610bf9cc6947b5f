"""Packets as columns."""

from __future__ import annotations

import gzip
import ipaddress
from pathlib import Path

import duckdb
import numpy
import pandas
import polars
import pyarrow
import pytest

import superpacket
from conftest import captures


def test_columns_are_what_packets_say(demo: Path) -> None:
    table = pyarrow.table(superpacket.open(demo).to_arrow(batch_size=100, data=True))
    assert table.column("number").num_chunks == 10
    rows = table.to_pylist()
    packets = list(superpacket.open(demo))
    assert len(rows) == len(packets)
    for row, packet in zip(rows, packets):
        assert row["number"] == packet.number
        assert row["time"].value == packet.time if hasattr(row["time"], "value") else True
        assert row["data"] == bytes(packet)
        for name in ("interface", "link_type", "captured_length", "original_length", "version", "source", "destination"):
            assert row[name] == getattr(packet, name), name
        for name in ("protocol", "source_port", "destination_port", "transport_offset", "payload_offset"):
            assert row[name] == getattr(packet, name), name
        assert row["payload_length"] == (None if packet.payload is None else len(packet.payload))
        if packet.protocol == 6 and packet.transport_offset is not None:
            header = packet.data[packet.transport_offset :]
            assert row["sequence"] == int.from_bytes(header[4:8], "big")
            assert row["acknowledgement"] == int.from_bytes(header[8:12], "big")
            assert (row["tcp_flags"], row["window"]) == (header[13], int.from_bytes(header[14:16], "big"))
        else:
            assert row["tcp_flags"] is None
    times = table.column("time").cast(pyarrow.int64()).to_pylist()
    assert times == [packet.time for packet in packets]


def test_polars_pandas_and_duckdb_take_them(demo: Path) -> None:
    count = len(list(superpacket.open(demo)))
    frame = polars.DataFrame(superpacket.open(demo).to_arrow())
    assert frame.shape[0] == count
    by_port = frame.group_by("destination_port").len().sort("len", descending=True)
    table = superpacket.open(demo).to_pandas()
    assert isinstance(table, pandas.DataFrame) and len(table) == count
    assert by_port["len"][0] == table["destination_port"].value_counts().max()
    columns = superpacket.open(demo).to_arrow()
    found = duckdb.execute("select count(*), sum(captured_length), count(distinct source) from columns").fetchone()
    assert found == (count, int(table["captured_length"].sum()), table["source"].nunique())


def test_batches_are_taken_one_by_one(demo: Path) -> None:
    rows = 0
    for batch in superpacket.open(demo).to_arrow(batch_size=300):
        assert len(batch) <= 300
        rows += pyarrow.record_batch(batch).num_rows
    assert rows == len(list(superpacket.open(demo)))


def test_numpy_columns(demo: Path) -> None:
    arrays = superpacket.open(demo).to_numpy()
    packets = list(superpacket.open(demo))
    assert arrays["source"].shape == (len(packets), 16) and arrays["source"].dtype == numpy.uint8
    assert arrays["time"].dtype == numpy.dtype("M8[ns]")
    assert arrays["time"].astype("i8").tolist() == [packet.time for packet in packets]
    assert arrays["source_port"].tolist() == [packet.source_port or 0 for packet in packets]
    for row, packet in zip(arrays["destination"], packets):
        address = ipaddress.IPv6Address(row.tobytes())
        assert packet.destination is None or str(address.ipv4_mapped or address) == packet.destination


def test_numpy_and_pandas_in_batches(demo: Path) -> None:
    whole = superpacket.open(demo).to_numpy()
    merged = superpacket.coalesce(demo, max_packets=1).packets
    assert merged is not None
    for source in (lambda: superpacket.open(demo), lambda: merged):
        batches = list(source().to_numpy(batch_size=300))
        assert [len(batch["number"]) for batch in batches] == [300, 300, 300, len(whole["number"]) - 900]
        for name, array in whole.items():
            joined = numpy.concatenate([batch[name] for batch in batches])
            assert joined.dtype == array.dtype and numpy.array_equal(joined, array), name
        frames = list(source().to_pandas(batch_size=300, data=True))
        assert [len(frame) for frame in frames] == [len(batch["number"]) for batch in batches]
        pandas.testing.assert_frame_equal(pandas.concat(frames), source().to_pandas(data=True), check_dtype=False)
    # One by one: the first is there before the rest has been read.
    first = next(iter(superpacket.open(demo).to_numpy(batch_size=1)))
    assert first["captured_length"].tolist() == [whole["captured_length"][0]]
    assert list(superpacket.PacketList().to_numpy(batch_size=5)) == []
    assert superpacket.PacketList().to_numpy()["source"].shape == (0, 16)
    with pytest.raises(ValueError, match="batch_size: 0"):
        superpacket.open(demo).to_numpy(batch_size=0)


def test_packets_in_memory_have_columns_too(demo: Path) -> None:
    merged = superpacket.coalesce(demo).packets
    assert merged is not None
    table = pyarrow.table(merged.to_arrow(addresses="bytes"))
    assert table.num_rows == len(merged) and pyarrow.types.is_fixed_size_binary(table.schema.field("source").type)
    assert pyarrow.table(merged.to_arrow()).num_rows == len(merged), "as often as one likes"
    assert len(merged.to_pandas(data=True)) == len(merged) == len(merged.to_numpy()["number"])


def test_a_stream_is_read_once(demo: Path) -> None:
    columns = superpacket.open(demo).to_arrow()
    pyarrow.table(columns)
    with pytest.raises(ValueError, match="have been read"):
        pyarrow.table(columns)
    capture = superpacket.open(demo)
    next(capture)
    with pytest.raises(ValueError, match="open it again"):
        capture.to_arrow()
    with pytest.raises(ValueError, match="batch_size: 0"):
        superpacket.open(demo).to_arrow(batch_size=0)


def test_a_damaged_capture_says_where(tmp_path: Path, demo: Path) -> None:
    data = bytearray(gzip.decompress(demo.read_bytes()))
    # The captured length of the second record: the first has 16 + 1514 bytes behind the file's 24.
    data[24 + 16 + 1514 + 8 : 24 + 16 + 1514 + 12] = b"\xff\xff\xff\x7f"
    path = tmp_path / "bad.pcap"
    path.write_bytes(data)
    for read in (
        lambda: superpacket.open(path).to_pandas(),
        lambda: superpacket.open(path).to_numpy(),
        lambda: list(superpacket.open(path).to_numpy(batch_size=100)),
        lambda: list(superpacket.open(path).to_pandas(batch_size=100)),
        lambda: list(superpacket.open(path).to_arrow()),
    ):
        with pytest.raises(superpacket.CaptureError) as caught:
            read()
        assert (caught.value.file, caught.value.packet, caught.value.offset) == (str(path), 2, 24 + 16 + 1514)
    with pytest.raises(pyarrow.ArrowException, match="packet 2, byte 1554"):
        pyarrow.table(superpacket.open(path).to_arrow())


def test_a_capture_that_is_cut_short_warns_or_is_an_error(tmp_path: Path, demo: Path) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(gzip.decompress(demo.read_bytes())[:100_000])
    with pytest.warns(UserWarning, match="cut short"):
        rows = len(superpacket.open(path).to_pandas())
    assert rows > 50
    with pytest.warns(UserWarning, match="cut short") as told:
        assert sum(len(batch["number"]) for batch in superpacket.open(path).to_numpy(batch_size=64)) == rows
    assert len(told) == 1
    with pytest.raises(superpacket.CaptureError, match="cut short"):
        superpacket.open(path, strict=True).to_pandas()


@pytest.mark.filterwarnings("ignore:.*cut short")
def test_every_capture_has_as_many_rows_as_packets() -> None:
    for path in captures():
        try:
            packets = len(list(superpacket.open(path)))
        except superpacket.CaptureError:
            continue
        table = pyarrow.table(superpacket.open(path).to_arrow(batch_size=1000, data=True))
        table.validate(full=True)
        assert table.num_rows == packets, path
