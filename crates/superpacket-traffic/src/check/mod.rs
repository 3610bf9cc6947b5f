//! An independent check of frames: structure, lengths, and every checksum, outer and inner, against
//! what etherparse computes (DCCP, GRE, SCTP and ICMP, which etherparse does not cover, against the
//! plain sums of [`crate::checksum`]).
//!
//! VXLAN is recognised by destination port 4789, Geneve by 6081. A packet on a source route, behind
//! an IPv6 routing header or with a home address option is checked with the addresses that
//! [`crate::addresses`] finds.

mod flow;
mod sums;
mod walk;

use core::ops::Range;

pub use flow::{FlowKey, TcpFields, TunnelKey, flow_key, payload, tcp_fields};

/// What a frame may be like besides the usual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expect {
    /// The bytes start at an IP header instead of an Ethernet header.
    pub starts_at_ip: bool,
    /// Bytes after the end that a length field names are allowed (padding).
    pub trailing: bool,
    /// The innermost TCP, UDP or DCCP checksum may be partial: the sum of the pseudo-header, not
    /// inverted, with its length or without. Outer checksums must then be right for the packet once
    /// that one is filled in.
    pub partial: bool,
    /// A packet of more than 65,535 bytes may have an IP length of 0 (BIG TCP).
    pub big: bool,
}

/// A layer of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The kind of its header.
    pub kind: Kind,
    /// Where its header starts, in bytes from the frame's start.
    pub offset: usize,
    /// The header's length in bytes, options included.
    pub header: usize,
    /// Where its contents end, in bytes from the frame's start.
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
    /// One MPLS label stack entry.
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

/// Which field is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Fewer bytes than the header needs (expected: needed, actual: there).
    Header,
    /// A version or type that the layer cannot have.
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
    /// DCCP checksum coverage beyond the packet's end (in bytes from the header).
    Coverage,
    /// Bytes after the end, which were not allowed (expected: 0, actual: how many).
    Trailing,
}

/// The first thing wrong with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{layer:?} at byte {offset}: {field:?} is {actual:#x}, expected {expected:#x}")]
pub struct Problem {
    /// The layer that it is in.
    pub layer: Kind,
    /// Where the layer's header starts, in bytes from the frame's start.
    pub offset: usize,
    /// The field that is wrong.
    pub field: Field,
    /// The value that it should have.
    pub expected: u64,
    /// The value that it has.
    pub actual: u64,
}

/// What was found in a frame that is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Its layers, outermost first; what follows the last is not parsed further.
    pub layers: Vec<Layer>,
    /// The contents of the last layer.
    pub payload: Range<usize>,
    /// Bytes after the outermost packet.
    pub trailing: usize,
    /// The innermost IP packet is a fragment: its transport was not looked at.
    pub fragment: bool,
    /// How many non-zero transport checksums (TCP, UDP, DCCP, SCTP, GRE) were there and right; a
    /// partial one does not count.
    pub checksums: usize,
    /// Are all checksums canonical: none 0xFFFF where 0x0000 is what the arithmetic gives?
    pub canonical: bool,
    /// The offset of the innermost checksum, from the frame's start, if it is partial.
    pub partial: Option<usize>,
}

impl Checked {
    /// Returns the innermost layer of `kind`.
    pub fn innermost(&self, kind: Kind) -> Option<&Layer> {
        self.layers.iter().rev().find(|layer| layer.kind == kind)
    }
}

/// Returns the layers of a frame, outermost first, as far as its headers can be read; lengths and
/// checksums may be wrong.
pub fn layers(bytes: &[u8], starts_at_ip: bool) -> Vec<Layer> {
    walk::walk(bytes, starts_at_ip, true).layers
}

/// Checks a frame. What is not IP is right as long as its Ethernet header is whole.
///
/// # Errors
/// The first [`Problem`]: structure and lengths from the outside in, then checksums from the inside
/// out.
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
