//! Super-packets whose metadata is wrong or hostile, among single packets, over all policies: what
//! leaves comes apart into the segments that each packet stood for by itself.

mod traffic;

use proptest::prelude::*;
use superpacket::aggregate::{Borrowed, BufferIndex, Delivery, Policy, Storage};
use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket::segment::{
    ChecksumForm, ChecksumOutput, GsoPacket, SegmentOptions, Segmentable, Segmenter,
};
use superpacket::virtio::Framing;
use superpacket_traffic::check;
use superpacket_traffic::frame::PSH;
use superpacket_traffic::random::Random;

use self::traffic::{Hostile, hostile_traffic};
use super::*;
use crate::support::{BatchAggregator, bytes_in, lent};

/// What the packet stands for by itself: its segments, or itself if it cannot be cut.
fn stands_for(packet: &Packet, gso: Option<Gso>) -> Vec<Vec<u8>> {
    let form = if let RxChecksum::Partial { .. } = packet.checksum {
        ChecksumForm::Partial
    } else {
        ChecksumForm::Full
    };
    cut(&packet.bytes, packet.layer, packet.checksum, gso.map(|gso| gso.with_checksum(form)))
        .unwrap_or_else(|| vec![packet.bytes.clone()])
}

/// Cuts bytes as this says; `None` if they cannot be cut.
fn cut(
    bytes: &Vec<u8>,
    layer: Layer,
    checksum: RxChecksum,
    gso: Option<Gso>,
) -> Option<Vec<Vec<u8>>> {
    let Some(gso) = gso else { return Some(vec![bytes.clone()]) };
    segments(&GsoPacket::linear(bytes, gso).with_layer(layer).with_checksum(checksum))
}

/// The segments of a packet, cut where its bytes lie; `None` if it cannot be cut.
fn segments<P: Segmentable>(packet: &P) -> Option<Vec<Vec<u8>>> {
    let mut frames = Vec::new();
    let options = SegmentOptions::default().with_checksum(ChecksumOutput::AsMerged);
    let done =
        Segmenter::new().segment(packet, &options, |segment| frames.push(bytes_in(&segment)));
    done.ok().map(|_| frames)
}

/// Any policy of GRO.
fn policy(random: &mut Random) -> Policy {
    let mut policy = Policy::gro_with_udp();
    if random.below(12) == 0 {
        policy = Policy::gro();
    }
    if random.below(2) == 0 {
        policy = policy.with_partial_checksums();
    }
    if random.below(3) == 0 {
        policy = policy.with_storage(Storage::Linear);
    }
    if random.below(10) == 0 {
        policy = policy.with_delivery(Delivery::AtOnce);
    }
    if random.below(5) == 0 {
        policy = policy.with_trusted_input();
    }
    if random.below(3) == 0 {
        policy = policy.with_hold_time(random.below(50));
    }
    if random.below(3) == 0 {
        policy = policy.with_max_flows(1 + random.below(4) as u32);
    }
    if random.below(3) == 0 {
        policy =
            policy.with_max_bytes(random.pick(&[0, 100, 1000, 5000, 65_535, 500_000, u32::MAX]));
    }
    if random.below(3) == 0 {
        policy = policy.with_max_packets(random.pick(&[0, 1, 2, 3, 5, 16, 64]));
    }
    if random.below(3) == 0 {
        policy = policy.with_max_datagrams(random.pick(&[0, 1, 2, 3, 5, 16, 128, u32::MAX]));
    }
    if random.below(3) == 0 {
        policy = policy.with_max_fragments(random.below(40) as u32);
    }
    if random.below(4) == 0 {
        policy = policy.with_max_held_bytes(random.below(100_000));
    }
    policy
}

/// What came, and what of it has left so far.
struct Check<'a> {
    policy: Policy,
    hostile: &'a [Hostile],
    taken: Vec<bool>,
    /// The packets of each flow, and how many of them have left.
    flows: Vec<(Vec<usize>, usize)>,
    merged: usize,
    merged_super: usize,
}

impl<'a> Check<'a> {
    fn new(policy: Policy, hostile: &'a [Hostile], flows: usize) -> Self {
        let mut check = Check {
            policy,
            hostile,
            taken: vec![false; hostile.len()],
            flows: vec![(Vec::new(), 0); flows],
            merged: 0,
            merged_super: 0,
        };
        for (index, hostile) in hostile.iter().enumerate() {
            check.flows[hostile.flow].0.push(index);
        }
        check
    }

