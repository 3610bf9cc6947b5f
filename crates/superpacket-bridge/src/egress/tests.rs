//! Tests of what leaves by a port, depending on its capabilities.

mod refused;

use std::io;
use std::sync::Mutex;

use superpacket::segment::GsoKind;

use super::recorder::{Recorder, SentFrame, aggregate, gro, packets, pass};
use super::*;
use crate::runtime::tests::shared;
use superpacket::aggregate::{Policy, Storage};
use superpacket::packet::RxPacket;
use superpacket::segment::IpId;
use superpacket_port::TxFrame;
use superpacket_port::features::FeatureSet;
use superpacket_traffic::check::{self, Expect};
use superpacket_traffic::frame::{ACK, CWR, Checksum, Frame};
use superpacket_traffic::workload;

/// A port, and the frames it was given.
struct Bench {
    egress: Egress,
    sent: Arc<Mutex<Vec<SentFrame>>>,
    outgoing: Outgoing,
    segmenter: Segmenter,
    /// The last result of [`Egress::add`].
    fits: bool,
}

impl Bench {
    fn new(change: impl FnOnce(&mut Runtime)) -> Bench {
        Self::refusing(change, |_| None)
    }

    fn refusing(
        change: impl FnOnce(&mut Runtime),
        rule: impl FnMut(&TxFrame) -> Option<StopReason> + Send + 'static,
    ) -> Bench {
        let (recorder, sent) = Recorder::new(rule);
        let mut egress = Egress::new(Arc::new(shared(|_| ())), Box::new(recorder));
        change(&mut egress.runtime);
        Bench { egress, sent, outgoing: Outgoing::new(), segmenter: Segmenter::new(), fits: true }
    }

    /// Adds a packet as if it came from an ingress port.
    fn add(&mut self, mut packet: SuperPacket<'_, Buffer>) {
        self.outgoing.stage(&packet);
        self.fits = self.egress.add(&mut self.outgoing, &packet, &mut self.segmenter, 0);
        self.outgoing.keep(&mut packet);
    }

    /// Aggregates frames, sends the result, and returns what the port was given.
    fn forward(&mut self, frames: &[Vec<u8>]) -> Vec<SentFrame> {
        aggregate(gro(), packets(frames), &mut |packet| self.add(packet));
        self.flush()
    }

    /// Does the same as [`forward`](Self::forward), with LRO.
    fn deliver(&mut self, frames: &[Vec<u8>], storage: Storage) -> Vec<SentFrame> {
        let policy = Policy::lro_with_acks().with_storage(storage);
        aggregate(policy, packets(frames), &mut |packet| self.add(packet));
        self.flush()
    }

    /// Sends a packet without aggregation.
    fn pass(&mut self, packet: RxPacket<Buffer>) -> Vec<SentFrame> {
        pass(packet, &mut |packet| self.add(packet));
        self.flush()
    }

    fn flush(&mut self) -> Vec<SentFrame> {
        self.egress
            .flush(&mut self.outgoing, &mut self.segmenter, &mut Copies::default())
            .expect("the port is not gone");
        std::mem::take(&mut self.sent.lock().expect("no panic"))
    }

    fn drops(&self, cause: &str) -> u64 {
        self.egress.shared.counts.report("").drops[cause]
    }
}

fn bytes(sent: &[SentFrame]) -> Vec<Vec<u8>> {
    sent.iter().map(|sent| sent.bytes.clone()).collect()
}

/// Removes features from a port.
fn without(features: &[Feature]) -> impl FnOnce(&mut Runtime) {
    let features = features.to_vec();
    move |runtime| {
        features.into_iter().for_each(|feature| runtime.active = runtime.active.without(feature))
    }
}

