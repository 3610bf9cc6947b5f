//! The checker of superpacket-captures against this machine's kernel: by the rules `linux`, GRO's
//! and GSO's output is faithful, and the same output with damage is not.

#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::io::{self, Cursor, Write};
use std::sync::{Arc, Mutex};

use superpacket::segment::Segmenter;
use superpacket::virtio::{ByteOrder, Format, Header, flags, gso_type};
use superpacket::wire::{IpVersion, Layout, Protocol, parse_datagram};
use superpacket::{BatchAggregator, Framing, HashKey, Layer, Policy};
use superpacket_captures::file::{
    Compression, Container, Interface, LinkType, OptionList, OutputFormat, Record, Sink as _,
    TimeResolution, Writer,
};
use superpacket_captures::{CheckOptions, CheckReport, Input, Verdict, check};
use superpacket_lab::{
    CapturedFrame, Host, LabError, Link, TapFile, enter_user_namespace_before_main,
};
use superpacket_oracle::frames::InputFrame as Received;
use superpacket_oracle::kernel::{KernelGro, KernelGso};
use superpacket_oracle::segment::{GeneratedPackets, GsoInput};
use superpacket_oracle::traffic::{self, Batches};
use superpacket_traffic::checksum;
use superpacket_traffic::frame::{Checksum, Frame};
use superpacket_traffic::random::Random;

enter_user_namespace_before_main!();

/// A packet, with its virtio header if one can describe it.
type Described = (Option<(Header, Format)>, Vec<u8>);

/// A file in memory that is being written.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panics meanwhile").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns a pcapng file of Ethernet frames, with virtio headers in comments.
fn capture(packets: &[Described]) -> Input<'static> {
    let memory = Memory::default();
    let byte_order = superpacket_captures::file::ByteOrder::Little;
    let format = OutputFormat {
        container: Container::PcapNg,
        byte_order,
        resolution: None,
        compression: Compression::None,
    };
    let mut writer =
        Writer::into_stream("memory", Box::new(memory.clone()), format).expect("begins");
    writer
        .declare(&[Interface::new(LinkType::ETHERNET, TimeResolution::NANOSECONDS)])
        .expect("declares");
    for (header, data) in packets {
        let mut options = OptionList::new();
        if let Some((header, format)) = header {
            let mut bytes = [0; Format::LONGEST];
            let length =
                header.write(&mut bytes, *format, ByteOrder::Little).expect("there is room");
            let digits: String = bytes[..length].iter().map(|byte| format!("{byte:02x}")).collect();
            options.comment(&format!("virtio_net_hdr={digits}"));
        }
        let record =
            Record { interface: 0, time: None, original_length: None, options: options.options() };
        writer.write(record, [data.as_slice()]).expect("writes");
    }
    writer.finish().expect("finishes");
    let file = std::mem::take(&mut *memory.0.lock().expect("nobody panics meanwhile"));
    Input::Stream { file: "memory".to_owned(), stream: Box::new(Cursor::new(file)) }
}

fn judged(left: &[Described], origin: &[Described]) -> CheckReport {
    check(capture(left), capture(origin), &CheckOptions::default(), &mut ())
        .expect("both can be read")
}

fn layout(bytes: &[u8]) -> Option<Layout> {
    parse_datagram(bytes, bytes.len(), Layer::Ethernet).ok()
}

