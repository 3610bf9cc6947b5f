//! Tests of readers.

use std::io;

use bytes::BytesMut;
use superpacket::virtio::{ByteOrder, Format, Header, flags, gso_type};
use superpacket::{BackToBack, Framing, Reason, SegmentError};
use superpacket_traffic::check::{self, Kind};
use superpacket_traffic::frame::{Checksum, Frame, Ip, stream_bytes};
use superpacket_tun::{
    EachBuffer, Layer, NewBuffers, Offloads, ReadError, Reader, SegmentBuffers, SegmentPlan,
    Switches, Writer,
};

use crate::memory::{AT_IP, INVALID, Memory, in_turn, run};

/// Returns the super-packets that a device delivers if it merges these packets.
fn super_packets(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let memory = Memory::default();
    let mut writer = Writer::new(&memory, Some(Framing::TUN), Switches::new(Offloads::ALL));
    packets.iter().for_each(|packet| writer.push(packet));
    writer.flush().expect("memory takes all");
    assert_eq!(writer.aggregation().reason(Reason::PollEnd), writer.counters().super_packets);
    std::mem::take(&mut memory.state().written)
}

fn reader(memory: &Memory) -> Reader<&Memory> {
    Reader::new(memory, Some(Framing::TUN))
}

#[test]
fn a_super_packet_is_cut_into_buffers_of_every_kind() {
    let packets = run(Frame::tcp6(1, 1328));
    let memory = Memory::default();
    let mut reader = reader(&memory);
    let give = || memory.state().to_read.extend(super_packets(&packets).into_iter().map(Ok));

    give();
    let mut back_to_back = Vec::new();
    let plan = reader.read_into(&mut back_to_back).expect("it reads").expect("packets");
    assert_eq!(plan.segments, 40);
    assert!(back_to_back.chunks(plan.segment_length).eq(&packets));

    give();
    let mut bytes = BytesMut::from(&b"before"[..]);
    let plan = reader.read_into(&mut bytes).expect("it reads").expect("packets");
    assert_eq!(bytes.split_to(6), "before");
    // Packets are split off without a copy.
    for packet in &packets {
        assert_eq!(bytes.split_to(plan.segment_length.min(bytes.len())), packet[..]);
    }
    assert!(bytes.is_empty());

    give();
    let mut owned: Vec<BytesMut> = Vec::new();
    reader
        .read_into(&mut NewBuffers::new(&mut owned, BytesMut::zeroed))
        .expect("it reads")
        .expect("packets");
    assert_eq!(owned, packets);

    give();
    let (mut pool, mut sizes) = (vec![vec![0; 1500]; 64], [0; 64]);
    let mut buffers = EachBuffer::new(&mut pool, 16, &mut sizes);
    reader.read_into(&mut buffers).expect("it reads").expect("packets");
    assert_eq!(buffers.used(), 40);
    assert!(
        pool.iter().zip(sizes).take(40).map(|(buffer, size)| &buffer[16..16 + size]).eq(&packets)
    );

    give();
    let mut new = Vec::new();
    reader
        .read_into(&mut NewBuffers::new(&mut new, |length| vec![0; length].into_boxed_slice()))
        .expect("it reads")
        .expect("packets");
    assert!(new.iter().map(AsRef::as_ref).eq(packets.iter().map(Vec::as_slice)));

    let counters = reader.counters();
    assert_eq!((counters.reads, counters.super_packets, counters.packets), (5, 5, 200));
    assert_eq!(counters.bytes, 5 * packets.iter().map(|packet| packet.len() as u64).sum::<u64>());
    assert!(reader.segmentation().balanced());
}

#[test]
fn a_malformed_header_is_counted_and_the_next_packet_read() {
    let packet = Frame::udp4(300).at_ip().to_bytes();
    let plain = [&[0; 10][..], &packet].concat();
    let mut unknown_type = plain.clone();
    unknown_type[1] = 77;
    let mut checksum_outside = plain.clone();
    checksum_outside[..10].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0xff, 0xff, 16, 0]);
    let mut no_size = super_packets(&run(Frame::tcp4(1, 1000))).remove(0);
    (no_size[4], no_size[5]) = (0, 0);
    let bad = [unknown_type, checksum_outside, no_size, vec![0; 3], vec![0; 10], Vec::new()];
    let count = bad.len();
    let reads = bad.into_iter().flat_map(|bad| [Ok(bad), Ok(plain.clone())]);
    let memory = Memory::reading(reads);
    let mut reader = reader(&memory);
    for _ in 0..count {
        let mut out = Vec::new();
        assert!(reader.read_into(&mut out).expect("not fatal").is_none() && out.is_empty());
        assert!(reader.read_into(&mut out).expect("it reads").is_some());
        assert_eq!(out, packet);
    }
    assert_eq!(
        (reader.counters().malformed, reader.counters().packets, reader.counters().reads),
        (6, 6, 12)
    );
}

