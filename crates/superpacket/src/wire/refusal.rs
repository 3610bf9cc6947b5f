//! The reasons why the parse refuses a packet's headers.

/// The reason why a packet's headers cannot be read up to the payload, or must not be rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum Refusal {
    /// The packet is not IPv4 or IPv6, or has a link header that the engine does not know.
    NotIp,
    /// The frame ends before its headers, or before the end by its IP length: cut by a snap length,
    /// or a wrong length field.
    Truncated,
    /// A header contradicts itself.
    Malformed,
    /// The headers are longer than [`MAX_HEADER`](super::MAX_HEADER).
    HeaderTooLong,
    /// The packet is an IP fragment.
    Fragment,
    /// The IPv4 header has options.
    IpOptions,
    /// The reserved bit of the IPv4 header is set.
    ReservedBit,
    /// The IP length field is 0, because the device is to fill it in, or because the length is too
    /// large for the field (BIG TCP).
    NoLength,
    /// Bytes follow the end of the IP packet and may not be removed.
    Padded,
    /// The transport protocol is neither aggregated nor segmented.
    Protocol,
    /// A tunnel header has a feature that the engine does not rewrite; there is a third tunnel, or
    /// a second where one of the two is not over UDP; or a GRO hint contradicts the headers.
    Tunnel,
    /// The UDP length differs from the IP payload's.
    UdpLength,
    /// The DCCP packet carries no data.
    DccpType,
    /// A jumbo payload option cannot be removed and would contradict the lengths of segments.
    ExtensionHeader,
    /// An IPv6 routing header or home address option does not tell the addresses that the checksum
    /// covers: it contradicts itself, or its type is not known.
    FinalDestination,
}

impl Refusal {
    /// All refusals.
    pub const ALL: &'static [Refusal] = &[
        Refusal::NotIp,
        Refusal::Truncated,
        Refusal::Malformed,
        Refusal::HeaderTooLong,
        Refusal::Fragment,
        Refusal::IpOptions,
        Refusal::ReservedBit,
        Refusal::NoLength,
        Refusal::Padded,
        Refusal::Protocol,
        Refusal::Tunnel,
        Refusal::UdpLength,
        Refusal::DccpType,
        Refusal::ExtensionHeader,
        Refusal::FinalDestination,
    ];

    /// Returns the name that reports and JSON use. The [`Reason`](crate::aggregate::Reason) for
    /// which such a packet leaves the aggregator has the same name.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::NotIp => "not_ip",
            Refusal::Truncated => "truncated",
            Refusal::Malformed => "malformed",
            Refusal::HeaderTooLong => "header_too_long",
            Refusal::Fragment => "fragment",
            Refusal::IpOptions => "ip_options",
            Refusal::ReservedBit => "reserved_bit",
            Refusal::NoLength => "no_length",
            Refusal::Padded => "padded",
            Refusal::Protocol => "protocol",
            Refusal::Tunnel => "tunnel",
            Refusal::UdpLength => "udp_length",
            Refusal::DccpType => "dccp_type",
            Refusal::ExtensionHeader => "extension_header",
            Refusal::FinalDestination => "final_destination",
        }
    }
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str(self.name())
    }
}

impl core::error::Error for Refusal {}
