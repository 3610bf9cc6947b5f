//! An independent check of frames: structure, lengths, and all checksums, inner and outer.
//!
//! Expected checksums are computed by etherparse; those of DCCP, GRE, SCTP and ICMP, which it does
//! not support, by [`crate::checksum`]. VXLAN is recognized by destination port 4789, Geneve by
//! 6081. For source routes, IPv6 routing headers and home address options, checksums cover the
//! addresses that [`crate::addresses`] finds.

mod flow;
mod sums;
mod walk;

use core::ops::Range;

pub use flow::{FlowKey, TcpFields, TunnelKey, flow_key, payload, tcp_fields};

/// Deviations from a usual frame that a check accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expect {
    /// Whether the bytes start with an IP header instead of an Ethernet header.
    pub starts_at_ip: bool,
    /// Whether bytes may follow the end of the outermost packet, such as padding.
    pub trailing: bool,
    /// The innermost TCP, UDP or DCCP checksum may be partial: the pseudo-header's sum, not
    /// inverted, with or without the length. Outer checksums must then be valid for the packet with
    /// the completed checksum.
    pub partial: bool,
    /// Whether a packet of more than 65,535 bytes may have an IP length field of 0 (BIG TCP).
    pub big: bool,
}

/// A layer of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The kind of the layer's header.
    pub kind: Kind,
    /// Offset of the header, in bytes from the start of the frame.
    pub offset: usize,
    /// Length of the layer's header in bytes, options included.
    pub header: usize,
    /// Offset of the end of the layer's contents, in bytes from the start of the frame.
    pub end: usize,
}

/// The kind of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An Ethernet II header, outer or inner.
    Ethernet,
    /// A VLAN tag.
    Vlan,
    /// A PPPoE session header and the PPP protocol.
    Pppoe,
    /// An MPLS label stack entry.
    Mpls,
    /// An IPv4 header.
    Ipv4,
    /// An IPv6 header.
    Ipv6,
    /// An IPv6 extension header of this number.
    Extension(u8),
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// DCCP.
    Dccp,
    /// SCTP.
    Sctp,
    /// ICMP over IPv4.
    Icmp,
    /// ICMPv6.
    Icmpv6,
    /// VXLAN.
    Vxlan,
    /// Geneve.
    Geneve,
    /// GRE.
    Gre,
}

/// A field that a check found to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The header is incomplete (expected: bytes needed, actual: bytes present).
    Header,
    /// A version or type that is invalid in this layer.
    Version,
    /// IPv4 total length.
    TotalLength,
    /// IPv6 payload length.
    PayloadLength,
    /// UDP length.
    UdpLength,
    /// PPPoE length.
    PppoeLength,
    /// IPv4 header checksum.
    HeaderChecksum,
    /// Transport or GRE checksum.
    Checksum,
    /// The checksum coverage of DCCP exceeds the packet (expected and actual: bytes from the start
    /// of the header).
    Coverage,
    /// Bytes behind the end of the packet, where they are not allowed (expected: 0, actual: their
    /// number).
    Trailing,
}

/// The first error in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{layer:?} at byte {offset}: {field:?} is {actual:#x}, expected {expected:#x}")]
pub struct Problem {
    /// Kind of the layer in which the error is.
    pub layer: Kind,
    /// Offset of the layer's header, in bytes from the start of the frame.
    pub offset: usize,
    /// The field whose value is wrong.
    pub field: Field,
    /// The correct value of the field.
    pub expected: u64,
    /// The value of the field in the frame.
    pub actual: u64,
}

/// The result of a successful check: the contents of a valid frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The layers, outermost first. Bytes behind the last one are not parsed.
    pub layers: Vec<Layer>,
    /// Byte range of the last layer's contents in the frame.
    pub payload: Range<usize>,
    /// Number of bytes behind the end of the outermost packet.
    pub trailing: usize,
    /// Whether the innermost IP packet is a fragment, so that its transport header was not parsed.
    pub fragment: bool,
    /// Number of valid non-zero transport checksums (TCP, UDP, DCCP, SCTP, GRE), partial ones
    /// excluded.
    pub checksums: usize,
    /// Whether all checksums are canonical. 0xFFFF is not canonical where the sum yields 0x0000.
    pub canonical: bool,
    /// Offset of the innermost checksum from the start of the frame; `None` if it is not partial.
    pub partial: Option<usize>,
}

impl Checked {
    /// Returns the innermost layer of `kind`; `None` if the frame has none.
    pub fn innermost(&self, kind: Kind) -> Option<&Layer> {
        self.layers.iter().rev().find(|layer| layer.kind == kind)
    }
}

/// Returns the layers of a frame, outermost first, up to the first header that cannot be parsed.
/// Lengths and checksums are not checked.
pub fn layers(bytes: &[u8], starts_at_ip: bool) -> Vec<Layer> {
    walk::walk(bytes, starts_at_ip, true).layers
}

/// Checks a frame. A frame that is not IP is valid if its Ethernet header is complete.
///
/// # Errors
/// The first [`Problem`]. Structure and lengths are checked from the outside in, then checksums
/// from the inside out.
pub fn frame(bytes: &[u8], expect: &Expect) -> Result<Checked, Problem> {
    let walk = walk::walk(bytes, expect.starts_at_ip, expect.big);
    if let Some(problem) =
        walk.problems.iter().find(|problem| !(expect.trailing && problem.field == Field::Trailing))
    {
        return Err(*problem);
    }
    let sums = sums::verify(bytes, &walk, expect.partial)?;
    let payload = walk.payload();
    Ok(Checked {
        payload,
        trailing: bytes.len() - walk.end,
        fragment: walk.fragment,
        checksums: sums.right,
        canonical: sums.canonical,
        partial: sums.partial,
        layers: walk.layers,
    })
}
