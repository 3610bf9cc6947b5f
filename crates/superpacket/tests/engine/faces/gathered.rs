//! Packets as slices for one gathering write: no more than a write takes, the device's header
//! first.

use superpacket::aggregate::{MAX_SLICES, Policy, Storage};
use superpacket::virtio::Framing;
use superpacket::{Layer, RxPacket};
use superpacket_traffic::frame::Frame;

use super::traffic::{
    KEY, Received, assert_nothing_held, gather_with, policies, poll, receive_all, traffic,
};
use crate::support::{BatchAggregator, Seen, unknown};

/// What comes out as slices: the bytes of the first, all bytes, how many.
fn gather(
    aggregator: &mut BatchAggregator,
    packets: &[Received<'_>],
) -> Vec<(Vec<u8>, Vec<u8>, usize)> {
    let mut gathered = Vec::new();
    let result = gather_with(aggregator, false, packets, &mut |slices| {
        let first = slices.first().map_or(Vec::new(), |slice| slice.to_vec());
        gathered.push((
            first,
            slices.iter().flat_map(|slice| slice.iter()).copied().collect(),
            slices.len(),
        ));
        Ok(())
    });
    assert_eq!(result, Ok(()));
    assert_nothing_held(aggregator);
    gathered
}

/// As many fragments as a write takes.
fn within(policy: Policy) -> Policy {
    policy.with_max_fragments(policy.max_fragments.min(MAX_SLICES as u32 - 2))
}

#[test]
fn a_write_takes_no_more_slices_than_linux_does() {
    for frame in [
        Frame::tcp4(1, 8),
        Frame::tcp6(1, 8).tagged(3),
        Frame::udp4(1),
        Frame::tcp4(1, 8).in_vxlan4(),
    ] {
        let packets = frame.run_bytes(5_000);
        for framing in [None, Some(Framing::TAP)] {
            for policy in [
                Policy::gro_with_udp(),
                Policy::gro_with_udp().with_max_datagrams(u32::MAX),
                Policy::lro(),
                Policy::gro_with_udp().with_max_fragments(5),
            ] {
                let made = |policy| match framing {
                    Some(framing) => BatchAggregator::framed(framing, policy, KEY),
                    None => BatchAggregator::new(Layer::Ethernet, policy, KEY),
                };
                let packets = unknown(Layer::Ethernet, &packets);
                let expected = poll(&mut made(within(policy)), &packets);
                let header = framing.map_or(0, Framing::header_length);
                let gathered = gather(&mut made(policy), &packets);
                assert_eq!(gathered.len(), expected.len());
                let mut most = 0;
                for ((first, bytes, slices), expected) in gathered.iter().zip(&expected) {
                    assert!(bytes[header..] == expected.bytes);
                    assert!(header == 0 || first.len() == header);
                    most = most.max(*slices);
                }
                let limit = MAX_SLICES.min(policy.max_fragments as usize + 2);
                assert!(most <= limit, "{most} of {limit}");
                let merges = framing.is_none() || frame.tunnel.is_none();
                assert!(
                    !merges || policy.max_fragments > 5 || most + 1 >= limit,
                    "the limit is reached: {most} of {limit}"
                );
            }
        }
    }
}

#[test]
fn a_packet_of_more_buffers_than_the_limit_leaves_as_it_came() {
    let frames = Frame::tcp4(1, 1000).run_bytes(3);
    let (head, tail) = frames[1].split_at(frames[1].len() - 16);
    let mut many = RxPacket::new(head);
    for byte in tail.chunks(1) {
        assert!(many.push(byte).is_ok(), "17 buffers");
    }
    let packets = [RxPacket::new(&frames[0][..]), many, RxPacket::new(&frames[2][..])];
    let policy = Policy::gro().with_max_fragments(5);
    let gathered = gather(&mut BatchAggregator::framed(Framing::TAP, policy, KEY), &packets);
    let slices: Vec<_> =
        gathered.iter().map(|(_, bytes, slices)| (bytes[10..].to_vec(), *slices)).collect();
    assert_eq!(slices, [(frames[0].clone(), 2), (frames[1].clone(), 18), (frames[2].clone(), 2)]);
}

/// Where the header comes from does not matter: what a poll gives, described, is what a write
/// takes.
#[test]
fn slices_are_what_a_poll_gives_behind_its_header() {
    for (seed, policy) in
        (0..).zip(policies().into_iter().filter(|policy| policy.storage == Storage::Fragments))
    {
        for framing in [Framing::TAP, Framing::TUN] {
            let packets: Vec<_> = traffic(seed, 300, false)
                .into_iter()
                .filter(|packet| packet.layer == framing.layer && packet.vlan.is_none())
                .collect();
            let packets: Vec<RxPacket<&[u8]>> = receive_all(&packets);
            let mut expected = Vec::new();
            let mut aggregator = BatchAggregator::framed(framing, within(policy), KEY);
            let result =
                super::traffic::poll_with(&mut aggregator, false, &packets, &mut |packet| {
                    let header =
                        framing.header(&packet).map_or(vec![0; 10], |header| header.to_vec());
                    expected.push((header, Seen::of(&packet).bytes));
                    Ok(())
                });
            assert_eq!(result, Ok(()));
            let gathered = gather(&mut BatchAggregator::framed(framing, policy, KEY), &packets);
            assert_eq!(gathered.len(), expected.len());
            for ((first, bytes, _), (header, expected)) in gathered.iter().zip(&expected) {
                assert_eq!(first, header);
                assert!(bytes[10..] == expected[..]);
            }
        }
    }
}
