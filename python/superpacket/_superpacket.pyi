from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import Any, BinaryIO, Callable, Literal, SupportsIndex, final, overload

import numpy
import pandas

from superpacket._reasons import Reason
from superpacket._rules import Rule

__all__ = [
    "Capture",
    "Violation",
    "Violations",
    "check",
    "check_rules",
    "ColumnBatch",
    "Columns",
    "CorpusSummary",
    "Page",
    "analyze",
    "analyze_part",
    "coalesce",
    "index",
    "segment",
    "steer",
    "verify",
    "Aggregator",
    "Segmenter",
    "SuperPacket",
    "engine_reasons",
    "segment_errors",
    "CaptureError",
    "Error",
    "OptionsError",
    "SegmentError",
    "Packet",
    "PacketList",
    "Writer",
    "is_capture",
    "__version__",
]

__version__: str

class Error(Exception):
    """What this package raises."""

class CaptureError(Error):
    """A capture cannot be read or written."""

    #: The capture's name.
    file: str
    #: The packet's number, from 1; None where there is no packet.
    packet: int | None
    #: The byte where its record begins, after decompression.
    offset: int | None
    #: What is wrong.
    cause: str

class OptionsError(Error):
    """Options that contradict each other, or are out of bounds."""

class SegmentError(Error):
    """A packet cannot be cut."""

    #: The error's name in reports.
    name: str

@final
class Packet:
    """A packet of a capture.

    ``data`` is a memoryview of what was captured, without a copy: the block that the packet was read in
    stays in memory as long as one of its packets, or a view of one, is referred to. Addresses, ports and
    offsets are looked for when they are first asked for; those of a tunnel are the innermost.
    """

    @property
    def number(self) -> int: ...
    @property
    def time(self) -> int | None: ...
    @property
    def data(self) -> memoryview: ...
    @property
    def link_type(self) -> int: ...
    @property
    def interface(self) -> int: ...
    @property
    def interface_name(self) -> str | None: ...
    @property
    def comments(self) -> list[str]: ...
    @property
    def segment_size(self) -> int | None: ...
    @property
    def captured_length(self) -> int: ...
    @property
    def original_length(self) -> int: ...
    @property
    def version(self) -> Literal[4, 6] | None: ...
    @property
    def source(self) -> str | None: ...
    @property
    def destination(self) -> str | None: ...
    @property
    def source_port(self) -> int | None: ...
    @property
    def destination_port(self) -> int | None: ...
    @property
    def protocol(self) -> int | None: ...
    @property
    def tunnel(self) -> Literal["vxlan", "geneve", "gre", "ip"] | None: ...
    @property
    def tunnel_source(self) -> str | None: ...
    @property
    def tunnel_destination(self) -> str | None: ...
    @property
    def vni(self) -> int | None: ...
    @property
    def source_mac(self) -> str | None: ...
    @property
    def destination_mac(self) -> str | None: ...
    @property
    def vlan(self) -> int | None: ...
    @property
    def ttl(self) -> int | None: ...
    @property
    def ip_id(self) -> int | None: ...
    @property
    def tcp_flags(self) -> int | None: ...
    @property
    def sequence(self) -> int | None: ...
    @property
    def acknowledgement(self) -> int | None: ...
    @property
    def window(self) -> int | None: ...
    @property
    def payload_length(self) -> int | None: ...
    @property
    def network_offset(self) -> int | None: ...
    @property
    def transport_offset(self) -> int | None: ...
    @property
    def payload_offset(self) -> int | None: ...
    @property
    def payload(self) -> memoryview | None: ...
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...

@final
class PacketList:
    """Packets in memory: what commands read when they are given packets, and give when no output is named."""

    def __new__(cls, packets: Iterable[Any] | None = None, link_type: int = 1) -> PacketList: ...
    def append(
        self,
        data: Any,
        link_type: int = 1,
        time: int | None = None,
        original_length: int | None = None,
        *,
        interface: str | None = None,
        comments: Sequence[str] | None = None,
    ) -> None: ...
    def save(self, path: str | PathLike[str]) -> None: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Packet: ...
    @overload
    def __getitem__(self, index: slice, /) -> PacketList: ...
    def __iter__(self) -> Iterator[Packet]: ...
    def to_arrow(
        self, *, batch_size: int = 65_536, data: bool = False, addresses: Literal["text", "bytes"] = "text"
    ) -> Columns: ...
    @overload
    def to_pandas(self, *, batch_size: None = None, data: bool = False) -> pandas.DataFrame: ...
    @overload
    def to_pandas(self, *, batch_size: int, data: bool = False) -> Iterator[pandas.DataFrame]: ...
    @overload
    def to_numpy(self, *, batch_size: None = None) -> dict[str, numpy.ndarray[Any, Any]]: ...
    @overload
    def to_numpy(self, *, batch_size: int) -> Iterator[dict[str, numpy.ndarray[Any, Any]]]: ...

