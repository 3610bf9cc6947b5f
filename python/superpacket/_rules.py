"""The rules that other implementations are judged by."""

from enum import Enum

from superpacket._superpacket import check_rules


class Rule(str, Enum):
    """A rule of faithful aggregation or segmentation.

    A member is its name too: ``Rule.GSO_SIZE == "gso-size"``.
    """

    #: The payload of a packet consists of the payloads of the packets for which it stands, in
    #: order.
    BYTES = "bytes"
    #: Every packet of the original leaves, alone or merged with others.
    LOST = "lost"
    #: A packet that leaves stands for packets of the original, each of which leaves once.
    INVENTED = "invented"
    #: The packets of a flow leave in the order in which they came.
    ORDER = "order"
    #: (Only by the stricter rules.) A packet that cannot merge, or that Linux counts as another
    #: flow by its tags, labels or tunnel headers, does not overtake held packets of its flow.
    REFUSED_ORDER = "refused-order"
    #: (Only by the stricter rules.) A packet whose ports are not known, such as a fragment,
    #: keeps order with the flows between its addresses.
    PAIR_ORDER = "pair-order"
    #: The payloads in a merged packet have the same size; the last may be shorter.
    SEGMENT_SIZES = "segment-sizes"
    #: gso_size is the payload in bytes of each packet that merged, except the last.
    GSO_SIZE = "gso-size"
    #: The header of a merged packet says how to cut it.
    GSO_TYPE = "gso-type"
    #: Linux can segment a merged packet that has a header: it is not in PPPoE or MPLS, nor
    #: behind more than two VLAN tags, nor behind a tag of a type other than 0x8100 and 0x88a8.
    RECEIVER = "receiver"
    #: A merged packet has the ECN bit (0x80) in its gso_type if its first packet alone has CWR,
    #: but not if all have it.
    GSO_ECN = "gso-ecn"
    #: A virtio_net_hdr contradicts neither itself nor its packet.
    VIRTIO_HEADER = "virtio-header"
    #: (Only by the stricter rules.) hdr_len of a merged packet is the length of its headers.
    HEADER_LENGTH = "header-length"
    #: The length fields of a packet agree with its length and with each other.
    LENGTH = "length"
    #: (Only by the stricter rules.) A packet in a tunnel whose outer UDP length is wrong does
    #: not merge: Linux writes the right one.
    OUTER_LENGTH = "outer-length"
    #: The checksum of each IPv4 header is right.
    IP_CHECKSUM = "ip-checksum"
    #: The checksum of each TCP, UDP or DCCP packet and of each tunnel is right. It covers the
    #: final destination of a route, and a home address.
    CHECKSUM = "checksum"
    #: With NEEDS_CSUM the checksum field holds the pseudo-header's sum, not inverted, over the
    #: whole length; with UDP_TUNNEL_CSUM so does the outer UDP checksum.
    PARTIAL_CHECKSUM = "partial-checksum"
    #: A computed UDP checksum of 0 is sent as 0xFFFF, since 0 means that there is none.
    UDP_ZERO = "udp-zero"
    #: (Only by the stricter rules.) A checksum that is valid but not canonical (0xFFFF in place of
    #: 0) is restored unchanged.
    CANONICAL_CHECKSUM = "canonical-checksum"
    #: A packet whose checksum is wrong is neither merged nor repaired.
    BAD_CHECKSUM = "bad-checksum"
    #: (Only by the stricter rules.) A packet with NEEDS_CSUM whose partial or outer checksum is
    #: wrong does not merge: Linux verifies neither of these.
    UNVERIFIED = "unverified"
    #: A packet with IPv4 options, the reserved bit, padding or a false length does not merge.
    NEVER_MERGES = "never-merges"
    #: A packet with SYN or RST does not merge.
    CONTROL_FLAGS = "control-flags"
    #: A packet with PSH or FIN is the last of its merged packet.
    PUSH_ENDS = "push-ends"
    #: All TCP flags except PSH, FIN and CWR are the same as in every original packet; PSH and FIN
    #: are those of the last.
    FLAGS = "flags"
    #: CWR of a super-packet is that of its first packet alone, or of all packets (accurate ECN) if
    #: all have it.
    CWR = "cwr"
    #: (Only by the stricter rules.) Packets that all have CWR do not merge: they cannot be
    #: restored through a virtio_net_hdr, since Linux sets CWR on the first segment alone.
    CWR_ON_ALL = "cwr-on-all"
    #: The sequence numbers of the packets follow each other.
    SEQUENCE = "sequence"
    #: The acknowledgement number is the same as in every original packet.
    ACKNOWLEDGEMENT = "acknowledgement"
    #: The window is the same as in every original packet.
    WINDOW = "window"
    #: The urgent pointer is the same as in every original packet.
    URGENT = "urgent"
    #: (Only by the stricter rules.) Packets with different urgent pointers do not merge: Linux
    #: keeps the first one's.
    URGENT_MERGED = "urgent-merged"
    #: The TCP options are the same as in every original packet, byte for byte.
    TCP_OPTIONS = "tcp-options"
    #: IPv4 identifications increase by one per packet, or are the same in all packets.
    IP_ID = "ip-id"
    #: (Only by the stricter rules.) Packets with the same identification do not merge: they cannot
    #: be restored through a virtio_net_hdr.
    IP_ID_FIXED = "ip-id-fixed"
    #: The fragments of an IPv6 datagram have one identification, which no other datagram between its addresses has.
    FRAGMENT_ID = "fragment-id"
    #: (Only by the stricter rules.) DF and the reserved bit of a datagram are those of its
    #: fragments: Linux clears both.
    FRAGMENT_FLAGS = "fragment-flags"
    #: The fragment field of IPv4 (DF) is the same as in every original packet.
    DONT_FRAGMENT = "dont-fragment"
    #: TTL or hop limit is the same as in every original packet.
    TTL = "ttl"
    #: TOS or traffic class, including its ECN bits, is the same as in every original packet.
    TRAFFIC_CLASS = "traffic-class"
    #: The IPv6 flow label is the same as in every original packet.
    FLOW_LABEL = "flow-label"
    #: Version, header length, options, extension headers, protocol and addresses are the same as
    #: in every original packet.
    IP_HEADER = "ip-header"
    #: Ports, and all other fields of a transport header, are the same as in every original packet.
    TRANSPORT = "transport"
    #: Addresses, tags and labels before the IP header are the same as in every original packet.
    LINK_HEADER = "link-header"
    #: The headers of a tunnel are the same as in every original packet.
    TUNNEL_HEADER = "tunnel-header"

    @property
    def sentence(self) -> str:
        """What the rule says."""
        return _RULES[self.value][0]

    @property
    def is_stricter(self) -> bool:
        """Whether it is part of ``rules="reversible"`` alone."""
        return _RULES[self.value][1] == "reversible"


_RULES = {name: (sentence, strictness) for name, sentence, strictness in check_rules()}
