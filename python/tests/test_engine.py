"""The aggregator and the segmenter, packet by packet."""

from __future__ import annotations

from pathlib import Path

import pytest

import superpacket
from superpacket import Aggregator, Reason, Segmenter, _superpacket


def test_what_merges_is_cut_into_the_same_packets(demo: Path) -> None:
    aggregator, segmenter = Aggregator(), Segmenter()
    packets = [bytes(packet) for packet in superpacket.open(demo)]
    left = []
    for number, packet in enumerate(packets):
        left += aggregator.receive(packet, number)
        if number % 64 == 63:
            left += aggregator.poll_end()
    left += aggregator.flush()
    assert aggregator.held == 0
    counters = aggregator.counters
    assert counters["packets_in"] == len(packets) and counters["packets_out"] == len(left)
    assert sum(packet.packets for packet in left) == len(packets)
    assert sum(aggregator.reasons.values()) == len(left) and set(aggregator.reasons) == {packet.reason for packet in left}
    merged = [packet for packet in left if packet.packets > 1]
    assert merged and all(packet.segment_size for packet in merged)
    again = [segment for packet in left for segment in segmenter.segment(packet)]
    assert sorted(again) == sorted(packets)
    assert segmenter.counters == {"packets": len(merged), "segments": sum(packet.packets for packet in merged), "refused": 0}


def test_reasons_of_a_few_packets(demo: Path) -> None:
    aggregator = Aggregator(udp=False, max_packets=2)
    (left,) = aggregator.receive(bytes(60))
    assert (left.reason, left.packets, left.data, left.segment_size) == (Reason.NOT_IP, 1, bytes(60), None)
    packets = [bytes(packet) for packet in superpacket.open(demo) if packet.payload and len(packet.payload) == 1448][:2]
    assert aggregator.receive(packets[0]) == [] and aggregator.held == 1
    (left,) = aggregator.receive(packets[1])
    assert (left.packets, left.segment_size, len(left)) == (2, 1448, 66 + 2 * 1448)
    assert left.reason is Reason.PACKET_LIMIT and left.reason.value == "packet_limit"
    assert repr(left) == f"<SuperPacket of 2: {66 + 2 * 1448} bytes, packet_limit>"


def test_bytes_are_cut_by_size_or_mtu(demo: Path) -> None:
    tcp = [bytes(packet) for packet in superpacket.coalesce(demo).packets or [] if packet.protocol == 6 and packet.version == 4]
    large = max(tcp, key=len)
    segmenter = Segmenter()
    segments = segmenter.segment(large, mtu=1500)
    assert len(segments) > 2 and all(len(segment) <= 1514 for segment in segments)
    assert segments == segmenter.segment(large, size=len(segments[0]) - 66)
    ip = Segmenter(layer="ip").segment(large[14:], mtu=1500)
    assert ip == [segment[14:] for segment in segments]
    with pytest.raises(superpacket.SegmentError) as caught:
        segmenter.segment(large, mtu=40)
    assert caught.value.name == "segment_too_small"
    with pytest.raises(superpacket.SegmentError, match="headers: not_ip"):
        segmenter.segment(bytes(60), size=10)
    with pytest.raises(ValueError, match="by size="):
        segmenter.segment(large)
    with pytest.raises(superpacket.OptionsError, match="size: 0"):
        segmenter.segment(large, size=0)


def test_lro_absorbs_acks(demo: Path) -> None:
    aggregator = Aggregator(mode="lro", acks=True)
    left = [out for packet in superpacket.open(demo) for out in aggregator.receive(bytes(packet))] + aggregator.flush()
    assert sum(packet.absorbed_acks for packet in left) == aggregator.counters["absorbed_acks"] > 0
    with pytest.raises(superpacket.SegmentError, match="what LRO merged"):
        Segmenter().segment(next(packet for packet in left if packet.packets > 1))
    with pytest.raises(superpacket.OptionsError, match="acks: needs mode"):
        Aggregator(acks=True)
    with pytest.raises(superpacket.OptionsError, match="layer: .wifi. is neither"):
        Aggregator(layer="wifi")  # type: ignore[arg-type]


def test_the_enum_has_every_reason() -> None:
    names = {reason.value for reason in Reason}
    assert set(_superpacket.engine_reasons()) <= names
    assert set(_superpacket.segment_errors()) <= names
