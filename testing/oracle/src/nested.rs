//! Packets in two tunnels, which Linux's GRO merges by a hint.
//!
//! The GRO hint is an option of Geneve with the positions of the second tunnel's headers. Linux
//! treats these headers as part of Geneve's options (`geneve_gro_receive`).

use superpacket_traffic::check::{self, Kind};
use superpacket_traffic::checksum;
use superpacket_traffic::frame::{Checksum, Frame, Ip};
use superpacket_traffic::random::Random;

use crate::frames::{ResultPacket, without_reserved_bits};
use crate::hint::Hint;

/// Single bits that make a GRO hint false when they are inverted, as byte offsets in the hint and
/// masks. They change the packet's type, the IP version, or the positions of the headers. The last
/// one has no meaning, so the hint stays true.
const FALSE_BITS: [(usize, u8); 10] = [
    (0, 0x01),
    (0, 0x02),
    (0, 0x04),
    (1, 0x01),
    (2, 0x01),
    (2, 0x04),
    (3, 0x01),
    (3, 0x08),
    (3, 0x80),
    (0, 0x80),
];

/// Returns the frame with another Geneve option in place of the GRO hint; `None` if it has no hint.
pub fn without_hint(frame: &[u8]) -> Option<Vec<u8>> {
    let hint = Hint::of(frame)?;
    let mut plain = frame.to_vec();
    plain[hint.at - 2] = 0;
    Some(plain)
}

/// Inverts a random bit of a frame's GRO hint, if it has one, and adjusts the outer checksum.
pub fn falsify(frame: &mut [u8], random: &mut Random) {
    let Some(hint) = Hint::of(frame) else { return };
    let (byte, bits) = random.pick(&FALSE_BITS);
    let word = hint.at + byte / 2 * 2;
    let read = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let before = read(frame, word);
    frame[hint.at + byte] ^= bits;
    let field = hint.outer + 6;
    let sum = read(frame, field);
    if sum != 0 {
        // RFC 1624, equation 3.
        let sum = !checksum::add(checksum::add(!sum, !before), read(frame, word));
        frame[field..field + 2].copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
    }
}

/// Returns a packet that Linux merged by a GRO hint, with the correct lengths in the second
/// tunnel's headers; `None` for packets without a hint.
///
/// Linux leaves the first frame's lengths until the Geneve device removes the first tunnel
/// (`geneve_post_decap_hint`).
pub fn with_lengths(packet: &[u8]) -> Option<Vec<u8>> {
    Hint::of(packet)?;
    let (network, is_v6, transport) = second_tunnel(packet)?;
    let mut bytes = packet.to_vec();
    let end = packet.len();
    if is_v6 {
        bytes[network + 4..network + 6]
            .copy_from_slice(&((end - network - 40) as u16).to_be_bytes());
    } else {
        bytes[network + 2..network + 4].copy_from_slice(&((end - network) as u16).to_be_bytes());
        bytes[network + 10..network + 12].fill(0);
        let sum = !checksum::sum(&bytes[network..transport]);
        bytes[network + 10..network + 12].copy_from_slice(&sum.to_be_bytes());
    }
    bytes[transport + 4..transport + 6].copy_from_slice(&((end - transport) as u16).to_be_bytes());
    Some(bytes)
}

/// Returns the offset of the second tunnel's IP header, whether it is IPv6, and the offset of the
/// second tunnel's UDP header; `None` if the frame is not in two tunnels.
pub fn second_tunnel(frame: &[u8]) -> Option<(usize, bool, usize)> {
    let plain = without_reserved_bits(frame);
    let layers = check::layers(plain.as_deref().unwrap_or(frame), false);
    let is_tunnel = |kind: Kind| matches!(kind, Kind::Vxlan | Kind::Geneve);
    let second = layers.iter().enumerate().filter(|(_, layer)| is_tunnel(layer.kind)).nth(1)?.0;
    let transport = layers[second].offset - 8;
    let ip = layers[..second]
        .iter()
        .rev()
        .find(|layer| matches!(layer.kind, Kind::Ipv4 | Kind::Ipv6))?;
    Some((ip.offset, ip.kind == Kind::Ipv6, transport))
}

