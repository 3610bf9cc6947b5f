"""What commands found: as the program's ``--json`` has it, with types."""

from __future__ import annotations

import html
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from superpacket._reasons import Reason
from superpacket._rules import Rule
from superpacket._superpacket import CaptureError, Page, PacketList, Violations


@dataclass(frozen=True)
class Totals:
    """What went in and came out."""

    #: Frames read.
    packets_in: int
    #: Frames written, or that would be.
    packets_out: int
    #: Bytes of the frames read.
    bytes_in: int
    #: Bytes of the frames written.
    bytes_out: int
    #: Frames that stand for several.
    super_packets: int
    #: Frames that joined another; in ``segment``, those that were in super-packets.
    merged: int
    #: Why frames left as they did; adds up to ``packets_out`` (in ``segment``, to ``packets_in``).
    reasons: dict[Reason, int]

    @property
    def fewer_by(self) -> float:
        """Packets in for each packet out."""
        return self.packets_in / self.packets_out if self.packets_out else 1.0


@dataclass(frozen=True)
class CutShort:
    """Where a capture was cut short."""

    #: The number that the cut packet would have had.
    packet: int
    #: Where its record begins, in bytes after decompression.
    offset: int
    #: What is there of it.
    reason: str


@dataclass(frozen=True)
class Report:
    """What every report has."""

    #: The report as the program's ``--json`` prints it.
    json: dict[str, Any] = field(repr=False)

    def _repr_html_(self) -> str:
        """Returns a table of the report's figures, or its page, for notebooks."""
        return shown(self)


@dataclass(frozen=True)
class CoalesceReport(Report):
    """What ``coalesce`` did."""

    totals: Totals
    #: Pure ACKs that were absorbed; in ``totals.merged`` too.
    absorbed_acks: int
    cut_short: CutShort | None
    #: What was merged, if no output was named.
    packets: PacketList | None


@dataclass(frozen=True)
class SegmentReport(Report):
    """What ``segment`` did."""

    totals: Totals
    #: The longest IP packet that passed whole, in bytes.
    mtu: int
    #: Segments and fragments written.
    segments: int
    #: Frames above the MTU that passed whole.
    uncut: int
    cut_short: CutShort | None
    #: What was cut, if no output was named.
    packets: PacketList | None


@dataclass(frozen=True)
class FileVerification:
    """What ``verify`` found in one capture."""

    file: str
    totals: Totals
    #: Packets that super-packets were cut into again.
    segments: int
    #: Packets that came back otherwise, or not at all.
    mismatches: int
    #: The first mismatches, in words.
    details: list[str]
    cut_short: CutShort | None


@dataclass(frozen=True)
class VerifyReport(Report):
    """What ``verify`` found."""

    totals: Totals
    segments: int
    mismatches: int
    files: list[FileVerification]
    #: What was wrong with captures that could not be read.
    unreadable: list[str]

    @property
    def ok(self) -> bool:
        """Whether every byte came back: the program's exit code 0."""
        return self.mismatches == 0


@dataclass(frozen=True)
class NotJudged:
    """What ``check`` could not judge."""

    #: Merged packets without a ``virtio_net_hdr``: what it would say of their segments and their
    #: checksum.
    headers: int
    #: Packets of the original that were cut, and had no ``virtio_net_hdr``: the size of their
    #: segments was taken from the first of them.
    sizes: int
    #: Packets of the original whose own header contradicts them, or asks for more than 16,384
    #: segments: they were taken for whole.
    origin_headers: int
    #: Packets that a snap length cut, or whose original it cut: the missing bytes could not be
    #: compared.
    snap_length: int
    #: Packets of the original that did not leave, where what was checked was cut short or a snap
    #: length cut its packets.
    missing: int
    #: Packets that are like none of the original, where that was cut short, a snap length cut its
    #: packets, or a header contradicts its packet.
    without_origin: int
    #: Super-packets whose headers cannot be read, such as those in a tunnel with reserved bits, and
    #: packets of the original that may be in them.
    unreadable: int
    #: Whether link headers were left out, since the files have different ones.
    link_headers: bool


@dataclass(frozen=True)
class CheckReport(Report):
    """What ``check`` found."""

    #: What was checked: a file's name, or "memory".
    checked: str
    #: What it was made of.
    origin: str
    #: The outcome: "faithful", "unfaithful" (a rule is broken) or "incomplete" (no rule is broken,
    #: but some packets could not be judged).
    verdict: Literal["faithful", "unfaithful", "incomplete"]
    #: Packets of the original.
    packets_in: int
    #: Packets that left.
    packets_out: int
    #: Packets that left and stand for several.
    super_packets: int
    #: Packets of the original, or segments of these, that joined another.
    merged: int
    #: Packets that left and are segments of one of the original.
    segments: int
    #: How often rules were broken.
    violations: int
    #: The same, rule by rule.
    by_rule: dict[Rule, int]
    #: The first violations, or all of them: objects that are made when they are asked for.
    described: Violations
    not_judged: NotJudged
    #: Where what was checked was cut short.
    cut_short: CutShort | None
    #: Where the original was cut short.
    origin_cut_short: CutShort | None

    @property
    def ok(self) -> bool:
        """Whether all was judged and no rule is broken: the program's exit code 0."""
        return self.verdict == "faithful"


