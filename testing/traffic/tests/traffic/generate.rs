//! Tests of the generator: the same seed gives the same packets, every combination occurs, reported
//! metadata is true, and most packets can merge.

use std::collections::{HashMap, HashSet};

use superpacket_traffic::check::{self, Expect, Kind};
use superpacket_traffic::checksum;
use superpacket_traffic::frame::{ACK, CWR, ECE, FIN, PSH, RST, SYN};
use superpacket_traffic::generate::{
    Checksum, Combination, Config, Generated, Impairments, Tunnel, generate, stream,
};

/// Returns the FNV-1a hash of all packets and their metadata.
fn fingerprint(packets: &[Generated]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    for packet in packets {
        add(&(packet.bytes.len() as u32).to_be_bytes());
        add(&packet.bytes);
        add(&packet.time_ns.to_be_bytes());
        add(&packet.flow.to_be_bytes());
        add(format!(
            "{:?}{:?}{:?}{:?}",
            packet.checksum, packet.stripped_vlan, packet.starts_at_ip, packet.combination.protocol
        )
        .as_bytes());
        add(format!("{:?}", packet.combination.tunnel).as_bytes());
    }
    hash
}

fn expect(packet: &Generated) -> Expect {
    Expect {
        starts_at_ip: packet.starts_at_ip,
        trailing: true,
        partial: matches!(packet.checksum, Checksum::Partial { .. }),
        big: false,
    }
}

#[test]
fn a_seed_always_gives_the_same_packets() {
    let packets = generate(1, &Config::default(), 3_000);
    // The number changes with the generator, which must only happen on purpose.
    assert_eq!(fingerprint(&packets), 0x6a6e_b216_1451_a1ba);
    assert_ne!(fingerprint(&generate(2, &Config::default(), 3_000)), fingerprint(&packets));
    assert_eq!(generate(1, &Config::default(), 1_000), packets[..1_000]);
}

#[test]
fn every_combination_occurs_early() {
    for seed in 0..5 {
        let combinations: HashSet<_> =
            stream(seed, Config::default()).take(1_500).map(|packet| packet.combination).collect();
        assert_eq!(combinations, Combination::all().into_iter().collect(), "seed {seed}");
    }
    assert_eq!(Combination::all().len(), 48);
}

#[test]
fn without_mischief_all_packets_are_right_and_their_streams_whole() {
    let config = Config { impairments: Impairments::NONE, ..Config::default() };
    let mut last_time = 0;
    for (index, packet) in stream(7, config).take(20_000).enumerate() {
        let checked = check::frame(&packet.bytes, &expect(&packet))
            .unwrap_or_else(|problem| panic!("packet {index}: {problem}"));
        assert!(checked.trailing == 0 || packet.bytes.len() == 60);
        assert!(packet.time_ns >= last_time);
        last_time = packet.time_ns;
    }
}

/// A partial checksum behind a header that the checker cannot parse would make the outer checksum
/// look wrong.
#[test]
fn unusual_tunnels_with_offloaded_checksums_are_right() {
    let tunnels = [Tunnel::Vxlan4, Tunnel::Vxlan6, Tunnel::Nested];
    let combinations = Combination::all()
        .into_iter()
        .filter(|combination| tunnels.contains(&combination.tunnel))
        .collect();
    let impairments = Impairments { other_checksum_state: 0.3, ..Impairments::NONE };
    let config = Config {
        combinations,
        unusual_headers: 1.0,
        offloaded: 0.8,
        impairments,
        ..Config::default()
    };
    let (mut partial, mut extended) = (0, 0);
    for (index, packet) in stream(1, config).take(20_000).enumerate() {
        let checked = check::frame(&packet.bytes, &expect(&packet))
            .unwrap_or_else(|problem| panic!("packet {index}: {problem}"));
        partial += usize::from(checked.partial.is_some());
        // The checker parses VXLAN with the protocol extension only up to its UDP header.
        extended += usize::from(
            packet
                .bytes
                .get(checked.payload)
                .is_some_and(|payload| payload.starts_with(&[0x0c, 0, 0, 3])),
        );
    }
    assert!(partial > 1_000 && extended > 300, "{partial} partial, {extended} with the extension");
}