/// Returns a TCP super-packet as a sender's kernel makes it.
fn from_kernel(payload: usize, size: usize) -> RxPacket<Buffer> {
    let frame = Frame::tcp4(1, payload)
        .with(|frame| frame.tcp_mut().checksum = Checksum::Partial)
        .to_bytes();
    let mut packet = RxPacket::new(Buffer::from(frame))
        .with_checksum(RxChecksum::Partial { start: 34, offset: 16 });
    packet.gso = Some(Gso::new(GsoKind::Tcp4, SegmentSize::new(size).expect("not zero")));
    packet
}

fn tcp_payload(sent: &[SentFrame]) -> Vec<u8> {
    sent.iter().flat_map(|sent| sent.bytes[54..].to_vec()).collect()
}

#[test]
fn a_port_with_tso_gets_super_packets_and_one_without_the_original_frames() {
    let frames = workload::w1(40);
    let mut able = Bench::new(|_| ());
    let whole = able.forward(&frames);
    assert_eq!(whole.len(), 1);
    assert!(
        whole[0].partial()
            && whole[0].gso.is_some_and(|gso| gso.size.get() == workload::TCP_PAYLOAD)
    );
    assert_eq!(able.egress.shared.counts.tx_super_segments.value(), 40);
    for lacking in [
        &[Feature::TcpSegmentationOffload][..],
        &[Feature::TcpSegmentationOffload, Feature::ScatterGather],
        &[Feature::TcpSegmentationOffload, Feature::TxChecksumming],
    ] {
        let mut unable = Bench::new(without(lacking));
        assert!(bytes(&unable.forward(&frames)) == frames, "{lacking:?}");
        assert_eq!(
            (
                unable.egress.shared.counts.segmented.value(),
                unable.egress.shared.counts.segments.value()
            ),
            (1, 40)
        );
    }
}

/// Returns frames of one flow with different payload sizes and with identifications that GRO would
/// not merge.
fn unequal_frames() -> Vec<Vec<u8>> {
    let mut sequence = 1;
    [1_448, 1_448, 700, 1_448, 1_448, 9]
        .map(|payload| {
            let frame = Frame::tcp4(sequence, payload).with_id(7 * sequence as u16).to_bytes();
            sequence += payload as u32;
            frame
        })
        .into()
}

/// Completes the checksum of a TCP frame that contains the sum of the pseudo-header.
fn fill_in(frame: &mut [u8]) {
    let sum = superpacket_traffic::checksum::sum(&frame[34..]);
    frame[50..52].copy_from_slice(&(!sum).to_be_bytes());
}