/// Returns a captured packet as the kernel would hand it to a device that supports all of virtio.
///
/// A packet socket does not describe tunnels, and keeps the tag beside the packet.
fn described(frame: &CapturedFrame) -> Described {
    let bytes = frame.with_tag();
    let tag = if frame.vlan.is_some() { 4 } else { 0 };
    let mut header = frame.vnet.unwrap_or_default();
    if header.flags & flags::NEEDS_CSUM != 0 {
        header.csum_start += tag;
    }
    if header.gso_type == gso_type::NONE {
        return (Some((header, Format::Plain)), bytes);
    }
    header.hdr_len += tag;
    match layout(&bytes).map(|layout| (layout.outer, layout.nested, layout.network)) {
        Some((None, ..)) => (Some((header, Format::Plain)), bytes),
        Some((Some(outer), None, network)) if outer.tunnel.is_udp() => {
            header.gso_type |= match outer.version {
                IpVersion::V4 => gso_type::UDP_TUNNEL_IPV4,
                IpVersion::V6 => gso_type::UDP_TUNNEL_IPV6,
            };
            header.flags |=
                if outer.checksum(&bytes).is_some() { flags::UDP_TUNNEL_CSUM } else { 0 };
            (header.outer_th_offset, header.inner_nh_offset) = (outer.transport, network);
            (Some((header, Format::Tunnel)), bytes)
        }
        // The positions of the headers are unknown.
        None => (Some((header, Format::Plain)), bytes),
        // No virtio header can describe it.
        Some(_) => (None, bytes),
    }
}

/// Returns the kernel's input, as the original of the comparison.
fn received(batch: &[Received]) -> Vec<Described> {
    batch.iter().map(|frame| (Some((frame.header(), Format::Plain)), frame.bytes.clone())).collect()
}

