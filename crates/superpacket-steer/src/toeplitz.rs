//! The Toeplitz hash of receive-side scaling, computed by tables.
//!
//! Each set bit of the input adds (by XOR) the 32 bits of the key that start at the bit's position.
//! The contribution of a byte depends only on its position and value, so a table holds it. This
//! takes one read per byte instead of eight shifts.

use alloc::boxed::Box;

use superpacket::packet::{FlowHash, Layer};

use crate::tuple::{Addresses, FlowTuple, MAX_INPUT};

/// The key of a Toeplitz hash: 40 bytes, enough for IPv6 addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ToeplitzKey([u8; Self::LENGTH]);

impl ToeplitzKey {
    /// Length of a key in bytes.
    pub const LENGTH: usize = MAX_INPUT + 4;

    /// The key that Microsoft published with its RSS specification and test vectors; many devices
    /// use it by default. Because it is public, an attacker can choose the queue of his traffic.
    pub const MICROSOFT: ToeplitzKey = ToeplitzKey([
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ]);

    /// Creates a key from its bytes, in the order in which `ethtool -x` shows them.
    pub const fn new(bytes: [u8; Self::LENGTH]) -> Self {
        ToeplitzKey(bytes)
    }

    /// Returns the bytes, in the order of [`new`](Self::new).
    pub const fn bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }

    /// Returns 32 bits of the key, starting at bit `place`. Bits after the end of the key are zero.
    const fn window(&self, place: usize) -> u32 {
        let (byte, shift) = (place / 8, place % 8);
        let mut bits = 0u64;
        let mut index = 0;
        while index < 5 {
            let next = if byte + index < Self::LENGTH { self.0[byte + index] } else { 0 };
            bits = bits << 8 | next as u64;
            index += 1;
        }
        (bits >> (8 - shift)) as u32
    }
}

impl Default for ToeplitzKey {
    fn default() -> Self {
        ToeplitzKey::MICROSOFT
    }
}

/// Computes the Toeplitz hash bit by bit, as the specification defines it: a slow reference for
/// [`Toeplitz::hash`]. Input after the 36th byte is ignored.
pub fn toeplitz_bitwise(key: &ToeplitzKey, input: &[u8]) -> u32 {
    let mut hash = 0;
    for (index, byte) in input.iter().take(MAX_INPUT).enumerate() {
        for bit in (0..8).filter(|bit| byte & 0x80 >> bit != 0) {
            hash ^= key.window(index * 8 + bit);
        }
    }
    hash
}

/// The Toeplitz hash with one key, computed with a table per input byte.
///
/// ```
/// use superpacket_steer::{FlowTuple, Toeplitz, ToeplitzKey};
///
/// let toeplitz = Toeplitz::new(&ToeplitzKey::MICROSOFT);
/// let flow = FlowTuple::v4([66, 9, 149, 187], [161, 142, 100, 80], Some([2794, 1766]));
/// assert_eq!(toeplitz.hash_flow(&flow).0, 0x51cc_c178);
/// ```
#[derive(Clone, Debug)]
pub struct Toeplitz {
    key: ToeplitzKey,
    /// For each byte of the input and each of its values, the contribution to the hash: 36 KiB, of
    /// which IPv4 reads 12 KiB.
    tables: Box<[[u32; 256]; MAX_INPUT]>,
    symmetric: bool,
}

impl Toeplitz {
    /// Computes the tables for this key.
    pub fn new(key: &ToeplitzKey) -> Self {
        let table = |place: usize| {
            let mut table = [0; 256];
            for value in 1..256usize {
                // The lowest set bit of the value is handled here; the contribution of the other
                // bits is already in the table.
                let bit = 7 - value.trailing_zeros() as usize;
                table[value] = table[value & (value - 1)] ^ key.window(place * 8 + bit);
            }
            table
        };
        Toeplitz { key: *key, tables: Box::new(core::array::from_fn(table)), symmetric: false }
    }

    /// Makes both directions of a connection have the same hash, by
    /// [symmetric](FlowTuple::symmetric) tuples.
    #[must_use]
    pub fn symmetric(self) -> Self {
        Toeplitz { symmetric: true, ..self }
    }

    /// Returns the key.
    pub const fn key(&self) -> &ToeplitzKey {
        &self.key
    }