@final
class Writer:
    """A capture that is written packet by packet."""

    def __new__(cls, path: str | PathLike[str] | BinaryIO, *, format: Literal["pcap", "pcapng"] | None = None) -> Writer: ...
    @property
    def file(self) -> str: ...
    def write(
        self,
        data: Any,
        link_type: int = 1,
        time: int | None = None,
        original_length: int | None = None,
        *,
        interface: str | None = None,
        comments: Sequence[str] | None = None,
    ) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Writer: ...
    def __exit__(self, kind: object, *_exception: object) -> None: ...

@final
class Capture:
    """A capture that is being read: an iterator of its packets."""

    def __new__(cls, path: str | PathLike[str] | BinaryIO, *, strict: bool = False) -> Capture: ...
    @property
    def file(self) -> str: ...
    @property
    def format(self) -> Literal["pcap", "pcapng"]: ...
    @property
    def compression(self) -> Literal["none", "gzip", "zstd"]: ...
    @property
    def interfaces(self) -> list[tuple[int, str | None]]: ...
    def to_arrow(
        self, *, batch_size: int = 65_536, data: bool = False, addresses: Literal["text", "bytes"] = "text"
    ) -> Columns: ...
    @overload
    def to_pandas(self, *, batch_size: None = None, data: bool = False) -> pandas.DataFrame: ...
    @overload
    def to_pandas(self, *, batch_size: int, data: bool = False) -> Iterator[pandas.DataFrame]: ...
    @overload
    def to_numpy(self, *, batch_size: None = None) -> dict[str, numpy.ndarray[Any, Any]]: ...
    @overload
    def to_numpy(self, *, batch_size: int) -> Iterator[dict[str, numpy.ndarray[Any, Any]]]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Capture: ...
    def __exit__(self, *_exception: object) -> None: ...
    def __iter__(self) -> Capture: ...
    def __next__(self) -> Packet: ...

@final
class Columns:
    """Packets as columns: a stream that pyarrow, polars and duckdb take without copies, to be read once."""

    @property
    def names(self) -> list[str]: ...
    def check(self) -> None: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __iter__(self) -> Columns: ...
    def __next__(self) -> ColumnBatch: ...

@final
class ColumnBatch:
    """A batch of columns, for ``pyarrow.record_batch`` and others that take ``__arrow_c_array__``."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...
    def buffers(self) -> dict[str, bytes]: ...
    def __len__(self) -> int: ...

@final
class SuperPacket:
    """A packet that left the aggregator, merged or single."""

    @property
    def data(self) -> bytes: ...
    @property
    def packets(self) -> int: ...
    @property
    def reason(self) -> Reason: ...
    @property
    def segment_size(self) -> int | None: ...
    @property
    def absorbed_acks(self) -> int: ...
    @property
    def time(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __len__(self) -> int: ...

@final
class Aggregator:
    """Merges packets as GRO or LRO does: packets in, super-packets out."""

    def __new__(
        cls,
        *,
        mode: Literal["gro", "lro"] = "gro",
        udp: bool = True,
        acks: bool = False,
        max_bytes: int = 65_535,
        max_packets: int | None = None,
        max_flows: int | None = None,
        layer: Literal["ethernet", "ip"] = "ethernet",
    ) -> Aggregator: ...
    def receive(self, packet: bytes, time: int = 0) -> list[SuperPacket]: ...
    def poll_end(self) -> list[SuperPacket]: ...
    def flush(self) -> list[SuperPacket]: ...
    @property
    def held(self) -> int: ...
    @property
    def counters(self) -> dict[str, int]: ...
    @property
    def reasons(self) -> dict[Reason, int]: ...

@final
class Segmenter:
    """Cuts super-packets into the packets that a wire would have carried."""

    def __new__(cls, *, layer: Literal["ethernet", "ip"] = "ethernet") -> Segmenter: ...
    def segment(
        self, packet: bytes | SuperPacket, *, size: int | None = None, mtu: int | None = None
    ) -> list[bytes]: ...
    @property
    def counters(self) -> dict[str, int]: ...

@final
class Page:
    """A report's page, drawn when it is asked for."""

    def render(self) -> str: ...

