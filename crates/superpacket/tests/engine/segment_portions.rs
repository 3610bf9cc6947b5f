//! Packets that are written in portions, since there are fewer buffers than segments: together they
//! are the very segments that come at once.

use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::{
    BackToBack, Cwr, EachBuffer, Gso, GsoKind, GsoPacket, SegmentBuffers, SegmentError,
    SegmentOptions, Segmenter,
};
use superpacket_traffic::frame::{ACK, CWR, FIN, Frame, PSH};

use crate::support::gso_of;

/// A packet, and how it is cut.
struct Whole {
    bytes: Vec<u8>,
    layer: Layer,
    gso: Option<Gso>,
    /// It is fragmented to this MTU instead.
    mtu: Option<usize>,
}

impl Whole {
    fn of(frame: &Frame, kind: impl Into<Option<GsoKind>>, size: usize) -> Self {
        let gso = kind.into().map(|kind| gso_of(kind, size).with_cwr(Cwr::First));
        let layer = if frame.link.is_some() { Layer::Ethernet } else { Layer::Ip };
        Whole { bytes: frame.to_bytes(), layer, gso, mtu: None }
    }

    fn packet(&self) -> GsoPacket<'_, Vec<u8>> {
        GsoPacket::linear(&self.bytes, self.gso)
            .with_layer(self.layer)
            .with_checksum(RxChecksum::None)
    }

    /// Its segments, all at once.
    fn at_once(&self) -> Vec<Vec<u8>> {
        let mut buffers = Own { segments: Vec::new(), most: usize::MAX };
        let mut segmenter = Segmenter::new();
        let plan = match self.mtu {
            Some(mtu) => segmenter.fragment_linear(&self.packet(), mtu, Some(7), &mut buffers),
            None => segmenter.segment_linear(&self.packet(), &options(), &mut buffers),
        };
        assert_eq!(plan.expect("it can be cut").segments as usize, buffers.segments.len());
        buffers.segments
    }

    /// Its segments, as many at a time as the buffers take that `write` is given a portion for.
    fn in_portions(
        &self,
        mut buffers_of: impl FnMut(&mut dyn FnMut(&mut dyn SegmentBuffers)) -> Vec<Vec<u8>>,
    ) -> Vec<Vec<u8>> {
        let (mut segmenter, mut all, mut left) = (Segmenter::new(), Vec::new(), 1);
        while left != 0 {
            let mut written = 0;
            let segments = buffers_of(&mut |buffers| {
                let first = all.len() as u32;
                let portion = match self.mtu {
                    Some(mtu) => {
                        segmenter.fragment_portion(&self.packet(), mtu, Some(7), first, buffers)
                    }
                    None => segmenter.segment_portion(&self.packet(), &options(), first, buffers),
                };
                let portion = portion.expect("at least one fits");
                (written, left) = (portion.plan.segments as usize, portion.left);
                assert!(segmenter.counters().balanced(), "{:?}", segmenter.counters());
            });
            assert_eq!(segments.len(), written);
            all.extend(segments);
        }
        let counters = segmenter.counters();
        assert_eq!(
            (counters.packets, counters.refused(), counters.segments as usize),
            (1, 0, all.len())
        );
        all
    }
}

fn options() -> SegmentOptions {
    SegmentOptions::default().with_fragment_id(7)
}

/// A buffer for each segment, until there is none.
struct Own {
    segments: Vec<Vec<u8>>,
    most: usize,
}

impl SegmentBuffers for Own {
    fn buffer(&mut self, length: usize) -> Option<&mut [u8]> {
        if self.segments.len() == self.most {
            return None;
        }
        self.segments.push(vec![0xee; length]);
        self.segments.last_mut().map(Vec::as_mut_slice)
    }
}