#[test]
fn what_the_device_says_is_true() {
    let mut seen = HashMap::new();
    for packet in stream(11, Config::default()).take(30_000) {
        let bytes = &packet.bytes;
        let name = match packet.checksum {
            Checksum::Unknown => "unknown",
            Checksum::Verified { level } => {
                let checked = check::frame(bytes, &expect(&packet)).expect("verified");
                assert_eq!(checked.checksums, usize::from(level) + 1);
                assert!(!checked.fragment);
                "verified"
            }
            Checksum::Complete(sum) => {
                let start = if packet.starts_at_ip { 0 } else { 14 };
                assert_eq!(sum, checksum::sum(bytes.get(start..).unwrap_or(&[])));
                "complete"
            }
            Checksum::Partial { start, offset } => {
                let checked = check::frame(bytes, &expect(&packet)).expect("partial");
                let transport = checked.layers.last().unwrap();
                assert_eq!(transport.offset, usize::from(start));
                assert_eq!(offset, if transport.kind == Kind::Tcp { 16 } else { 6 });
                assert_eq!(checked.partial, Some(usize::from(start + offset)));
                "partial"
            }
        };
        *seen.entry(name).or_insert(0usize) += 1;
    }
    for (name, least) in
        [("unknown", 10_000), ("verified", 2_000), ("complete", 2_000), ("partial", 500)]
    {
        assert!(seen[name] > least, "{seen:?}");
    }
}

/// The last packet of a flow in one direction.
struct Last {
    at: usize,
    header: Vec<u8>,
    payload: usize,
    /// Its sequence number, and the expected next one.
    sequence: u32,
    following: u32,
    ids: Vec<u16>,
    steps: Vec<u16>,
    closed: bool,
    segments: usize,
}

/// Returns the number of packets that join the previous one of their flow by the simplest rules of
/// GRO. It is a lower bound for an engine that holds at least the flows of 64 packets.
fn mergeable(packets: &[Generated]) -> usize {
    let mut flows: HashMap<_, Last> = HashMap::new();
    let mut merged = 0;
    for (at, packet) in packets.iter().enumerate() {
        let Some(key) = check::flow_key(&packet.bytes, packet.starts_at_ip) else { continue };
        let key = (key, packet.stripped_vlan, packet.starts_at_ip);
        let strict = Expect { trailing: false, ..expect(packet) };
        let candidate = check::frame(&packet.bytes, &strict)
            .ok()
            .filter(|checked| !checked.fragment && !checked.payload.is_empty());
        let Some(checked) = candidate.and_then(|checked| describe(packet, at, &checked)) else {
            flows.remove(&key);
            continue;
        };
        let joined = flows.get(&key).and_then(|last| join(last, &checked, at / 64 == last.at / 64));
        match joined {
            Some((steps, segments)) => {
                merged += 1;
                let payload = flows[&key].payload;
                let closed = checked.closed || checked.payload < payload;
                flows.insert(key, Last { steps, segments, payload, closed, ..checked });
            }
            None => {
                flows.insert(key, checked);
            }
        }
    }
    merged
}

fn join(last: &Last, next: &Last, same_batch: bool) -> Option<(Vec<u16>, usize)> {
    let steps: Vec<_> =
        last.ids.iter().zip(&next.ids).map(|(before, after)| after.wrapping_sub(*before)).collect();
    let fits = !last.closed
        && same_batch
        && last.header == next.header
        && last.following == next.sequence
        && next.payload <= last.payload
        && last.ids.len() == next.ids.len()
        && steps.iter().all(|step| *step <= 1)
        && (last.segments == 1 || steps == last.steps)
        && (last.segments + 1) * last.payload < 65_000;
    fits.then_some((steps, last.segments + 1))
}

