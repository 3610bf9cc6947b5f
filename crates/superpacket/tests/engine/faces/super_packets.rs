//! Super-packets that are received merge further in the same way however they are handed over.

use superpacket::aggregate::{MAX_SLICES, Policy};
use superpacket::segment::{BackToBack, SegmentPlan, Segmenter};
use superpacket::virtio::Framing;
use superpacket::{Layer, RxPacket};
use superpacket_traffic::frame::Frame;

use super::traffic::{KEY, OwnedSink, Received, gather_with, policies, poll, poll_with};
use crate::super_packets::{Arrival, Known};
use crate::support::{Aggregator, BatchAggregator, Seen};

/// Two flows that take turns, each in super-packets and single packets: their arrivals.
fn arrivals() -> Vec<Arrival> {
    let flows = [Frame::tcp4(1, 100).run(30), Frame::tcp6(1, 90).run(30)];
    let parts = |at: usize| [(at, at + 4), (at + 4, at + 5), (at + 5, at + 10)];
    let turns = (0..30).step_by(10).flat_map(|at| flows.iter().map(move |frames| (at, frames)));
    turns
        .flat_map(|(at, frames)| {
            parts(at).map(|(from, to)| Arrival::of(&frames[from..to], Known::Partial))
        })
        .collect()
}

fn borrow(arrivals: &[Arrival]) -> Vec<Received<'_>> {
    let mut packets = Vec::new();
    for Arrival { packet, gso, .. } in arrivals {
        let mut borrowed = RxPacket::new(&packet.bytes[..]).with_checksum(packet.checksum);
        borrowed.gso = *gso;
        packets.push(borrowed);
    }
    packets
}

fn owned(policy: Policy, arrivals: &[Arrival]) -> Vec<Seen> {
    let mut aggregator = Aggregator::new(policy, KEY);
    let mut seen = Vec::new();
    let mut sink: OwnedSink<'_> = &mut |packet| {
        seen.push(Seen::of(&packet));
        Ok(())
    };
    assert_eq!(
        aggregator.receive_batch(
            &mut arrivals.iter().map(Arrival::receive).collect(),
            0,
            &mut sink
        ),
        Ok(())
    );
    assert_eq!(aggregator.poll_end(0, &mut sink), Ok(()));
    seen
}

#[test]
fn borrowed_ones_give_what_owned_ones_give() {
    let arrivals = arrivals();
    for policy in policies() {
        let expected = owned(policy, &arrivals);
        assert_eq!(
            poll(&mut BatchAggregator::new(Layer::Ethernet, policy, KEY), &borrow(&arrivals)),
            expected
        );
    }
    let merged: Vec<_> =
        owned(Policy::gro(), &arrivals).iter().map(|seen| seen.metadata.packets).collect();
    assert_eq!(merged, [9, 9]);
}

#[test]
fn a_call_goes_on_after_its_sink_has_failed() {
    let arrivals = arrivals();
    let packets = borrow(&arrivals);
    for policy in policies() {
        let mut aggregator = BatchAggregator::new(Layer::Ethernet, policy, KEY);
        let (mut seen, mut refuse, mut resume) = (Vec::new(), true, false);
        loop {
            // Each is refused once.
            let result = poll_with(&mut aggregator, resume, &packets, &mut |packet| {
                refuse = !refuse;
                if !refuse {
                    return Err(7);
                }
                seen.push(Seen::of(&packet));
                Ok(())
            });
            if result.is_ok() {
                break;
            }
            resume = true;
        }
        assert_eq!(seen, owned(policy, &arrivals));
    }
}

/// Behind the header of a device the segments are those that the packets stood for.
#[test]
fn gathered_behind_a_header_they_come_apart_again() {
    let arrivals = arrivals();
    let packets = borrow(&arrivals);
    let mut writes: Vec<Vec<u8>> = Vec::new();
    let mut aggregator = BatchAggregator::framed(Framing::TAP, Policy::gro(), KEY);
    let result = gather_with(&mut aggregator, false, &packets, &mut |slices| {
        assert!(slices.len() <= MAX_SLICES);
        writes.push(slices.iter().flat_map(|slice| slice.iter().copied()).collect());
        Ok(())
    });
    assert_eq!(result, Ok(()));
    assert_eq!(writes.len(), 2, "one for each flow");
    let flows = [Frame::tcp4(1, 100).run(30), Frame::tcp6(1, 90).run(30)];
    for (write, frames) in writes.iter().zip(flows) {
        let mut space = vec![0; 65_536];
        let mut buffers = BackToBack::new(&mut space);
        let SegmentPlan { segments, segment_length, .. } =
            Segmenter::new().split(Framing::TAP, write, &mut buffers).expect("the header says how");
        assert_eq!(segments as usize, frames.len());
        for (found, frame) in space.chunks(segment_length).zip(&frames) {
            assert_eq!(found, frame.to_bytes());
        }
    }
}
