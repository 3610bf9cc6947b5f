//! Why the parse refuses a packet's headers.

/// Why the headers of a packet cannot be read up to the payload, or can be read but must not be
/// rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum Refusal {
    /// Not IPv4 or IPv6, or a link header that the engine does not know.
    NotIp,
    /// The frame ends before its headers, or before its IP length says: cut by a snap length, or a
    /// false length field.
    Truncated,
    /// A header contradicts itself.
    Malformed,
    /// The headers are longer than [`MAX_HEADER`](super::MAX_HEADER).
    HeaderTooLong,
    /// An IP fragment.
    Fragment,
    /// IPv4 options.
    IpOptions,
    /// The reserved bit of the IPv4 header.
    ReservedBit,
    /// An IP length of 0: left to the device, or larger than the field (BIG TCP).
    NoLength,
    /// Bytes after the end of the IP packet that may not be trimmed.
    Padded,
    /// A transport protocol that is neither aggregated nor segmented.
    Protocol,
    /// A tunnel header with a feature that the engine does not rewrite; a third tunnel, or a second
    /// where one of the two is not VXLAN or Geneve; a GRO hint that contradicts the headers.
    Tunnel,
    /// A UDP length that differs from the IP payload's.
    UdpLength,
    /// A DCCP packet that carries no data.
    DccpType,
    /// A jumbo payload option that cannot be removed and would contradict the lengths of segments.
    ExtensionHeader,
    /// An IPv6 routing header or home address option from which the addresses that the checksum
    /// covers cannot be told: it contradicts itself, or its type is not known.
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

    /// Returns the name that reports and JSON use, the same as of the
    /// [`Reason`](crate::aggregate::Reason) for which such a packet leaves the aggregator.
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
