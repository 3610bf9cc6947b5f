"""Any bytes, through every face of the package: what comes back is right, or an error that names the place.

The commands themselves are fuzzed with coverage, in Rust (``fuzz/``); this drives what lies between them
and Python. ``SUPERPACKET_FUZZ_EXAMPLES=20000`` looks longer.
"""

from __future__ import annotations

import gzip
import os
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as some

import superpacket
from conftest import DEMO

EXAMPLES = int(os.environ.get("SUPERPACKET_FUZZ_EXAMPLES", "150"))

fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


def _seeds() -> list[bytes]:
    """Returns small files of every kind, each with packets that merge."""
    whole = gzip.decompress(DEMO.read_bytes())
    ends = [24]
    while len(ends) < 25:
        ends.append(ends[-1] + 16 + int.from_bytes(whole[ends[-1] + 8 : ends[-1] + 12], "little"))
    pcap = whole[: ends[-1]]
    packets = [whole[start + 16 : end] for start, end in zip(ends, ends[1:])]
    section = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    interface = struct.pack("<IIHHII", 1, 20, 1, 0, 0, 20)
    comment = b"virtio_net_hdr=" + bytes(10).hex().encode()
    blocks = [section, interface]
    for number, packet in enumerate(packets):
        body = struct.pack("<IIIII", 0, 0, number, len(packet), len(packet)) + packet + bytes(-len(packet) % 4)
        body += struct.pack("<HH", 1, len(comment)) + comment + bytes(-len(comment) % 4) + bytes(4)
        length = len(body) + 12
        blocks.append(struct.pack("<II", 6, length) + body + struct.pack("<I", length))
    records = b"superpacket-records 1 ethernet 10\n"
    records += b"".join(struct.pack("<I", 10 + len(packet)) + bytes(10) + packet for packet in packets)
    return [pcap, b"".join(blocks), gzip.compress(pcap, mtime=0), records]


SEEDS = _seeds()

#: What is done to a file: at a place (in 2^16ths of its length), with bytes.
_change = some.tuples(some.sampled_from(["put", "insert", "remove", "cut", "repeat"]), some.integers(0, 65_535), some.binary(min_size=1, max_size=12))