/// Returns the header without the fields that may differ within a super-packet; `None` for packets
/// that never merge.
fn describe(packet: &Generated, at: usize, checked: &check::Checked) -> Option<Last> {
    let mut header = packet.bytes[..checked.payload.start].to_vec();
    let mut ids = Vec::new();
    let payload = checked.payload.len();
    let (mut sequence, mut following) = (0, 0);
    let mut closed = false;
    for layer in &checked.layers {
        let start = layer.offset;
        let be16 = |offset: usize| {
            u16::from_be_bytes([packet.bytes[start + offset], packet.bytes[start + offset + 1]])
        };
        let clear: &[usize] = match layer.kind {
            Kind::Ipv4 if layer.header != 20 => return None,
            Kind::Ipv4 => {
                ids.push(be16(4));
                &[2, 3, 4, 5, 10, 11]
            }
            Kind::Ipv6 => &[4, 5],
            Kind::Extension(44) => return None,
            Kind::Udp => &[4, 5, 6, 7],
            Kind::Pppoe => &[4, 5],
            Kind::Gre if packet.bytes[start] & 0x10 != 0 => return None,
            Kind::Gre if packet.bytes[start] & 0x80 != 0 => &[4, 5],
            Kind::Tcp => {
                let fields = check::tcp_fields(&packet.bytes, packet.starts_at_ip)?;
                if fields.flags & (SYN | RST) != 0 {
                    return None;
                }
                (sequence, following) =
                    (fields.sequence, fields.sequence.wrapping_add(payload as u32));
                closed = fields.flags & (PSH | FIN) != 0;
                header[start + 13] &= !(PSH | FIN) as u8;
                &[4, 5, 6, 7, 16, 17]
            }
            Kind::Dccp => {
                let extended = packet.bytes[start + 8] & 1 == 1;
                // The low 16 bits are sufficient here.
                let low = if extended { be16(14) } else { be16(10) };
                (sequence, following) = (low.into(), low.wrapping_add(1).into());
                if extended { &[6, 7, 14, 15] } else { &[6, 7, 10, 11] }
            }
            _ => &[],
        };
        for offset in clear {
            header[start + offset] = 0;
        }
    }
    let whole = matches!(checked.layers.last()?.kind, Kind::Tcp | Kind::Udp | Kind::Dccp);
    whole.then(|| Last {
        at,
        header,
        payload,
        sequence,
        following,
        ids,
        steps: Vec::new(),
        closed,
        segments: 1,
    })
}

#[test]
fn most_packets_merge() {
    for seed in 0..4 {
        let packets = generate(seed, &Config::default(), 10_000);
        let merged = mergeable(&packets);
        assert!(merged > 5_000, "seed {seed}: {merged} of 10000");
    }
}

/// The names of all kinds of packets that the streams must contain.
const EXPECTED: [&str; 37] = [
    "damaged",
    "tagged",
    "double tagged",
    "stripped",
    "pppoe",
    "mpls",
    "at ip",
    "extension",
    "route",
    "home address",
    "source route",
    "fragment",
    "sctp",
    "icmp",
    "not ip",
    "padded",
    "padded to 60",
    "gre checksum",
    "1-byte payload",
    "not canonical",
    "id fixed",
    "id incrementing",
    "id wraps",
    "sequence wraps",
    "psh",
    "fin with data",
    "cwr",
    "ece",
    "syn",
    "rst",
    "pure ack",
    "padded pure ack",
    "sack",
    "duplicate ack",
    "window update",
    "cwr in a row",
    "keep-alive",
];