#[test]
fn packets_merged_by_lro_are_sent_whole() {
    let frames = unequal_frames();
    let stream: Vec<u8> = frames.iter().flat_map(|frame| frame[54..].to_vec()).collect();
    for storage in [Storage::Fragments, Storage::Linear] {
        let mut able = Bench::new(|_| ());
        let whole = able.deliver(&frames, storage);
        assert_eq!((whole.len(), whole[0].partial()), (1, true));
        assert_eq!(
            whole[0].gso.map(|gso| (gso.kind, gso.size.get())),
            Some((GsoKind::Tcp4, 1_448)),
            "by the largest that came"
        );
        assert!(tcp_payload(&whole) == stream);
        assert_eq!(
            able.egress.shared.counts.tx_super_segments.value(),
            stream.len().div_ceil(1_448) as u64
        );
        // The field contains only the sum of the pseudo-header; completing it gives the right
        // checksum.
        let mut frame = whole[0].bytes.clone();
        fill_in(&mut frame);
        check::frame(&frame, &Expect::default()).expect("a right frame");
        let cut = Bench::new(without(&[Feature::TcpSegmentationOffload])).deliver(&frames, storage);
        assert_eq!(cut.len(), stream.len().div_ceil(1_448), "a port without TSO gets frames");
        assert!(tcp_payload(&cut) == stream);
        let one_piece = Bench::new(without(&[Feature::ScatterGather])).deliver(&frames, storage);
        assert_eq!((one_piece.len(), one_piece[0].slices), (1, 1));
        assert!(one_piece[0].bytes == whole[0].bytes);
        let in_parts = Bench::new(|runtime| runtime.capabilities.gso.max_segments = 2)
            .deliver(&frames, storage);
        let sizes: Vec<_> = in_parts
            .iter()
            .map(|part| (part.bytes.len() - 54, part.segment(), part.partial()))
            .collect();
        assert_eq!(
            sizes,
            [(2_896, Some(1_448), true), (2_896, Some(1_448), true), (709, None, true)],
            "no smaller than need be"
        );
        assert!(tcp_payload(&in_parts) == stream);
        for mut part in in_parts {
            fill_in(&mut part.bytes);
            check::frame(&part.bytes, &Expect::default()).expect("a right frame");
        }
    }
    let refuse = |frame: &TxFrame| {
        frame.gso.is_some().then(|| StopReason::Offload(io::Error::from_raw_os_error(22)))
    };
    let again = Bench::refusing(|_| (), refuse).deliver(&frames, Storage::Fragments);
    assert!(tcp_payload(&again) == stream);
    for sent in &again {
        check::frame(&sent.bytes, &Expect::default()).expect("a right frame");
    }
    let smaller = Bench::new(|runtime| runtime.mtu = 1_000).deliver(&frames, Storage::Fragments);
    assert_eq!(smaller[0].segment(), Some(960), "never more than the port's MTU takes");
    let jumbo = Bench::new(|runtime| runtime.mtu = 9_000).deliver(&frames, Storage::Fragments);
    assert_eq!(jumbo[0].segment(), Some(1_448), "also where it would fit");
    let frame = |runtime: &mut Runtime| {
        (runtime.mtu, runtime.active) =
            (9_000, runtime.active.without(Feature::TcpSegmentationOffload))
    };
    let frame = Bench::new(frame).deliver(&frames, Storage::Fragments);
    assert_eq!(
        (frame.len(), frame[0].gso, frame[0].partial()),
        (1, None, false),
        "a port without TSO takes what fits"
    );
    check::frame(&frame[0].bytes, &Expect::default()).expect("a right frame");
}

#[test]
fn acknowledgements_merged_by_lro_are_ordinary_frames() {
    let acks: Vec<_> = (1..=8)
        .map(|number| {
            Frame::tcp4(1, 0)
                .with(|frame| frame.tcp_mut().acknowledgement = number * 2_896)
                .to_bytes()
        })
        .collect();
    let sent = Bench::new(|_| ()).deliver(&acks, Storage::Fragments);
    assert_eq!((sent.len(), sent[0].partial(), sent[0].gso), (1, false, None));
    assert_eq!(sent[0].bytes, acks[7]);
}

#[test]
fn a_port_without_scatter_gather_gets_one_piece() {
    let mut bench = Bench::new(without(&[Feature::ScatterGather]));
    assert!(bench.forward(&workload::w1(40)).iter().all(|sent| sent.slices == 1));
}

#[test]
fn a_senders_super_packet_passes_or_is_cut_by_its_own_size() {
    let whole = Bench::new(|_| ()).pass(from_kernel(14_480, 1_448));
    assert_eq!((whole.len(), whole[0].partial()), (1, true));
    let cut =
        Bench::new(without(&[Feature::TcpSegmentationOffload])).pass(from_kernel(14_480, 1_448));
    assert_eq!(cut.len(), 10);
    assert!(cut.iter().all(|sent| sent.partial()), "the port fills them in");
    assert_eq!(tcp_payload(&cut), tcp_payload(&whole));
    let full = Bench::new(without(&[Feature::TcpSegmentationOffload, Feature::TxChecksumming]))
        .pass(from_kernel(14_480, 1_448));
    for sent in &full {
        check::frame(&sent.bytes, &Expect::default()).expect("a right frame");
    }
    assert_eq!(tcp_payload(&full), tcp_payload(&whole));
}

