//! Partial checksums completed: in place, by the segmenter in a packet that passes whole, and
//! before fragmentation. All against frames that an independent builder makes.

use crate::support::VERIFIED;
use superpacket::Simd;
use superpacket::checksum::{CompletionError, complete_partial};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::{ChecksumOutput, GsoPacket, SegmentError, SegmentOptions, Segmenter};
use superpacket_traffic::frame::{Checksum, Extension, Frame, Mpls, Sctp, Transport};

type Edit = fn(Frame) -> Frame;

/// What may come before the IP packet, or around it.
const AROUND: [Edit; 12] = [
    |frame| frame,
    Frame::at_ip,
    |frame| frame.tagged(5),
    Frame::in_pppoe,
    |frame| frame.with(|frame| frame.mpls = vec![Mpls::default(), Mpls::default()]),
    Frame::in_vxlan4,
    Frame::in_vxlan6,
    Frame::in_geneve,
    Frame::in_gre,
    Frame::in_ip4,
    Frame::in_ip6,
    |frame| frame.in_ip6().tagged(9),
];

fn sctp(base: Frame) -> Frame {
    base.with(|frame| frame.transport = Transport::Sctp(Sctp::default()))
}

fn dccp(base: Frame, coverage: u8) -> Frame {
    base.with_dccp(|dccp| dccp.coverage = coverage)
}

/// Right frames of every protocol, and where their checksum lies.
fn right() -> Vec<(Frame, u16)> {
    let mut frames = Vec::new();
    for payload in [0, 1, 2, 31, 200, 1400, 1401] {
        frames.extend([
            (Frame::tcp4(1, payload), 16),
            (Frame::tcp6(1, payload), 16),
            (Frame::tcp4(1, payload).with_timestamps(1, 2), 16),
        ]);
        frames.extend([(Frame::udp4(payload), 6), (Frame::udp6(payload), 6)]);
        frames.extend([(sctp(Frame::udp4(payload)), 8), (sctp(Frame::udp6(payload)), 8)]);
        frames.extend([(Frame::dccp4(1, payload), 6), (Frame::dccp6(1, payload), 6)]);
        frames.extend(
            (1..=15)
                .filter(|words| (words - 1) * 4 <= payload)
                .map(|words| (dccp(Frame::dccp4(1, payload), words as u8), 6)),
        );
    }
    let options = || {
        vec![
            Extension::HopByHop(vec![5, 2, 0, 0]),
            Extension::Routing(vec![4, 0, 0, 0]),
            Extension::DestinationOptions(vec![]),
        ]
    };
    for frame in [Frame::tcp6(1, 99), Frame::udp6(99), sctp(Frame::udp6(99))] {
        let offset = match frame.transport {
            Transport::Tcp(_) => 16,
            Transport::Sctp(_) => 8,
            _ => 6,
        };
        frames.push((frame.with_ipv6(|ip| ip.extensions = options()), offset));
    }
    frames.push((sctp(Frame::udp4(64)).with_ipv4(|ip| ip.options = vec![1; 8]), 8));
    frames
}

/// The same frame with its checksum left to a device, and its state. Of a CRC nothing is known
/// beforehand.
fn partial(frame: &Frame, offset: u16) -> (Vec<u8>, RxChecksum, Layer) {
    let start = frame.offsets().transport as u16;
    let layer = if frame.link.is_some() { Layer::Ethernet } else { Layer::Ip };
    let state = RxChecksum::Partial { start, offset };
    if offset == 8 {
        let mut bytes = frame.to_bytes();
        let place = usize::from(start + offset);
        bytes[place..place + 4].copy_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
        return (bytes, state, layer);
    }
    let mut partial = frame.clone();
    partial.set_checksum(Checksum::Partial);
    (partial.to_bytes(), state, layer)
}

fn complete(bytes: &mut [u8], state: RxChecksum, layer: Layer) -> Result<(), CompletionError> {
    let RxChecksum::Partial { start, offset } = state else { panic!("partial") };
    complete_partial(bytes, layer, start, offset, Simd::detect())
}

