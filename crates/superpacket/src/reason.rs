//! Why a packet left the aggregator as it did: one reason for each packet out, one counter for each
//! reason.

use crate::wire::Refusal;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why a packet left as it did.
        ///
        /// Each packet that leaves the aggregator, merged or single, has exactly one, so the counts
        /// of all reasons add up to the packets out.
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
    // Reasons of packets that were never held: they passed untouched, behind what was held of their
    // flow.
    /// Not IPv4 or IPv6, or a link header that the engine does not know.
    NotIp = "not_ip",
    /// The frame ends before its headers, or before its IP length says: cut by a snap length, or a
    /// false length field.
    Truncated = "truncated",
    /// A header contradicts itself.
    Malformed = "malformed",
    /// The headers are longer than [`MAX_HEADER`](crate::wire::MAX_HEADER).
    HeaderTooLong = "header_too_long",
    /// An IP fragment.
    Fragment = "fragment",
    /// IPv4 options.
    IpOptions = "ip_options",
    /// The reserved bit of the IPv4 header.
    ReservedBit = "reserved_bit",
    /// An IP length of 0: left to the device, or larger than the field (BIG TCP).
    NoLength = "no_length",
    /// Bytes after the end of the IP packet that may not be trimmed.
    Padded = "padded",
    /// A protocol that never aggregates.
    Protocol = "protocol",
    /// A tunnel header with a feature that the engine does not rewrite; a third tunnel, or a second
    /// where one of the two is not VXLAN or Geneve; a GRO hint that contradicts the headers.
    Tunnel = "tunnel",
    /// A wrong IPv4 header checksum.
    BadIpChecksum = "bad_ip_checksum",
    /// A wrong transport or tunnel checksum.
    BadChecksum = "bad_checksum",
    /// A checksum that is valid but that no sender computes (0xFFFF for 0x0000): it could not be
    /// restored.
    NonCanonicalChecksum = "non_canonical_checksum",
    /// A partial checksum whose field does not hold the sum of the pseudo-header, or for another
    /// header.
    PartialChecksum = "partial_checksum",
    /// The receiver of a `virtio_net_hdr` could not segment what it would merge to: see
    /// [`GsoSupport`](crate::segment::GsoSupport).
    CannotSegment = "cannot_segment",
    /// The only packet of a call that holds nothing before and after: it was not read.
    Alone = "alone",
    /// A super-packet that merges no further: in LRO mode, in a tunnel that has a checksum, of UDP
    /// fragments or DCCP, or of another protocol than its headers.
    SuperPacket = "super_packet",
    /// SYN, RST or URG, or no ACK: TCP control.
    TcpFlags = "tcp_flags",
    /// No payload: pure ACKs, keep-alives without data, empty datagrams.
    NoPayload = "no_payload",
    /// UDP where its aggregation is switched off.
    UdpOff = "udp_off",
    /// A UDP length that differs from the IP payload's.
    UdpLength = "udp_length",
    /// UDP without a checksum.
    UdpNoChecksum = "udp_no_checksum",
    /// A DCCP packet that carries no data, or cannot be merged.
    DccpType = "dccp_type",
    /// DCCP whose checksum covers more than there is.
    DccpCoverage = "dccp_coverage",
    /// An IPv6 routing header or home address option from which the addresses that the checksum
    /// covers cannot be told: it contradicts itself, or its type is not known.
    FinalDestination = "final_destination",
    /// LRO: TCP options other than an aligned timestamp with an echo.
    TcpOptions = "tcp_options",
    /// LRO: a packet marked as having met congestion, or with ECE or CWR.
    Congestion = "congestion",
    /// LRO: a protocol or tunnel that LRO leaves alone.
    NotLro = "not_lro",
    /// LRO: no descriptor was free.
    NoDescriptor = "no_descriptor",
    /// LRO: an acknowledgement that repeats the last one.
    DuplicateAck = "duplicate_ack",
    /// LRO: an acknowledgement that only changes the window.
    WindowUpdate = "window_update",
    /// LRO: an acknowledgement older than the one held, or than the last of its flow.
    AckOlder = "ack_older",

    // Reasons of packets that were held, merged or still single: what ended their aggregation.
    /// PSH or FIN ended it; a single packet with either is not held at all.
    Push = "push",
    /// A segment shorter than the others ended it; a super-packet that ends with one is not held.
    ShortSegment = "short_segment",
    /// One more would have passed the limit of bytes, or the room in the first packet's buffer.
    ByteLimit = "byte_limit",
    /// It reached the limit of packets, or a super-packet would have passed it.
    PacketLimit = "packet_limit",
    /// It reached the limit of fragments.
    FragmentLimit = "fragment_limit",
    /// The poll ended.
    PollEnd = "poll_end",
    /// It was held for as long as the policy allows.
    HoldTime = "hold_time",
    /// The caller asked for it.
    Requested = "requested",
    /// A newer flow needed its place.
    Evicted = "evicted",
    /// The held bytes reached their limit.
    MemoryLimit = "memory_limit",
    /// A packet of its flow, or of an unknown flow between its addresses, had to pass untouched and
    /// in order.
    Overtaken = "overtaken",
    /// The next packet's sequence number was not the expected one.
    Sequence = "sequence",
    /// The next packet, or the segments of a super-packet, were longer than the first.
    LongerSegment = "longer_segment",
    /// The acknowledgement number changed.
    Acknowledgement = "acknowledgement",
    /// The window changed.
    Window = "window",
    /// TCP flags or reserved bits changed.
    FlagsChanged = "flags_changed",
    /// TCP or DCCP options changed; timestamps too.
    OptionsChanged = "options_changed",
    /// LRO: the timestamp ran backwards.
    TimestampOlder = "timestamp_older",
    /// The IP identification neither stayed nor incremented as before.
    IpId = "ip_id",
    /// TTL or hop limit changed.
    Ttl = "ttl",
    /// TOS or traffic class changed.
    Tos = "tos",
    /// The don't-fragment bit changed.
    DontFragment = "dont_fragment",
    /// The flow label changed.
    FlowLabel = "flow_label",
    /// An extension header changed.
    ExtensionHeader = "extension_header",
    /// The link header changed: priority bits, MPLS.
    LinkHeader = "link_header",
    /// A tunnel header changed.
    TunnelHeader = "tunnel_header",
    /// Another field changed.
    HeaderChanged = "header_changed",
    /// Full checksums were followed by a partial one, or the reverse.
    ChecksumForm = "checksum_form",
}

/// A packet with refused headers leaves for the reason of the same name.
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