/// Records the violations of a report, and how often each rule was broken.
fn note(
    found: &mut BTreeMap<String, (u64, String)>,
    report: &CheckReport,
    packets: &[Described],
    origin: &[Described],
) {
    for violation in &report.described {
        let hexadecimal = |bytes: &[u8]| {
            bytes.iter().take(160).map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        let shown = |all: &[Described], number: Option<u64>| {
            number
                .and_then(|number| all.get(number as usize - 1))
                .map(|(header, bytes)| format!("{header:?} {} {}", bytes.len(), hexadecimal(bytes)))
        };
        let example = format!(
            "{violation:?}\n  left: {:?}\n  original: {:?}",
            shown(packets, violation.packet),
            shown(origin, violation.origin)
        );
        // The packet that overtook this one.
        let mut words = violation.found.split(' ');
        let by = words
            .nth(5)
            .and_then(|word| word.parse().ok())
            .filter(|_| violation.rule.name() == "order");
        let example = format!("{example}\n  by: {:?}", shown(origin, by));
        let entry = found
            .entry(format!("{} {}", violation.rule.name(), violation.field))
            .or_insert((0, example));
        entry.0 += 1;
    }
}

fn assert_none(found: &BTreeMap<String, (u64, String)>) {
    let text: String = found
        .iter()
        .map(|(rule, (count, example))| format!("{rule} ({count}): {example}\n"))
        .collect();
    assert!(found.is_empty(), "what the kernel made is called unfaithful:\n{text}");
}

/// Some 15 s: each of 800 polls is judged as it is, and once with each kind of damage, each of
/// which must occur five times.
#[test]
fn what_the_kernel_merges_is_faithful_and_damage_to_it_is_found() -> Result<(), LabError> {
    let Some(mut kernel) = superpacket_lab::available_or_skip(KernelGro::new()) else {
        return Ok(());
    };
    let (seed, polls) = (11, 800);
    let mut random = Random::new(seed);
    let (mut found, mut damages, mut overlooked) =
        (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let (mut super_packets, mut faithful) = (0, 0);
    for batch in Batches::new(seed, traffic::combinations(kernel.rules())).take(polls) {
        let sent: Vec<_> = batch.iter().map(|frame| (frame.header(), &frame.bytes[..])).collect();
        let origin = received(&batch);
        let (mut left, mut report) = (Vec::new(), CheckReport::default());
        // If the sender is interrupted between two frames, the kernel delivers the frames that
        // arrived until then.
        for _ in 0..4 {
            left = kernel.receive(&sent)?.iter().map(described).collect();
            report = judged(&left, &origin);
            if report.verdict != Verdict::Unfaithful {
                break;
            }
        }
        super_packets += report.super_packets;
        note(&mut found, &report, &left, &origin);
        if report.verdict != Verdict::Faithful {
            continue;
        }
        faithful += 1;
        for (name, damage) in DAMAGES {
            let mut damaged = left.clone();
            let Some(rule) = damage(&mut damaged, &mut random) else { continue };
            let report = judged(&damaged, &origin);
            let named = report
                .by_rule
                .keys()
                .any(|broken| rule.split(' ').any(|rule| rule == broken.name()));
            if report.verdict != Verdict::Unfaithful || !named {
                overlooked
                    .entry(*name)
                    .or_insert((0, format!("{rule}: {:#?}", report.described)))
                    .0 += 1;
            }
            *damages.entry(*name).or_insert(0) += 1;
        }
    }
    assert_none(&found);
    assert!(overlooked.is_empty(), "damages that were not found or not named: {overlooked:#?}");
    assert!(
        super_packets > polls as u64 && faithful > polls / 2,
        "{super_packets} super-packets, {faithful} polls"
    );
    for (name, _) in DAMAGES {
        assert!(damages.get(name).is_some_and(|&count| count >= 5), "{name}: {damages:?}");
    }
    Ok(())
}

/// A kind of damage to one of the packets; returns the rule that it breaks, or `None` if no packet
/// is suitable.
type Damage = fn(&mut Vec<Described>, &mut Random) -> Option<&'static str>;

/// Returns one of the packets for which the condition is true.
fn one_of(
    left: &[Described],
    random: &mut Random,
    fits: impl Fn(&Described, &Layout) -> bool,
) -> Option<(usize, Layout)> {
    let all: Vec<_> = left
        .iter()
        .enumerate()
        .filter_map(|(place, packet)| Some((place, layout(&packet.1)?)))
        .collect();
    let fitting: Vec<_> =
        all.into_iter().filter(|(place, layout)| fits(&left[*place], layout)).collect();
    fitting.get(random.below(fitting.len().max(1) as u64) as usize).copied()
}

/// Returns whether the packet is a super-packet that a header describes.
fn is_merged(packet: &Described) -> bool {
    packet.0.is_some_and(|(header, _)| header.gso_type != gso_type::NONE)
}

/// Inverts bits of a header field in a super-packet, at an offset from one of its headers.
fn flip(
    left: &mut [Described],
    random: &mut Random,
    fits: impl Fn(&Layout) -> bool,
    place: impl Fn(&Layout) -> usize,
    bits: u8,
) -> Option<()> {
    let (index, layout) = one_of(left, random, |packet, layout| is_merged(packet) && fits(layout))?;
    left[index].1[place(&layout)] ^= bits;
    Some(())
}

/// Inverts bits of the byte at an offset in the IP header of a super-packet.
fn flip_in_network(
    left: &mut [Described],
    random: &mut Random,
    fits: fn(&Layout) -> bool,
    offset: usize,
    bits: u8,
) -> Option<()> {
    flip(left, random, fits, |layout| usize::from(layout.network) + offset, bits)
}

/// Inverts bits of the byte at an offset in the TCP header of a super-packet.
fn flip_in_tcp(left: &mut [Described], random: &mut Random, offset: usize, bits: u8) -> Option<()> {
    flip(left, random, is_tcp, |layout| usize::from(layout.transport) + offset, bits)
}

fn is_tcp(layout: &Layout) -> bool {
    layout.protocol == Protocol::Tcp
}

fn is_v4(layout: &Layout) -> bool {
    layout.version == IpVersion::V4
}

/// Changes the virtio header of a super-packet.
fn describe_otherwise(
    left: &mut [Described],
    random: &mut Random,
    change: impl Fn(&mut Header),
) -> Option<()> {
    let (index, _) = one_of(left, random, |packet, _| is_merged(packet))?;
    change(&mut left[index].0.as_mut()?.0);
    Some(())
}

const DAMAGES: &[(&str, Damage)] = &[
    ("a byte of the payload is another", |left, random| {
        let (index, layout) = one_of(left, random, |packet, layout| {
            is_merged(packet)
                && layout.end as usize == packet.1.len()
                && layout.end > u32::from(layout.payload)
        })?;
        let place = random.between(usize::from(layout.payload), left[index].1.len() - 1);
        left[index].1[place] ^= 0x40;
        Some("bytes")
    }),
    ("the end of a packet is lost", |left, random| {
        let (index, _) = one_of(left, random, |packet, _| is_merged(packet))?;
        left[index].1.pop();
        // If the last packet has one byte of payload, none is left.
        Some("bytes lost")
    }),
    ("a super-packet is lost", |left, random| {
        let (index, _) = one_of(left, random, |packet, _| is_merged(packet))?;
        left.remove(index);
        Some("lost")
    }),
    ("a super-packet leaves twice", |left, random| {
        let (index, _) = one_of(left, random, |packet, _| is_merged(packet))?;
        left.insert(index, left[index].clone());
        Some("invented")
    }),
    ("gso_size is larger", |left, random| {
        describe_otherwise(left, random, |header| header.gso_size += 1)
            .map(|()| "gso-size gso-type")
    }),
    ("the header says nothing", |left, random| {
        // Otherwise its checksum would count as complete, and its error would be found first.
        describe_otherwise(left, random, |header| {
            *header = Header { gso_type: 0, gso_size: 0, ..*header }
        })
        .map(|()| "gso-type")
    }),
    ("the type is unknown", |left, random| {
        describe_otherwise(left, random, |header| header.gso_type = 2).map(|()| "virtio-header")
    }),
    ("csum_offset is another", |left, random| {
        describe_otherwise(left, random, |header| header.csum_offset ^= 2).map(|()| "virtio-header")
    }),
    ("the partial checksum is another", |left, random| {
        let place = |layout: &Layout| usize::from(layout.checksum());
        flip(left, random, |_| true, place, 1).map(|()| "partial-checksum")
    }),
    ("the outer checksum is the one that is right for the whole", |left, random| {
        let (index, layout) = one_of(left, random, |packet, _| {
            packet.0.is_some_and(|(header, _)| header.flags & flags::UDP_TUNNEL_CSUM != 0)
        })?;
        let (place, value) = whole_outer_checksum(&left[index].1, &layout);
        left[index].1[place..place + 2].copy_from_slice(&value.to_be_bytes());
        Some("partial-checksum")
    }),
    ("the outer checksum is not named", |left, random| {
        let (index, _) = one_of(left, random, |packet, _| {
            packet.0.is_some_and(|(header, _)| header.flags & flags::UDP_TUNNEL_CSUM != 0)
        })?;
        left[index].0.as_mut()?.0.flags &= !flags::UDP_TUNNEL_CSUM;
        Some("virtio-header")
    }),
    ("a MAC address is another", |left, random| {
        flip(left, random, |_| true, |_| 8, 1).map(|()| "link-header")
    }),
    ("the header checksum is another", |left, random| {
        flip_in_network(left, random, is_v4, 10, 1).map(|()| "ip-checksum")
    }),
    ("the TTL is another", |left, random| {
        flip_in_network(left, random, is_v4, 8, 1).map(|()| "ttl")
    }),
    ("the hop limit is another", |left, random| {
        flip_in_network(left, random, |layout| !is_v4(layout), 7, 1).map(|()| "ttl")
    }),
    ("the type of service is another", |left, random| {
        flip_in_network(left, random, is_v4, 1, 4).map(|()| "traffic-class")
    }),
    ("the flow label is another", |left, random| {
        flip_in_network(left, random, |layout| !is_v4(layout), 3, 1).map(|()| "flow-label")
    }),
    ("the identification is another", |left, random| {
        flip_in_network(left, random, is_v4, 4, 0x40).map(|()| "ip-id")
    }),
    ("DF is another", |left, random| {
        flip_in_network(left, random, is_v4, 6, 0x40).map(|()| "dont-fragment")
    }),
    ("the IP length is another", |left, random| {
        flip_in_network(left, random, is_v4, 3, 1).map(|()| "length")
    }),
    ("the acknowledgement is another", |left, random| {
        flip_in_tcp(left, random, 11, 1).map(|()| "acknowledgement")
    }),
    ("the window is another", |left, random| flip_in_tcp(left, random, 15, 1).map(|()| "window")),
    ("ECE is another", |left, random| flip_in_tcp(left, random, 13, 0x40).map(|()| "flags")),
    ("PSH is another", |left, random| flip_in_tcp(left, random, 13, 8).map(|()| "flags")),
    ("an option is another", |left, random| {
        let with_options =
            |layout: &Layout| is_tcp(layout) && layout.payload > layout.transport + 20;
        flip(left, random, with_options, |layout| usize::from(layout.payload) - 1, 1)
            .map(|()| "tcp-options")
    }),
    ("a tunnel's identifier is another", |left, random| {
        let in_udp = |layout: &Layout| layout.outer.is_some_and(|outer| outer.tunnel.is_udp());
        let place =
            |layout: &Layout| usize::from(layout.outer.expect("a tunnel").transport) + 8 + 4;
        flip(left, random, in_udp, place, 1).map(|()| "tunnel-header")
    }),
];

/// Returns the offset of the outer checksum of a super-packet, and the value that is valid for the
/// whole once the inner checksum is.
fn whole_outer_checksum(bytes: &[u8], layout: &Layout) -> (usize, u16) {
    let outer = layout.outer.expect("a tunnel");
    let (start, inner) = (usize::from(outer.transport), usize::from(layout.transport));
    let field = |place: usize| u16::from_be_bytes([bytes[place], bytes[place + 1]]);
    // The field holds the pseudo-header's sum. The inner packet sums to the complement of its own.
    let headers = checksum::sum(&bytes[start..inner]);
    let inner_sum = !field(usize::from(layout.checksum()));
    let total = u32::from(headers) + u32::from(inner_sum);
    let folded = (total & 0xffff) + (total >> 16);
    (start + 6, !(((folded & 0xffff) + (folded >> 16)) as u16))
}

/// The kernel's segments are faithful. Packets that their header contradicts are not judged.
#[test]
fn what_the_kernel_cuts_is_faithful() -> Result<(), LabError> {
    let Some(kernel) = superpacket_lab::available_or_skip(KernelGso::new()) else { return Ok(()) };
    cut(kernel, GeneratedPackets::new(12).take(5_000))
}

#[test]
fn what_the_kernel_cuts_in_tunnels_is_faithful() -> Result<(), LabError> {
    // Kernels before 6.17 accept none.
    let Some(kernel) = superpacket_lab::available_or_skip(KernelGso::of_tunnels()) else {
        return Ok(());
    };
    cut(kernel, GeneratedPackets::in_tunnels(13).take(4_000))
}

fn cut(mut kernel: KernelGso, packets: impl Iterator<Item = GsoInput>) -> Result<(), LabError> {
    let (mut found, mut faithful, mut random) = (BTreeMap::new(), 0, Random::new(3));
    // Linux makes fragments of these datagrams that cannot be reassembled, or that contradict RFC
    // 8200, section 4.5: see docs/reversibility.md.
    let is_faulty = |packet: &GsoInput| {
        let has_extensions = packet.extension().is_some_and(|(next, _)| next != 17);
        packet.header.gso_type == gso_type::UDP
            && (!packet.header.gso_size.is_multiple_of(8) || has_extensions)
    };
    // Linux adjusts any sum, a wrong one too; the checker reports the segments. Where Linux
    // computes a checksum again, it uses the addresses of the IP header, although the packet has
    // another destination. `tests/kernel.rs` compares both byte by byte.
    let has_another_sum = |packet: &GsoInput| packet.seeded_by_header().is_some();
    for packet in packets.filter(|packet| !is_faulty(packet) && !has_another_sum(packet)) {
        let Some(segments) = kernel.segment(packet.header, &packet.bytes)? else { continue };
        let left: Vec<_> = segments.iter().map(|frame| (None, frame.with_tag())).collect();
        let origin = [(Some((packet.header, packet.format)), packet.bytes.clone())];
        let report = judged(&left, &origin);
        match report.verdict {
            Verdict::Faithful => faithful += 1,
            // The header contradicts its packet.
            Verdict::Incomplete => continue,
            _ => {
                note(&mut found, &report, &left, &origin);
                continue;
            }
        }
        let mut damaged = left.clone();
        let index = random.below(left.len() as u64) as usize;
        let place = random.below(left[index].1.len() as u64) as usize;
        damaged[index].1[place] ^= 1 << random.below(8);
        let verdict = judged(&damaged, &origin).verdict;
        assert_ne!(
            verdict,
            Verdict::Faithful,
            "byte {place} of segment {index} of {}: {:?}",
            left.len(),
            packet.header
        );
        damaged.clone_from(&left);
        damaged.remove(index);
        assert_eq!(
            judged(&damaged, &origin).verdict,
            Verdict::Unfaithful,
            "without segment {index} of {:?}",
            packet.header
        );
    }
    assert_none(&found);
    assert!(faithful > 2_000, "{faithful}");
    Ok(())
}

/// Returns packets of one flow in each kind of UDP tunnel, with this outer checksum.
fn flows(outer: Checksum) -> Vec<Vec<Frame>> {
    let inner = [Frame::tcp4(1, 700), Frame::tcp6(1, 700), Frame::udp4(700)];
    let tunnels: [fn(Frame) -> Frame; 4] =
        [Frame::in_vxlan4, Frame::in_vxlan6, Frame::in_geneve, Frame::in_geneve6];
    let in_tunnels =
        inner.iter().flat_map(|inner| tunnels.iter().map(|through| through(inner.clone())));
    in_tunnels.map(|frame| frame.with_outer_checksum(outer).run(9)).collect()
}

const FRAMING: Framing = Framing::new(Format::Tunnel, ByteOrder::NATIVE, Layer::Ethernet);

/// Returns the packet that a framed aggregator makes of packets that merge: gathered, or in their
/// own buffers.
fn framed(packets: &[Vec<u8>], in_place: bool) -> (Header, Vec<u8>) {
    let mut aggregator = BatchAggregator::framed(FRAMING, Policy::gro_with_udp(), HashKey::new(1));
    let mut left = Vec::new();
    if in_place {
        let mut buffers: Vec<_> =
            packets.iter().map(|packet| [&[0; 24][..], packet].concat()).collect();
        buffers.iter_mut().for_each(|buffer| buffer.reserve_exact(9_000));
        assert_eq!(aggregator.join_in_place(&mut buffers, 24), Ok(&[0][..]), "all merge");
        left.push(buffers.remove(0));
    } else {
        aggregator.poll_gathered(packets, |slices| {
            left.push(slices.iter().flat_map(|slice| slice.iter().copied()).collect())
        });
    }
    assert_eq!(left.len(), 1, "all merge");
    let header = Header::read(&left[0], FRAMING.format, FRAMING.order).expect("24 bytes");
    (header, left[0][24..].to_vec())
}

/// Linux segments the output of a framed aggregator into the original packets. If the outer
/// checksum is the one of the whole packet instead, Linux gives the segments wrong checksums. The
/// checker reports both.
#[test]
fn the_kernel_cuts_the_pseudo_headers_sum_right_and_the_whole_checksum_wrong()
-> Result<(), LabError> {
    let Some(mut kernel) = superpacket_lab::available_or_skip(KernelGso::of_tunnels()) else {
        return Ok(());
    };
    for outer in [Checksum::Right, Checksum::Zero] {
        for frames in flows(outer) {
            let packets: Vec<_> = frames.iter().map(Frame::to_bytes).collect();
            let origin: Vec<Described> =
                packets.iter().map(|packet| (None, packet.clone())).collect();
            for in_place in [false, true] {
                let (header, bytes) = framed(&packets, in_place);
                let segments = kernel.segment(header, &bytes)?.expect("a valid header");
                let segments: Vec<_> = segments.iter().map(CapturedFrame::with_tag).collect();
                assert!(segments == packets, "{outer:?} {:?}", frames[0]);
                let verdict = judged(&[(Some((header, Format::Tunnel)), bytes)], &origin).verdict;
                assert_eq!(verdict, Verdict::Faithful);
            }
            if outer == Checksum::Zero {
                continue;
            }
            let (header, mut bytes) = framed(&packets, false);
            let (place, value) =
                whole_outer_checksum(&bytes, &layout(&bytes).expect("it can be parsed"));
            bytes[place..place + 2].copy_from_slice(&value.to_be_bytes());
            let segments = kernel.segment(header, &bytes)?.expect("a valid header");
            assert_eq!(segments.len(), packets.len());
            for (segment, packet) in segments.iter().map(CapturedFrame::with_tag).zip(&packets) {
                assert!(
                    segment != *packet && segment[place + 2..] == packet[place + 2..],
                    "the outer checksum is wrong"
                );
            }
            let report = judged(&[(Some((header, Format::Tunnel)), bytes.clone())], &origin);
            let broken: Vec<_> = report
                .described
                .iter()
                .map(|violation| (violation.rule.name(), violation.field.as_str()))
                .collect();
            assert_eq!(broken, [("partial-checksum", "outer udp.checksum")]);
            // A field that the flags do not mention is copied to all segments.
            let header = Header { flags: header.flags & !flags::UDP_TUNNEL_CSUM, ..header };
            let segments = kernel.segment(header, &bytes)?.expect("a valid header");
            assert!(
                segments
                    .iter()
                    .all(|segment| segment.bytes[place..place + 2] == value.to_be_bytes())
            );
            let report = judged(&[(Some((header, Format::Tunnel)), bytes)], &origin);
            assert_eq!(
                report.by_rule.keys().map(|rule| rule.name()).collect::<Vec<_>>(),
                ["virtio-header"]
            );
        }
    }
    Ok(())
}

/// The segmenter restores the original packets from what Linux hands to a TAP device with a header
/// of 24 bytes.
#[test]
fn what_the_kernel_hands_on_is_cut_right() -> Result<(), LabError> {
    let host = Host::new("bridge")?;
    let Some(sender) = superpacket_lab::available_or_skip(TapFile::new(&host, "tap0")) else {
        return Ok(());
    };
    let receiver = TapFile::new(&host, "tap1")?;
    for tap in [&sender, &receiver] {
        tap.link().set_mtu(65_521)?;
    }
    Link::bridge(&host, "br0", &[sender.link(), receiver.link()])?;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    for outer in [Checksum::Right, Checksum::Zero] {
        for frames in flows(outer) {
            let packets: Vec<_> = frames.iter().map(Frame::to_bytes).collect();
            let (header, bytes) = framed(&packets, false);
            let (header, bytes) = loop {
                // A bridge learns of its ports' carriers with a delay.
                sender.send(header, &bytes)?;
                std::thread::sleep(std::time::Duration::from_millis(5));
                match receiver.receive()? {
                    // The bridge itself sends to multicast addresses.
                    Some((_, frame)) if frame[6..12] != bytes[6..12] => {}
                    Some(received) => break received,
                    None => assert!(
                        std::time::Instant::now() < deadline,
                        "nothing came through the bridge"
                    ),
                }
            };
            while receiver.receive()?.is_some() {}
            let tunnel = gso_type::UDP_TUNNEL_IPV4 | gso_type::UDP_TUNNEL_IPV6;
            assert_ne!(header.gso_type & tunnel, 0, "the kernel hands it on whole: {header:?}");
            assert_eq!(header.flags & flags::UDP_TUNNEL_CSUM != 0, outer == Checksum::Right);
            let mut read = vec![0; 24];
            header.write(&mut read, FRAMING.format, FRAMING.order).expect("there is room");
            read.extend_from_slice(&bytes);
            let mut segments = Vec::new();
            let plan =
                Segmenter::new().split(FRAMING, &read, &mut segments).expect("a valid header");
            assert!(
                segments.chunks(plan.segment_length).eq(packets.iter().map(Vec::as_slice)),
                "{outer:?} {:?}",
                frames[0]
            );
            // The checker accepts the kernel's form.
            let origin: Vec<Described> =
                packets.iter().map(|packet| (None, packet.clone())).collect();
            assert_eq!(
                judged(&[(Some((header, Format::Tunnel)), bytes)], &origin).verdict,
                Verdict::Faithful
            );
        }
    }
    Ok(())
}