/// The packet in buffers of `size` bytes, passed whole by the segmenter.
fn passed(
    bytes: &[u8],
    state: RxChecksum,
    layer: Layer,
    size: usize,
) -> Result<Vec<u8>, SegmentError> {
    let buffers: Vec<&[u8]> = bytes.chunks(size).collect();
    let packet = GsoPacket::uncut(&buffers).with_layer(layer).with_checksum(state);
    let mut out = Vec::new();
    let options = SegmentOptions::default().with_checksum(ChecksumOutput::Full);
    Segmenter::new().segment(&packet, &options, |segment| {
        assert_eq!(segment.checksum, VERIFIED);
        segment.copy_to(&mut out);
    })?;
    Ok(out)
}

#[track_caller]
fn assert_bytes(got: &[u8], want: &[u8], name: &str) {
    let place = got.iter().zip(want).position(|(got, want)| got != want);
    assert!(
        got == want,
        "{name}: {} bytes, {} expected, the first to differ is {place:?}",
        got.len(),
        want.len()
    );
}

#[test]
fn every_protocol_is_completed_wherever_it_lies() {
    for (frame, offset) in right() {
        for around in AROUND {
            let frame = around(frame.clone());
            for padding in [0, 7] {
                let frame = frame.clone().with(|frame| {
                    frame.trailer = if frame.link.is_some() { vec![9; padding] } else { vec![] }
                });
                let name = format!("{:?} in {:?}", frame.transport, frame.tunnel);
                let (mut bytes, state, layer) = partial(&frame, offset);
                let whole = frame.to_bytes();
                for size in [usize::MAX, 400, 61] {
                    assert_bytes(&passed(&bytes, state, layer, size).expect(&name), &whole, &name);
                }
                assert_eq!(complete(&mut bytes, state, layer), Ok(()), "{name}");
                assert_bytes(&bytes, &whole, &name);
            }
        }
    }
}

