//! Makes the answer to the sender of a packet that is too long: ICMP "fragmentation needed" or
//! ICMPv6 "packet too big".
//!
//! A bridge has no address. It answers in the name of the packet's destination, as the kernel's
//! `br_netfilter` does. No library is used, because these are the only two messages, and
//! `superpacket` computes the checksums.

use superpacket::checksum::{Sum, pseudo_header, words};
use superpacket::packet::VlanTag;
use superpacket::wire::IpVersion;

use crate::switch::bucket::TokenBucket;
use crate::switch::frame::ETHERNET;
use crate::switch::rates::Rate;

/// Length in bytes of an IPv4 header without options.
const IPV4: usize = 20;
/// Length in bytes of an IPv6 header.
const IPV6: usize = 40;
/// Length in bytes of an ICMP header, including the word that is unused or contains the MTU.
const ICMP: usize = 8;
/// Maximum number of bytes of the packet that an ICMPv6 error quotes, so that the answer has at
/// most 1,280 bytes (RFC 4443, section 2.4).
const QUOTE6: usize = 1280 - IPV6 - ICMP;
/// Maximum number of bytes of the packet that an ICMP error quotes, so that the answer has at most
/// 576 bytes (RFC 1812, section 4.3.2.3).
const QUOTE4: usize = 576 - IPV4 - ICMP;

/// Maximum number of ICMP errors that the bridge sends per second. The kernel allows 1 per
/// destination (`icmp_ratelimit`), too few for several hosts behind a port, and 1,000 in all
/// (`icmp_msgs_per_sec`).
const ANSWERS: u64 = 100;

/// Returns the limit for the number of answers, which all threads of a bridge share.
pub(crate) fn rate_limit() -> TokenBucket {
    TokenBucket::new(Rate::of_a_second(ANSWERS))
}

/// Returns the frame which tells the sender of a packet that at most `mtu` bytes pass. `frame`
/// holds the packet's first bytes, without the VLAN tag `vlan`, and its IP header is at `network`.
///
/// `None` if no answer may be sent: to multicast and unspecified addresses, and for ICMP errors,
/// fragments other than the first, and IPv4 packets that may be fragmented.
pub(crate) fn too_big(
    frame: &[u8],
    network: usize,
    vlan: Option<VlanTag>,
    mtu: usize,
) -> Option<Vec<u8>> {
    let packet = frame.get(network..)?;
    let version = packet.first()? >> 4;
    let mut answer = Vec::with_capacity(network + IPV6 + ICMP + QUOTE6);
    if network >= ETHERNET {
        // The sender's hardware address is taken from the frame, so no ARP is needed.
        let (to, from) = (frame.get(6..12)?, frame.get(0..6)?);
        let is_ip = match frame.get(network - 2..network)? {
            [0x08, 0x00] => version == 4,
            [0x86, 0xdd] => version == 6,
            _ => false,
        };
        if from[0] & 1 != 0 || !is_ip {
            return None;
        }
        answer.extend_from_slice(to);
        answer.extend_from_slice(from);
        if let Some(tag) = vlan {
            answer.extend_from_slice(&tag.protocol.to_be_bytes());
            answer.extend_from_slice(&tag.control.to_be_bytes());
        }
        answer.extend_from_slice(frame.get(12..network)?);
    }
    match version {
        4 => ipv4(packet, mtu, &mut answer)?,
        6 => ipv6(packet, mtu, &mut answer)?,
        _ => return None,
    }
    Some(answer)
}

fn ipv4(packet: &[u8], mtu: usize, answer: &mut Vec<u8>) -> Option<()> {
    let header = packet.first_chunk::<IPV4>()?;
    let fragment = u16::from_be_bytes([header[6], header[7]]);
    let header_length = usize::from(header[0] & 0x0f) * 4;
    let is_error =
        header[9] == 1 && !matches!(packet.get(header_length), Some(0 | 8 | 13 | 15 | 17));
    let (source, destination) = (&header[12..16], &header[16..20]);
    if fragment & 0x4000 == 0
        || fragment & 0x1fff != 0
        || is_error
        || !answers(source)
        || !answers(destination)
    {
        return None;
    }
    let quote = &packet[..packet.len().min(QUOTE4)];
    let length = (IPV4 + ICMP + quote.len()) as u16;
    let start = answer.len();
    answer.extend_from_slice(&[0x45, 0xc0]);
    answer.extend_from_slice(&length.to_be_bytes());
    answer.extend_from_slice(&[0, 0, 0x40, 0, 64, 1, 0, 0]);
    answer.extend_from_slice(destination);
    answer.extend_from_slice(source);
    put_checksum(answer, start, start + 10, Sum::default());
    let icmp = answer.len();
    answer.extend_from_slice(&[3, 4, 0, 0, 0, 0]);
    answer.extend_from_slice(&u16::try_from(mtu).unwrap_or(u16::MAX).to_be_bytes());
    answer.extend_from_slice(quote);
    put_checksum(answer, icmp, icmp + 2, Sum::default());
    Some(())
}

