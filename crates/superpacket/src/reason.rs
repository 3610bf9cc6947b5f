//! The reasons why packets left the aggregator: one reason for each packet, and one counter for
//! each reason.

use crate::wire::Refusal;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The reason why a packet left the aggregator.
        ///
        /// Each packet that leaves, merged or single, has exactly one, so the counts of all reasons
        /// add up to the packets out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)*];
            /// Number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// Returns the name that reports and JSON use.
            pub const fn name(self) -> &'static str {
                match self { $(Reason::$name => $text,)* }
            }
        }
    };
}

reasons! {
    // Reasons of packets that were never held: they passed unchanged, after the held packets of
    // their flow.
    /// The packet is not IPv4 or IPv6, or has a link header that the engine does not know.
    NotIp = "not_ip",
    /// The frame ends before its headers, or before the end by its IP length: cut by a snap length,
    /// or a wrong length field.
    Truncated = "truncated",
    /// A header field is invalid, or contradicts another field.
    Malformed = "malformed",
    /// The headers are longer than [`MAX_HEADER`](crate::wire::MAX_HEADER).
    HeaderTooLong = "header_too_long",
    /// The packet is an IP fragment.
    Fragment = "fragment",
    /// The IPv4 header has options.
    IpOptions = "ip_options",
    /// The reserved bit of the IPv4 header is set.
    ReservedBit = "reserved_bit",
    /// The IP length field is 0, because the device is to fill it in, or because the length is too
    /// large for the field (BIG TCP).
    NoLength = "no_length",
    /// Bytes follow the end of the IP packet and may not be removed.
    Padded = "padded",
    /// The protocol is one that is never aggregated.
    Protocol = "protocol",
    /// A tunnel header has a feature that the engine does not rewrite; there is a third tunnel, or
    /// a second where one of the two is not over UDP; or a GRO hint contradicts the headers.
    Tunnel = "tunnel",
    /// The IPv4 header checksum is wrong.
    BadIpChecksum = "bad_ip_checksum",
    /// A transport or tunnel checksum is wrong.
    BadChecksum = "bad_checksum",
    /// The checksum is valid but no sender computes it (0xFFFF for 0x0000), so it could not be
    /// restored.
    NonCanonicalChecksum = "non_canonical_checksum",
    /// The field of a partial checksum does not hold the sum of the pseudo-header, or belongs to
    /// another header.
    PartialChecksum = "partial_checksum",
    /// The receiver of a `virtio_net_hdr` could not segment the merged packet; see
    /// [`GsoSupport`](crate::segment::GsoSupport).
    CannotSegment = "cannot_segment",
    /// The packet was the only one of its call, and the aggregator holds no packets between calls.
    /// It could not merge, so it was not read.
    Alone = "alone",
    /// The packet is a super-packet that does not merge: in LRO mode, in a tunnel that has a
    /// checksum, of UDP fragments or DCCP, or with a GSO kind that contradicts its headers.
    SuperPacket = "super_packet",
    /// The packet is TCP control: SYN, RST or URG is set, or ACK is not.
    TcpFlags = "tcp_flags",
    /// The packet has no payload: pure ACKs, keep-alives without data, empty datagrams.
    NoPayload = "no_payload",
    /// The packet is UDP, whose aggregation is switched off.
    UdpOff = "udp_off",
    /// The UDP length differs from the IP payload's.
    UdpLength = "udp_length",
    /// The UDP datagram has no checksum.
    UdpNoChecksum = "udp_no_checksum",
    /// The DCCP packet carries no data, or cannot be merged.
    DccpType = "dccp_type",
    /// The DCCP checksum covers more bytes than the packet has.
    DccpCoverage = "dccp_coverage",
    /// The final addresses, which the checksum covers, cannot be read from an IPv6 routing header
    /// or home address option: it contradicts itself or has an unknown type.
    FinalDestination = "final_destination",
    /// LRO: the packet has TCP options other than an aligned timestamp with an echo.
    TcpOptions = "tcp_options",
    /// LRO: the packet is marked as having met congestion, or has ECE or CWR.
    Congestion = "congestion",
    /// LRO: the protocol or tunnel is one that LRO does not merge.
    NotLro = "not_lro",
    /// LRO: no descriptor was free.
    NoDescriptor = "no_descriptor",
    /// LRO: the acknowledgement repeats the last one.
    DuplicateAck = "duplicate_ack",
    /// LRO: the acknowledgement only changes the window.
    WindowUpdate = "window_update",
    /// LRO: the acknowledgement is older than the one held, or than the last of its flow.
    AckOlder = "ack_older",

    // Reasons of packets that were held, merged or still single: the event that ended their
    // aggregation.
    /// A segment with PSH or FIN completed the merged packet. A packet with either flag is not held
    /// if it would be the first of a merged packet.
    Push = "push",
    /// A segment shorter than the others ended the aggregation; a super-packet whose last segment
    /// is shorter is not held at all.
    ShortSegment = "short_segment",
    /// The next packet would have exceeded the limit of bytes, or the room in the first packet's
    /// buffer.
    ByteLimit = "byte_limit",
    /// The merged packet reached the maximum number of packets, or a received super-packet would
    /// have exceeded it.
    PacketLimit = "packet_limit",
    /// The merged packet reached the maximum number of buffer pieces.
    FragmentLimit = "fragment_limit",
    /// The poll ended.
    PollEnd = "poll_end",
    /// The packet was held for the policy's hold time.
    HoldTime = "hold_time",
    /// The caller asked for the held packets.
    Requested = "requested",
    /// A newer flow needed the table entry.
    Evicted = "evicted",
    /// The held bytes reached their limit.
    MemoryLimit = "memory_limit",
    /// A later packet of the same flow, or one of an unknown flow between the same addresses,
    /// passed unchanged. The held packet left first, so that order is kept.
    Overtaken = "overtaken",
    /// The next packet's sequence number was not the expected one.
    Sequence = "sequence",
    /// The next packet, or the segments of a super-packet, were longer than the first.
    LongerSegment = "longer_segment",
    /// The TCP acknowledgement number differs from that of the held packets.
    Acknowledgement = "acknowledgement",
    /// The TCP window differs from that of the held packets.
    Window = "window",
    /// TCP flags or reserved bits changed.
    FlagsChanged = "flags_changed",
    /// TCP or DCCP options changed; timestamps too.
    OptionsChanged = "options_changed",
    /// LRO: the timestamp ran backwards.
    TimestampOlder = "timestamp_older",
    /// The IPv4 identification neither stayed the same nor incremented as before.
    IpId = "ip_id",
    /// The TTL or hop limit differs from that of the held packets.
    Ttl = "ttl",
    /// The TOS or traffic class differs from that of the held packets.
    Tos = "tos",
    /// The IPv4 don't-fragment bit differs from that of the held packets.
    DontFragment = "dont_fragment",
    /// The IPv6 flow label differs from that of the held packets.
    FlowLabel = "flow_label",
    /// An IPv6 extension header differs from that of the held packets.
    ExtensionHeader = "extension_header",
    /// The link header (VLAN priority, MPLS labels) differs from that of the held packets.
    LinkHeader = "link_header",
    /// A tunnel header differs from that of the held packets.
    TunnelHeader = "tunnel_header",
    /// Another header field differs from that of the held packets.
    HeaderChanged = "header_changed",
    /// Full checksums were followed by a partial one, or the reverse.
    ChecksumForm = "checksum_form",
}