    /// Takes a packet that leaves; `in_place` are its segments, cut where its bytes lie.
    fn take(&mut self, output: &Output, in_place: Option<Vec<Vec<u8>>>, push: bool) {
        let last = output.metadata.time as usize;
        let flow = self.hostile[last].flow;
        let (packets, left) = &mut self.flows[flow];
        let count = output.metadata.packets as usize;
        let these = &packets[*left..*left + count];
        assert_eq!(these[count - 1], last, "in order");
        *left += count;
        for &index in these {
            assert!(!std::mem::replace(&mut self.taken[index], true));
        }
        if count == 1 {
            let came = &self.hostile[last].arrival;
            assert_eq!(output.bytes, came.packet.bytes, "untouched");
            let form = if let RxChecksum::Partial { .. } = came.packet.checksum {
                ChecksumForm::Partial
            } else {
                ChecksumForm::Full
            };
            assert_eq!(output.metadata.gso, came.gso.map(|gso| gso.with_checksum(form)));
            if !(self.policy.trusted_input && came.packet.checksum == RxChecksum::None) {
                assert_eq!(output.metadata.checksum, came.packet.checksum);
            }
            return;
        }
        self.merged += 1;
        self.merged_super +=
            these.iter().filter(|&&index| self.hostile[index].arrival.frames.len() > 1).count();
        let mut expected: Vec<_> =
            these.iter().flat_map(|&index| self.hostile[index].arrival.frames.clone()).collect();
        let gso = output.metadata.gso.expect("merged");
        let mut found =
            cut(&output.bytes, output.metadata.layer, output.metadata.checksum, Some(gso))
                .expect("what merged can be cut");
        let mut in_place = in_place.expect("it can be cut where it lies");
        if push {
            for frames in [&mut expected, &mut found, &mut in_place] {
                frames.iter_mut().for_each(|frame| without_push(frame, output));
            }
        }
        let numbers: Vec<_> = these
            .iter()
            .map(|&index| {
                (&self.hostile[index].arrival.gso, self.hostile[index].arrival.packet.checksum)
            })
            .collect();
        assert_eq!(found.len(), expected.len(), "{numbers:?}");
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found, expected, "segment {index}: {numbers:?}: {:?}", output.metadata);
        }
        assert_eq!(in_place, found);
        let partial = matches!(output.metadata.checksum, RxChecksum::Partial { .. });
        assert_eq!(partial, self.policy.checksum == ChecksumForm::Partial);
        let expect = check::Expect {
            starts_at_ip: output.metadata.layer == Layer::Ip,
            partial,
            big: true,
            ..check::Expect::default()
        };
        let checked = check::frame(&output.bytes, &expect);
        assert!(checked.is_ok(), "{checked:?}: {:?}", output.metadata);
        let layout = output.metadata.layout.expect("merged packets are understood");
        assert!(
            output.bytes.len() - usize::from(layout.outermost()) <= self.policy.max_bytes as usize
        );
        assert!(found.len() <= self.policy.max_packets.max(1) as usize);
        if gso.kind == GsoKind::Udp {
            assert!(found.len() <= self.policy.max_datagrams.max(1) as usize);
        }
    }
}

/// Takes PSH off a segment, and the checksum, which is that of the flags.
fn without_push(frame: &mut [u8], output: &Output) {
    let layout = output.metadata.layout.expect("merged");
    if layout.protocol.number() != 6 {
        return;
    }
    frame[usize::from(layout.transport) + 13] &= !(PSH as u8);
    frame[usize::from(layout.transport) + 16] = 0;
    frame[usize::from(layout.transport) + 17] = 0;
}

