//! In steady state nothing is allocated, and what a large table took is given back.

use std::io::IoSlice;

use superpacket::aggregate::{Policy, Storage};
use superpacket::virtio::Framing;
use superpacket::{Layer, RxPacket};
use superpacket_traffic::workload;

use super::traffic::{KEY, gather_with, join_with, poll_with};
use crate::support::allocations::{allocations, live_bytes};
use crate::support::{BatchAggregator, PARTIAL_GRO};

/// What is asked for in one round after the first has made room.
#[track_caller]
fn assert_steady(mut round: impl FnMut()) {
    round();
    round();
    let before = (allocations(), live_bytes());
    for _ in 0..20 {
        round();
    }
    assert_eq!((allocations(), live_bytes()), before);
}

fn streams() -> [(Policy, Vec<Vec<u8>>); 6] {
    [
        (Policy::gro(), workload::w1(90)),
        (PARTIAL_GRO.with_trusted_input(), workload::w2(64, 512)),
        (Policy::gro().with_max_flows(16), workload::hostile(64, 64)),
        (Policy::gro_with_udp(), workload::w5(88)),
        (Policy::lro(), workload::w1(90)),
        (Policy::lro_with_acks(), workload::w3(100)),
    ]
}

#[test]
fn polls_allocate_nothing() {
    for (policy, frames) in streams() {
        for storage in [Storage::Fragments, Storage::Linear] {
            for buffers in [1, 3] {
                let packets: Vec<_> = frames
                    .iter()
                    .map(|frame| {
                        let mut chunks = frame.chunks(frame.len().div_ceil(buffers));
                        let mut packet = RxPacket::new(chunks.next().expect("not empty"));
                        chunks.for_each(|chunk| packet.push(chunk).expect("at most 17"));
                        packet
                    })
                    .collect();
                let mut aggregator =
                    BatchAggregator::new(Layer::Ethernet, policy.with_storage(storage), KEY);
                assert_steady(|| {
                    assert_eq!(poll_with(&mut aggregator, false, &packets, &mut |_| Ok(())), Ok(()))
                });
                let mut aggregator =
                    BatchAggregator::framed(Framing::TAP, policy.with_storage(storage), KEY);
                assert_steady(|| {
                    let result = gather_with(
                        &mut aggregator,
                        false,
                        &packets,
                        &mut |slices: &[IoSlice<'_>]| {
                            std::hint::black_box(slices);
                            Ok(())
                        },
                    );
                    assert_eq!(result, Ok(()));
                });
            }
        }
    }
}

#[test]
fn joining_in_place_allocates_nothing() {
    for (policy, frames) in streams() {
        let mut buffers: Vec<Vec<u8>> = frames.iter().map(|_| Vec::with_capacity(70_000)).collect();
        let mut aggregator = BatchAggregator::framed(Framing::TAP, policy, KEY);
        let mut written = 0;
        let mut round = || {
            for (buffer, frame) in buffers.iter_mut().zip(&frames) {
                buffer.clear();
                buffer.resize(10, 0);
                buffer.extend_from_slice(frame);
            }
            written += aggregator.join_in_place(&mut buffers, 10).expect("there is headroom").len();
        };
        assert_steady(&mut round);
        assert!(written > 0);
    }
    let mut aggregator = BatchAggregator::new(Layer::Ethernet, Policy::gro(), KEY);
    assert_eq!(join_with(&mut aggregator, &mut [], 0), Ok(vec![]));
}