/// Converts the reason why the headers of a packet were refused into the reason of the same name.
impl From<Refusal> for Reason {
    #[inline(always)]
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotIp => Reason::NotIp,
            Refusal::Truncated => Reason::Truncated,
            Refusal::Malformed => Reason::Malformed,
            Refusal::HeaderTooLong => Reason::HeaderTooLong,
            Refusal::Fragment => Reason::Fragment,
            Refusal::IpOptions => Reason::IpOptions,
            Refusal::ReservedBit => Reason::ReservedBit,
            Refusal::NoLength => Reason::NoLength,
            Refusal::Padded => Reason::Padded,
            Refusal::Protocol => Reason::Protocol,
            Refusal::Tunnel => Reason::Tunnel,
            Refusal::UdpLength => Reason::UdpLength,
            Refusal::DccpType => Reason::DccpType,
            Refusal::ExtensionHeader => Reason::ExtensionHeader,
            Refusal::FinalDestination => Reason::FinalDestination,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_keeps_its_name() {
        for refusal in Refusal::ALL {
            assert_eq!(Reason::from(*refusal).name(), refusal.name());
        }
    }

    #[test]
    fn names_are_unique_and_numbers_dense() {
        let mut names: std::vec::Vec<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Reason::COUNT);
        for (number, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, number);
        }
    }
}