#[test]
fn limits_of_the_port_and_of_the_user_cause_segmentation() {
    let limits: [fn(&mut Runtime); 5] = [
        |runtime| runtime.limits.gso_max_size = 14_000,
        |runtime| runtime.capabilities.gso.max_ipv4_length = 14_519,
        |runtime| runtime.capabilities.gso.max_payload = 14_479,
        |runtime| runtime.capabilities.gso.max_segments = 9,
        |runtime| runtime.capabilities.features = FeatureSet::NONE,
    ];
    let lengths: Vec<_> = limits
        .into_iter()
        .map(|limit| Bench::new(limit).pass(from_kernel(14_480, 1_448)).len())
        .collect();
    assert_eq!(lengths, [2, 2, 2, 2, 1], "what is in force counts, not what could be");
    let exact: fn(&mut Runtime) = |runtime| {
        runtime.limits.gso_max_size = 14_520;
        runtime.capabilities.gso.max_payload = 14_480;
        runtime.capabilities.gso.max_segments = 10;
    };
    assert_eq!(Bench::new(exact).pass(from_kernel(14_480, 1_448)).len(), 1);
}

#[test]
fn packets_too_large_for_the_port_become_its_largest_super_packets() {
    let frames = workload::w1(40);
    let size = workload::TCP_PAYLOAD;
    for (limit, parts) in [(8, [8; 5].as_slice()), (13, &[13, 13, 13, 1]), (1, &[1; 40])] {
        let mut bench = Bench::new(|runtime| runtime.capabilities.gso.max_segments = limit);
        let sent = bench.forward(&frames);
        let mut came = frames.iter();
        for (sent, segments) in sent.iter().zip(parts) {
            assert_eq!(
                (sent.segment(), sent.partial()),
                ((*segments > 1).then_some(size), limit > 1)
            );
            // Segmented as the port would do it, the frames equal the originals, identifications
            // included.
            let mut again =
                Bench::new(without(&[Feature::TcpSegmentationOffload, Feature::TxChecksumming]));
            let checksum = if sent.partial() {
                RxChecksum::Partial { start: 34, offset: 16 }
            } else {
                RxChecksum::None
            };
            let mut packet =
                RxPacket::new(Buffer::from(sent.bytes.clone())).with_checksum(checksum);
            packet.gso = sent.gso;
            for frame in again.pass(packet) {
                assert!(Some(&frame.bytes) == came.next());
            }
        }
        assert_eq!((sent.len(), came.len()), (parts.len(), 0), "{limit}");
        assert_eq!(bench.egress.shared.counts.segments.value(), parts.len() as u64);
    }
}

#[test]
fn fixed_identifications_are_segmented_in_software() {
    let frames: Vec<_> = (0..4u32)
        .map(|number| Frame::tcp4(1 + number * 1_000, 1_000).with_id(0).to_bytes())
        .collect();
    let mut bench = Bench::new(|_| ());
    assert!(bytes(&bench.forward(&frames)) == frames);
    assert_eq!(bench.egress.shared.counts.segmented.value(), 1, "they had been merged");
    assert_eq!(
        bench.egress.shared.counts.segmented_for_ids.value(),
        1,
        "the port takes others whole"
    );
    let mut able = Bench::new(|runtime| {
        (runtime.capabilities.gso.fixed_ids, runtime.capabilities.gso.cwr_on_all) = (true, true)
    });
    assert_eq!(able.forward(&frames).len(), 1);
    let mut unable = Bench::new(without(&[Feature::TcpSegmentationOffload]));
    assert!(bytes(&unable.forward(&frames)) == frames);
    assert_eq!(unable.egress.shared.counts.segmented_for_ids.value(), 0, "there all are cut");
}

