"""What commands are given: paths, captures, and packets of this package and from elsewhere."""

from __future__ import annotations

import itertools
import os
from decimal import Decimal
from typing import Any, BinaryIO, TypeGuard, Union

from superpacket._superpacket import Capture, OptionsError, Packet, PacketList, SuperPacket, is_capture

#: A file by its name: "-" is standard input or output.
Path = Union[str, "os.PathLike[str]"]

#: What the compiled part reads as one capture.
CommandInput = Union[Path, BinaryIO, Capture, PacketList]

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


def is_path(value: object) -> TypeGuard[Path]:
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


def parts(packet: Any, link_type: int, number: int) -> tuple[bytes | Packet, int, int | None, int | None, int | None]:
    """Takes a packet from elsewhere apart, for the compiled part.

    Returns its bytes or a packet of this package, its link type, its time in nanoseconds, its length on
    the wire, and the size of its segments.
    """
    time: int | None = None
    if isinstance(packet, tuple) and len(packet) == 2:
        seconds, packet = packet
        time = _nanoseconds(seconds, number)
    if isinstance(packet, (bytes, Packet)):
        return packet, link_type, time, None, None
    if isinstance(packet, SuperPacket):
        return packet.data, link_type, packet.time if time is None else time, None, packet.segment_size
    if is_path(packet) or not (isinstance(packet, (bytearray, memoryview)) or hasattr(packet, "__bytes__")):
        raise TypeError(f"packet {number}: {type(packet).__name__} is neither bytes nor a packet of superpacket, scapy or dpkt")
    if time is None and type(packet).__module__.startswith("scapy."):
        time = _nanoseconds(Decimal(str(packet.time)), number)
    data = bytes(packet)
    length = getattr(packet, "wirelen", None)
    known = length if isinstance(length, int) and length >= len(data) else None
    return data, _link_type(packet, link_type), time, known, None


def _is_input(value: object) -> bool:
    """Says whether this is a capture by itself, and not a packet."""
    return is_path(value) or isinstance(value, (Capture, PacketList)) or hasattr(value, "read")


def captures_of(path: Path) -> list[Path]:
    """Returns a file's name as it is, and of a folder all captures in it and below."""
    if not os.path.isdir(path):
        return [path]
    found: list[Path] = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files = (os.path.join(folder, name) for name in sorted(names) if not name.startswith("."))
        found += (file for file in files if os.path.isfile(file) and is_capture(file))
    if not found:
        raise ValueError(f"{os.fspath(path)}: there are no captures in this folder")
    return found


def sources(value: Any, link_type: int) -> list[CommandInput]:
    """Returns the captures that a value stands for, as the compiled part reads them.

    It is a path, a folder, a file object, a capture, several of these, or packets.
    """
    if is_path(value):
        return [*captures_of(value)]
    if _is_input(value):
        return [value]
    if isinstance(value, (bytes, bytearray, memoryview, Packet, SuperPacket)):
        raise TypeError(f"{type(value).__name__}: is one packet; packets come in a list")
    if isinstance(value, (set, frozenset)) and all(is_path(item) for item in value):
        value = sorted(value, key=os.fspath)
    items = iter(value)
    try:
        first = next(items)
    except StopIteration:
        raise ValueError("neither a capture nor a packet was given: the list is empty, or no file matched") from None
    items = itertools.chain([first], items)
    if not _is_input(first):
        return [PacketList(items, link_type)]
    found: list[CommandInput] = []
    for item in items:
        if not _is_input(item):
            raise TypeError(f"{type(item).__name__}: is neither a path nor a capture, as those before it are")
        found += sources(item, link_type)
    return found


def source(value: Any, link_type: int) -> CommandInput:
    """Returns the one capture that a value stands for."""
    found = sources(value, link_type)
    if len(found) > 1:
        raise OptionsError(f"one capture is read at a time, and {len(found)} were given")
    return found[0]
