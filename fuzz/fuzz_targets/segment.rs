//! Segments any bytes with any metadata. Both ways of segmenting give the same result or error, and
//! no payload byte is lost.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::{
    ChecksumForm, ChecksumOutput, Cwr, Gso, GsoKind, GsoPacket, IpId, MaxSegments, SegmentOptions,
    SegmentSize, Segmenter,
};

fuzz_target!(|input: &[u8]| {
    let [kind, high, low, choice, start, split, packet @ ..] = input else { return };
    let kind = [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp, GsoKind::UdpFragments, GsoKind::Dccp]
        [usize::from(*kind) % 5];
    let Some(size) = SegmentSize::new(usize::from(u16::from_be_bytes([*high, *low]))) else {
        return;
    };
    let gso = Gso::new(kind, size)
        .with_id(if choice & 1 == 0 { IpId::Increment } else { IpId::Fixed })
        .with_outer_id(if choice & 2 == 0 { IpId::Increment } else { IpId::Fixed })
        .with_nested_id(if choice & 2 == 0 { IpId::Fixed } else { IpId::Increment })
        .with_cwr(if choice & 4 == 0 { Cwr::First } else { Cwr::All })
        .with_checksum(if choice & 8 == 0 { ChecksumForm::Full } else { ChecksumForm::Partial });
    let output = [ChecksumOutput::Full, ChecksumOutput::Partial, ChecksumOutput::AsMerged]
        [usize::from(choice >> 4) % 3];
    let options = SegmentOptions::default()
        .with_checksum(output)
        .with_max_segments(MaxSegments::new(2000).expect("not 0"))
        .with_fragment_id(1);
    let (first, rest) = packet.split_at(usize::from(*split).min(packet.len()));
    let buffers = [first, rest];
    let checksum = if choice & 0x40 == 0 {
        RxChecksum::None
    } else {
        RxChecksum::Partial { start: u16::from(*start), offset: 6 }
    };
    let layer = if choice & 0x80 == 0 { Layer::Ethernet } else { Layer::Ip };
    let scattered = GsoPacket::new(&buffers, gso).with_layer(layer).with_checksum(checksum);
    let mut segmenter = Segmenter::new();
    let mut gathered = Vec::new();
    let plan = segmenter.segment(&scattered, &options, |segment| segment.copy_to(&mut gathered));
    let mut linear = Vec::new();
    let linear_plan = segmenter.segment_linear(&scattered, &options, &mut linear);
    assert_eq!(plan, linear_plan);
    assert_eq!(gathered, linear);
    if let Ok(plan) = plan {
        assert_eq!(plan.total_length(), linear.len());
    }
    if kind == GsoKind::UdpFragments && plan.is_ok() {
        let mut cut = |options| {
            let mut fragments = Vec::new();
            let again = segmenter.segment(&scattered, &options, |fragment| {
                let mut bytes = Vec::new();
                fragment.copy_to(&mut bytes);
                fragments.push(bytes);
            });
            assert_eq!(plan, again);
            fragments
        };
        assert_same_but_for_ids(cut(options), &cut(options.with_fragment_id(0)));
    }
    assert!(segmenter.counters().balanced());
});

/// Asserts that fragments with an identification chosen by the segmenter are the same as those with
/// a given one, except for the four bytes of the identification, and for the checksums of tunnels
/// before it.
fn assert_same_but_for_ids(given: Vec<Vec<u8>>, chosen: &[Vec<u8>]) {
    let differs = |(one, other): (&Vec<u8>, &Vec<u8>)| {
        let place = |(place, (one, other)): (usize, (&u8, &u8))| (one != other).then_some(place);
        one.iter().zip(other).enumerate().filter_map(place).collect::<Vec<_>>()
    };
    let places: BTreeSet<_> = given.iter().zip(chosen).flat_map(differs).collect();
    // Bytes that happen to be the same in both identifications do not differ.
    let first = places.last().map_or(0, |last| last.saturating_sub(3));
    let (checksums, id): (Vec<_>, Vec<_>) =
        places.iter().copied().partition(|&place| place < first);
    assert!(checksums.len() <= 4, "bytes {places:?} differ");
    for (mut given, fragment) in given.into_iter().zip(chosen) {
        id.iter().for_each(|&place| given[place] = chosen[0][place]);
        checksums.iter().for_each(|&place| given[place] = fragment[place]);
        assert_eq!(&given, fragment);
    }
}
