//! Tests of [`Joiner`] and [`Splitter`] with a device in memory that reads and writes long packets
//! without a header, like WinTUN and utun.

use superpacket::{Policy, Reason, SegmentError};
use superpacket_traffic::check;
use superpacket_traffic::frame::Frame;
use superpacket_tun::{EachBuffer, Joiner, NewBuffers, Splitter};

use crate::memory::{AT_IP, by_flow, run};

/// Returns the packets that a device receives if these packets are joined.
fn joined(joiner: &mut Joiner, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut written = Vec::new();
    joiner.join(packets, |mut joined| {
        let mut slot = vec![0; joined.length() + 3];
        if written.len() % 2 == 0 {
            slot = joined.slices().flatten().copied().collect();
        } else {
            let length = joined.copy_to(&mut slot);
            slot.truncate(length);
        }
        written.push(slot);
    });
    written
}

fn split(splitter: &mut Splitter, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for packet in packets {
        let mut out = Vec::new();
        let plan = splitter.split(packet, &mut out).expect("it can be cut");
        all.extend(out.chunks(plan.segment_length).map(<[u8]>::to_vec));
    }
    all
}

#[test]
fn tcp_is_joined_with_complete_checksums_and_cut_again() {
    for frame in
        [Frame::tcp4(1, 1380), Frame::tcp6(1, 1360), Frame::tcp4(1, 1368).with_timestamps(1, 2)]
    {
        let packets = run(frame);
        let mtu = packets[0].len();
        let written = joined(&mut Joiner::new(65_535), &packets);
        assert_eq!(written.len(), 1);
        for packet in &written {
            assert_eq!(
                check::frame(packet, &AT_IP).map(|checked| checked.checksums > 0),
                Ok(true),
                "right lengths and checksums"
            );
        }
        assert_eq!(split(&mut Splitter::new(mtu), &written), packets);
    }
}

#[test]
fn what_is_joined_is_no_longer_than_the_device_takes() {
    let packets = run(Frame::tcp4(1, 1380));
    let written = joined(&mut Joiner::new(16_384), &packets);
    assert_eq!(written.iter().map(Vec::len).max(), Some(40 + 11 * 1380));
    assert_eq!(split(&mut Splitter::new(1420), &written), packets);
    assert_eq!(joined(&mut Joiner::new(u32::MAX), &run(Frame::tcp4(1, 1400))).len(), 1);
}

#[test]
fn what_keeps_its_borders_is_not_joined() {
    for frame in [
        Frame::udp4(1000),
        Frame::udp6(1000),
        Frame::dccp4(1, 1000),
        Frame::dccp6(1, 1000),
        Frame::tcp4(1, 900).in_vxlan4(),
    ] {
        let packets = run(frame);
        let policy = Policy::gro_with_udp();
        assert_eq!(joined(&mut Joiner::with_policy(policy), &packets), packets);
    }
}

#[test]
fn a_sink_that_fails_is_given_the_same_packet_again() {
    let mut packets = run(Frame::dccp4(1, 500));
    packets.extend(run(Frame::tcp4(1, 500)));
    packets.extend(run(Frame::tcp6(1, 500)));
    let expected = joined(&mut Joiner::new(65_535), &packets);
    assert_eq!(expected.len(), 42);
    for full_at in 0..expected.len() {
        let mut joiner = Joiner::new(65_535);
        let mut written = Vec::new();
        let (mut tries, mut full) = (0, 0);
        let mut sink = |mut joined: superpacket_tun::Joined<'_, '_>| {
            tries += 1;
            if tries == full_at + 1 {
                return Err("full");
            }
            written.push(joined.slices().flatten().copied().collect::<Vec<_>>());
            Ok(())
        };
        let mut result = joiner.join(&packets, &mut sink);
        while result.is_err() {
            full += 1;
            result = joiner.resume(&packets, &mut sink);
        }
        assert_eq!((full, written == expected), (1, true), "full at {full_at}");
    }
}