#[test]
fn a_packet_is_completed_before_it_is_fragmented() {
    let protocols = [
        (Frame::tcp4(1, 3001), 16),
        (Frame::udp4(3001), 6),
        (sctp(Frame::udp4(3001)), 8),
        (dccp(Frame::dccp4(1, 3001), 3), 6),
    ];
    for (frame, offset) in protocols {
        let frame = frame.with_ipv4(|ip| ip.dont_fragment = false);
        let (bytes, state, layer) = partial(&frame, offset);
        for size in [usize::MAX, 700] {
            let buffers: Vec<&[u8]> = bytes.chunks(size).collect();
            let packet = GsoPacket::uncut(&buffers).with_layer(layer).with_checksum(state);
            let mut fragments = Vec::new();
            let done = Segmenter::new().fragment(&packet, 1500, None, |fragment| {
                let mut bytes = Vec::new();
                fragment.copy_to(&mut bytes);
                fragments.push(bytes);
            });
            assert_eq!(done.map(|plan| plan.segments), Ok(3));
            let whole: Vec<Vec<u8>> =
                frame.fragments(1480, 0).iter().map(Frame::to_bytes).collect();
            assert_bytes(&fragments.concat(), &whole.concat(), &format!("{:?}", frame.transport));
        }
    }
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_all_ones() {
    let mut seen = 0;
    for number in 0..=u16::MAX {
        // Two bytes of payload run through all sums.
        let frame = Frame::udp4(0).with(|frame| frame.payload = number.to_be_bytes().to_vec());
        let (mut bytes, state, layer) = partial(&frame, 6);
        assert_eq!(complete(&mut bytes, state, layer), Ok(()));
        assert_ne!(bytes[40..42], [0, 0]);
        seen += u32::from(bytes[40..42] == [0xff, 0xff]);
    }
    assert_eq!(seen, 1);
}

#[test]
fn a_field_of_zero_holds_no_pseudo_header() {
    for (frame, place) in [
        (Frame::udp4(99), 40),
        (Frame::udp6(99), 60),
        (Frame::tcp4(1, 99), 50),
        (dccp(Frame::dccp4(1, 99), 2), 40),
    ] {
        let offset = if place == 50 { 16 } else { 6 };
        let (mut bytes, state, layer) = partial(&frame, offset);
        bytes[place..place + 2].fill(0);
        assert_bytes(
            &passed(&bytes, state, layer, 1000).expect("completed"),
            &frame.to_bytes(),
            "passed",
        );
        assert_eq!(complete(&mut bytes, state, layer), Ok(()));
        assert_bytes(&bytes, &frame.to_bytes(), "in place");
    }
}

#[test]
fn a_datagram_shorter_than_its_packet_is_summed_by_its_length() {
    // The IP packet has 5 bytes behind the datagram.
    let frame = Frame::udp4(100);
    let (mut bytes, state, layer) = partial(&frame, 6);
    bytes.extend([7; 5]);
    let longer = (bytes.len() - 14) as u16;
    bytes[16..18].copy_from_slice(&longer.to_be_bytes());
    assert_eq!(complete(&mut bytes, state, layer), Ok(()));
    assert_bytes(&bytes[34..142], &frame.to_bytes()[34..], "the datagram");
}

#[test]
fn what_cannot_be_completed_is_named_and_left_as_it_is() {
    let refused = |bytes: &[u8], start: u16, offset: u16| {
        let mut copy = bytes.to_vec();
        let error = complete_partial(&mut copy, Layer::Ethernet, start, offset, Simd::detect())
            .expect_err("refused");
        assert_eq!(copy, bytes);
        error
    };
    let tcp = Frame::tcp4(1, 100).to_bytes();
    assert_eq!(refused(&tcp, 34, 6), CompletionError::Offset { protocol: 6, expected: 16, got: 6 });
    assert_eq!(
        refused(&sctp(Frame::udp4(9)).to_bytes(), 34, 16),
        CompletionError::Offset { protocol: 132, expected: 8, got: 16 }
    );
    assert_eq!(refused(&tcp[..120], 34, 16), CompletionError::Truncated { needed: 154, got: 120 });
    assert_eq!(refused(&tcp, 150, 4), CompletionError::Place { needed: 156, got: 154 });
    // Nobody can tell whether that is SCTP.
    assert_eq!(refused(&tcp, 60, 8), CompletionError::Unknown { start: 60 });
    let fragment =
        Frame::udp4(4000).with_ipv4(|ip| ip.dont_fragment = false).fragments(1000, 0)[0].to_bytes();
    assert_eq!(refused(&fragment, 34, 6), CompletionError::Fragment);
    let beyond = dccp(Frame::dccp4(1, 8), 4).to_bytes();
    let end = beyond.len();
    assert_eq!(refused(&beyond, 34, 6), CompletionError::Coverage { needed: end + 4, got: end });
    // The segmenter says the same, and counts it.
    let packet = GsoPacket::uncut(std::slice::from_ref(&beyond))
        .with_checksum(RxChecksum::Partial { start: 34, offset: 6 });
    let mut segmenter = Segmenter::new();
    let error = segmenter
        .segment(&packet, &SegmentOptions::default(), |_| panic!("refused"))
        .expect_err("refused");
    assert_eq!(
        error,
        SegmentError::PartialChecksum(CompletionError::Coverage { needed: end + 4, got: end })
    );
    assert_eq!(
        (error.name(), segmenter.counters().refused(), segmenter.counters().balanced()),
        ("partial_checksum", 1, true)
    );
}

#[test]
fn a_protocol_that_is_not_known_has_the_internet_checksum() {
    // UDP-Lite (136) has its checksum where UDP has it; the field holds the pseudo-header's sum.
    let mut bytes = Frame::udp4(50).with_checksum(Checksum::Partial).to_bytes();
    let right = Frame::udp4(50).to_bytes();
    bytes[23] = 136;
    assert_eq!(complete_partial(&mut bytes, Layer::Ethernet, 34, 6, Simd::detect()), Ok(()));
    assert_eq!(bytes[34..], right[34..]);
    // Where the headers cannot be read, all there is.
    let mut bytes = right.clone();
    (bytes[12], bytes[13], bytes[40], bytes[41]) = (0x88, 0xb5, 0, 0);
    assert_eq!(complete_partial(&mut bytes, Layer::Ethernet, 34, 6, Simd::detect()), Ok(()));
    assert!(Simd::detect().sum(&bytes[34..]) == 0xffff);
}