def is_capture(path: str | PathLike[str]) -> bool: ...
def coalesce(
    input: str | PathLike[str] | BinaryIO | Capture | PacketList,
    output: str | PathLike[str] | None,
    *,
    lro: bool,
    batch: int,
    hold: int,
    max_bytes: int,
    jumbo_option: bool,
    max_packets: int,
    max_flows: int | None,
    udp: bool,
    acks: bool,
    fix_checksums: bool,
    keep_partial: bool,
    strict: bool,
    progress: Callable[[str, int | None], Any] | None,
) -> tuple[str, PacketList | None]: ...
def segment(
    input: str | PathLike[str] | BinaryIO | Capture | PacketList,
    output: str | PathLike[str] | None,
    *,
    mtu: int,
    fragment: bool,
    udp_size: int | None,
    fix_checksums: bool,
    fix_lengths: bool,
    keep_partial: bool,
    strict: bool,
    progress: Callable[[str, int | None], Any] | None,
) -> tuple[str, PacketList | None]: ...
def verify(
    inputs: list[str | PathLike[str] | BinaryIO | Capture | PacketList],
    *,
    batch: int,
    hold: int,
    udp: bool,
    strict: bool,
    inject_fault: int | None,
    progress: Callable[[str, int | None], Any] | None,
) -> str: ...
def analyze(
    inputs: list[str | PathLike[str] | BinaryIO | Capture | PacketList],
    *,
    batch: int,
    hold: int,
    top: int,
    strict: bool,
    html: str | PathLike[str] | None,
    progress: Callable[[str, int | None], Any] | None,
) -> tuple[str, list[tuple[list[float], list[float], list[float]]], Page]: ...
def steer(
    input: str | PathLike[str] | BinaryIO | Capture | PacketList,
    *,
    cpus: str | None,
    cpu_list: str | None,
    key: bytes | None,
    symmetric: bool,
    outer: bool,
    strict: bool,
    html: str | PathLike[str] | None,
    top: int,
    progress: Callable[[str, int | None], Any] | None,
) -> tuple[str, Page]: ...
@final
class Violation:
    """A rule that a packet breaks."""

    @property
    def packet(self) -> int | None: ...
    @property
    def origin(self) -> int | None: ...
    @property
    def field(self) -> str: ...
    @property
    def rule(self) -> Rule: ...
    @property
    def found(self) -> str: ...

@final
class Violations:
    """The violations of a report, in the order in which they were found."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Violation: ...
    def __iter__(self) -> Iterator[Violation]: ...

def check(
    checked: str | PathLike[str] | BinaryIO | Capture | PacketList,
    origin: str | PathLike[str] | BinaryIO | Capture | PacketList,
    *,
    reversible: bool,
    all: bool,
    strict: bool,
    progress: Callable[[str, int | None], Any] | None,
) -> tuple[str, Violations]: ...
def check_rules() -> list[tuple[str, str, str]]: ...
@final
class CorpusSummary:
    """Adds up what was found in the captures of a corpus."""

    def __new__(cls, *, batch: int, hold: int, top: int) -> CorpusSummary: ...
    def add(self, file: str, parts: list[str]) -> list[tuple[str, list[int], list[tuple[str, int]]]]: ...
    def unreadable(self, words: str) -> None: ...
    def report(self) -> tuple[str, Page]: ...

def index(
    name: str, stream: tuple[str | PathLike[str] | Any, int, int | None], *, grain: int, multiple: int
) -> tuple[list[tuple[int, int, int]], bytes, int]: ...
def analyze_part(
    name: str,
    stream: tuple[str | PathLike[str] | Any, int, int | None],
    part: tuple[bytes, int, int] | None,
    take: Callable[[str, ColumnBatch], object],
    *,
    first: int,
    continues: bool,
    batch: int,
    hold: int,
    interval: int,
    strict: bool,
) -> str: ...
def engine_reasons() -> list[str]: ...
def segment_errors() -> list[str]: ...