#[test]
fn what_the_device_refuses_for_its_length_leaves_as_it_was_received() {
    let runs = [run(Frame::tcp4(1, 500)), run(Frame::tcp6(1, 500)), run(Frame::udp4(500))];
    let packets = runs.concat();
    // The device refuses the first flow's long packet, is full once at each of its packets, and
    // accepts the rest.
    for is_full in [false, true] {
        let mut joiner = Joiner::new(65_535);
        let mut written: Vec<Vec<u8>> = Vec::new();
        let (mut has_refused, mut was_full) = (false, false);
        let mut sink = |mut joined: superpacket_tun::Joined<'_, '_>| {
            let bytes: Vec<u8> = joined.slices().flatten().copied().collect();
            if bytes.len() > 1500 && bytes[0] >> 4 == 4 {
                has_refused = true;
                return Err("EINVAL");
            }
            if is_full && has_refused && !was_full {
                was_full = true;
                return Err("full");
            }
            was_full = false;
            written.push(bytes);
            Ok(())
        };
        let mut result = joiner.join(&packets, &mut sink);
        while let Err(error) = result {
            result = if error == "full" {
                joiner.resume(&packets, &mut sink)
            } else {
                joiner.resume_apart(&packets, &mut sink)
            };
        }
        assert!(has_refused);
        let merged: Vec<_> = written.iter().filter(|packet| packet.len() > 1500).collect();
        assert_eq!(merged.len(), 1, "the other TCP flow stays merged");
        assert_eq!(
            by_flow(&split(&mut Splitter::new(packets[40].len()), &written)),
            by_flow(&packets)
        );
    }
}

#[test]
fn a_damaged_packet_stays_apart_even_where_input_is_trusted() {
    let mut packets = run(Frame::tcp4(1, 1000));
    packets[7][500] ^= 0x10;
    for mut joiner in [Joiner::new(65_535), Joiner::with_policy(Policy::gro().with_trusted_input())]
    {
        let written = joined(&mut joiner, &packets);
        assert_eq!((written.len(), joiner.aggregation().reason(Reason::BadChecksum)), (3, 1));
        assert_eq!(by_flow(&split(&mut Splitter::new(1040), &written)), by_flow(&packets));
    }
}

#[test]
fn a_long_packet_is_split_in_parts_where_there_are_fewer_buffers() {
    let mut without_df = Frame::udp4(30_000);
    without_df.ipv4_mut().dont_fragment = false;
    let long = [Frame::tcp4(1, 60_000), Frame::tcp6(1, 60_000), Frame::udp6(30_000), without_df];
    for packet in long.map(|frame| frame.at_ip().to_bytes()) {
        let mut whole = Vec::new();
        let mut splitter = Splitter::new(1420);
        let plan = splitter
            .split(&packet, &mut NewBuffers::new(&mut whole, |length| vec![0; length]))
            .expect("it is cut");
        for most in [1, 2, 7, plan.segments as usize - 1] {
            let (mut parts, mut done) = (Vec::new(), 0);
            loop {
                let (mut pool, mut sizes) = (vec![vec![0; 1420]; most], vec![0; most]);
                let portion = splitter
                    .split_portion(&packet, done, &mut EachBuffer::new(&mut pool, 0, &mut sizes))
                    .expect("one fits");
                let written = portion.plan.segments as usize;
                parts.extend(pool.into_iter().zip(sizes).take(written).map(
                    |(mut packet, size)| {
                        packet.truncate(size);
                        packet
                    },
                ));
                done += portion.plan.segments;
                assert_eq!(done + portion.left, plan.segments);
                if portion.left == 0 {
                    break;
                }
                assert_eq!(written, most);
            }
            // Each call gives IPv6 fragments a new identification, which is the same in all
            // portions.
            if packet[6] == 17 && packet[0] >> 4 == 6 {
                assert!(parts.iter().all(|part| part[44..48] == parts[0][44..48]));
                assert_ne!(parts[0][44..48], whole[0][44..48]);
                parts
                    .iter_mut()
                    .zip(&whole)
                    .for_each(|(part, whole)| part[44..48].copy_from_slice(&whole[44..48]));
            }
            assert!(parts == whole, "{most} buffers");
        }
    }
}

#[test]
fn a_datagram_that_is_too_long_is_fragmented_or_refused() {
    let mut splitter = Splitter::new(1420);
    let identifications: Vec<_> = (0..2)
        .map(|_| {
            let fragments = split(&mut splitter, &[Frame::udp6(4000).at_ip().to_bytes()]);
            assert!(
                fragments.len() == 3
                    && fragments.iter().all(|fragment| fragment.len() <= 1420 && fragment[6] == 44)
            );
            assert!(fragments.iter().all(|fragment| fragment[44..48] == fragments[0][44..48]));
            fragments[0][44..48].to_vec()
        })
        .collect();
    assert_ne!(identifications[0], identifications[1]);
    let with_df = Frame::udp4(4000).at_ip().to_bytes();
    assert_eq!(with_df[6] & 0x40, 0x40);
    assert_eq!(splitter.split(&with_df, &mut Vec::new()), Err(SegmentError::DontFragment));
    let mut without = Frame::udp4(4000);
    without.ipv4_mut().dont_fragment = false;
    assert_eq!(split(&mut splitter, &[without.at_ip().to_bytes()]).len(), 3);
    let short = Frame::udp4(1000).at_ip().to_bytes();
    assert_eq!(split(&mut splitter, std::slice::from_ref(&short)), [short]);
}