def _changed(seed: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    data = bytearray(seed)
    for kind, where, content in changes:
        place = where * len(data) >> 16
        match kind:
            case "put":
                data[place : place + len(content)] = content
            case "insert":
                data[place:place] = content
            case "remove":
                del data[place : place + 7 * len(content)]
            case "cut":
                # Seldom at once near the beginning, where nothing is left.
                del data[max(place, len(data) // 2) :]
            case _:
                data[place:place] = data[place : place + 40 * len(content)]
    return bytes(data)


_files = some.one_of(
    some.builds(_changed, some.sampled_from(SEEDS), some.lists(_change, max_size=6)),
    some.builds(bytes.__add__, some.sampled_from([b"", *(seed[:28] for seed in SEEDS)]), some.binary(max_size=300)),
)


def _read(path: Path, use: Callable[[], Any]) -> Any:
    """Returns what a use of a file gives; None if the file cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*cut short")
            return use()
    except superpacket.CaptureError as error:
        assert error.file == str(path) and error.cause and error.cause in str(error)
        assert error.packet is None or error.packet >= 1
        assert error.offset is None or error.offset >= 0
        return None


def _packets(path: Path) -> tuple[list[superpacket.Packet], int]:
    with superpacket.open(path) as capture:
        packets = list(capture)
        return packets, len(capture.interfaces)


def _looked_at(packet: superpacket.Packet) -> None:
    assert len(packet) == packet.captured_length == len(bytes(packet)) == len(packet.data)
    assert bytes(packet.data) == bytes(packet) and repr(packet)
    offsets = [packet.network_offset, packet.transport_offset, packet.payload_offset]
    known = [offset for offset in offsets if offset is not None]
    assert known == sorted(known) and all(offset <= len(packet) for offset in known)
    assert (packet.source is None) == (packet.destination is None) == (packet.version is None)
    if packet.payload is not None:
        assert packet.payload_offset is not None
        start = packet.payload_offset
        assert bytes(packet)[start : start + len(packet.payload)] == bytes(packet.payload)


@fuzzed
@given(content=_files)
@example(content=SEEDS[0])
@example(content=SEEDS[1])
@example(content=SEEDS[2])
def test_captures(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "fuzzed"
    path.write_bytes(content)
    found = _read(path, lambda: _packets(path))
    columns = _read(path, lambda: [pyarrow.record_batch(batch) for batch in superpacket.open(path).to_arrow(data=True)])
    merged = _read(path, lambda: superpacket.coalesce(path))
    reports = [
        merged,
        _read(path, lambda: superpacket.segment(path, mtu=400, fragment=True)),
        _read(path, lambda: superpacket.verify(path)),
        _read(path, lambda: superpacket.analyze(path)),
        _read(path, lambda: superpacket.steer(path, cpus="ff")),
        _read(path, lambda: superpacket.check(path, path)),
    ]
    # All read the same, or none can.
    is_records = content.startswith(b"superpacket-records ")
    if found is None or is_records:
        assert found is None and columns is None and reports[:5] == [None] * 5
        return
    packets, interfaces = found
    for number, packet in enumerate(packets, start=1):
        assert packet.number == number
        _looked_at(packet)
    assert columns is not None and sum(batch.num_rows for batch in columns) == len(packets)
    for batch in columns:
        batch.validate(full=True)
    assert [row.as_py() for batch in columns for row in batch.column("data")] == [bytes(packet) for packet in packets]
    coalesced, segmented, verified, analyzed, steered, checked = reports
    assert coalesced.totals.packets_in == segmented.totals.packets_in == len(packets)
    assert verified.ok and steered.totals.packets_in == len(packets)
    assert analyzed.findings.totals.packets_in == len(packets) and "<svg" in analyzed.to_html()
    assert coalesced.totals.packets_out == len(coalesced.packets)
    # A header in a comment may contradict its packet, in both files: that is said. What has none is
    # faithful to itself, and so is what the engine makes of it.
    if b"virtio_net_hdr" not in content and not gzip_holds(content, b"virtio_net_hdr"):
        assert checked.verdict != "unfaithful", list(checked.described)
        again = _read(path, lambda: superpacket.check(coalesced.packets, path, rules="reversible"))
        assert again.verdict != "unfaithful", list(again.described)
    if interfaces == 1 and packets:
        assert superpacket.coalesce(packets).totals == coalesced.totals


def gzip_holds(content: bytes, words: bytes) -> bool:
    """Says whether a compressed file has these bytes, as far as it can be read."""
    import zlib

    if not content.startswith(b"\x1f\x8b"):
        return False
    try:
        return words in zlib.decompressobj(31).decompress(content)
    except zlib.error:
        return True


@fuzzed
@given(checked=_files, origin=_files, rules=some.sampled_from(["linux", "reversible"]), every=some.booleans())
@example(checked=SEEDS[3], origin=SEEDS[0], rules="reversible", every=True)
@example(checked=SEEDS[1], origin=SEEDS[3], rules="linux", every=False)
def test_any_two_files_are_judged(checked: bytes, origin: bytes, rules: Any, every: bool, tmp_path: Path) -> None:
    paths = [tmp_path / "checked", tmp_path / "origin"]
    for path, content in zip(paths, (checked, origin)):
        path.write_bytes(content)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*cut short")
            report = superpacket.check(*paths, rules=rules, all=every)
    except superpacket.CaptureError as error:
        assert error.file in map(str, paths) and error.cause
        return
    if (checked, origin) in ((SEEDS[3], SEEDS[0]), (SEEDS[1], SEEDS[3])):
        assert report.ok and report.packets_in == 24
    assert (report.verdict == "unfaithful") == (report.violations > 0) and sum(report.by_rule.values()) == report.violations
    assert len(report.described) == (report.violations if every else min(10, report.violations))
    for violation in report.described:
        assert violation.rule in report.by_rule and violation.field and violation.found and repr(violation)
        assert violation.packet is None or 1 <= violation.packet <= report.packets_out
        assert violation.origin is None or 1 <= violation.origin <= report.packets_in
        assert violation.packet is not None or violation.origin is not None
        assert rules == "reversible" or not violation.rule.is_stricter


_timed = some.one_of(
    some.binary(max_size=120),
    some.builds(lambda packet, changes: _changed(packet, changes)[:400], some.sampled_from([SEEDS[0][40:400], SEEDS[0][40:94]]), some.lists(_change, max_size=3)),
)


@fuzzed
@given(
    packets=some.lists(some.one_of(_timed, some.tuples(some.floats(0, 2**33), _timed), some.builds(bytearray, _timed)), max_size=8),
    link_type=some.sampled_from([0, 1, 12, 101, 108, 113, 228, 229, 276, 999]),
)
def test_packets_in_memory(packets: list[Any], link_type: int) -> None:
    if not packets:
        with pytest.raises(ValueError, match="the list is empty"):
            superpacket.coalesce(packets, link_type=link_type)
        return
    merged = superpacket.coalesce(packets, link_type=link_type)
    assert merged.packets is not None and merged.totals.packets_in == len(packets)
    assert superpacket.verify(packets, link_type=link_type).ok
    assert superpacket.check(merged.packets, packets, rules="reversible", link_type=link_type).ok
    assert superpacket.segment(packets, mtu=68, link_type=link_type).totals.packets_in == len(packets)
    assert superpacket.analyze(packets, link_type=link_type).findings.totals.packets_in == len(packets)
    aggregator, left = superpacket.Aggregator(), []
    plain = [bytes(packet[1] if isinstance(packet, tuple) else packet) for packet in packets]
    for packet in plain:
        left += aggregator.receive(packet)
    left += aggregator.flush()
    assert sum(each.packets for each in left) == len(packets) == aggregator.counters["packets_in"]
    for each in left:
        if each.packets == 1:
            assert bytes(each) in plain


@fuzzed
@given(options=some.fixed_dictionaries({}, optional={
    "batch": some.integers(-2, 2**64 + 1),
    "hold": some.floats(),
    "max_bytes": some.integers(-1, 2**33),
    "max_packets": some.integers(-1, 2**33),
    "max_flows": some.integers(-1, 2**33),
    "mode": some.sampled_from(["gro", "lro", "x"]),
    "udp": some.booleans(),
    "acks": some.booleans(),
}))
@example(options={"hold": 1e300})
@example(options={"hold": float("nan")})
@example(options={"hold": 2**64 / 1e9})
def test_options(options: dict[str, Any]) -> None:
    packets = [SEEDS[0][40:400]] * 3
    try:
        report = superpacket.coalesce(packets, **options)
    except superpacket.OptionsError as error:
        assert any(name in str(error) for name in options)
        return
    assert report.totals.packets_in == 3


def test_the_seeds_are_read(tmp_path: Path) -> None:
    for number, seed in enumerate(SEEDS[:3]):
        path = tmp_path / str(number)
        path.write_bytes(seed)
        packets, _ = _packets(path)
        assert len(packets) == 24 and superpacket.coalesce(path).totals.merged > 3
    with pytest.raises(superpacket.CaptureError):
        superpacket.open(tmp_path / "none")
