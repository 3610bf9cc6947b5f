//! Work and memory are bounded whatever the traffic, shown by counting: table entries looked at,
//! flows held, flushes caused.

use crate::support::*;
use superpacket::aggregate::{HashKey, Reason};
use superpacket::super_packet::SuperPacket;
use superpacket_traffic::frame::{Frame, Ip};

/// Entries in a bucket of the table and the neighbour that lends to it: the most that a packet may
/// look at.
const WAYS: u64 = 16;

/// The bytes of a frame, to be changed in place: building each anew would be what the test
/// measures.
struct Template {
    bytes: Vec<u8>,
}

impl Template {
    fn new(frame: &Frame) -> Self {
        Template { bytes: frame.to_bytes() }
    }

    /// The frame with a source address and port of this number, its checksums corrected for both
    /// (RFC 1624).
    fn flow(&self, number: u32) -> Packet {
        let mut bytes = self.bytes.clone();
        let mut put = |offset: usize, value: u16, checksums: &[usize]| {
            let old = u16::from_be_bytes([bytes[offset], bytes[offset + 1]]);
            bytes[offset..offset + 2].copy_from_slice(&value.to_be_bytes());
            for &checksum in checksums {
                let field = u16::from_be_bytes([bytes[checksum], bytes[checksum + 1]]);
                let sum = u32::from(!field) + u32::from(!old) + u32::from(value);
                let sum = (sum & 0xffff) + (sum >> 16);
                let sum = (sum & 0xffff) + (sum >> 16);
                bytes[checksum..checksum + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
            }
        };
        let (ip, tcp) = (14 + 10, 34 + 16);
        put(14 + 14, (number >> 8) as u16, &[ip, tcp]);
        put(34, number as u16, &[tcp]);
        bytes.into()
    }
}

/// A table of this many flows under a key, and how many packets left it.
struct Table {
    aggregator: Aggregator<Vec<u8>>,
    left: u64,
}

impl Table {
    fn new(max_flows: u32, key: u128) -> Self {
        Table {
            aggregator: Aggregator::new(PARTIAL_GRO.with_max_flows(max_flows), HashKey::new(key)),
            left: 0,
        }
    }

