"""The program's commands."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, BinaryIO, Callable, Literal, Protocol, Union

from superpacket import _superpacket
from superpacket._packets import Path, source, sources
from superpacket._reports import (
    AnalyzeReport,
    CheckReport,
    CoalesceReport,
    SegmentReport,
    SteerReport,
    UnreadableError,
    VerifyReport,
    analyze_report,
    check_report,
    coalesce_report,
    segment_report,
    steer_report,
    verify_report,
)
from superpacket._superpacket import Capture, OptionsError

#: One capture: a path ("-" for standard input), a file object that was opened for bytes, a capture,
#: or packets in memory: bytes, tuples (seconds, packet), packets of this package, of scapy or of dpkt.
Source = Union[Path, BinaryIO, Iterable[Any]]

#: One capture or several, in a list, a set or any other iterable; a folder stands for all captures in
#: it and below. What is empty raises ValueError; a capture without packets is read.
Sources = Source

#: The largest whole number of 64 bits.
_FOREVER = 2**64 - 1


class Bar(Protocol):
    """What commands tell how far they have come: a bar of tqdm, or anything like it."""

    total: Any

    def update(self, n: int) -> object:
        """Adds bytes read."""


#: ``True`` for a bar of tqdm for each capture; a bar; or what makes one, such as ``tqdm.tqdm``: it
#: is called with ``total``, ``desc``, ``unit`` and ``unit_scale``.
Progress = Union[bool, Bar, Callable[..., Bar], None]


class _Shared:
    """A bar of the caller's, which goes on over several captures and is not closed."""

    def __init__(self, bar: Bar) -> None:
        self.update = bar.update

    def close(self) -> None:
        """Leaves the bar to its owner."""


class _Called:
    """A bar that was made for one capture."""

    def __init__(self, bar: Any) -> None:
        self.update = bar.update
        self._bar = bar

    def close(self) -> None:
        """Closes the bar if it can be closed."""
        close = getattr(self._bar, "close", None)
        if close is not None:
            close()


def _begin(progress: Progress) -> Callable[[str, int | None], _Shared | _Called] | None:
    """Returns what is called for each capture that is begun, with its name and its bytes."""
    if progress is None or progress is False:
        return None
    if progress is True:
        try:
            from tqdm.auto import tqdm
        except ImportError as error:
            raise ImportError("progress=True needs tqdm: pip install 'superpacket[progress]'") from error

        progress = tqdm
    if not isinstance(progress, type) and hasattr(progress, "update"):
        bar: Bar = progress  # type: ignore[assignment]

        def add(_name: str, length: int | None) -> _Shared:
            if length is not None:
                bar.total = (bar.total or 0) + length
            return _Shared(bar)

        return add
    make: Callable[..., Bar] = progress  # type: ignore[assignment]

    def begin(name: str, length: int | None) -> _Called:
        return _Called(make(total=length, desc=name, unit="B", unit_scale=True))

    return begin


def _hold(seconds: float) -> int:
    # Infinity and NaN cannot be rounded.
    if not 0 <= seconds * 1_000_000_000 < _FOREVER:
        raise OptionsError(f"hold: {seconds} s is not between 0 and 584 years")
    return round(seconds * 1_000_000_000)


def _batch(packets: int) -> int:
    if not 0 <= packets <= _FOREVER:
        raise OptionsError(f"batch: {packets} is not between 0 and {_FOREVER}")
    return packets