#[test]
fn segments_that_all_have_cwr_are_segmented_in_software_and_counted() {
    let frames: Vec<_> = (0..4u32)
        .map(|number| Frame::tcp4(1 + number * 1_000, 1_000).with_flags(ACK | CWR).to_bytes())
        .collect();
    let mut bench = Bench::new(|_| ());
    assert!(bytes(&bench.forward(&frames)) == frames);
    let counts = &bench.egress.shared.counts;
    assert_eq!(
        (
            counts.segmented.value(),
            counts.segmented_for_cwr.value(),
            counts.segmented_for_ids.value()
        ),
        (1, 1, 0)
    );
    let mut able = Bench::new(|runtime| {
        (runtime.capabilities.gso.fixed_ids, runtime.capabilities.gso.cwr_on_all) = (true, true)
    });
    assert_eq!(able.forward(&frames).len(), 1);
    assert_eq!(able.egress.shared.counts.segmented_for_cwr.value(), 0);
}

#[test]
fn identifications_may_change_with_df_if_mangleid_is_on() {
    let flow = |dont_fragment: bool, payload: u32, number: u32| {
        let frame = |number: u32| Frame::tcp4(1 + number * payload, payload as usize).with_id(7);
        (0..number)
            .map(|number| {
                frame(number)
                    .with(|frame| frame.ipv4_mut().dont_fragment = dont_fragment)
                    .to_bytes()
            })
            .collect::<Vec<_>>()
    };
    let mut bench = Bench::new(|runtime| {
        runtime.active = runtime.active.with(Feature::TxTcpMangleidSegmentation)
    });
    let whole = bench.forward(&flow(true, 1_000, 4));
    assert_eq!((whole.len(), whole[0].partial(), whole[0].segment()), (1, true, Some(1_000)));
    assert_eq!(bench.egress.shared.counts.segmented.value(), 0);
    // A port that supports fixed identifications is told to keep them.
    let mut able = Bench::new(|runtime| {
        runtime.active = runtime.active.with(Feature::TxTcpMangleidSegmentation);
        (runtime.capabilities.gso.fixed_ids, runtime.capabilities.gso.max_segments) = (true, 3);
    });
    assert!(
        able.forward(&flow(true, 1_000, 6))
            .iter()
            .all(|part| part.gso.is_some_and(|gso| gso.id == IpId::Fixed))
    );
    // These may be fragmented, so their identifications matter.
    let frames = flow(false, 1_000, 4);
    assert!(bytes(&bench.forward(&frames)) == frames);
    assert_eq!(bench.egress.shared.counts.segmented_for_ids.value(), 1);
    // The same in super-packets of the port's maximum size.
    bench.egress.runtime.capabilities.gso.max_segments = 3;
    let parts = bench.forward(&flow(true, 1_000, 6));
    assert_eq!(
        parts.iter().map(|part| part.gso.map(|gso| (gso.id, gso.size.get()))).collect::<Vec<_>>(),
        [Some((IpId::Increment, 1_000)); 2]
    );
    // Packets that exceed the port's MTU are segmented as before.
    bench.egress.runtime.mtu = 600;
    assert!(
        bench
            .forward(&flow(true, 1_000, 4))
            .iter()
            .all(|sent| sent.gso.is_none() && sent.bytes[18..20] == [0, 7])
    );
}

#[test]
fn partial_checksums_are_filled_in_only_where_the_port_cannot() {
    let frame =
        Frame::tcp4(1, 500).with(|frame| frame.tcp_mut().checksum = Checksum::Partial).to_bytes();
    let packet = || {
        RxPacket::new(Buffer::from(frame.clone()))
            .with_checksum(RxChecksum::Partial { start: 34, offset: 16 })
    };
    let left = Bench::new(|_| ()).pass(packet());
    assert!(left[0].partial());
    assert_eq!(left[0].bytes, frame);
    let mut unable =
        Bench::new(without(&[Feature::TxChecksumming, Feature::TcpSegmentationOffload]));
    let filled = unable.pass(packet());
    assert!(!filled[0].partial());
    check::frame(&filled[0].bytes, &Expect::default()).expect("a right frame");
    assert_eq!(unable.egress.shared.counts.checksummed.value(), 1);
}

