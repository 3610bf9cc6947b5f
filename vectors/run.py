#!/usr/bin/env python3
"""Runs the plain rows of each file, with the standard library alone: Ethernet, IPv4 or IPv6, TCP or UDP.

Put your own code in place of what is between the lines. What decides whether packets merge, and what finds a header
wrong, is left to it: such rows, tunnels, VLAN tags, extension headers and fragments are counted, and not run.
"""

import json
import struct
import sys
from pathlib import Path

# ---------------------------------------------------------------------------------------------------------------------


def total(data: bytes) -> int:
    """The sum of 16-bit words, folded (RFC 1071)."""
    value = sum(struct.unpack(f">{len(data) // 2}H", data[: len(data) & ~1])) + (data[-1] << 8 if len(data) % 2 else 0)
    while value > 0xFFFF:
        value = (value & 0xFFFF) + (value >> 16)
    return value


def toeplitz(key: bytes, data: bytes) -> int:
    bits, value = int.from_bytes(key, "big"), 0
    for position in range(8 * len(data)):
        if data[position // 8] & 0x80 >> position % 8:
            value ^= bits >> 8 * len(key) - 32 - position & 0xFFFFFFFF
    return value


def locate(packet: bytes):
    """Where the transport header and the payload begin, and the protocol; None if the packet is not a plain one."""
    if packet[12:14] == b"\x08\x00" and packet[14] == 0x45:
        transport, protocol = 34, packet[23]
    elif packet[12:14] == b"\x86\xdd":
        transport, protocol = 54, packet[20]
    else:
        return None
    if protocol not in (6, 17):
        return None
    return transport, transport + (8 if protocol == 17 else packet[transport + 12] >> 4 << 2), protocol


def complete(packet: bytearray, start: int, offset: int):
    """Puts the checksum where the pseudo-header's sum is. UDP sends 0xFFFF for 0."""
    value = total(packet[start:]) ^ 0xFFFF
    struct.pack_into(">H", packet, start + offset, value or (0xFFFF if offset == 6 else 0))


def finish(packet: bytearray):
    """Writes lengths, the IPv4 header's checksum, and the pseudo-header's sum."""
    transport, _, protocol = locate(packet)
    length = len(packet) - transport
    if transport == 34:
        struct.pack_into(">H", packet, 16, len(packet) - 14)
        packet[24:26] = bytes(2)
        struct.pack_into(">H", packet, 24, total(packet[14:34]) ^ 0xFFFF)
    else:
        struct.pack_into(">H", packet, 18, length)
    if protocol == 17:
        struct.pack_into(">H", packet, transport + 4, length)
    addresses = packet[26:34] if transport == 34 else packet[22:54]
    struct.pack_into(">H", packet, transport + (6 if protocol == 17 else 16), total(addresses + struct.pack(">HH", protocol, length)))


def split(header: bytes, packet: bytes) -> list[bytes]:
    (size,) = struct.unpack_from("<H", header, 4)
    transport, payload, protocol = locate(packet)
    segments = []
    for begin in range(payload, len(packet), size):
        segment = bytearray(packet[:payload] + packet[begin : begin + size])
        if transport == 34:
            struct.pack_into(">H", segment, 18, struct.unpack_from(">H", packet, 18)[0] + len(segments) & 0xFFFF)
        if protocol == 6:
            (sequence,) = struct.unpack_from(">I", packet, transport + 4)
            struct.pack_into(">I", segment, transport + 4, sequence + begin - payload & 0xFFFFFFFF)
            # CWR is of the first, FIN and PSH are of the last.
            segment[transport + 13] &= ~((0x80 if begin > payload else 0) | (0x09 if begin + size < len(packet) else 0))
        finish(segment)
        complete(segment, transport, 6 if protocol == 17 else 16)
        segments.append(bytes(segment))
    return segments


def merge(frames: list[bytes]) -> tuple[bytes, bytes]:
    """The header and the bytes of the packet into which all frames merge."""
    if len(frames) == 1:
        return bytes(10), frames[0]
    transport, payload, protocol = locate(frames[0])
    merged = bytearray(frames[0] + b"".join(frame[payload:] for frame in frames[1:]))
    kind = 5 if protocol == 17 else 1 if transport == 34 else 4
    if protocol == 6:
        merged[transport + 13] |= frames[-1][transport + 13] & 0x09
        kind |= merged[transport + 13] & 0x80
    finish(merged)
    fields = payload, len(frames[0]) - payload, transport, 6 if protocol == 17 else 16
    return struct.pack("<BB4H", 1, kind, *fields), bytes(merged)


def meaning(header: bytes, packet: bytes) -> dict:
    """What a header means that is not wrong."""
    flags, kind, _, size = struct.unpack_from("<BBHH", header)
    cut = kind != 0 and len(packet) - locate(packet)[1] > size
    return {"segment_size": size if cut else None, "checksum": {1: "partial", 2: "verified"}.get(flags & 3, "unknown")}


# ---------------------------------------------------------------------------------------------------------------------


def run(file: str, plain, check):
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    content = json.loads((folder / file).read_text())
    assert content["version"] == 1, content["version"]
    rows = [case for case in content["cases"] if plain(case)]
    failed = [case["name"] for case in rows if not check(case)]
    print(f"{file}: {len(rows)} of {len(content['cases'])} cases run, {len(failed)} failed", *failed, sep="\n  ")
    return bool(failed) or not rows


def unhex(case, *names):
    return [bytes.fromhex(case[name]) for name in names]


def check_sum(case):
    if "bytes" in case:
        return total(bytes.fromhex(case["bytes"])) == case["sum"]
    packet = bytearray.fromhex(case["packet"])
    finish(packet)
    start, offset = case["csum_start"], case["csum_offset"]
    same = struct.unpack_from(">H", packet, start + offset) == (case["pseudo_header"],)
    complete(packet, start, offset)
    return same and packet.hex() == case["complete"]


def is_merged(case):
    """All frames of each poll merge into one packet."""
    return len(case["left"]) == len(case["polls"]) and locate(bytes.fromhex(case["polls"][0][0])) is not None


def check_merge(case):
    left = [merge([bytes.fromhex(frame) for frame in poll]) for poll in case["polls"]]
    return left == [(bytes.fromhex(each["virtio_net_hdr"]), bytes.fromhex(each["packet"])) for each in case["left"]]


def is_plain(case):
    """No tunnel, VLAN tag or fragments."""
    header, packet = unhex(case, "virtio_net_hdr", "packet")
    return len(header) == 12 and header[1] != 3 and locate(packet) is not None


sys.exit(
    any(
        [
            run("checksum.json", lambda case: True, check_sum),
            run("toeplitz.json", lambda case: True, lambda case: toeplitz(*unhex(case, "key", "input")) == case["hash"]),
            run("virtio.json", lambda case: is_plain(case) and "error" not in case["meaning"], lambda case: meaning(*unhex(case, "virtio_net_hdr", "packet")) == case["meaning"]),
            run("segmentation.json", is_plain, lambda case: [each.hex() for each in split(*unhex(case, "virtio_net_hdr", "packet"))] == case["segments"]),
            run("aggregation.json", is_merged, check_merge),
        ]
    )
)