    /// Receives a packet; returns how many entries were looked at.
    fn receive(&mut self, packet: &Packet) -> u64 {
        let before = self.aggregator.counters().probes;
        let left = &mut self.left;
        self.aggregator.receive(packet.receive(), 0, &mut |_: SuperPacket<'_, Vec<u8>>| *left += 1);
        let counters = self.aggregator.counters();
        assert!(counters.balanced());
        assert_eq!(counters.packets_out, self.left);
        counters.probes - before
    }

    fn held(&self) -> u64 {
        self.aggregator.counters().held
    }

    fn reason(&self, reason: Reason) -> u64 {
        self.aggregator.counters().reason(reason)
    }
}

#[test]
fn each_packet_looks_at_two_buckets_at_most_whatever_the_flows() {
    let template = Template::new(&Frame::tcp4(1000, 10));
    for max_flows in [8, 1024, 65_536] {
        for flows in [10, 4_000, 100_000] {
            let mut table = Table::new(max_flows, 5);
            // By turns, so that each packet meets another flow than the last one did; twice, so
            // that what is held is met again.
            for turn in 0..2 {
                for number in 0..flows {
                    let probes = table.receive(&template.flow(number));
                    assert!(
                        probes <= WAYS,
                        "{probes} probes at flow {number} of {flows}, turn {turn}"
                    );
                    assert!(table.held() <= u64::from(max_flows), "{} held", table.held());
                }
            }
            let counters = table.aggregator.counters();
            assert!(counters.probes <= WAYS * counters.packets_in);
            // Each packet put one in and so no more than one out; none was merged, as each repeats
            // its flow's first.
            assert_eq!(counters.packets_out + counters.held, counters.packets_in);
        }
    }
}

#[test]
fn a_packet_emits_at_most_what_it_displaces() {
    // A hostile mix, each packet of another flow: one goes in, at most one comes out.
    let template = Template::new(&Frame::tcp4(1000, 10));
    let mut table = Table::new(64, 5);
    for number in 0..4_000 {
        let before = table.left;
        table.receive(&template.flow(number));
        assert!(table.left - before <= 1);
    }
    assert_eq!(table.reason(Reason::Evicted), 4_000 - table.held());
}

#[test]
fn a_table_that_is_not_full_evicts_few() {
    // Twice as many places as flows, and neighbours that lend: a bucket without a place is rare
    // under any key.
    let template = Template::new(&Frame::tcp4(1000, 10));
    for key in 0..8 {
        let mut table = Table::new(1024, key);
        for number in 0..1024 {
            table.receive(&template.flow(number));
        }
        assert!(
            table.reason(Reason::Evicted) < 8,
            "{} evicted under key {key}",
            table.reason(Reason::Evicted)
        );
    }
}

#[test]
fn a_table_that_is_half_full_evicts_none() {
    // Of 64 keys a bucket without a neighbour would be too small under four.
    let template = Template::new(&Frame::tcp4(1000, 10));
    for key in 0..64 {
        let mut table = Table::new(1024, key);
        for number in 0..512 {
            table.receive(&template.flow(number));
        }
        assert_eq!(table.held(), 512, "under key {key}");
    }
}

/// A frame between the addresses of pair `number`, with this source port.
fn between(number: u16, port: u16) -> Frame {
    Frame::tcp4(1000, 10).with(|frame| {
        let [high, low] = number.to_be_bytes();
        frame.ipv4_mut().source = [10, 7, high, low];
        frame.tcp_mut().source_port = port;
    })
}

/// A fragment between the same, without ports.
fn fragment(number: u16) -> Packet {
    let frame = between(number, 1).with(|frame| match &mut frame.ip {
        Ip::V4(ip) => (ip.fragment_offset, ip.dont_fragment) = (7, false),
        Ip::V6(_) => unreachable!("the frame is IPv4"),
    });
    frame.into()
}

#[test]
fn a_fragment_flushes_the_flows_of_its_addresses() {
    let mut table = Table::new(1024, 5);
    // 500 pairs with one flow, and one with 100.
    for number in 0..500 {
        table.receive(&between(number, 9).into());
    }
    for port in 0..100 {
        table.receive(&between(600, port).into());
    }
    assert_eq!((table.held(), table.left), (600, 0));
    table.receive(&fragment(600));
    // Its own 100, and the few whose pair hangs in the same list of some thousand.
    let flushed = table.reason(Reason::Overtaken);
    assert!((100..110).contains(&flushed), "{flushed}");
    assert_eq!(table.held() + flushed, 600);
    for _ in 0..100 {
        table.receive(&fragment(600));
    }
    assert_eq!(table.reason(Reason::Overtaken), flushed, "there was nothing more to flush");
}

#[test]
fn a_fragment_flood_pays_for_what_was_held_and_no_more() {
    let mut table = Table::new(1024, 5);
    let mut inserts = 0;
    let mut fill = |table: &mut Table, from: u16| {
        for number in from..from + 1024 {
            table.receive(&between(number, 9).into());
            inserts += 1;
        }
        inserts
    };
    fill(&mut table, 0);
    let (held, evicted) = (table.held(), table.reason(Reason::Evicted));
    assert!(held > 950);
    // From one stranger: it flushes at most one list, once.
    for _ in 0..10_000 {
        let probes = table.receive(&fragment(30_000));
        assert_eq!(probes, 0, "a fragment looks no flow up");
    }
    assert!(table.held() >= held - 8, "{} of {held} held", table.held());
    // From everywhere: each flush was an insert before, so the flood pays for nothing that was not
    // held.
    for number in 0..60_000 {
        table.receive(&fragment(number));
    }
    let flushed = table.reason(Reason::Overtaken);
    assert_eq!(flushed, held, "every list was hit");
    assert_eq!((table.held(), evicted + flushed), (0, 1024));
    // Again, with flows between the fragments.
    for round in 0..20u16 {
        let inserts = fill(&mut table, round * 1024);
        for number in 0..2_000 {
            table.receive(&fragment(number * 7));
        }
        let left = table.reason(Reason::Overtaken)
            + table.reason(Reason::Evicted)
            + table.reason(Reason::Sequence);
        assert_eq!(left + table.held(), inserts);
    }
    assert_eq!(table.reason(Reason::Fragment), 10_000 + 60_000 + 20 * 2_000);
}

/// Flows that fall into the bucket of flow 0 under this key, found as an attacker who knows the key
/// would: by what a look-up costs.
fn colliding(template: &Template, max_flows: u32, key: u128, count: usize) -> Vec<Packet> {
    let collides = |number: &u32| {
        let mut table = Table::new(max_flows, key);
        table.receive(&template.flow(0));
        // An empty bucket costs nothing to look at.
        table.receive(&template.flow(*number)) == 1
    };
    (1..).filter(collides).take(count).map(|number| template.flow(number)).collect()
}

#[test]
fn flows_made_to_collide_under_one_key_do_not_under_another() {
    let template = Template::new(&Frame::tcp4(1000, 10));
    let crafted = colliding(&template, 256, 5, 64);
    let held = |key: u128| {
        let mut table = Table::new(256, key);
        let worst = crafted.iter().map(|packet| table.receive(packet)).max().expect("packets");
        assert!(worst <= WAYS);
        table.held()
    };
    // All in one bucket: its places and its neighbour's are all that is held, and still no packet
    // costs more.
    assert_eq!(held(5), WAYS);
    for key in [6, 7, u128::MAX, 1 << 64, 1 << 127, 5 | 1 << 100] {
        assert!(held(key) > 56, "{} of 64 held under {key:#x}", held(key));
    }
}

#[test]
fn the_key_spreads_address_pairs_too() {
    // Pairs that share a list under one key, found by what a fragment flushes, are apart under
    // another.
    let shares = |key: u128, number: u16| {
        let mut table = Table::new(64, key);
        table.receive(&between(number, 9).into());
        table.receive(&fragment(0));
        table.reason(Reason::Overtaken) == 1
    };
    let known = 0x243f_6a88_85a3_08d3_1319_8a2e_0370_7344;
    let crafted: Vec<_> = (1..).filter(|&number| shares(known, number)).take(16).collect();
    let keys =
        (1..=32u128).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
    // By chance one of 128 does, the number of lists: 4 of all 512.
    let still: usize =
        keys.map(|key| crafted.iter().filter(|&&number| shares(key, number)).count()).sum();
    assert!(still <= 20, "{still} of 512 still share");
}