#[test]
fn a_smaller_mtu_makes_smaller_segments_of_tcp() {
    for packet in
        [from_kernel(28_960, 8_948), RxPacket::new(Buffer::from(Frame::tcp4(1, 8_000).to_bytes()))]
    {
        let expected = packet.length() - 54;
        let mut bench = Bench::new(|runtime| runtime.mtu = 1_280);
        let sent = bench.pass(packet);
        assert!(sent.iter().all(|sent| sent.bytes.len() <= 14 + 1_280));
        assert_eq!(tcp_payload(&sent).len(), expected);
        assert_eq!(sent.len(), expected.div_ceil(1_240));
    }
}

#[test]
fn packets_that_cannot_be_segmented_are_dropped_answered_or_fragmented() {
    let datagram = |dont_fragment: bool| {
        let frame = Frame::udp4(2_000)
            .with(|frame| frame.ipv4_mut().dont_fragment = dont_fragment)
            .to_bytes();
        RxPacket::new(Buffer::from(frame))
    };
    let mut drop = Bench::new(|_| ());
    assert!(drop.pass(datagram(true)).is_empty() && drop.fits);
    assert_eq!(drop.drops("too_big"), 1);
    let mut icmp = Bench::new(|runtime| runtime.too_big = TooBig::Icmp);
    assert!(icmp.pass(datagram(true)).is_empty() && !icmp.fits);
    let mut fragment = Bench::new(|runtime| runtime.too_big = TooBig::Fragment);
    assert_eq!(fragment.pass(datagram(false)).len(), 2);
    assert!(fragment.pass(datagram(true)).is_empty());
    assert_eq!(fragment.drops("too_big"), 1);
}

#[test]
fn the_crc_of_sctp_is_filled_in_for_every_port() {
    let mut frame = Frame::udp4(40).to_bytes();
    (frame[23], frame[24], frame[25]) = (132, 0, 0);
    let packet = RxPacket::new(Buffer::from(frame.clone()))
        .with_checksum(RxChecksum::Partial { start: 34, offset: 8 });
    let mut bench = Bench::new(|_| ());
    let sent = bench.pass(packet);
    assert!(!sent[0].partial());
    frame[42..46].fill(0);
    let crc = superpacket_traffic::checksum::crc32c(&frame[34..]);
    assert_eq!(sent[0].bytes[42..46], crc.to_le_bytes());
    assert_eq!(bench.egress.shared.counts.checksummed.value(), 1);
}

#[test]
fn a_checksum_at_byte_8_is_never_offloaded() {
    let partial = |frame: Vec<u8>| {
        RxPacket::new(Buffer::from(frame))
            .with_checksum(RxChecksum::Partial { start: 34, offset: 8 })
    };
    // SCTP that is too long is fragmented, with its CRC.
    let mut frame =
        Frame::udp4(2_000).with(|frame| frame.ipv4_mut().dont_fragment = false).to_bytes();
    (frame[23], frame[24], frame[25]) = (132, 0, 0);
    let sum = superpacket_traffic::checksum::sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&(!sum).to_be_bytes());
    let mut bench = Bench::new(|runtime| runtime.too_big = TooBig::Fragment);
    let sent = bench.pass(partial(frame.clone()));
    assert_eq!(sent.len(), 2);
    frame[42..46].fill(0);
    let crc = superpacket_traffic::checksum::crc32c(&frame[34..]);
    assert_eq!(sent[0].bytes[42..46], crc.to_le_bytes());
    // Headers that cannot be parsed.
    let mut unread = Frame::udp4(40).to_bytes();
    (unread[12], unread[13]) = (0x88, 0xb5);
    let mut bench = Bench::new(|_| ());
    assert!(bench.pass(partial(unread)).is_empty());
    assert_eq!(bench.drops("cannot_segment"), 1);
}

#[test]
fn the_number_of_segments_is_limited() {
    let mut bench = Bench::new(without(&[Feature::TcpSegmentationOffload]));
    assert_eq!(bench.pass(from_kernel(8_192 * 7, 7)).len(), 8_192);
    assert!(bench.pass(from_kernel(8_192 * 7 + 1, 7)).is_empty());
    assert_eq!(bench.drops("cannot_segment"), 1);
}