    /// Returns the hash of `input`. Bytes after the 36th are ignored.
    #[inline]
    pub fn hash(&self, input: &[u8]) -> u32 {
        self.tables
            .iter()
            .zip(input)
            .fold(0, |hash, (table, byte)| hash ^ table[usize::from(*byte)])
    }

    /// Returns the hash of a flow.
    #[inline]
    pub fn hash_flow(&self, tuple: &FlowTuple) -> FlowHash {
        let tuple = if self.symmetric { &tuple.symmetric() } else { tuple };
        let (addresses, ports) = match tuple.addresses() {
            Addresses::V4(source, destination) => {
                (self.at::<0, _>(source) ^ self.at::<4, _>(destination), self.ports::<8>(tuple))
            }
            Addresses::V6(source, destination) => {
                (self.at::<0, _>(source) ^ self.at::<16, _>(destination), self.ports::<32>(tuple))
            }
        };
        FlowHash(addresses ^ ports)
    }

    /// Returns the hash of a frame, parsed by [`FlowTuple::innermost`], or `None` if it is not IP.
    pub fn hash_frame(&self, header: &[u8], length: usize, layer: Layer) -> Option<FlowHash> {
        FlowTuple::innermost(header, length, layer).map(|tuple| self.hash_flow(&tuple))
    }
}

impl Toeplitz {
    /// Returns what `bytes` at position `PLACE` of the input contribute to the hash. Position and
    /// length are constants, so only the look-ups remain in the compiled code.
    #[inline]
    fn at<const PLACE: usize, const N: usize>(&self, bytes: [u8; N]) -> u32 {
        let mut sum = 0;
        for (index, byte) in bytes.into_iter().enumerate() {
            sum ^= self.tables[PLACE + index][usize::from(byte)];
        }
        sum
    }

    /// Returns what the ports, which follow the addresses in the input, contribute to the hash; 0
    /// if the flow has no ports.
    #[inline]
    fn ports<const PLACE: usize>(&self, tuple: &FlowTuple) -> u32 {
        tuple.port_bytes().map_or(0, |ports| self.at::<PLACE, _>(ports))
    }
}