def _whole(name: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise OptionsError(f"{name}: {value} is not between {least} and {most}")
    return value


def open(path: Path | BinaryIO, *, strict: bool = False) -> Capture:
    """Opens a capture: pcap or pcapng, plain, gzip or zstd; "-" is standard input.

    It is a path, or an object whose ``read`` gives bytes.

    It is an iterator of its packets, and gives them as columns by ``to_arrow``, ``to_pandas`` and
    ``to_numpy``. A capture that ends within a record gives the packets before it and a warning, or
    CaptureError if ``strict``.
    """
    return Capture(path, strict=strict)


def coalesce(
    input: Source,
    output: Path | None = None,
    *,
    mode: Literal["gro", "lro"] = "gro",
    batch: int = 64,
    hold: float = 0.001,
    max_bytes: int = 65_535,
    jumbo_option: bool = False,
    max_packets: int = 512,
    max_flows: int | None = None,
    udp: bool = True,
    acks: bool = False,
    fix_checksums: bool = False,
    keep_partial: bool = False,
    strict: bool = False,
    link_type: int = 1,
    progress: Progress = None,
) -> CoalesceReport:
    """Merges the packets of each flow into super-packets, as GRO or LRO would have.

    :param output: the capture to write; without it, the report has the packets.
    :param mode: "gro": what merges can be cut again into the same frames; "lro": for local
        delivery only.
    :param batch: packets in a poll: at its end, everything held leaves; 0: only at the capture's
        end.
    :param hold: seconds that something is held at most, by the capture's clock.
    :param max_bytes: the longest merged packet, from the IP header: 68 to 524280.
    :param jumbo_option: IPv6 packets above 65575 bytes say their length in a jumbo payload option
        (RFC 2675), in place of 0.
    :param max_packets: the most packets in one: 1 to 512.
    :param max_flows: the most flows held at a time: 1 to 1024; without it 1024, and 8 by LRO's
        rules.
    :param udp: aggregates UDP too.
    :param acks: aggregates pure ACKs too (LRO only).
    :param fix_checksums: corrects wrong checksums, so that their packets can merge.
    :param keep_partial: leaves unfinished checksums in packets that do not merge.
    :param strict: raises CaptureError if the capture ends within a record.
    :param link_type: of packets that are given as bytes; 1 is Ethernet, 101 IP.
    """
    if mode not in ("gro", "lro"):
        raise OptionsError(f"mode: {mode!r} is neither 'gro' nor 'lro'")
    report, packets = _superpacket.coalesce(
        source(input, link_type),
        output,
        lro=mode == "lro",
        batch=_batch(batch),
        hold=_hold(hold),
        max_bytes=_whole("max_bytes", max_bytes, 68, 524_280),
        jumbo_option=jumbo_option,
        max_packets=_whole("max_packets", max_packets, 1, 512),
        max_flows=None if max_flows is None else _whole("max_flows", max_flows, 1, 1024),
        udp=udp,
        acks=acks,
        fix_checksums=fix_checksums,
        keep_partial=keep_partial,
        strict=strict,
        progress=_begin(progress),
    )
    return coalesce_report(json.loads(report), packets)


def segment(
    input: Source,
    output: Path | None = None,
    *,
    mtu: int = 1500,
    fragment: bool = False,
    udp_size: int | None = None,
    fix_checksums: bool = False,
    fix_lengths: bool = False,
    keep_partial: bool = False,
    strict: bool = False,
    link_type: int = 1,
    progress: Progress = None,
) -> SegmentReport:
    """Cuts frames above the MTU into what a wire would have carried.

    Packets that ``coalesce`` returned know the size of their segments: they are cut into these whatever
    the MTU is, UDP too.

    :param output: the capture to write; without it, the report has the packets.
    :param mtu: the longest IP packet that passes whole, in bytes: 68 to 65535.
    :param fragment: cuts what cannot be cut otherwise into IP fragments.
    :param udp_size: cuts UDP above the MTU into datagrams of so many bytes of payload.
    :param fix_checksums: corrects wrong checksums, so that their frames can be cut.
    :param fix_lengths: cuts frames above the MTU whose IP length says that they fit.
    :param keep_partial: leaves unfinished checksums in frames that are not cut.
    :param strict: raises CaptureError if the capture ends within a record, and Error if frames stay
        uncut because their checksums are wrong.
    :param link_type: of packets that are given as bytes; 1 is Ethernet, 101 IP.
    """
    report, packets = _superpacket.segment(
        source(input, link_type),
        output,
        mtu=_whole("mtu", mtu, 68, 65_535),
        fragment=fragment,
        udp_size=None if udp_size is None else _whole("udp_size", udp_size, 1, 65_535),
        fix_checksums=fix_checksums,
        fix_lengths=fix_lengths,
        keep_partial=keep_partial,
        strict=strict,
        progress=_begin(progress),
    )
    return segment_report(json.loads(report), packets)


def verify(
    inputs: Sources,
    *,
    batch: int = 64,
    hold: float = 0.001,
    udp: bool = True,
    strict: bool = False,
    link_type: int = 1,
    progress: Progress = None,
    _inject_fault: int | None = None,
) -> VerifyReport:
    """Aggregates by GRO's rules, segments again, and compares byte for byte: ``report.ok``.

    Of several captures, those that cannot be read do not stop the others: UnreadableError, raised at
    the end, has the report on them.
    """
    report = verify_report(
        json.loads(
            _superpacket.verify(
                sources(inputs, link_type),
                batch=_batch(batch),
                hold=_hold(hold),
                udp=udp,
                strict=strict,
                inject_fault=_inject_fault,
                progress=_begin(progress),
            )
        )
    )
    if report.unreadable:
        raise UnreadableError(report)
    return report


def check(
    checked: Source,
    origin: Source,
    *,
    rules: Literal["linux", "reversible"] = "linux",
    all: bool = False,
    strict: bool = False,
    link_type: int = 1,
    progress: Progress = None,
) -> CheckReport:
    """Says whether what another implementation made of packets is a faithful aggregation or segmentation: ``report.ok``.

    There is no option for the direction. Files are captures, whose packets may have their
    ``virtio_net_hdr`` in comments, or of records (docs/check.md); packets in memory have none.

    :param checked: what the implementation made.
    :param origin: what it was given.
    :param rules: "linux": what Linux does; "reversible": from a packet and its header every byte
        comes back, and nothing of a flow overtakes anything.
    :param all: describes all violations, not the first 10 alone.
    :param strict: raises CaptureError if a file ends within a record.
    :param link_type: of packets that are given as bytes; 1 is Ethernet, 101 IP.
    """
    if rules not in ("linux", "reversible"):
        raise OptionsError(f"rules: {rules!r} is neither 'linux' nor 'reversible'")
    report, described = _superpacket.check(
        source(checked, link_type),
        source(origin, link_type),
        reversible=rules == "reversible",
        all=all,
        strict=strict,
        progress=_begin(progress),
    )
    return check_report(json.loads(report), described)


def analyze(
    inputs: Sources,
    *,
    batch: int = 64,
    hold: float = 0.001,
    top: int = 10,
    strict: bool = False,
    html: Path | None = None,
    link_type: int = 1,
    progress: Progress = None,
) -> AnalyzeReport:
    """Says what each kind of aggregation would merge, and what kept packets apart.

    Compared are LRO, GRO, GRO with UDP, and LRO with pure ACKs.

    :param top: flows in the top list, 100 at most.
    :param html: where to write a page with tables and plots.

    Of several captures, those that cannot be read do not stop the others: UnreadableError, raised at
    the end, has the report on them.
    """
    report = analyze_report(
        *_parsed(
            _superpacket.analyze(
                sources(inputs, link_type),
                batch=_batch(batch),
                hold=_hold(hold),
                top=_whole("top", top, 0, 100),
                strict=strict,
                html=html,
                progress=_begin(progress),
            )
        )
    )
    if report.unreadable:
        raise UnreadableError(report)
    return report


def _parsed(found: tuple[str, Any, Any]) -> tuple[dict[str, Any], Any, Any]:
    report, timelines, page = found
    return json.loads(report), timelines, page


def steer(
    input: Source,
    *,
    cpus: str | None = None,
    cpu_list: str | None = None,
    key: bytes | None = None,
    symmetric: bool = False,
    outer: bool = False,
    strict: bool = False,
    html: Path | None = None,
    top: int = 10,
    link_type: int = 1,
    progress: Progress = None,
) -> SteerReport:
    """Says how flows would spread over the CPUs of a host, by receive packet steering (RPS).

    :param cpus: the host's CPUs as sysfs has them (rps_cpus): "ff".
    :param cpu_list: the same as a list: "0-3,8".
    :param key: of the Toeplitz hash, 40 bytes; without it, the published one.
    :param symmetric: hashes both directions of a connection alike.
    :param outer: hashes the outermost headers of tunnelled packets, not the innermost.
    :param html: where to write a page with tables and a plot.
    :param top: flows in the page's list, 100 at most.
    """
    report, page = _superpacket.steer(
        source(input, link_type),
        cpus=cpus,
        cpu_list=cpu_list,
        key=key,
        symmetric=symmetric,
        outer=outer,
        strict=strict,
        html=html,
        top=_whole("top", top, 0, 100),
        progress=_begin(progress),
    )
    return steer_report(json.loads(report), page)
