use super::*;
use superpacket::checksum::ipv4_header;
use superpacket::wire::parse;

/// Returns a TCP packet with `payload` bytes of data. `field` computes the value of the
/// checksum field from the sum of the pseudo-header without the length, and the length.
fn packet(version: IpVersion, payload: usize, field: impl Fn(Sum, u32) -> u16) -> Vec<u8> {
    let network = if version == IpVersion::V4 { 20 } else { 40 };
    let mut packet: Vec<u8> =
        (0..network + 20 + payload).map(|index| (index * 7 + 3) as u8).collect();
    let length = packet.len();
    match version {
        IpVersion::V4 => {
            packet[..10].copy_from_slice(&[
                0x45,
                0,
                (length >> 8) as u8,
                length as u8,
                0,
                1,
                0x40,
                0,
                64,
                6,
            ]);
            packet[10..12].fill(0);
        }
        IpVersion::V6 => {
            let length = length - 40;
            packet[..8].copy_from_slice(&[0x60, 0, 0, 0, (length >> 8) as u8, length as u8, 6, 64]);
        }
    }
    packet[network + 12..network + 14].copy_from_slice(&[0x50, 0x10]);
    if version == IpVersion::V4 {
        let checksum = ipv4_header(&packet[..20]);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    let value = field(pseudo_header(&packet, version, 6, 0), 20 + payload as u32);
    packet[network + 16..network + 18].copy_from_slice(&value.to_be_bytes());
    packet
}

fn find(packet: &[u8]) -> Option<Checksums> {
    let layout = parse(packet, packet.len(), Layer::Ip).expect("headers are whole");
    Checksums::find(packet, Layer::Ip, Some(&layout), Simd::scalar())
}

fn is_right(packet: &[u8]) -> bool {
    let layout = parse(packet, packet.len(), Layer::Ip).expect("headers are whole");
    check(packet, Layer::Ip, &layout, None, Simd::scalar()).is_ok()
}

#[test]
fn both_seeds_are_recognized_and_completed() {
    for version in [IpVersion::V4, IpVersion::V6] {
        for payload in [0, 1, 1448, 60_001] {
            for with_length in [true, false] {
                let mut bytes = packet(version, payload, |pseudo, length| {
                    if with_length { pseudo.add32(length).fold() } else { pseudo.fold() }
                });
                let partial = find(&bytes).expect("recognized");
                assert_eq!(partial.canonical().count(), usize::from(!with_length));
                let start = if version == IpVersion::V4 { 20 } else { 40 };
                assert_eq!(partial.state(), RxChecksum::Partial { start, offset: 16 });
                assert!(!is_right(&bytes));
                let [None, None, None, None, None, Some((place, value))] =
                    partial.fields(Checksum::is_unfinished)
                else {
                    panic!("one field")
                };
                bytes[place..place + 2].copy_from_slice(&value.to_be_bytes());
                assert!(is_right(&bytes), "{version:?} {payload} {with_length}");
                assert_eq!(find(&bytes), None, "a whole checksum is none");
            }
        }
    }
}

#[test]
fn lengths_above_16_bits_count_whole() {
    // BIG TCP: an IP length of 0, and a 32-bit length in the sum.
    let mut bytes = packet(IpVersion::V6, 100_000, |pseudo, length| pseudo.add32(length).fold());
    bytes[4..6].fill(0);
    let partial = find(&bytes).expect("recognized");
    assert_eq!(partial.canonical().count(), 0);
}

#[test]
fn padding_in_a_tunnel_is_not_summed() {
    let inner = packet(IpVersion::V4, 11, |pseudo, length| pseudo.add32(length).fold());
    let mut bytes = packet(IpVersion::V4, 0, |_, _| 0)[..20].to_vec();
    bytes[9] = 4;
    bytes.extend_from_slice(&inner);
    bytes.extend_from_slice(&[9; 5]);
    let length = bytes.len() as u16;
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    bytes[10..12].fill(0);
    let checksum = ipv4_header(&bytes[..20]);
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    let partial = find(&bytes).expect("recognized");
    let [None, None, None, None, None, Some((place, value))] =
        partial.fields(Checksum::is_unfinished)
    else {
        panic!("one field")
    };
    bytes[place..place + 2].copy_from_slice(&value.to_be_bytes());
    assert!(is_right(&bytes));
}

#[test]
fn other_wrong_checksums_are_not_partial() {
    let bytes = packet(IpVersion::V4, 100, |pseudo, length| pseudo.add32(length).add(1).fold());
    assert_eq!(find(&bytes), None);
    assert!(!is_right(&bytes));
}

/// Completes the unfinished checksums, and returns the offsets of their fields.
fn fill_in(bytes: &mut [u8], checksums: &Checksums) -> Vec<usize> {
    let fields: Vec<ChecksumField> =
        checksums.fields(Checksum::is_unfinished).into_iter().flatten().collect();
    fields
        .iter()
        .for_each(|&(place, value)| bytes[place..place + 2].copy_from_slice(&value.to_be_bytes()));
    fields.iter().map(|field| field.0).collect()
}

#[test]
fn an_ipv4_header_checksum_of_zero_is_unfinished_like_a_seed() {
    let right = packet(IpVersion::V4, 100, |_, _| 0);
    // The transport checksum is complete, wrong, or unfinished. The header's checksum is always
    // filled in, and the transport checksum only if it is unfinished.
    for (field, places) in [(None, vec![10]), (Some(0x1234), vec![10]), (Some(0), vec![10, 36])] {
        let mut bytes = right.clone();
        let pseudo = pseudo_header(&bytes, IpVersion::V4, 6, 120).fold();
        bytes[36..38].copy_from_slice(&pseudo.to_be_bytes());
        match field {
            None => {
                let checksum = Sum::new(Simd::scalar().sum(&bytes[20..])).checksum();
                bytes[36..38].copy_from_slice(&checksum.to_be_bytes());
            }
            Some(0) => {}
            Some(wrong) => bytes[36..38].copy_from_slice(&u16::to_be_bytes(wrong)),
        }
        bytes[10..12].fill(0);
        let partial = find(&bytes).expect("recognized");
        assert_eq!(
            partial.canonical().collect::<Vec<_>>(),
            [(10, be16(&right, 10).expect("a field"))]
        );
        assert_eq!(fill_in(&mut bytes, &partial), places);
        assert_eq!(bytes[..20], right[..20]);
        assert_eq!(find(&bytes), None);
        // If the packet is cut short, or its protocol is not known, only the IPv4 header is
        // completed.
        let mut unknown = bytes[..60].to_vec();
        (unknown[9], unknown[10], unknown[11]) = (1, 0, 0);
        let partial =
            Checksums::find(&unknown, Layer::Ip, None, Simd::scalar()).expect("recognized");
        assert_eq!(partial.state(), RxChecksum::None);
        assert_eq!(fill_in(&mut unknown, &partial), [10]);
        assert!(Sum::new(Simd::scalar().sum(&unknown[..20])).is_valid());
    }
    // An IPv4 header whose right checksum is 0.
    let mut bytes = right.clone();
    bytes[10..12].fill(0);
    bytes[4..6].fill(0);
    let rest = Simd::scalar().sum(&bytes[..20]);
    bytes[4..6].copy_from_slice(&(!rest).to_be_bytes());
    assert!(Sum::new(Simd::scalar().sum(&bytes[..20])).is_valid());
    assert_eq!(Checksums::find(&bytes, Layer::Ip, None, Simd::scalar()), None);
}

#[test]
fn a_header_in_a_tunnel_is_filled_in_unless_a_whole_checksum_covers_it() {
    use superpacket_traffic::frame::{Checksum, Frame, Ip};
    for (outer, places) in [
        (Checksum::Zero, vec![24, 60 + 14]),
        (Checksum::Partial, vec![24, 40, 60 + 14]),
        (Checksum::Right, vec![24]),
    ] {
        let frame =
            Frame::tcp4(1, 99).in_vxlan4().with(|frame| frame.outer_udp_mut().checksum = outer);
        let unfinished = frame.clone().with(|frame| {
            frame.ipv4_mut().checksum = Checksum::Zero;
            if let Ip::V4(outer) = &mut frame.tunnel_mut().ip {
                outer.checksum = Checksum::Zero;
            }
        });
        let mut bytes = unfinished.to_bytes();
        let layout = parse(&bytes, bytes.len(), Layer::Ethernet).expect("headers are whole");
        let partial = Checksums::find(&bytes, Layer::Ethernet, Some(&layout), Simd::scalar())
            .expect("recognized");
        assert_eq!(fill_in(&mut bytes, &partial), places, "{outer:?}");
        if outer != Checksum::Right {
            let right = frame.with(|frame| {
                frame.outer_udp_mut().checksum =
                    if outer == Checksum::Zero { outer } else { Checksum::Right }
            });
            assert_eq!(bytes, right.to_bytes());
        }
        assert!(check(&bytes, Layer::Ethernet, &layout, None, Simd::scalar()).is_ok());
    }
}

/// Tests combinations of complete, absent and unfinished checksums in two nested tunnels.
#[test]
fn unfinished_checksums_in_two_tunnels_are_filled_in() {
    use superpacket_traffic::frame::{Checksum, Frame};
    let forms = [Checksum::Zero, Checksum::Right, Checksum::Partial];
    let whole = |form: Checksum| if form == Checksum::Partial { Checksum::Right } else { form };
    for (outer, nested, inner) in forms.into_iter().flat_map(|outer| {
        forms.into_iter().flat_map(move |nested| {
            [Checksum::Right, Checksum::Partial].map(|inner| (outer, nested, inner))
        })
    }) {
        let with = |outer: Checksum, nested: Checksum, inner: Checksum| {
            Frame::tcp4(1, 99).in_vxlan4().in_geneve().with(|frame| {
                frame.outer_udp_mut().checksum = outer;
                frame.nested_mut().udp_mut().checksum = nested;
                frame.tcp_mut().checksum = inner;
            })
        };
        let mut frame = with(outer, nested, inner);
        let places = frame.offsets();
        let mut expected = vec![];
        // No other checksum covers the outermost IPv4 header, but outer UDP checksums may cover
        // the inner ones.
        frame.outer_ipv4_mut().checksum = Checksum::Zero;
        expected.push(places.outer.expect("a tunnel") + 10);
        expected
            .extend((outer == Checksum::Partial).then_some(places.outer.expect("a tunnel") + 26));
        if outer != Checksum::Right {
            frame.nested_mut().ipv4_mut().checksum = Checksum::Zero;
            expected.push(places.nested.expect("a second tunnel") + 10);
        }
        expected.extend(
            (nested == Checksum::Partial).then_some(places.nested.expect("a second tunnel") + 26),
        );
        if outer != Checksum::Right && nested != Checksum::Right {
            frame.ipv4_mut().checksum = Checksum::Zero;
            expected.push(places.network + 10);
        }
        expected.extend((inner == Checksum::Partial).then_some(places.transport + 16));
        let mut bytes = frame.to_bytes();
        let layout = parse(&bytes, bytes.len(), Layer::Ethernet).expect("headers are whole");
        let partial = Checksums::find(&bytes, Layer::Ethernet, Some(&layout), Simd::scalar())
            .expect("recognized");
        assert_eq!(
            check(&bytes, Layer::Ethernet, &layout, Some(&partial), Simd::scalar()),
            Ok(()),
            "{outer:?} {nested:?} {inner:?}"
        );
        let what = format!("{outer:?} {nested:?} {inner:?}");
        assert_eq!(fill_in(&mut bytes, &partial), expected, "{what}");
        assert_eq!(bytes, with(whole(outer), whole(nested), whole(inner)).to_bytes(), "{what}");
        assert_eq!(check(&bytes, Layer::Ethernet, &layout, None, Simd::scalar()), Ok(()), "{what}");
        for wrong in
            [places.outer.expect("a tunnel") + 26, places.nested.expect("a second tunnel") + 26]
        {
            if be16(&bytes, wrong) != Some(0) {
                let mut damaged = bytes.clone();
                damaged[wrong] ^= 0x11;
                assert_eq!(
                    check(&damaged, Layer::Ethernet, &layout, None, Simd::scalar()),
                    Err(Wrong::Transport),
                    "{what}"
                );
            }
        }
    }
}