/// Returns packets of one TCP flow in a tunnel, and their super-packet with its virtio header, as a
/// kernel with `TUN_F_UDP_TUNNEL_GSO` delivers it: the partial checksum is the inner one; the outer
/// one is absent, or the pseudo-header's sum.
fn in_tunnel(inner: Frame) -> (Vec<Vec<u8>>, Header, Vec<u8>) {
    let payload = inner.payload.len();
    let inner = inner.at_ip();
    let packets = inner.run(12);
    let mut whole = inner.clone().with(|frame| {
        frame.payload = stream_bytes(frame.tcp_mut().sequence, 12 * payload);
        frame.set_checksum(Checksum::Partial);
    });
    let outer_is_v6 = matches!(whole.tunnel_mut().ip, Ip::V6(_));
    let udp = whole.tunnel_mut().udp_mut();
    let has_checksum = udp.checksum == Checksum::Right;
    if has_checksum {
        udp.checksum = Checksum::Partial;
    }
    let offsets = whole.offsets();
    let outer = offsets.outer.expect("a tunnel");
    let header = Header {
        flags: flags::NEEDS_CSUM | if has_checksum { flags::UDP_TUNNEL_CSUM } else { 0 },
        gso_type: match whole.ip {
            Ip::V4(_) => gso_type::TCPV4,
            Ip::V6(_) => gso_type::TCPV6,
        } | if outer_is_v6 {
            gso_type::UDP_TUNNEL_IPV6
        } else {
            gso_type::UDP_TUNNEL_IPV4
        },
        gso_size: payload as u16,
        hdr_len: offsets.payload as u16,
        csum_start: offsets.transport as u16,
        csum_offset: 16,
        outer_th_offset: (outer + if outer_is_v6 { 40 } else { 20 }) as u16,
        inner_nh_offset: offsets.network as u16,
        ..Header::default()
    };
    (packets.iter().map(Frame::to_bytes).collect(), header, whole.to_bytes())
}

#[test]
fn a_super_packet_in_a_tunnel_is_cut_into_packets_of_the_tunnel() {
    let framing = Framing::new(Format::Tunnel, ByteOrder::NATIVE, Layer::Ip);
    let checksum_of = |frame: Frame, checksum| {
        frame.with(|frame| frame.tunnel_mut().udp_mut().checksum = checksum)
    };
    let mut cut = 0;
    for inner in [Frame::tcp4(1, 1200), Frame::tcp6(1, 1200)] {
        for frame in [inner.clone().in_vxlan4(), inner.clone().in_vxlan6(), inner.in_geneve()] {
            for checksum in [Checksum::Right, Checksum::Zero] {
                let (packets, header, whole) = in_tunnel(checksum_of(frame.clone(), checksum));
                let mut bytes = [0; 24];
                header
                    .write(&mut bytes, Format::Tunnel, ByteOrder::NATIVE)
                    .expect("there is room for it");
                let memory = Memory::reading([Ok([&bytes[..], &whole].concat())]);
                let mut reader = Reader::new(&memory, Some(framing));
                let mut read = Vec::new();
                let buffers = &mut NewBuffers::new(&mut read, |length| vec![0; length]);
                let plan = reader.read_into(buffers).expect("it reads").expect("packets");
                assert_eq!(plan.segments, 12);
                assert_eq!(read, packets);
                for packet in &read {
                    let checked = check::frame(packet, &AT_IP)
                        .expect("right lengths and checksums, outer and inner");
                    assert!(
                        packet.len() <= 1400
                            && checked
                                .layers
                                .iter()
                                .any(|layer| matches!(layer.kind, Kind::Vxlan | Kind::Geneve))
                    );
                    cut += 1;
                }
                // Behind the header of a device without tunnel offload, no wrong packets are
                // returned.
                let mut bytes = [0; 10];
                header
                    .write(&mut bytes, Format::Plain, ByteOrder::NATIVE)
                    .expect("there is room for it");
                let memory = Memory::reading([Ok([&bytes[..], &whole].concat())]);
                let mut reader = Reader::new(&memory, Some(Framing::TUN));
                let mut out = Vec::new();
                assert!(reader.read_into(&mut out).expect("not fatal").is_none() && out.is_empty());
                assert_eq!((reader.counters().malformed, reader.counters().packets), (1, 0));
                // A header without tunnel fields refers to the inner TCP too, but would leave the
                // outer lengths unchanged.
                let untold = Header { gso_type: header.gso_type & !gso_type::UDP_TUNNEL, ..header };
                untold
                    .write(&mut bytes, Format::Plain, ByteOrder::NATIVE)
                    .expect("there is room for it");
                memory.state().to_read.push_back(Ok([&bytes[..], &whole].concat()));
                assert!(reader.read_into(&mut out).expect("not fatal").is_none() && out.is_empty());
                assert_eq!((reader.counters().malformed, reader.counters().packets), (2, 0));
            }
        }
    }
    assert_eq!(cut, 2 * 3 * 2 * 12);
}

