"""Packets from elsewhere: bytes, and packets of scapy and dpkt."""

from __future__ import annotations

import os
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Union

from superpacket._superpacket import OptionsError, Packet, PacketList

#: A file by its name: "-" is standard input or output.
Path = Union[str, "os.PathLike[str]"]

#: Link types by the names of classes of scapy and dpkt, as far as the engine knows them.
_LINK_TYPES = {
    ("scapy", "Ether"): 1,
    ("scapy", "Dot3"): 1,
    ("scapy", "IP"): 101,
    ("scapy", "IPv6"): 101,
    ("scapy", "Loopback"): 0,
    ("scapy", "CookedLinux"): 113,
    ("scapy", "CookedLinuxV2"): 276,
    ("dpkt", "Ethernet"): 1,
    ("dpkt", "IP"): 101,
    ("dpkt", "IP6"): 101,
    ("dpkt", "Loopback"): 0,
    ("dpkt", "SLL"): 113,
    ("dpkt", "SLL2"): 276,
}


def is_path(value: object) -> bool:
    """Says whether this names a file."""
    return isinstance(value, (str, os.PathLike))


def _link_type(packet: object, otherwise: int) -> int:
    for kind in type(packet).__mro__:
        found = _LINK_TYPES.get((kind.__module__.partition(".")[0], kind.__name__))
        if found is not None:
            return found
    return otherwise


def _nanoseconds(seconds: Any, number: int) -> int | None:
    """Returns a time in seconds, as dpkt and scapy have it, in nanoseconds."""
    if seconds is None:
        return None
    # A float of seconds since 1970 is exact to some 0.2 us; captures have whole microseconds there.
    nanoseconds = round(seconds * 1_000_000) * 1000 if isinstance(seconds, float) else int(Decimal(seconds) * 1_000_000_000)
    if nanoseconds < 0:
        raise OptionsError(f"packet {number}: its time, {seconds} s, is before 1970")
    return nanoseconds


def collect(packets: Iterable[Any], link_type: int) -> PacketList:
    """Returns a list of packets.

    They may be bytes, tuples (seconds, packet), or packets of this package, of scapy or of dpkt.
    """
    if isinstance(packets, PacketList):
        return packets
    collected = PacketList()
    for number, packet in enumerate(packets, start=1):
        time: int | None = None
        if isinstance(packet, tuple):
            seconds, packet = packet
            time = _nanoseconds(seconds, number)
        if isinstance(packet, bytes):
            collected.append(packet, link_type, time)
        elif isinstance(packet, Packet):
            collected.append(bytes(packet), packet.link_type, packet.time if time is None else time, packet.original_length)
        elif isinstance(packet, (bytearray, memoryview)) or hasattr(packet, "__bytes__"):
            if time is None and type(packet).__module__.startswith("scapy."):
                time = _nanoseconds(Decimal(str(packet.time)), number)
            data = bytes(packet)
            length = getattr(packet, "wirelen", None)
            collected.append(data, _link_type(packet, link_type), time, length if isinstance(length, int) and length >= len(data) else None)
        else:
            raise TypeError(f"packet {number}: {type(packet).__name__} is neither bytes nor a packet of superpacket, scapy or dpkt")
    return collected


def source(value: Any, link_type: int) -> Path | PacketList:
    """Returns a capture's name as it is, and packets in a list."""
    return value if is_path(value) else collect(value, link_type)


def sources(value: Any, link_type: int) -> list[Path | PacketList]:
    """Returns one capture or several: a name, a list of names, or packets."""
    if is_path(value):
        return [value]
    if isinstance(value, (list, tuple)) and value and all(is_path(item) for item in value):
        return list(value)
    return [collect(value, link_type)]
