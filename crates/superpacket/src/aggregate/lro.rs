//! The additional rules by which LRO, unlike GRO, refuses or absorbs packets.

use super::{Mode, Reason};
use crate::wire::{IpVersion, Layout, Protocol, be16, be32, byte, ipv4, tcp};

/// Returns an error unless a pure ACK with these flags may begin or join a merged packet: only in
/// LRO mode with `acks`, and only if no other flag is set.
#[inline]
pub(super) fn eligible_ack(mode: Mode, flags: u8) -> Result<(), Reason> {
    match mode {
        Mode::Lro { acks: true } if flags == tcp::ACK => Ok(()),
        Mode::Lro { .. } | Mode::Gro { .. } => Err(Reason::NoPayload),
    }
}

/// Returns why LRO does not merge a packet that GRO may merge. LRO takes only TCP in IP without
/// options other than an aligned timestamp, and without any sign of congestion.
#[inline]
pub(super) fn lro_refusal(header: &[u8], layout: &Layout) -> Option<Reason> {
    let network = usize::from(layout.network);
    let transport = usize::from(layout.transport);
    if layout.protocol != Protocol::Tcp || layout.outer.is_some() {
        return Some(Reason::NotLro);
    }
    let congestion = match layout.version {
        IpVersion::V4 => byte(header, network + ipv4::TOS) & 3 == 3,
        IpVersion::V6 => be16(header, network) & 0x0030 == 0x0030,
    };
    let flags = byte(header, transport + tcp::FLAGS);
    // FIN ends a connection. `inet_lro` passes it as it does SYN, RST and URG, which `examine`
    // refuses.
    if flags & (tcp::SYN | tcp::RST | tcp::URG | tcp::FIN | tcp::ACK) != tcp::ACK {
        return Some(Reason::TcpFlags);
    }
    if congestion || flags & (tcp::ECE | tcp::CWR) != 0 {
        return Some(Reason::Congestion);
    }
    let options = usize::from(layout.payload) - transport - tcp::HEADER_LENGTH;
    let aligned_timestamp = options == tcp::TIMESTAMP_OPTIONS_LENGTH
        && header.get(transport + tcp::OPTIONS..transport + tcp::OPTIONS + 4)
            == Some(&tcp::ALIGNED_TIMESTAMP[..])
        && be32(header, transport + tcp::TIMESTAMP_ECHO) != 0;
    (options != 0 && !aligned_timestamp).then_some(Reason::TcpOptions)
}
