//! The frames of a bulk TCP connection: its segments and its acknowledgements.

use superpacket::Simd;
use superpacket::checksum::{ipv4_header, pseudo_header};
use superpacket::wire::IpVersion;

/// Length of an Ethernet header in bytes.
const ETHERNET: usize = 14;

/// Length of an IPv4 header in bytes.
const IPV4: usize = 20;

/// Length of a TCP header without timestamps, as in the original reports.
const TCP: usize = 20;

/// Length of all headers together, in bytes.
const HEADERS: usize = ETHERNET + IPV4 + TCP;

/// Source of payload bytes. Each payload byte is the low byte of its sequence number.
static COUNTING: [u8; LONGEST + 256] = {
    let mut bytes = [0; LONGEST + 256];
    let mut place = 0;
    while place < bytes.len() {
        bytes[place] = place as u8;
        place += 1;
    }
    bytes
};

/// Length of the longest IPv4 packet in bytes.
const LONGEST: usize = 65_535;

/// The protocol number of TCP.
const PROTOCOL: u8 = 6;

/// The segments of a stream, each as long as the sender's MTU allows, except the last.
#[derive(Clone, Debug)]
pub(crate) struct Segments {
    mtu: usize,
    sent: u64,
    bytes: u64,
}

impl Segments {
    /// Returns a stream of `bytes` payload bytes. `mtu` counts from the IP header on, and exceeds
    /// 40.
    pub(crate) fn new(mtu: usize, bytes: u64) -> Self {
        Self { mtu, sent: 0, bytes }
    }
}

impl Iterator for Segments {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let room = (self.mtu - IPV4 - TCP) as u64;
        let payload = room.min(self.bytes - self.sent);
        if payload == 0 {
            return None;
        }
        let number = (self.sent / room) as u16;
        let frame = frame(
            [2, 0, 0, 0, 0, 2],
            [10, 77, 0, 1, 10, 77, 0, 2],
            number,
            self.sent as u32,
            1,
            payload as usize,
        );
        self.sent += payload;
        Some(frame)
    }
}

/// The pure ACKs of a receiver.
#[derive(Clone, Debug)]
pub(crate) struct Acknowledgements {
    sent: u32,
    /// Number of payload bytes that each ACK acknowledges.
    each: u32,
    count: u32,
}

impl Acknowledgements {
    /// Returns `count` ACKs. Each acknowledges `segments` more segments, at an MTU of 1500.
    pub(crate) fn new(count: u32, segments: u32) -> Self {
        Self { sent: 0, each: segments * (1500 - IPV4 - TCP) as u32, count }
    }
}

impl Iterator for Acknowledgements {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        if self.sent == self.count {
            return None;
        }
        self.sent += 1;
        let acknowledged = self.sent.wrapping_mul(self.each);
        Some(frame(
            [2, 0, 0, 0, 0, 1],
            [10, 77, 0, 2, 10, 77, 0, 1],
            self.sent as u16,
            1,
            acknowledged,
            0,
        ))
    }
}

/// Returns a TCP frame with valid checksums. `addresses`: the IP addresses of sender and receiver.
fn frame(
    to: [u8; 6],
    addresses: [u8; 8],
    id: u16,
    sequence: u32,
    acknowledgement: u32,
    payload: usize,
) -> Vec<u8> {
    let mut frame = vec![0; HEADERS];
    let (ethernet, rest) = frame.split_at_mut(ETHERNET);
    let (ip, tcp) = rest.split_at_mut(IPV4);
    ethernet[..6].copy_from_slice(&to);
    ethernet[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 3 - to[5]]);
    ethernet[12] = 8;
    (ip[0], ip[6], ip[8], ip[9]) = (0x45, 0x40, 64, PROTOCOL);
    ip[2..4].copy_from_slice(&((IPV4 + TCP + payload) as u16).to_be_bytes());
    ip[4..6].copy_from_slice(&id.to_be_bytes());
    ip[12..].copy_from_slice(&addresses);
    let sum = ipv4_header(ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    // The discard service's port, and an unassigned one.
    let ports = if to[5] == 2 { [40_000u16, 9] } else { [9, 40_000] };
    tcp[..2].copy_from_slice(&ports[0].to_be_bytes());
    tcp[2..4].copy_from_slice(&ports[1].to_be_bytes());
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    tcp[8..12].copy_from_slice(&acknowledgement.to_be_bytes());
    // Header of five words; ACK; window.
    (tcp[12], tcp[13], tcp[14], tcp[15]) = (0x50, 0x10, 0x20, 0);
    frame.extend_from_slice(&COUNTING[usize::from(sequence as u8)..][..payload]);
    let (ip, segment) = frame[ETHERNET..].split_at(IPV4);
    let pseudo = pseudo_header(ip, IpVersion::V4, PROTOCOL, segment.len() as u32);
    let sum = pseudo.add(Simd::detect().sum(segment)).checksum();
    frame[ETHERNET + IPV4 + 16..][..2].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use superpacket_traffic::check::{self, Expect};

    #[test]
    fn frames_are_right_and_of_the_length_that_the_mtu_allows() {
        for (mtu, bytes, lengths) in
            [(1500, 4000, vec![1514, 1514, 54 + 4000 - 2 * 1460]), (9000, 8960, vec![9014])]
        {
            let frames: Vec<_> = Segments::new(mtu, bytes).collect();
            assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
            for frame in frames {
                check::frame(&frame, &Expect::default()).expect("a right frame");
            }
        }
    }

    #[test]
    fn acknowledgements_go_on_by_as_many_segments() {
        let acks: Vec<_> = Acknowledgements::new(3, 8).collect();
        let numbers =
            acks.iter().map(|ack| check::tcp_fields(ack, false).expect("TCP").acknowledgement);
        assert_eq!(numbers.collect::<Vec<_>>(), [8 * 1460, 16 * 1460, 24 * 1460]);
        for ack in acks {
            assert_eq!(ack.len(), 54);
            check::frame(&ack, &Expect::default()).expect("a right frame");
        }
    }
}