fn ipv6(packet: &[u8], mtu: usize, answer: &mut Vec<u8>) -> Option<()> {
    let header = packet.first_chunk::<IPV6>()?;
    let is_error = header[6] == 58 && packet.get(IPV6).is_none_or(|kind| kind & 0x80 == 0);
    let (source, destination) = (&header[8..24], &header[24..40]);
    // Only "packet too big" may answer a multicast (RFC 4443, section 2.4 (e.3)), but there is no
    // unicast address to answer from.
    if is_error || source[0] == 0xff || destination[0] == 0xff || source == [0; 16] {
        return None;
    }
    let quote = &packet[..packet.len().min(QUOTE6)];
    let length = (ICMP + quote.len()) as u16;
    let start = answer.len();
    answer.extend_from_slice(&[0x60, 0, 0, 0]);
    answer.extend_from_slice(&length.to_be_bytes());
    answer.extend_from_slice(&[58, 64]);
    answer.extend_from_slice(destination);
    answer.extend_from_slice(source);
    let icmp = answer.len();
    answer.extend_from_slice(&[2, 0, 0, 0]);
    answer.extend_from_slice(&u32::try_from(mtu).unwrap_or(u32::MAX).to_be_bytes());
    answer.extend_from_slice(quote);
    let pseudo = pseudo_header(&answer[start..], IpVersion::V6, 58, u32::from(length));
    put_checksum(answer, icmp, icmp + 2, pseudo);
    Some(())
}

/// Returns whether an IPv4 address is that of a single host, so that it can be the source or
/// destination of an ICMP error.
fn answers(address: &[u8]) -> bool {
    let first = address[0];
    first != 0 && first != 127 && first < 224
}

/// Computes the checksum of all bytes from `start` on, and writes it at `at`.
fn put_checksum(bytes: &mut [u8], start: usize, at: usize, pseudo: Sum) {
    let checksum = pseudo.add_sum(words(&bytes[start..])).checksum();
    bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETHER: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

    fn ipv4_frame(fragment: u16, protocol: u8) -> Vec<u8> {
        let mut frame = [&ETHER[..], &[8, 0, 0x45, 0, 5, 0xdc, 0, 1]].concat();
        frame.extend(fragment.to_be_bytes());
        frame.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([3; 1400]);
        frame
    }

    #[test]
    fn an_ipv4_answer_has_the_mtu_and_the_destination_as_source() {
        let frame = ipv4_frame(0x4000, 17);
        let answer = too_big(&frame, 14, None, 1280).expect("an answer");
        assert_eq!(answer.len(), 14 + 576);
        assert_eq!(answer[..14], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
        assert_eq!(answer[26..34], [10, 0, 0, 2, 10, 0, 0, 1]);
        assert!(words(&answer[14..34]).is_valid() && words(&answer[34..]).is_valid());
        assert_eq!(answer[34..36], [3, 4]);
        assert_eq!(answer[40..42], 1280u16.to_be_bytes());
        assert_eq!(answer[42..], frame[14..14 + 548]);
    }

    #[test]
    fn an_ipv6_answer_has_the_mtu_and_the_stripped_tag() {
        let mut frame = [&ETHER[..], &[0x86, 0xdd, 0x60, 0, 0, 0, 5, 0xa0, 17, 64]].concat();
        frame.extend((0..32).map(|number| if number < 16 { 0x20 } else { 0x21 }));
        frame.extend([9; 1440]);
        let answer = too_big(&frame, 14, Some(VlanTag { protocol: 0x8100, control: 5 }), 1400)
            .expect("an answer");
        assert_eq!(answer.len(), 18 + 1280);
        assert_eq!(answer[12..18], [0x81, 0, 0, 5, 0x86, 0xdd]);
        let packet = &answer[18..];
        assert_eq!((packet[6], &packet[8..24], packet[40]), (58, &[0x21; 16][..], 2));
        assert_eq!(packet[44..48], 1400u32.to_be_bytes());
        assert!(
            pseudo_header(packet, IpVersion::V6, 58, 1240).add_sum(words(&packet[40..])).is_valid()
        );
    }

    #[test]
    fn errors_groups_and_fragments_are_not_answered() {
        assert!(too_big(&ipv4_frame(0, 17), 14, None, 1280).is_none(), "it may be fragmented");
        assert!(too_big(&ipv4_frame(0x4001, 17), 14, None, 1280).is_none(), "a later fragment");
        assert!(too_big(&ipv4_frame(0x4000, 1), 14, None, 1280).is_none(), "type 3 is an error");
        let mut group = ipv4_frame(0x4000, 17);
        group[30] = 224;
        assert!(too_big(&group, 14, None, 1280).is_none());
        group[0] = 1;
        assert!(too_big(&group, 14, None, 1280).is_none());
        let mut other = ipv4_frame(0x4000, 17);
        assert!(too_big(&other, 14, None, 1280).is_some());
        other[12..14].copy_from_slice(&[0x88, 0xb5]);
        assert!(too_big(&other, 14, None, 1280).is_none(), "what is not IP only looks like it");
        for length in 0..60 {
            let _ = too_big(&ipv4_frame(0x4000, 17)[..length], 14, None, 1280);
        }
    }

    #[test]
    fn answers_are_limited() {
        let limit = rate_limit();
        let at = |ms: u64| (0..1_000).filter(|_| limit.take(1, ms * 1_000_000)).count();
        assert_eq!((at(0), at(500), at(60_000)), (100, 50, 100));
    }
}