@dataclass(frozen=True)
class Effect:
    """What one policy does to a capture."""

    totals: Totals
    absorbed_acks: int
    #: Packets in the average super-packet.
    packets_per_super_packet: float
    #: Super-packets by how many packets merged in them.
    super_packet_sizes: dict[str, int]
    #: Frames that left, by length.
    sizes: dict[str, int]
    #: Bytes of the frames that left, by the length of the frame.
    bytes_by_length: dict[str, int]


@dataclass(frozen=True)
class Traffic:
    """What is in a capture."""

    packets: int
    bytes: int
    tcp_packets: int
    udp_packets: int
    dccp_packets: int
    other_packets: int
    #: TCP packets without payload that only acknowledge.
    pure_acks: int
    #: Of all packets, those that are pure ACKs.
    ack_share: float
    #: Frames by length.
    sizes: dict[str, int]
    #: Bytes of frames by the length of the frame.
    bytes_by_length: dict[str, int]


@dataclass(frozen=True)
class TopFlow:
    """A flow with many bytes."""

    #: Protocol and end points: ``TCP 10.0.0.1:443 > 10.3.0.0:10000``.
    flow: str
    packets_in: int
    bytes: int
    #: Packets that left, under GRO with UDP.
    packets_out: int
    #: The figures are exact; else lower bounds.
    exact: bool


@dataclass(frozen=True)
class Timeline:
    """Packets over time."""

    #: Where intervals begin, in seconds since the first packet.
    seconds: list[float]
    #: Packets per second that were captured.
    before: list[float]
    #: Packets per second that left, under GRO with UDP.
    after: list[float]


@dataclass(frozen=True)
class Findings:
    """What ``analyze`` found, in one capture or in all."""

    #: By GRO with UDP: what ``coalesce`` does by default.
    totals: Totals
    traffic: Traffic
    #: What each policy would do: "lro", "gro", "gro_udp" and "lro_acks".
    policies: dict[str, Effect]
    #: The flows with the most bytes.
    top_flows: list[TopFlow]


@dataclass(frozen=True)
class FileAnalysis:
    """What ``analyze`` found in one capture."""

    file: str
    interfaces: list[str]
    findings: Findings
    timeline: Timeline
    cut_short: CutShort | None


@dataclass(frozen=True)
class AnalyzeReport(Report):
    """What ``analyze`` found."""

    findings: Findings
    files: list[FileAnalysis]
    #: What was wrong with captures that could not be read.
    unreadable: list[str]
    page: Page = field(repr=False)

    def to_html(self) -> str:
        """Returns a page with tables and plots, which needs nothing else."""
        return self.page.render()


@dataclass(frozen=True)
class CpuShare:
    """A CPU's share."""

    cpu: int
    packets: int
    bytes: int
    flows: int
    #: Packets that the flow limit would drop in overload.
    flow_limited: int


@dataclass(frozen=True)
class SteeredFlow:
    """A flow, and the CPU that it would be steered to."""

    src: str
    dst: str
    sport: int | None
    dport: int | None
    proto: str
    #: In 8 hexadecimal digits.
    hash: str
    cpu: int | None
    packets: int
    flow_limited: int


@dataclass(frozen=True)
class FlowLimited:
    """What the flow limit would do if every backlog stayed half full or fuller."""

    packets: int
    flows: int
    #: Of how many packets the last are counted.
    history: int


@dataclass(frozen=True)
class LeftOut:
    """Flows for which there was no room in the list."""

    most_flows: int
    packets: int


@dataclass(frozen=True)
class SteerReport(Report):
    """What ``steer`` found."""

    file: str
    totals: Totals
    mask: str
    cpu_list: str
    key: str
    symmetric: bool
    #: "inner" or "outer".
    headers: str
    #: Packets of the busiest CPU over those of the average one.
    imbalance: float | None
    imbalance_flows: float | None
    flow_limit: FlowLimited
    left_out: LeftOut
    cut_short: CutShort | None
    cpus: list[CpuShare]
    flows: list[SteeredFlow]
    page: Page = field(repr=False)

    def to_html(self) -> str:
        """Returns a page with tables and a plot, which needs nothing else."""
        return self.page.render()


def shown(report: Any) -> str:
    """Returns what a notebook shows of a report: its page in a frame, or a table of its figures."""
    page = getattr(report, "page", None)
    if page is not None:
        document = html.escape(page.render())
        return f'<iframe srcdoc="{document}" style="width: 100%; height: 40em; border: 0"></iframe>'
    rows: list[tuple[str, Any]] = []
    for part in fields(report):
        value = getattr(report, part.name)
        if isinstance(value, Totals):
            rows += [(name, count) for name, count in vars(value).items() if name != "reasons"]
            rows += [(f"reason: {reason.value}", count) for reason, count in value.reasons.items()]
        elif isinstance(value, (bool, int, float, str)):
            rows.append((part.name, value))
    if isinstance(getattr(report, "ok", None), bool):
        rows.insert(0, ("ok", report.ok))
    cells = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(_figure(value))}</td></tr>" for name, value in rows)
    return f"<table>{''.join(cells)}</table>"