/// Returns flows of TCP and UDP in two tunnels, which Linux merges by the GRO hint.
///
/// The second tunnel is VXLAN or Geneve, with the same headers in all frames. The first tunnel is
/// Geneve over IPv4 to a device with MAC address `mac`.
pub fn mergeable(mac: [u8; 6]) -> Vec<Vec<Frame>> {
    let inner =
        [Frame::tcp4(1000, 1400), Frame::tcp6(1000, 700), Frame::udp4(900), Frame::udp6(1200)];
    let second: [fn(Frame) -> Frame; 3] = [Frame::in_vxlan4, Frame::in_vxlan6, Frame::in_geneve];
    let checksums = [
        (Checksum::Zero, Checksum::Zero),
        (Checksum::Right, Checksum::Zero),
        (Checksum::Right, Checksum::Right),
    ];
    let mut flows = Vec::new();
    for frame in inner {
        for through in second {
            for (outer, nested) in checksums {
                let flow = through(frame.clone()).in_geneve().with_gro_hint().with(|frame| {
                    frame.link.as_mut().expect("Ethernet").destination = mac;
                    frame.outer_udp_mut().checksum = outer;
                    frame.nested_mut().udp_mut().checksum = nested;
                });
                let same_id = |frame: Frame| {
                    frame.with(|frame| {
                        if let Ip::V4(ip) = &mut frame.nested_mut().ip {
                            ip.id = 7;
                        }
                    })
                };
                flows.push(flow.run(5).into_iter().map(same_id).collect());
            }
        }
    }
    flows
}

/// Returns a merged packet as Linux's Geneve device delivers it: without the first tunnel, and with
/// the pseudo-header's sum in the second tunnel's checksum field, unless that is 0. `None` if the
/// packet is not in two tunnels with a GRO hint.
pub fn behind_geneve(packet: &ResultPacket) -> Option<ResultPacket> {
    let start = Hint::of(&packet.bytes)?.start;
    let (network, is_v6, transport) = second_tunnel(&packet.bytes)?;
    let mut bytes = packet.bytes.clone();
    if bytes[transport + 6..transport + 8] != [0, 0] {
        let length = (bytes.len() - transport) as u32;
        let sum = if is_v6 {
            let [source, destination] = [8, 24].map(|at| bytes[network + at..][..16].try_into());
            checksum::pseudo_v6(source.ok()?, destination.ok()?, 17, length)
        } else {
            let [source, destination] = [12, 16].map(|at| bytes[network + at..][..4].try_into());
            checksum::pseudo_v4(source.ok()?, destination.ok()?, 17, length)
        };
        bytes[transport + 6..transport + 8].copy_from_slice(&sum.to_be_bytes());
    }
    let partial = packet.partial.map(|(at, offset)| (at - start as u16, offset));
    Some(ResultPacket { bytes: bytes.split_off(start), cut: packet.cut, partial })
}

#[cfg(test)]
mod tests {
    use super::*;
    use superpacket_traffic::check::Expect;

    fn frames() -> Vec<Frame> {
        let inner = [
            Frame::tcp4(1, 100).in_vxlan4(),
            Frame::udp6(100).in_vxlan6(),
            Frame::tcp6(1, 100).in_geneve(),
        ];
        inner.map(|frame| frame.in_geneve().with_gro_hint()).to_vec()
    }

    #[test]
    fn a_hint_names_the_headers_of_the_second_tunnel() {
        for frame in frames() {
            let (bytes, offsets) = (frame.to_bytes(), frame.offsets());
            let hint = Hint::of(&bytes).expect("a hint");
            let (network, _, transport) = second_tunnel(&bytes).expect("a second tunnel");
            assert_eq!((hint.transport, Some(network)), (transport, offsets.nested));
            // Ethernet and IP headers follow the second tunnel's headers.
            assert_eq!(hint.end + 14, offsets.network);
            assert_eq!(Hint::of(&without_hint(&bytes).expect("without")), None);
        }
    }

    #[test]
    fn a_false_hint_leaves_the_checksum_right() {
        let mut random = Random::new(1);
        for frame in frames() {
            for checksum in [Checksum::Zero, Checksum::Right] {
                let whole = frame.clone().with_outer_checksum(checksum).to_bytes();
                for _ in 0..40 {
                    let mut bytes = whole.clone();
                    falsify(&mut bytes, &mut random);
                    assert_ne!(bytes, whole);
                    assert_eq!(check::frame(&bytes, &Expect::default()).err(), None);
                }
            }
        }
    }

    #[test]
    fn lengths_of_the_second_tunnel_are_those_of_the_whole() {
        for frame in frames() {
            let frame = frame.with(|frame| frame.nested_mut().udp_mut().checksum = Checksum::Zero);
            let mut bytes = frame.to_bytes();
            assert_eq!(with_lengths(&bytes).as_ref(), Some(&bytes));
            let longer = frame.with(|frame| frame.payload.resize(3000, 0)).to_bytes();
            let (network, is_v6, transport) = second_tunnel(&bytes).expect("a second tunnel");
            bytes.resize(longer.len(), 0);
            let fixed = with_lengths(&bytes).expect("a second tunnel");
            let headers = network..transport + 8;
            assert_eq!(fixed[headers.clone()], longer[headers], "over IPv6: {is_v6}");
        }
    }
}
