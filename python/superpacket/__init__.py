"""Captures, and what receive and segmentation offloads make of them.

``open`` reads packets of pcap and pcapng files, one by one or as columns. ``coalesce`` merges them as
GRO or LRO would have, ``segment`` cuts super-packets as a wire would have carried them, ``verify``
checks that both are reversible, ``analyze`` says what each kind of aggregation would save and what
keeps packets apart, ``steer`` how flows would spread over the CPUs of a host. ``Aggregator`` and
``Segmenter`` are the engine itself, packet by packet.
"""

from superpacket._commands import analyze, coalesce, open, segment, steer, verify
from superpacket._reasons import Reason
from superpacket._reports import (
    AnalyzeReport,
    CoalesceReport,
    CpuShare,
    CutShort,
    Effect,
    FileAnalysis,
    FileVerification,
    Findings,
    FlowLimited,
    LeftOut,
    SegmentReport,
    SteeredFlow,
    SteerReport,
    Timeline,
    TopFlow,
    Totals,
    Traffic,
    UnreadableError,
    VerifyReport,
)
from superpacket._superpacket import (
    Aggregator,
    Capture,
    CaptureError,
    ColumnBatch,
    Columns,
    Error,
    OptionsError,
    Packet,
    PacketList,
    SegmentError,
    Segmenter,
    SuperPacket,
    __version__,
)

__all__ = [
    "Aggregator",
    "AnalyzeReport",
    "Capture",
    "CaptureError",
    "CoalesceReport",
    "ColumnBatch",
    "Columns",
    "CpuShare",
    "CutShort",
    "Effect",
    "Error",
    "FileAnalysis",
    "FileVerification",
    "Findings",
    "FlowLimited",
    "LeftOut",
    "OptionsError",
    "Packet",
    "PacketList",
    "Reason",
    "SegmentError",
    "SegmentReport",
    "Segmenter",
    "SteerReport",
    "SteeredFlow",
    "SuperPacket",
    "Timeline",
    "TopFlow",
    "Totals",
    "Traffic",
    "UnreadableError",
    "VerifyReport",
    "__version__",
    "analyze",
    "coalesce",
    "open",
    "segment",
    "steer",
    "verify",
]