def _figure(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


class UnreadableError(CaptureError):
    """Some captures of several could not be read: ``report`` has the others."""

    def __init__(self, report: VerifyReport | AnalyzeReport) -> None:
        """Names them."""
        super().__init__(f"{len(report.unreadable)} of the captures could not be read: " + "; ".join(report.unreadable))
        self.report = report
        self.file = ""
        self.packet = None
        self.offset = None
        self.cause = "; ".join(report.unreadable)

    def __reduce__(self) -> tuple[Any, ...]:
        """Keeps the report in a pickle."""
        return UnreadableError, (self.report,)


def totals(json: dict[str, Any]) -> Totals:
    """Reads what every report has."""
    return Totals(
        packets_in=json["packets_in"],
        packets_out=json["packets_out"],
        bytes_in=json["bytes_in"],
        bytes_out=json["bytes_out"],
        super_packets=json["super_packets"],
        merged=json["merged"],
        reasons={Reason(name): count for name, count in json["reasons"].items()},
    )


def cut_short(json: dict[str, Any], name: str = "cut_short") -> CutShort | None:
    """Reads where a capture was cut short."""
    return None if json[name] is None else CutShort(**json[name])


def coalesce_report(json: dict[str, Any], packets: PacketList | None) -> CoalesceReport:
    """Reads the report of ``coalesce``."""
    return CoalesceReport(json, totals(json), json["absorbed_acks"], cut_short(json), packets)


def segment_report(json: dict[str, Any], packets: PacketList | None) -> SegmentReport:
    """Reads the report of ``segment``."""
    return SegmentReport(json, totals(json), json["mtu"], json["segments"], json["uncut"], cut_short(json), packets)


def verify_report(json: dict[str, Any]) -> VerifyReport:
    """Reads the report of ``verify``."""
    files = [
        FileVerification(file["file"], totals(file), file["segments"], file["mismatches"], file["details"], cut_short(file))
        for file in json["files"]
    ]
    return VerifyReport(json, totals(json), json["segments"], json["mismatches"], files, json["unreadable"])


def check_report(json: dict[str, Any], described: Violations) -> CheckReport:
    """Reads the report of ``check``."""
    return CheckReport(
        json=json,
        checked=json["checked"],
        origin=json["origin"],
        verdict=json["verdict"],
        packets_in=json["packets_in"],
        packets_out=json["packets_out"],
        super_packets=json["super_packets"],
        merged=json["merged"],
        segments=json["segments"],
        violations=json["violations"],
        by_rule={Rule(name): count for name, count in json["by_rule"].items()},
        described=described,
        not_judged=NotJudged(**json["not_judged"]),
        cut_short=cut_short(json),
        origin_cut_short=cut_short(json, "origin_cut_short"),
    )


def _effect(json: dict[str, Any]) -> Effect:
    return Effect(
        totals(json),
        json["absorbed_acks"],
        json["packets_per_super_packet"],
        json["super_packet_sizes"],
        json["sizes"],
        json["bytes_by_length"],
    )


def _findings(json: dict[str, Any]) -> Findings:
    policies = {name: _effect(effect) for name, effect in json["policies"].items()}
    return Findings(totals(json), Traffic(**json["traffic"]), policies, [TopFlow(**flow) for flow in json["top_flows"]])


def analyze_report(json: dict[str, Any], timelines: list[tuple[list[float], list[float], list[float]]], page: Page) -> AnalyzeReport:
    """Reads the report of ``analyze``."""
    files = [
        FileAnalysis(file["file"], file["interfaces"], _findings(file), Timeline(*timeline), cut_short(file))
        for file, timeline in zip(json["files"], timelines)
    ]
    return AnalyzeReport(json, _findings(json), files, json["unreadable"], page)


def steer_report(json: dict[str, Any], page: Page) -> SteerReport:
    """Reads the report of ``steer``."""
    return SteerReport(
        json,
        file=json["file"],
        totals=totals(json),
        mask=json["mask"],
        cpu_list=json["cpu_list"],
        key=json["key"],
        symmetric=json["symmetric"],
        headers=json["headers"],
        imbalance=json["imbalance"],
        imbalance_flows=json["imbalance_flows"],
        flow_limit=FlowLimited(**json["flow_limit"]),
        left_out=LeftOut(**json["left_out"]),
        cut_short=cut_short(json),
        cpus=[CpuShare(**cpu) for cpu in json["cpus"]],
        flows=[SteeredFlow(**flow) for flow in json["flows"]],
        page=page,
    )