/// Counts the headers of a valid packet by name.
fn count_headers(
    packet: &Generated,
    checked: &check::Checked,
    count: &mut impl FnMut(&'static str, bool),
) {
    let bytes = &packet.bytes;
    let has = |kind| checked.layers.iter().any(|layer| layer.kind == kind);
    count("tagged", has(Kind::Vlan));
    count(
        "double tagged",
        bytes.get(12..14) == Some(&[0x88, 0xa8]) && bytes.get(16..18) == Some(&[0x81, 0]),
    );
    count("stripped", packet.stripped_vlan.is_some());
    count("pppoe", has(Kind::Pppoe));
    count("mpls", has(Kind::Mpls));
    count("at ip", packet.starts_at_ip);
    count("extension", has(Kind::Extension(0)) || has(Kind::Extension(60)));
    count(
        "route",
        checked
            .layers
            .iter()
            .any(|layer| layer.kind == Kind::Extension(43) && bytes[layer.offset + 3] > 0),
    );
    let home = |layer: &check::Layer| {
        bytes[layer.offset..layer.offset + layer.header].windows(2).any(|bytes| bytes == [201, 16])
    };
    count(
        "home address",
        checked.layers.iter().any(|layer| layer.kind == Kind::Extension(60) && home(layer)),
    );
    let routed = |layer: &&check::Layer| {
        matches!(bytes.get(layer.offset + 21), Some(131 | 137)) && layer.header > 24
    };
    count("source route", checked.innermost(Kind::Ipv4).filter(routed).is_some());
    count("fragment", checked.fragment);
    count("sctp", has(Kind::Sctp));
    count("icmp", has(Kind::Icmp) || has(Kind::Icmpv6));
    count("not ip", checked.layers.len() == 1 && !packet.starts_at_ip);
    count("padded", checked.trailing > 0);
    count("padded to 60", checked.trailing > 0 && bytes.len() == 60);
    count(
        "gre checksum",
        checked.layers.iter().any(|layer| {
            layer.kind == Kind::Gre && layer.header > 4 && bytes[layer.offset] & 0x80 != 0
        }),
    );
    count("1-byte payload", checked.payload.len() == 1);
    count("not canonical", !checked.canonical);
}

#[test]
fn the_streams_contain_all_kinds_of_packets() {
    let packets = generate(6, &Config::default(), 30_000);
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let mut previous: HashMap<u32, check::TcpFields> = HashMap::new();
    let mut ids: HashMap<u32, u16> = HashMap::new();
    let mut next: HashMap<u32, u32> = HashMap::new();
    for packet in &packets {
        let mut count =
            |name, condition: bool| *seen.entry(name).or_default() += usize::from(condition);
        let bytes = &packet.bytes;
        let Ok(checked) = check::frame(bytes, &expect(packet)) else {
            count("damaged", true);
            continue;
        };
        count_headers(packet, &checked, &mut count);
        if let Some(ip) = checked.innermost(Kind::Ipv4) {
            let id = u16::from_be_bytes([bytes[ip.offset + 4], bytes[ip.offset + 5]]);
            let before = ids.insert(packet.flow, id);
            count("id fixed", before == Some(id));
            count("id incrementing", before == Some(id.wrapping_sub(1)));
            count("id wraps", before == Some(0xffff) && id == 0);
        }
        let Some(fields) = check::tcp_fields(bytes, packet.starts_at_ip) else { continue };
        let end = fields.sequence.wrapping_add(fields.payload as u32);
        count("sequence wraps", end < fields.sequence);
        count("psh", fields.flags & PSH != 0);
        count("fin with data", fields.flags & FIN != 0 && fields.payload > 0);
        count("cwr", fields.flags & CWR != 0 && fields.payload > 0);
        count("ece", fields.flags & ECE != 0);
        count("syn", fields.flags & SYN != 0);
        count("rst", fields.flags & RST != 0);
        let ack = fields.payload == 0 && fields.flags == ACK;
        count("pure ack", ack);
        count("padded pure ack", ack && checked.trailing > 0);
        count("sack", ack && fields.options.windows(3).any(|bytes| bytes[..3] == [1, 5, 10]));
        if let Some(before) = previous.insert(packet.flow, fields.clone()) {
            let again = ack
                && before.payload == 0
                && before.acknowledgement == fields.acknowledgement
                && before.sequence == fields.sequence;
            count("duplicate ack", again && before == fields);
            count("window update", again && before.window != fields.window);
            count("cwr in a row", fields.flags & before.flags & CWR != 0);
        }
        count(
            "keep-alive",
            fields.payload <= 1 && next.get(&packet.flow) == Some(&fields.sequence.wrapping_add(1)),
        );
        next.insert(packet.flow, end);
    }
    for name in EXPECTED {
        assert!(seen.get(name).is_some_and(|count| *count >= 3), "{name}: {seen:#?}");
    }
}

#[test]
fn each_impairment_alone_has_its_effect() {
    let plain = Config { impairments: Impairments::NONE, ..Config::default() };
    let with = |impairments| generate(3, &Config { impairments, ..plain.clone() }, 3_000);
    let rate = 0.2;
    let right = |packets: &[Generated]| {
        packets.iter().filter(|packet| check::frame(&packet.bytes, &expect(packet)).is_ok()).count()
    };
    let distinct = |packets: &[Generated]| {
        packets.iter().map(|packet| packet.bytes.clone()).collect::<HashSet<_>>().len()
    };
    let none = with(Impairments::NONE);
    assert_eq!(right(&none), 3_000);
    let base = distinct(&none);

    assert!(distinct(&with(Impairments { duplicate: rate, ..Impairments::NONE })) < base - 300);
    let corrupt = with(Impairments { corrupt: rate, ..Impairments::NONE });
    assert!((2_200..2_800).contains(&right(&corrupt)), "{}", right(&corrupt));
    let truncated = with(Impairments { truncate: rate, ..Impairments::NONE });
    assert!((2_200..2_700).contains(&right(&truncated)), "{}", right(&truncated));
    let varied = with(Impairments { other_field: rate, ..Impairments::NONE });
    assert!((2_400..2_950).contains(&right(&varied)), "{}", right(&varied));

    let trailing = |packets: &[Generated]| {
        packets
            .iter()
            .filter(|packet| {
                check::frame(&packet.bytes, &expect(packet))
                    .is_ok_and(|checked| checked.trailing > 0)
            })
            .count()
    };
    assert!(
        trailing(&with(Impairments { pad: rate, ..Impairments::NONE })) > trailing(&none) + 400
    );
    let fragments = with(Impairments { fragments: rate, ..Impairments::NONE });
    let checked =
        fragments.iter().map(|packet| check::frame(&packet.bytes, &expect(packet)).unwrap());
    assert!(checked.filter(|checked| checked.fragment).count() > 600);
    let other_protocol = with(Impairments { other_protocol: rate, ..Impairments::NONE });
    let strange = |packet: &&Generated| {
        let checked = check::frame(&packet.bytes, &expect(packet)).unwrap();
        !matches!(checked.layers.last().unwrap().kind, Kind::Tcp | Kind::Udp | Kind::Dccp)
    };
    assert!((400..700).contains(&other_protocol.iter().filter(strange).count()));
    let tags = |packets: &[Generated]| {
        packets.iter().filter(|packet| packet.stripped_vlan.is_some()).count()
    };
    assert!(tags(&with(Impairments { other_vlan: rate, ..Impairments::NONE })) > tags(&none) + 200);

    // Events within a flow's direction: gaps after losses, steps back after reordering, and changes
    // of the reported state.
    let count = |packets: &[Generated], happens: fn(&Generated, &Generated) -> bool| {
        let mut last: HashMap<u32, &Generated> = HashMap::new();
        packets
            .iter()
            .filter(|packet| {
                last.insert(packet.flow, packet).is_some_and(|before| happens(before, packet))
            })
            .count()
    };
    fn step(before: &Generated, after: &Generated) -> Option<i32> {
        let before = check::tcp_fields(&before.bytes, before.starts_at_ip)?;
        let after = check::tcp_fields(&after.bytes, after.starts_at_ip)?;
        let phantom = u32::from(((before.flags & (SYN | FIN)) != 0) as u8);
        Some(
            after
                .sequence
                .wrapping_sub(before.sequence.wrapping_add(before.payload as u32 + phantom))
                as i32,
        )
    }
    let gap: fn(&Generated, &Generated) -> bool =
        |before, after| step(before, after).is_some_and(|step| step > 1);
    let back: fn(&Generated, &Generated) -> bool =
        |before, after| step(before, after).is_some_and(|step| step < -1);
    let restated: fn(&Generated, &Generated) -> bool = |before, after| {
        core::mem::discriminant(&before.checksum) != core::mem::discriminant(&after.checksum)
    };
    assert!(
        count(&none, back) == 0 && count(&none, restated) < 100,
        "{} {}",
        count(&none, back),
        count(&none, restated)
    );
    assert!(
        count(&with(Impairments { drop: rate, ..Impairments::NONE }), gap)
            > count(&none, gap) + 100
    );
    assert!(count(&with(Impairments { reorder: rate, ..Impairments::NONE }), back) > 100);
    assert!(
        count(&with(Impairments { other_checksum_state: rate, ..Impairments::NONE }), restated)
            > count(&none, restated) + 300
    );
}