/// Returns four VXLAN datagrams as a sender hands them to the kernel by `UDP_SEGMENT`, each with a
/// VXLAN header and a TCP frame.
fn datagrams_of_a_tunnel() -> (RxPacket<Buffer>, usize) {
    let mut datagram = vec![0x08, 0, 0, 0, 0, 0, 1, 0];
    datagram.extend(Frame::tcp4(1, 1_400).to_bytes());
    let frame = Frame::udp4(0).with(|frame| {
        (frame.udp_mut().destination_port, frame.payload) = (4_789, datagram.repeat(4));
        frame.udp_mut().checksum = Checksum::Partial;
    });
    let mut packet = RxPacket::new(Buffer::from(frame.to_bytes()))
        .with_checksum(RxChecksum::Partial { start: 34, offset: 6 });
    packet.gso = SegmentSize::new(datagram.len()).map(|size| Gso::new(GsoKind::Udp, size));
    (packet, datagram.len())
}

#[test]
fn datagrams_of_a_tunnel_are_measured_at_the_header_that_they_are_cut_at() {
    // Exactly the MTU. If the inner headers were counted too, no segment would fit.
    let exact = |runtime: &mut Runtime| runtime.mtu = 20 + 8 + 1_462;
    // Without the aggregator, so the headers are not parsed yet, and with it.
    let send = |bench: &mut Bench, packet, aggregated: bool| {
        if !aggregated {
            return bench.pass(packet);
        }
        aggregate(gro(), [packet], &mut |packet| bench.add(packet));
        bench.flush()
    };
    for aggregated in [false, true] {
        let (packet, size) = datagrams_of_a_tunnel();
        assert_eq!(size, 1_462);
        let whole = send(&mut Bench::new(exact), packet, aggregated);
        assert_eq!(
            (whole.len(), whole.first().and_then(|sent| sent.gso).map(|gso| gso.size.get())),
            (1, Some(size))
        );
        let (packet, _) = datagrams_of_a_tunnel();
        let mut unable = Bench::new(|runtime| {
            exact(runtime);
            without(&[Feature::TxUdpSegmentation, Feature::TxChecksumming])(runtime);
        });
        let cut = send(&mut unable, packet, aggregated);
        assert_eq!(
            cut.iter().map(|sent| sent.bytes.len()).collect::<Vec<_>>(),
            [14 + 20 + 8 + size; 4]
        );
        let (packet, _) = datagrams_of_a_tunnel();
        let mut small = Bench::new(|runtime| runtime.mtu = 20 + 8 + 1_461);
        assert!(send(&mut small, packet, aggregated).is_empty(), "one byte less is too little");
    }
}

#[test]
fn a_port_with_tunnel_segmentation_gets_double_tunnels_segmented() {
    let tunnels = |runtime: &mut Runtime| runtime.capabilities.gso.udp_tunnels = true;
    let frames = |frame: Frame| frame.run(20).iter().map(Frame::to_bytes).collect::<Vec<_>>();
    let one = Frame::tcp4(1, 1_000).in_vxlan4();
    let whole = Bench::new(tunnels).forward(&frames(one.clone()));
    assert_eq!((whole.len(), whole[0].gso.is_some()), (1, true));
    for two in [one.clone().in_geneve(), one.in_geneve().with_gro_hint()] {
        // A checksum start that the metadata cannot express for any port.
        let mut bench = Bench::new(tunnels);
        let sent = bench.forward(&frames(two.clone()));
        assert!(bytes(&sent) == frames(two));
        assert!(sent.iter().all(|sent| sent.gso.is_none()));
        assert_eq!(
            (
                bench.egress.shared.counts.segmented.value(),
                bench.egress.shared.counts.segments.value()
            ),
            (1, 20),
            "merged, then cut"
        );
    }
}