impl Default for Toeplitz {
    /// Uses Microsoft's [published key](ToeplitzKey::MICROSOFT).
    fn default() -> Self {
        Toeplitz::new(&ToeplitzKey::MICROSOFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::SocketAddr;
    use std::string::String;
    use superpacket_traffic::frame::Frame;
    use superpacket_traffic::random::Random;

    /// The verification suite of Microsoft's RSS specification: source, destination, hash of the
    /// addresses, hash with ports.
    const PUBLISHED: [(&str, &str, u32, u32); 8] = [
        ("66.9.149.187:2794", "161.142.100.80:1766", 0x323e_8fc2, 0x51cc_c178),
        ("199.92.111.2:14230", "65.69.140.83:4739", 0xd718_262a, 0xc626_b0ea),
        ("24.19.198.95:12898", "12.22.207.184:38024", 0xd2d0_a5de, 0x5c2b_394a),
        ("38.27.205.30:48228", "209.142.163.6:2217", 0x8298_9176, 0xafc7_327f),
        ("153.39.163.191:44251", "202.188.127.2:1303", 0x5d18_09c5, 0x10e8_28a2),
        ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x2cc1_8cd5, 0x4020_7d3d),
        ("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0x0f0c_461c, 0xdde5_1bbf),
        (
            "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251",
            "[fe80::200:f8ff:fe21:67cf]:38024",
            0x4b61_e985,
            0x02d1_feef,
        ),
    ];

    fn tuple(source: &str, destination: &str, with_ports: bool) -> FlowTuple {
        let [source, destination]: [SocketAddr; 2] =
            [source, destination].map(|text| text.parse().expect("well formed"));
        let ports = with_ports.then_some([source.port(), destination.port()]);
        match (source, destination) {
            (SocketAddr::V4(source), SocketAddr::V4(destination)) => {
                FlowTuple::v4(source.ip().octets(), destination.ip().octets(), ports)
            }
            (SocketAddr::V6(source), SocketAddr::V6(destination)) => {
                FlowTuple::v6(source.ip().octets(), destination.ip().octets(), ports)
            }
            _ => panic!("two versions"),
        }
    }

    #[test]
    fn the_published_vectors() {
        let toeplitz = Toeplitz::default();
        for (source, destination, addresses, with_ports) in PUBLISHED {
            assert_eq!(
                toeplitz.hash_flow(&tuple(source, destination, false)).0,
                addresses,
                "{source} {destination}"
            );
            assert_eq!(
                toeplitz.hash_flow(&tuple(source, destination, true)).0,
                with_ports,
                "{source} {destination}"
            );
        }
    }

    #[test]
    fn tables_agree_with_the_bitwise_definition() {
        let mut random = Random::new(7);
        for _ in 0..200 {
            let key = ToeplitzKey::new(random.bytes(40).try_into().expect("40 bytes"));
            let toeplitz = Toeplitz::new(&key);
            for length in 0..=40 {
                let input = random.bytes(length);
                assert_eq!(toeplitz.hash(&input), toeplitz_bitwise(&key, &input), "{length}");
            }
            let [a, b, c, d, ..] = *key.bytes();
            assert_eq!(toeplitz_bitwise(&key, &[0x80]), u32::from_be_bytes([a, b, c, d]));
        }
    }

    #[test]
    fn the_symmetric_form_hashes_both_directions_alike() {
        let (plain, symmetric) = (Toeplitz::default(), Toeplitz::default().symmetric());
        for (source, destination, ..) in PUBLISHED {
            let (there, back) =
                (tuple(source, destination, true), tuple(destination, source, true));
            assert_eq!(symmetric.hash_flow(&there), symmetric.hash_flow(&back));
            assert_ne!(plain.hash_flow(&there), plain.hash_flow(&back));
            assert_ne!(
                symmetric.hash_flow(&there),
                symmetric.hash_flow(&tuple(source, destination, false)),
                "ports count"
            );
        }
        // The input, written out by hand.
        let flow = FlowTuple::v4([10, 0, 0, 1], [10, 0, 0, 3], Some([0x1234, 0x00ff]));
        assert_eq!(
            symmetric.hash_flow(&flow).0,
            toeplitz_bitwise(
                &ToeplitzKey::MICROSOFT,
                &[0, 0, 0, 2, 0, 0, 0, 2, 0x12, 0xcb, 0x12, 0xcb]
            )
        );
    }

    fn hash(frame: &Frame) -> Option<FlowHash> {
        let bytes = frame.to_bytes();
        let layer = if frame.link.is_some() { Layer::Ethernet } else { Layer::Ip };
        Toeplitz::default().hash_frame(
            &bytes[..bytes.len().min(superpacket::wire::MAX_HEADER)],
            bytes.len(),
            layer,
        )
    }

    #[test]
    fn frames_are_hashed_by_their_innermost_flow() {
        let frame = Frame::tcp4(1000, 500);
        let bytes = frame.to_bytes();
        let expected = toeplitz_bitwise(&ToeplitzKey::MICROSOFT, &bytes[26..38]);
        for same in [
            frame.clone(),
            frame.clone().tagged(5).tagged(6),
            frame.clone().at_ip(),
            frame.following(),
            frame.clone().in_vxlan4(),
        ] {
            assert_eq!(hash(&same), Some(FlowHash(expected)));
        }
        let bytes = Frame::udp6(10).to_bytes();
        assert_eq!(
            hash(&Frame::udp6(10)),
            Some(FlowHash(toeplitz_bitwise(&ToeplitzKey::MICROSOFT, &bytes[22..58])))
        );
        assert_eq!(Toeplitz::default().hash_frame(&[0; 60], 60, Layer::Ethernet), None);
        assert_eq!(Toeplitz::default().hash_frame(&[], 0, Layer::Ip), None);
    }

    #[test]
    fn fragments_and_other_protocols_are_hashed_by_their_addresses() {
        let whole = Frame::udp4(3000);
        let addresses = toeplitz_bitwise(&ToeplitzKey::MICROSOFT, &whole.to_bytes()[26..34]);
        for fragment in whole.fragments(1480, 9) {
            assert_eq!(hash(&fragment), Some(FlowHash(addresses)));
        }
        let mut other = whole.clone().tagged(3).to_bytes();
        other[18 + 9] = 89;
        assert_eq!(
            Toeplitz::default().hash_frame(&other, other.len(), Layer::Ethernet),
            Some(FlowHash(addresses)),
            "OSPF behind a tag"
        );
    }

    #[test]
    fn a_key_is_shown_as_it_was_given() {
        let text: String =
            ToeplitzKey::MICROSOFT.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            text,
            "6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa"
        );
        assert_eq!(Toeplitz::default().key(), &ToeplitzKey::default());
    }
}
