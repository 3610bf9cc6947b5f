//! The headers of a packet, as far as they are understood.

use std::fmt::Write;
use std::net::IpAddr;

use superpacket::packet::Layer;
use superpacket::wire::{Layout, MAX_HEADER, ip_headers, parse};
use superpacket_captures::LinkType;
use superpacket_captures::file::{Start, start_of};
use superpacket_steer::FlowTuple;

/// Where a packet's headers lie, as far as they are understood: offsets from the start of what lies
/// behind the link header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layers {
    /// Where the engine's packet begins in the frame.
    pub(crate) link: usize,
    pub(crate) layout: Option<Layout>,
    pub(crate) tuple: Option<FlowTuple>,
    /// The innermost IP header that could be found, if the headers could not be read to their end.
    pub(crate) network: Option<u16>,
}

impl Layers {
    /// Finds the headers of a frame that was `original_length` bytes long.
    #[inline]
    pub(crate) fn find(link_type: LinkType, data: &[u8], original_length: u32) -> Layers {
        let (layer, link) = match start_of(link_type, data) {
            Start::Ethernet => (Layer::Ethernet, 0),
            Start::Ip { header_length } => (Layer::Ip, header_length),
            Start::Other => return Layers { link: 0, layout: None, tuple: None, network: None },
        };
        let packet = data.get(link..).unwrap_or(&[]);
        let length = packet.len().max((original_length as usize).saturating_sub(link));
        let header = packet.get(..MAX_HEADER).unwrap_or(packet);
        match parse(header, length, layer) {
            Ok(layout) => Layers {
                link,
                layout: Some(layout),
                tuple: Some(FlowTuple::from_layout(header, &layout)),
                network: Some(layout.network),
            },
            Err(_) => {
                let network = ip_headers(header, length, layer)
                    .into_iter()
                    .flatten()
                    .last()
                    .map(|(network, _)| network);
                Layers {
                    link,
                    layout: None,
                    tuple: FlowTuple::innermost(header, length, layer),
                    network,
                }
            }
        }
    }

    /// Where the payload behind the transport header lies in the frame of so many bytes.
    #[inline]
    pub(crate) fn payload(&self, length: usize) -> Option<(usize, usize)> {
        let layout = self.layout.as_ref()?;
        let start = self.link + usize::from(layout.payload);
        let end = (self.link + layout.end as usize).min(length);
        (start <= end).then_some((start, end))
    }
}

/// An address as text: IPv4 without the general way of formatting, which takes three times as long.
#[inline]
pub(crate) fn with_address<T>(
    address: IpAddr,
    text: &mut String,
    then: impl FnOnce(&str) -> T,
) -> T {
    text.clear();
    match address {
        IpAddr::V4(address) => {
            let mut bytes = [b'.'; 15];
            let mut at = 0;
            for octet in address.octets() {
                if octet >= 100 {
                    bytes[at] = b'0' + octet / 100;
                    at += 1;
                }
                if octet >= 10 {
                    bytes[at] = b'0' + octet / 10 % 10;
                    at += 1;
                }
                bytes[at] = b'0' + octet % 10;
                at += 2;
            }
            // The last octet has no dot behind it; all bytes are ASCII.
            then(std::str::from_utf8(&bytes[..at - 1]).unwrap_or_default())
        }
        IpAddr::V6(address) => {
            // A string takes whatever is written.
            let _ = write!(text, "{address}");
            then(text)
        }
    }
}
