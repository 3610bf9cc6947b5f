"""Packets of captures, one by one."""

from __future__ import annotations

import gc
import gzip
import ipaddress
import struct
import subprocess
import sys
from pathlib import Path

import dpkt
import pytest

import superpacket
from conftest import captures


def test_packets_are_what_dpkt_reads(demo: Path) -> None:
    with gzip.open(demo) as file:
        expected = list(dpkt.pcap.Reader(file))
    with superpacket.open(demo) as capture:
        assert (capture.format, capture.compression) == ("pcap", "gzip")
        packets = list(capture)
    assert len(packets) == len(expected) > 900
    ports = 0
    for number, (packet, (time, data)) in enumerate(zip(packets, expected), start=1):
        assert packet.number == number
        assert packet.time is not None and abs(packet.time / 1e9 - float(time)) < 1e-6
        assert bytes(packet) == data and packet.data == data and len(packet) == len(data) == packet.captured_length
        ip = dpkt.ethernet.Ethernet(data).data
        if isinstance(ip, (dpkt.ip.IP, dpkt.ip6.IP6)) and packet.tunnel is None:
            assert packet.source is not None and ipaddress.ip_address(packet.source).packed == ip.src
            assert packet.destination is not None and ipaddress.ip_address(packet.destination).packed == ip.dst
            assert packet.version == (4 if isinstance(ip, dpkt.ip.IP) else 6)
            segment = ip.data
            if isinstance(segment, (dpkt.tcp.TCP, dpkt.udp.UDP)):
                ports += 1
                assert (packet.source_port, packet.destination_port) == (segment.sport, segment.dport)
                assert packet.protocol == (6 if isinstance(segment, dpkt.tcp.TCP) else 17)
                assert packet.payload is not None and packet.payload == segment.data
                assert packet.payload_offset is not None and packet.transport_offset is not None
                assert packet.data[packet.payload_offset :][: len(packet.payload)] == packet.payload
                assert data[packet.transport_offset :][:2] == struct.pack("!H", segment.sport)
                assert packet.network_offset == 14
    assert ports > 600


def test_a_tunnel_is_looked_into(demo: Path) -> None:
    inner = [packet for packet in superpacket.open(demo) if packet.tunnel == "vxlan"]
    assert inner
    for packet in inner:
        assert packet.network_offset is not None and packet.network_offset > 50


def test_data_is_not_copied_and_outlives_its_packet(demo: Path) -> None:
    packets = list(superpacket.open(demo))
    first, second = packets[0].data, packets[1].data
    assert first.readonly and first.obj is second.obj, "two views of one block"
    before = bytes(first)
    del packets, second
    gc.collect()
    assert first == before


def test_a_packet_that_is_not_ip_has_no_addresses(tmp_path: Path) -> None:
    report = superpacket.coalesce([b"\0" * 60])
    assert report.packets is not None
    packet = report.packets[0]
    assert (packet.version, packet.source, packet.destination_port, packet.payload, packet.network_offset) == (None,) * 5
    assert packet.time is None and packet.link_type == 1
    assert report.totals.reasons == {superpacket.Reason.NOT_IP: 1}
    assert repr(packet) == "<Packet 1: 60 bytes>"


def test_pcapng_names_its_interfaces(tmp_path: Path, demo: Path) -> None:
    path = tmp_path / "demo.pcapng.zst"
    superpacket.segment(demo, path, mtu=65_535)
    capture = superpacket.open(path)
    assert (capture.format, capture.compression) == ("pcapng", "zstd")
    assert [bytes(packet) for packet in capture] == [bytes(packet) for packet in superpacket.open(demo)]
    assert capture.interfaces == [(1, None)], "known once its packets have been read"


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "absent.pcap"
    with pytest.raises(superpacket.CaptureError, match="absent.pcap: cannot be opened") as caught:
        superpacket.open(path)
    error = caught.value
    assert (error.file, error.packet, error.offset) == (str(path), None, None)
    assert isinstance(error.__cause__, OSError) and error.__cause__.errno == 2
    with pytest.raises(superpacket.CaptureError, match="not a capture file"):
        superpacket.open(__file__)


def test_a_capture_that_is_cut_short_warns_or_is_an_error(tmp_path: Path, demo: Path) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(gzip.decompress(demo.read_bytes())[:100_000])
    with pytest.warns(UserWarning, match="cut short in packet"):
        packets = list(superpacket.open(path))
    strict = superpacket.open(path, strict=True)
    with pytest.raises(superpacket.CaptureError) as caught:
        for packet in strict:
            last = packet.number
    assert last == len(packets)
    assert caught.value.packet == last + 1 and caught.value.offset is not None and caught.value.cause.startswith("cut short")


def test_an_error_comes_after_the_packets_before_it(tmp_path: Path) -> None:
    header = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, 1)
    record = struct.pack("<IIII", 1, 2, 60, 60) + bytes(60)
    path = tmp_path / "bad.pcap"
    path.write_bytes(header + 3 * record + struct.pack("<IIII", 1, 2, 0x7FFFFFFF, 60))
    capture = superpacket.open(path)
    assert [next(capture).number for _ in range(3)] == [1, 2, 3]
    with pytest.raises(superpacket.CaptureError, match="record claims 21474") as caught:
        next(capture)
    assert (caught.value.packet, caught.value.offset) == (4, 24 + 3 * 76)
    assert list(capture) == [], "it has ended"


MEMORY = """
import resource, sys
import superpacket
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
next(superpacket.open(sys.argv[1]))
before = peak()
kept = [packet for packet in superpacket.open(sys.argv[1]) if packet.number % 20_000 == 0]
for batch in superpacket.open(sys.argv[1]).to_arrow(batch_size=1000, data=True):
    pass
print(len(kept), peak() - before)
"""


def test_memory_is_that_of_the_packets_that_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "large.pcap"
    header = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, 1)
    record = struct.pack("<IIII", 1, 2, 1000, 1000) + bytes(1000)
    with path.open("wb") as file:
        file.write(header)
        for _ in range(100):
            file.write(1000 * record)
    done = subprocess.run([sys.executable, "-c", MEMORY, path], capture_output=True, text=True, check=True)
    kept, kilobytes = map(int, done.stdout.split())
    assert kept == 5 and kilobytes < 20_000, "of 100 MB"


@pytest.mark.filterwarnings("ignore:.*cut short")
def test_every_capture_is_read_to_its_end_or_to_an_error() -> None:
    packets = errors = 0
    for path in captures():
        try:
            for packet in superpacket.open(path):
                packets += 1
                assert len(packet.data) == packet.captured_length
                if packet.payload is not None:
                    assert packet.payload_offset is not None and len(packet.payload) <= len(packet)
                assert (packet.version is None) == (packet.source is None)
        except superpacket.CaptureError as error:
            assert error.file == str(path)
            errors += 1
    assert not captures() or (packets > 10_000 and errors > 0)
