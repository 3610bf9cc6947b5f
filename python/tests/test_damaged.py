"""Damaged files and packets: an error that names the place, or fewer packets, and never a crash."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pyarrow
import pytest

import superpacket

pytestmark = pytest.mark.filterwarnings("ignore:.*cut short")


def _everything(path: Path) -> None:
    """Reads a file by every face."""
    for use in (
        lambda: [(packet.payload, packet.source, packet.destination_port, repr(packet)) for packet in superpacket.open(path)],
        lambda: [pyarrow.record_batch(batch).validate(full=True) for batch in superpacket.open(path).to_arrow(data=True)],
        lambda: superpacket.coalesce(path),
        lambda: superpacket.segment(path, mtu=400, fragment=True),
        lambda: superpacket.verify(path).ok or pytest.fail("not reversible"),
        lambda: superpacket.analyze(path),
        lambda: superpacket.steer(path, cpus="ff"),
    ):
        try:
            use()
        except superpacket.CaptureError as error:
            assert error.file == str(path) and error.cause


def _samples(demo: Path, tmp_path: Path) -> list[bytes]:
    plain = gzip.decompress(demo.read_bytes())[:60_000]
    pcap, pcapng = tmp_path / "a.pcap", tmp_path / "a.pcapng"
    pcap.write_bytes(plain)
    superpacket.segment(pcap, pcapng)
    return [plain, pcapng.read_bytes(), gzip.compress(plain)]


def test_truncated_files(demo: Path, tmp_path: Path) -> None:
    chance = random.Random(1)
    for sample in _samples(demo, tmp_path):
        for _ in range(25):
            path = tmp_path / "cut"
            path.write_bytes(sample[: chance.choice([chance.randrange(100), chance.randrange(len(sample))])])
            _everything(path)


def test_flipped_bytes(demo: Path, tmp_path: Path) -> None:
    chance = random.Random(2)
    for sample in _samples(demo, tmp_path):
        for _ in range(40):
            damaged = bytearray(sample)
            for _ in range(chance.randrange(1, 30)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            path = tmp_path / "flipped"
            path.write_bytes(damaged)
            _everything(path)


def test_random_bytes(tmp_path: Path) -> None:
    chance = random.Random(3)
    starts = [b"", bytes.fromhex("d4c3b2a1"), bytes.fromhex("0a0d0d0a1c0000004d3c2b1a"), bytes.fromhex("1f8b08"), bytes.fromhex("28b52ffd")]
    for number in range(100):
        path = tmp_path / "random"
        path.write_bytes(starts[number % len(starts)] + chance.randbytes(chance.randrange(2000)))
        _everything(path)


def test_random_packets() -> None:
    chance = random.Random(4)
    aggregator, segmenter = superpacket.Aggregator(), superpacket.Segmenter()
    heads = [b"", bytes(12) + bytes.fromhex("080045"), bytes(12) + bytes.fromhex("86dd60"), bytes(12) + bytes.fromhex("8100000108004500")]
    packets = []
    for number in range(2000):
        packet = heads[number % len(heads)] + chance.randbytes(chance.randrange(200))
        packets.append(packet)
        left = aggregator.receive(packet, number)
        assert sum(each.packets for each in left) <= number + 1
        try:
            segmenter.segment(packet, size=chance.randrange(1, 100))
        except superpacket.SegmentError as error:
            assert str(error)
    left = aggregator.flush()
    assert aggregator.counters["packets_in"] == len(packets)
    assert superpacket.verify(packets).ok
    for link_type in (0, 1, 12, 101, 108, 113, 228, 229, 276, 999):
        assert superpacket.coalesce(packets, link_type=link_type).totals.packets_in == len(packets)