/// Buffers that do not announce their number.
struct Ending {
    packets: Vec<Vec<u8>>,
    most: usize,
}

impl SegmentBuffers for Ending {
    fn buffer(&mut self, length: usize) -> Option<&mut [u8]> {
        if self.packets.len() == self.most {
            return None;
        }
        self.packets.push(vec![0; length]);
        self.packets.last_mut().map(Vec::as_mut_slice)
    }
}

/// Reads into buffers of this kind until the reader has no more. Returns the packets of each call.
fn calls(reader: &mut Reader<&Memory>, kind: usize, most: usize) -> Vec<Vec<Vec<u8>>> {
    let mut calls = Vec::new();
    loop {
        let length = 1400;
        let (plan, packets) = match kind {
            0 => {
                let (mut pool, mut sizes) = (vec![vec![0; 16 + length]; most], vec![0; most + 9]);
                let mut buffers = EachBuffer::new(&mut pool, 16, &mut sizes);
                let plan = reader.read_into(&mut buffers).expect("it reads").expect("packets");
                let used = buffers.used();
                (
                    plan,
                    pool.iter()
                        .zip(sizes)
                        .take(used)
                        .map(|(buffer, size)| buffer[16..16 + size].to_vec())
                        .collect(),
                )
            }
            1 => {
                // Some bytes remain, but not enough for another packet.
                let mut bytes = vec![0; most * length + length - 500];
                let mut buffers = BackToBack::new(&mut bytes);
                let plan = reader.read_into(&mut buffers).expect("it reads").expect("packets");
                let used = buffers.used();
                (
                    plan,
                    bytes[..used]
                        .chunks(plan.segment_length)
                        .map(<[u8]>::to_vec)
                        .collect::<Vec<_>>(),
                )
            }
            _ => {
                let mut buffers = Ending { packets: Vec::new(), most };
                (
                    reader.read_into(&mut buffers).expect("it reads").expect("packets"),
                    buffers.packets,
                )
            }
        };
        assert_eq!(plan.segments as usize, packets.len());
        assert_eq!(plan.total_length(), packets.iter().map(Vec::len).sum::<usize>());
        assert_eq!(
            (packets[0].len(), packets[packets.len() - 1].len()),
            (plan.segment_length, plan.last_length)
        );
        calls.push(packets);
        if !reader.has_more() {
            return calls;
        }
    }
}

#[test]
fn a_super_packet_comes_in_parts_where_there_are_fewer_buffers() {
    for frame in [Frame::tcp4(1, 1360), Frame::tcp6(1, 1340), Frame::udp4(1372), Frame::udp6(1352)]
    {
        let long = frame.at_ip();
        assert_eq!(long.to_bytes().len(), 1400);
        let packets: Vec<_> = long.run(46).iter().map(Frame::to_bytes).collect();
        for most in [1, 2, 3, 17, 45, 46, 47] {
            for kind in 0..3 {
                let memory = Memory::reading(super_packets(&packets).into_iter().map(Ok));
                let mut reader = reader(&memory);
                let mut all = Vec::new();
                while all.len() < packets.len() {
                    let calls = calls(&mut reader, kind, most);
                    assert!(
                        calls.iter().rev().skip(1).all(|packets| packets.len() == most),
                        "no call leaves a buffer empty"
                    );
                    all.extend(calls.into_iter().flatten());
                }
                assert!(all == packets, "{most} buffers of kind {kind}");
                assert_eq!(reader.counters().packets, 46);
                assert_eq!(
                    (reader.counters().reads, reader.counters().malformed),
                    (reader.counters().super_packets, 0)
                );
                assert!(reader.segmentation().balanced());
                assert_eq!(
                    (reader.segmentation().cut, reader.segmentation().refused()),
                    (reader.counters().reads, 0)
                );
            }
        }
    }
}

