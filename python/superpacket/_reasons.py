"""Why packets left as they did."""

from enum import Enum


class Reason(str, Enum):
    """Why a packet left as it did: each has exactly one, so the counts add up to the packets.

    A member is its name too: ``Reason.NOT_IP == "not_ip"``.
    """

    # What aggregation says.
    #: Not IPv4 or IPv6, or a link header that the engine does not know.
    NOT_IP = "not_ip"
    #: The frame ends before its headers, or before its IP length says: cut by a snap length, or a
    #: false length field.
    TRUNCATED = "truncated"
    #: A header contradicts itself.
    MALFORMED = "malformed"
    #: The headers are longer than MAX_HEADER.
    HEADER_TOO_LONG = "header_too_long"
    #: An IP fragment.
    FRAGMENT = "fragment"
    #: IPv4 options.
    IP_OPTIONS = "ip_options"
    #: The reserved bit of the IPv4 header.
    RESERVED_BIT = "reserved_bit"
    #: An IP length of 0: left to the device, or larger than the field (BIG TCP).
    NO_LENGTH = "no_length"
    #: Bytes after the end of the IP packet that may not be trimmed.
    PADDED = "padded"
    #: A protocol that never aggregates.
    PROTOCOL = "protocol"
    #: A tunnel header with a feature that the engine does not rewrite, or a second tunnel.
    TUNNEL = "tunnel"
    #: A wrong IPv4 header checksum.
    BAD_IP_CHECKSUM = "bad_ip_checksum"
    #: A wrong transport or tunnel checksum.
    BAD_CHECKSUM = "bad_checksum"
    #: A checksum that is valid but that no sender computes (0xFFFF for 0x0000): it could not be
    #: restored.
    NON_CANONICAL_CHECKSUM = "non_canonical_checksum"
    #: A partial checksum whose field does not hold the sum of the pseudo-header, or for another
    #: header.
    PARTIAL_CHECKSUM = "partial_checksum"
    #: No header of the device's format could say what it would merge to.
    CANNOT_SEGMENT = "cannot_segment"
    #: The only packet of a call that holds nothing before and after: it was not read.
    ALONE = "alone"
    #: A super-packet already.
    SUPER_PACKET = "super_packet"
    #: SYN, RST or URG, or no ACK: TCP control.
    TCP_FLAGS = "tcp_flags"
    #: No payload: pure ACKs, keep-alives without data, empty datagrams.
    NO_PAYLOAD = "no_payload"
    #: UDP where its aggregation is switched off.
    UDP_OFF = "udp_off"
    #: A UDP length that differs from the IP payload's.
    UDP_LENGTH = "udp_length"
    #: UDP without a checksum.
    UDP_NO_CHECKSUM = "udp_no_checksum"
    #: A DCCP packet that carries no data, or cannot be merged.
    DCCP_TYPE = "dccp_type"
    #: DCCP whose checksum covers more than there is.
    DCCP_COVERAGE = "dccp_coverage"
    #: An IPv6 routing header or home address option from which the addresses that the checksum
    #: covers cannot be told: it contradicts itself, or its type is not known.
    FINAL_DESTINATION = "final_destination"
    #: LRO: TCP options other than an aligned timestamp with an echo.
    TCP_OPTIONS = "tcp_options"
    #: LRO: a packet marked as having met congestion, or with ECE or CWR.
    CONGESTION = "congestion"
    #: LRO: a protocol or tunnel that LRO leaves alone.
    NOT_LRO = "not_lro"
    #: LRO: no descriptor was free.
    NO_DESCRIPTOR = "no_descriptor"
    #: LRO: an acknowledgement that repeats the last one.
    DUPLICATE_ACK = "duplicate_ack"
    #: LRO: an acknowledgement that only changes the window.
    WINDOW_UPDATE = "window_update"
    #: LRO: an acknowledgement older than the one held, or than the last of its flow.
    ACK_OLDER = "ack_older"
    #: PSH or FIN ended it; a single packet with either is not held at all.
    PUSH = "push"
    #: A segment shorter than the others ended it.
    SHORT_SEGMENT = "short_segment"
    #: One more would have passed the limit of bytes, or the room in the first packet's buffer.
    BYTE_LIMIT = "byte_limit"
    #: It reached the limit of packets.
    PACKET_LIMIT = "packet_limit"
    #: It reached the limit of fragments.
    FRAGMENT_LIMIT = "fragment_limit"
    #: The poll ended.
    POLL_END = "poll_end"
    #: It was held for as long as the policy allows.
    HOLD_TIME = "hold_time"
    #: The caller asked for it.
    REQUESTED = "requested"
    #: A newer flow needed its place.
    EVICTED = "evicted"
    #: The held bytes reached their limit.
    MEMORY_LIMIT = "memory_limit"
    #: A packet of its flow, or of an unknown flow between its addresses, had to pass untouched and
    #: in order.
    OVERTAKEN = "overtaken"
    #: The next packet's sequence number was not the expected one.
    SEQUENCE = "sequence"
    #: The next packet was longer than the first.
    LONGER_SEGMENT = "longer_segment"
    #: The acknowledgement number changed.
    ACKNOWLEDGEMENT = "acknowledgement"
    #: The window changed.
    WINDOW = "window"
    #: TCP flags or reserved bits changed.
    FLAGS_CHANGED = "flags_changed"
    #: TCP or DCCP options changed; timestamps too.
    OPTIONS_CHANGED = "options_changed"
    #: LRO: the timestamp ran backwards.
    TIMESTAMP_OLDER = "timestamp_older"
    #: The IP identification neither stayed nor incremented as before.
    IP_ID = "ip_id"
    #: TTL or hop limit changed.
    TTL = "ttl"
    #: TOS or traffic class changed.
    TOS = "tos"
    #: The don't-fragment bit changed.
    DONT_FRAGMENT = "dont_fragment"
    #: The flow label changed.
    FLOW_LABEL = "flow_label"
    #: An extension header changed.
    EXTENSION_HEADER = "extension_header"
    #: The link header changed: priority bits, MPLS.
    LINK_HEADER = "link_header"
    #: A tunnel header changed.
    TUNNEL_HEADER = "tunnel_header"
    #: Another field changed.
    HEADER_CHANGED = "header_changed"
    #: Full checksums were followed by a partial one, or the reverse.
    CHECKSUM_FORM = "checksum_form"

    # What only the commands for captures say.
    #: A link type that the engine does not know: the frame passes.
    LINK_TYPE = "link_type"
    #: The snap length cut the frame behind its IP packet.
    SNAP_LENGTH = "snap_length"

    # What segment says.
    #: It fits the MTU.
    FITS = "fits"
    #: It was cut into segments.
    CUT = "cut"
    #: It was cut into IP fragments.
    FRAGMENTED = "fragmented"
    #: Its IP length fits the MTU, but leaves out a part of the frame that does not.
    IP_LENGTH = "ip_length"
    #: A UDP datagram above the MTU that nothing says how to cut.
    UDP_DATAGRAM = "udp_datagram"
    #: The headers could not be read to the payload.
    HEADERS = "headers"
    #: The headers are not those of the kind of segments.
    KIND = "kind"
    #: A length field contradicts that of the header around it.
    LENGTH = "length"
    #: There would be more segments than the limit.
    TOO_MANY_SEGMENTS = "too_many_segments"
    #: A segment would not fit its length fields.
    SEGMENT_TOO_LONG = "segment_too_long"
    #: The MTU leaves no room for payload.
    SEGMENT_TOO_SMALL = "segment_too_small"
    #: DCCP whose checksum covers a part of the payload only.
    COVERAGE = "coverage"
    #: A partial checksum lies elsewhere than the headers say.
    CHECKSUM_PLACE = "checksum_place"
    #: The headers are longer than the metadata say.
    HEADER_LENGTH = "header_length"
    #: The output has no room for the segments.
    OUTPUT_TOO_SMALL = "output_too_small"

    # What steer says.
    #: It was sent to a CPU.
    STEERED = "steered"
    #: It has no addresses to hash.
    NO_HASH = "no_hash"
    #: There are no CPUs: it stays where it is received.
    NO_CPUS = "no_cpus"
    #: Its hash is 0: it stays where it is received.
    HASH_ZERO = "hash_zero"