fn wholes() -> Vec<Whole> {
    let flags = |frame: Frame| frame.with_flags(ACK | PSH | FIN | CWR);
    let mut wholes = vec![
        Whole::of(&flags(Frame::tcp4(u32::MAX - 700, 3_333)).with_id(0xfffd), GsoKind::Tcp4, 300),
        Whole::of(&flags(Frame::tcp6(1, 3_000)).with_timestamps(1, 2).at_ip(), GsoKind::Tcp6, 300),
        Whole::of(&flags(Frame::tcp4(1, 3_333)).in_vxlan4(), GsoKind::Tcp4, 300),
        Whole::of(&Frame::tcp6(1, 3_333).in_gre(), GsoKind::Tcp6, 300),
        Whole::of(&Frame::udp4(3_333), GsoKind::Udp, 300),
        Whole::of(&Frame::udp6(3_333).tagged(3), GsoKind::Udp, 300),
        Whole::of(&Frame::dccp4(u64::from(u32::MAX), 3_333), GsoKind::Dccp, 300),
        Whole::of(&Frame::udp4(3_333), GsoKind::UdpFragments, 300),
        Whole::of(&Frame::udp6(3_333), GsoKind::UdpFragments, 304),
        Whole::of(&Frame::udp4(333), None, 1),
    ];
    let mut fragmented = Frame::udp4(3_333);
    fragmented.ipv4_mut().dont_fragment = false;
    for frame in [fragmented, Frame::udp6(3_333)] {
        wholes.push(Whole { mtu: Some(340), ..Whole::of(&frame.at_ip(), None, 1) });
    }
    wholes
}

#[test]
fn portions_are_the_segments_that_come_at_once() {
    for (number, whole) in wholes().iter().enumerate() {
        let expected = whole.at_once();
        let longest = expected.iter().map(Vec::len).max().expect("some");
        assert!(expected.len() > 5 || whole.gso.is_none() && whole.mtu.is_none());
        for most in (1..=expected.len() + 1).take(13) {
            let own = whole.in_portions(|write| {
                let mut buffers = Own { segments: Vec::new(), most };
                write(&mut buffers);
                buffers.segments
            });
            assert!(own == expected, "packet {number}, {most} buffers");
            let each = whole.in_portions(|write| {
                let (mut pool, mut sizes) = (vec![vec![0; 5 + longest]; most], vec![0; most]);
                let mut buffers = EachBuffer::new(&mut pool, 5, &mut sizes);
                write(&mut buffers);
                let used = buffers.used();
                pool.iter()
                    .zip(sizes)
                    .take(used)
                    .map(|(buffer, size)| buffer[5..5 + size].to_vec())
                    .collect()
            });
            assert!(each == expected, "packet {number}, {most} buffers of a pool");
            let back_to_back = whole.in_portions(|write| {
                let mut bytes = vec![0; most * longest + longest / 2];
                let mut buffers = BackToBack::new(&mut bytes);
                write(&mut buffers);
                let used = buffers.used();
                bytes[..used].chunks(longest).map(<[u8]>::to_vec).collect()
            });
            assert!(back_to_back == expected, "packet {number}, room for {most}");
        }
    }
}

#[test]
fn fragments_of_one_packet_have_one_identification_that_the_next_has_not() {
    let whole = Whole::of(&Frame::udp6(3_333).at_ip(), GsoKind::UdpFragments, 304);
    let (mut segmenter, mut seen) = (Segmenter::new(), Vec::new());
    for _ in 0..3 {
        let (mut first, mut left) = (0, 1);
        while left != 0 {
            let mut buffers = Own { segments: Vec::new(), most: 4 };
            let portion = segmenter
                .segment_portion(&whole.packet(), &SegmentOptions::default(), first, &mut buffers)
                .expect("four fit");
            (first, left) = (first + portion.plan.segments, portion.left);
            seen.extend(buffers.segments.iter().map(|fragment| fragment[44..48].to_vec()));
        }
    }
    let mut distinct = seen.clone();
    distinct.dedup();
    assert_eq!((seen.len() % 3, distinct.len()), (0, 3), "each in one row");
}

#[test]
fn where_nothing_fits_or_nothing_is_left_it_is_an_error() {
    let whole = Whole::of(&Frame::tcp4(1, 3_000), GsoKind::Tcp4, 300);
    let mut segmenter = Segmenter::new();
    let mut none = Own { segments: Vec::new(), most: 0 };
    let refused = segmenter.segment_portion(&whole.packet(), &options(), 3, &mut none);
    assert!(
        matches!(refused, Err(SegmentError::OutputTooSmall { needed: 354, got: 0 })),
        "{refused:?}"
    );
    let refused = segmenter.segment_portion(
        &whole.packet(),
        &options(),
        3,
        &mut BackToBack::new(&mut [0; 300]),
    );
    assert!(matches!(refused, Err(SegmentError::OutputTooSmall { got: 300, .. })), "{refused:?}");
    for first in [10, 11, u32::MAX] {
        let refused =
            segmenter.segment_portion(&whole.packet(), &options(), first, &mut Vec::new());
        assert!(
            matches!(refused, Err(SegmentError::TooManySegments { limit: 10, .. })),
            "{refused:?}"
        );
    }
    assert!(segmenter.counters().balanced() && segmenter.counters().refused() == 5);
}