/// Reads a super-packet of 112 segments into a pool of 46 buffers, and a packet behind it.
#[test]
fn what_comes_behind_a_super_packet_that_is_larger_than_the_pool_is_read() {
    let packets: Vec<_> =
        Frame::tcp4(1, 500).at_ip().run(112).iter().map(Frame::to_bytes).collect();
    let behind = Frame::udp4(77).at_ip().to_bytes();
    let reads = super_packets(&packets).into_iter().chain([[&[0; 10][..], &behind].concat()]);
    let memory = Memory::reading(reads.map(Ok));
    assert_eq!(memory.state().to_read.len(), 2);
    let mut reader = reader(&memory);
    let parts = calls(&mut reader, 0, 46);
    assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [46, 46, 20]);
    assert!(parts.into_iter().flatten().eq(packets));
    assert_eq!(calls(&mut reader, 0, 46), [[behind]]);
}

#[test]
fn buffers_that_take_no_packet_are_an_error_and_the_packets_may_be_discarded() {
    let packets = run(Frame::udp6(900));
    let memory =
        Memory::reading(super_packets(&packets).into_iter().chain(super_packets(&packets)).map(Ok));
    let mut reader = reader(&memory);
    let (mut short, mut sizes) = (vec![vec![7; 900]; 50], [0; 64]);
    for _ in 0..2 {
        let refused = reader
            .read_into(&mut EachBuffer::new(&mut short, 0, &mut sizes))
            .expect_err("they are too short");
        assert!(
            matches!(
                refused,
                ReadError::NoRoom(SegmentError::OutputTooSmall { needed: 948, got: 900 })
            ),
            "{refused}"
        );
        assert!(
            !refused.would_block()
                && reader.has_more()
                && short.iter().flatten().all(|&byte| byte == 7)
        );
    }
    assert!(matches!(
        reader.read_into(&mut Ending { packets: Vec::new(), most: 0 }),
        Err(ReadError::NoRoom(_))
    ));
    let no_buffers: &mut [Vec<u8>] = &mut [];
    assert!(matches!(
        reader.read_into(&mut EachBuffer::new(no_buffers, 0, &mut sizes)),
        Err(ReadError::NoRoom(_))
    ));
    let mut out = Vec::new();
    let plan = reader.read_into(&mut out).expect("there is room").expect("packets");
    assert_eq!((plan.segments, reader.counters().reads), (40, 1));
    assert!(out.chunks(plan.segment_length).eq(&packets));
    assert!(!reader.has_more() && !reader.discard());
    // Three packets are read, the others discarded.
    let first = reader
        .read_into(&mut Ending { packets: Vec::new(), most: 3 })
        .expect("it reads")
        .expect("packets");
    assert_eq!((first.segments, reader.has_more()), (3, true));
    assert!(reader.discard() && !reader.has_more());
    assert!(reader.try_read_into(&mut out).expect_err("nothing is left").would_block());
    assert_eq!((reader.counters().packets, reader.counters().discarded), (43, 1));
}

#[test]
fn errors_of_the_device_are_told_and_those_of_one_packet_counted() {
    let packet = Frame::tcp4(1, 10).at_ip().to_bytes();
    let errno = |number| Err(io::Error::from_raw_os_error(number));
    let memory = Memory::reading([errno(INVALID), errno(77), Ok([&[0; 10][..], &packet].concat())]);
    let mut reader = reader(&memory);
    let mut out = Vec::new();
    assert!(reader.read_into(&mut out).expect("the kernel dropped one").is_none());
    let gone = io::Error::from(reader.read_into(&mut out).expect_err("EBADFD"));
    assert_eq!(gone.raw_os_error(), Some(77));
    assert_eq!(reader.read_into(&mut out).expect("it reads").map(|plan| plan.segments), Some(1));
    assert_eq!((reader.counters().dropped, reader.counters().reads), (1, 1));
    assert!(reader.try_read_into(&mut out).expect_err("nothing to read").would_block());
    assert_eq!(memory.state().waits, 0);
    reader.read_into(&mut out).expect_err("the wait fails");
    assert_eq!(memory.state().waits, 1);
}

#[test]
fn without_a_header_packets_pass_as_they_are() {
    let packets = in_turn();
    let memory = Memory::reading(packets.iter().cloned().map(Ok));
    let mut reader = Reader::new(&memory, None);
    for packet in &packets {
        let mut out = Vec::new();
        let whole = reader.read_into(&mut out).expect("it reads");
        assert_eq!(
            whole.map(|SegmentPlan { segments, last_length, .. }| (segments, last_length)),
            Some((1, packet.len()))
        );
        assert_eq!(&out, packet);
    }
}