/// Checks what leaves an aggregator that holds flows past polls and whose sink may fail. Returns
/// how many packets merged, and of how many super-packets.
fn owned_holds(seed: u64) -> (usize, usize) {
    let mut random = Random::new(seed ^ 0x5555);
    let mut policy = policy(&mut random);
    let push = random.below(3) == 0;
    if push {
        policy = policy.with_merge_past_push();
    }
    let (hostile, flows) = hostile_traffic(seed, policy.trusted_input);
    let mut check = Check::new(policy, &hostile, flows);
    let mut aggregator: Aggregator<Vec<u8>> = Aggregator::new(policy, HashKey::new(7));
    let fails = random.below(3) == 0;
    let mut sinks = Random::new(seed ^ 0x77);
    let mut sink = |packet: SuperPacket<'_, Vec<u8>>| {
        if fails && sinks.below(4) == 0 {
            return Err(());
        }
        check.take(&Output::of(&packet), segments(&packet), push);
        Ok(())
    };
    let size = 1 + random.below(40) as usize;
    let mut now = 0;
    for batch in hostile.chunks(size) {
        let mut packets: Vec<_> = batch.iter().map(|hostile| hostile.arrival.receive()).collect();
        while aggregator.receive_batch(&mut packets, now, &mut sink).is_err() {}
        assert!(packets.is_empty());
        now += random.below(30);
        match random.below(6) {
            0..3 => while aggregator.poll_end(now, &mut sink).is_err() {},
            3 => while aggregator.flush_flow(&batch[0].arrival.receive(), &mut sink).is_err() {},
            4 => while aggregator.flush_older_than(now, 10, &mut sink).is_err() {},
            _ => {}
        }
        assert!(aggregator.counters().balanced());
    }
    while aggregator.flush_all(&mut sink).is_err() {}
    let counters = *aggregator.counters();
    assert_eq!((counters.held, counters.held_bytes), (0, 0));
    assert!(check.taken.iter().all(|taken| *taken), "nothing is lost");
    (check.merged, check.merged_super)
}

/// Checks the same with borrowed packets, also behind the header of a device.
fn borrowed_holds(seed: u64) {
    let mut random = Random::new(seed ^ 0x5555);
    let mut policy = policy(&mut random);
    let push = random.below(3) == 0;
    if push {
        policy = policy.with_merge_past_push();
    }
    let (hostile, flows) = hostile_traffic(seed, policy.trusted_input);
    let framed = random.below(2) == 0;
    let key = HashKey::new(7);
    let mut aggregator = if framed {
        BatchAggregator::framed(Framing::TAP, policy, key)
    } else {
        BatchAggregator::new(Layer::Ethernet, policy, key)
    };
    let policy = *aggregator.policy();
    let mut check = Check::new(policy, &hostile, flows);
    let fails = random.below(3) == 0;
    let mut sinks = Random::new(seed ^ 0x77);
    for batch in hostile.chunks(1 + random.below(80) as usize) {
        let packets: Vec<RxPacket<Vec<u8>>> =
            batch.iter().map(|hostile| hostile.arrival.receive()).collect();
        let packets: Vec<_> = packets.iter().map(lent).collect();
        let mut resume = false;
        loop {
            let sink = |packet: SuperPacket<'_, BufferIndex, Borrowed<'_, RxPacket<&[u8]>>>| {
                if fails && sinks.below(4) == 0 {
                    return Err(());
                }
                let mut bytes = Vec::new();
                packet.copy_to(&mut bytes);
                if framed && packet.metadata.packets > 1 && packet.metadata.layer == Layer::Ethernet
                {
                    let header = Framing::TAP.header(&packet);
                    assert!(header.is_ok(), "{header:?} {:?}", packet.metadata);
                    let mut framed = header.expect("checked").to_vec();
                    framed.extend(&bytes);
                    let (offload, _) =
                        Framing::TAP.parse(&framed).expect("it reads what it writes");
                    assert_eq!(offload.checksum, packet.metadata.checksum);
                    let ours = packet.metadata.gso.expect("merged");
                    assert_eq!(
                        offload.gso.map(|gso| (gso.kind, gso.size)),
                        (bytes.len()
                            > usize::from(packet.metadata.layout.expect("known").payload)
                                + ours.size.get())
                        .then_some((ours.kind, ours.size))
                    );
                }
                let output =
                    Output { bytes, metadata: packet.metadata, pieces: 0, contiguous: false };
                check.take(&output, segments(&packet), push);
                Ok(())
            };
            let result = if resume {
                aggregator.resume(&packets, sink)
            } else {
                aggregator.poll(&packets, sink)
            };
            if result.is_ok() {
                break;
            }
            resume = true;
        }
    }
    assert!(check.taken.iter().all(|taken| *taken), "nothing is lost");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 64 }, ..ProptestConfig::default() })]

    #[test]
    fn what_merges_comes_apart_again_whatever_is_said(seed: u64) {
        owned_holds(seed);
        borrowed_holds(seed);
    }
}

/// So that the test above says something.
#[test]
fn hostile_super_packets_merge_too() {
    let (merged, super_packets) =
        (0..20).map(owned_holds).fold((0, 0), |sum, found| (sum.0 + found.0, sum.1 + found.1));
    assert!(merged > 80 && super_packets > 80, "{merged} packets of {super_packets} super-packets");
}
