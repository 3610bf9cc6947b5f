//! The kernel's own GRO test (`tools/testing/selftests/net/gro.c`), case by case: what is sent, and the payload lengths that must arrive. Over IPv4 and IPv6, and
//! through IPIP, 4in6, SIT and IP6IP6, where edits of the IP header are made once on the inner and once on the outer one. Payload 100, TTL 8, DF, ID 0
//! unless said.

mod expect;
mod support;

use expect::*;
use superpacket::aggregate::{Policy, Reason};
use superpacket_traffic::frame::{ACK, Checksum, Extension, Frame, Ip, Ipv4, Ipv6, PSH, RST, SYN, URG, stream_bytes, timestamps};
use support::*;

const FIRST: u32 = 10_000;

/// A path that packets take: the first of them, and which of its IP headers is edited.
struct Path {
    name: String,
    base: Frame,
    outer: bool,
}

impl Path {
    /// All of them.
    fn all() -> Vec<Path> {
        let mut paths = Vec::new();
        for (name, base) in ip_in_ip() {
            let tunnelled = base.tunnel.is_some();
            for outer in [false, true].into_iter().take(1 + usize::from(tunnelled)) {
                let mut base = base.clone();
                base.tcp_mut().sequence = FIRST;
                for which in [false, true].into_iter().take(1 + usize::from(tunnelled)) {
                    match header(&mut base, which) {
                        Ip::V4(ip) => (ip.ttl, ip.id, ip.dont_fragment) = (8, 0, true),
                        Ip::V6(ip) => ip.hop_limit = 8,
                    }
                }
                let edited = if outer { "outer" } else { "inner" };
                paths.push(Path { name: format!("{name}, {edited} header edited"), base, outer });
            }
        }
        paths
    }

    /// Those whose edited header is IPv4.
    fn ipv4() -> Vec<Path> {
        Path::all().into_iter().filter(|path| matches!(header(&mut path.base.clone(), path.outer), Ip::V4(_))).collect()
    }

    /// Those whose edited header is IPv6.
    fn ipv6() -> Vec<Path> {
        Path::all().into_iter().filter(|path| matches!(header(&mut path.base.clone(), path.outer), Ip::V6(_))).collect()
    }

    /// Packets of these payload lengths, one after the other.
    fn send(&self, lengths: &[usize]) -> Vec<Frame> {
        let mut sequence = FIRST;
        let frame = |&length: &usize| {
            let mut frame = self.base.clone();
            frame.tcp_mut().sequence = sequence;
            frame.payload = stream_bytes(sequence, length);
            sequence += length as u32;
            frame
        };
        lengths.iter().map(frame).collect()
    }

    /// The header that this path edits.
    fn ip<'a>(&self, frame: &'a mut Frame) -> &'a mut Ip {
        header(frame, self.outer)
    }

    fn ipv4_of<'a>(&self, frame: &'a mut Frame) -> &'a mut Ipv4 {
        match self.ip(frame) {
            Ip::V4(ip) => ip,
            Ip::V6(_) => panic!("{}: not IPv4", self.name),
        }
    }

    fn ipv6_of<'a>(&self, frame: &'a mut Frame) -> &'a mut Ipv6 {
        match self.ip(frame) {
            Ip::V6(ip) => ip,
            Ip::V4(_) => panic!("{}: not IPv6", self.name),
        }
    }

    /// These payload lengths arrive, and the frames come back in order.
    fn arrives(&self, frames: &[Frame], expected: &[usize]) {
        let run = in_order(&packets(frames));
        assert_eq!(run.payloads(), expected, "{}", self.name);
    }
}

fn header(frame: &mut Frame, outer: bool) -> &mut Ip {
    if outer { &mut frame.tunnel_mut().ip } else { &mut frame.ip }
}

#[test]
fn the_paths_are_those_of_the_table() {
    let names: Vec<_> = Path::all().into_iter().map(|path| path.name).collect();
    assert_eq!(names.len(), 10, "{names:?}");
    assert_eq!((Path::ipv4().len(), Path::ipv6().len()), (5, 5));
}

#[test]
fn same_size() {
    for path in Path::all() {
        path.arrives(&path.send(&[100, 100]), &[200]);
    }
}

#[test]
fn larger_then_smaller() {
    for path in Path::all() {
        path.arrives(&path.send(&[100, 50]), &[150]);
    }
}

#[test]
fn smaller_then_larger() {
    for path in Path::all() {
        path.arrives(&path.send(&[50, 100]), &[50, 100]);
    }
}

#[test]
fn one_byte_tail() {
    for path in Path::all() {
        path.arrives(&path.send(&[100, 1]), &[101]);
    }
}

#[test]
fn two_bursts() {
    for path in Path::all() {
        // 100 ms apart: two polls, and no hold time bridges them.
        let packets: Vec<_> = path
            .send(&[100; 4])
            .iter()
            .enumerate()
            .map(|(index, frame)| Packet { time: index as u64 / 2 * 100_000_000, ..frame.into() })
            .collect();
        for policy in [Policy::gro(), Policy { hold_time: 50_000_000, ..Policy::gro() }] {
            let run = run_polls(policy, &packets, 2);
            assert_reversed(&packets, &run);
            assert_eq!(run.payloads(), [200, 200], "{}", path.name);
        }
        // One that does.
        let run = run_polls(Policy { hold_time: 200_000_000, ..Policy::gro() }, &packets, 2);
        assert_eq!(run.payloads(), [400], "{}", path.name);
    }
}

#[test]
fn pure_acks() {
    for path in Path::all() {
        let mut frames = path.send(&[0, 0, 0]);
        frames[2].tcp_mut().acknowledgement += 1;
        path.arrives(&frames, &[0, 0, 0]);
    }
}

#[test]
fn push_on_the_third_of_five() {
    for path in Path::all() {
        let mut frames = path.send(&[100; 5]);
        frames[2].tcp_mut().flags |= PSH;
        path.arrives(&frames, &[300, 200]);
    }
}

#[test]
fn control_flags_on_an_empty_packet_between_pairs() {
    for path in Path::all() {
        for flag in [SYN, RST, URG] {
            let mut frames = path.send(&[100, 100, 0, 100, 100]);
            frames[2].tcp_mut().flags = ACK | flag;
            path.arrives(&frames, &[200, 0, 200]);
        }
    }
}

#[test]
fn second_checksum_bad() {
    for path in Path::all() {
        let mut frames = path.send(&[100, 100]);
        frames[1].tcp_mut().checksum = Checksum::Wrong;
        path.arrives(&frames, &[100, 100]);
        frames[1].tcp_mut().checksum = Checksum::Zero;
        path.arrives(&frames, &[100, 100]);
    }
}

#[test]
fn second_sequence_one_further() {
    for path in Path::all() {
        let mut frames = path.send(&[100, 100]);
        frames[1].tcp_mut().sequence += 1;
        path.arrives(&frames, &[100, 100]);
    }
}

#[test]
fn second_ecn_tos_or_ttl_differs() {
    for path in Path::all() {
        for (tos, ttl) in [(2, 0), (3, 0), (0x10, 0), (0, 1)] {
            let mut frames = path.send(&[100, 100]);
            match path.ip(&mut frames[1]) {
                Ip::V4(ip) => (ip.tos, ip.ttl) = (ip.tos ^ tos, ip.ttl + ttl),
                Ip::V6(ip) => (ip.traffic_class, ip.hop_limit) = (ip.traffic_class ^ tos, ip.hop_limit + ttl),
            }
            path.arrives(&frames, &[100, 100]);
        }
    }
}

#[test]
fn timestamps_and_layouts_of_options() {
    for path in Path::all() {
        let mut frames = path.send(&[100; 5]);
        let first = timestamps(0, 0);
        let later = timestamps(100, 0);
        // The timestamp before its padding; between the two bytes of it.
        let before = [&later[2..], &later[..2]].concat();
        let between = [&later[..1], &later[2..], &later[1..2]].concat();
        for (frame, options) in frames.iter_mut().zip([&first, &first, &later, &before, &between]) {
            frame.tcp_mut().options.clone_from(options);
        }
        path.arrives(&frames, &[200, 100, 100, 100]);
    }
}

#[test]
fn middle_ipv4_checksum_bad() {
    for path in Path::ipv4() {
        let mut frames = path.send(&[100; 3]);
        path.ipv4_of(&mut frames[1]).checksum = Checksum::Wrong;
        path.arrives(&frames, &[100, 100, 100]);
    }
}

#[test]
fn middle_with_an_ipv4_option() {
    for path in Path::ipv4() {
        let mut frames = path.send(&[100; 3]);
        path.ipv4_of(&mut frames[1]).options = vec![1, 1, 1, 0];
        path.arrives(&frames, &[100, 100, 100]);
    }
}

#[test]
fn second_with_df_and_mf() {
    for path in Path::ipv4() {
        let mut frames = path.send(&[100, 100]);
        path.ipv4_of(&mut frames[1]).more_fragments = true;
        let run = in_order(&packets(&frames));
        // What a fragment carries is not a payload; it arrives by itself.
        assert_eq!(counts(&run), [1, 1], "{}", path.name);
        assert_eq!(run.outputs[0].payload(), 100);
        assert_eq!(run.reasons(), [Reason::Overtaken, Reason::Fragment]);
    }
}

#[test]
fn identifications() {
    for path in Path::ipv4() {
        for dont_fragment in [false, true] {
            for (ids, expected) in [(&[8, 9][..], &[200][..]), (&[8, 8], &[200]), (&[8, 9, 9], &[200, 100]), (&[8, 8, 9], &[200, 100])] {
                let mut frames = path.send(&vec![100; ids.len()]);
                for (frame, &id) in frames.iter_mut().zip(ids) {
                    let ip = path.ipv4_of(frame);
                    (ip.id, ip.dont_fragment) = (id, dont_fragment);
                }
                path.arrives(&frames, expected);
            }
        }
    }
}

#[test]
fn ipv6_extension_headers() {
    let options = |byte: u8| vec![Extension::DestinationOptions(vec![0x1e, 4, byte, 0, 0, 0])];
    let hop_by_hop = |byte: u8| vec![Extension::HopByHop(vec![0x1e, 4, byte, 0, 0, 0])];
    for path in Path::ipv6() {
        for (first, second, expected) in [
            (options(1), options(1), &[200][..]),
            (options(1), options(2), &[100, 100]),
            (hop_by_hop(1), hop_by_hop(1), &[200]),
            (hop_by_hop(1), hop_by_hop(2), &[100, 100]),
            (options(1), Vec::new(), &[100, 100]),
            (Vec::new(), options(1), &[100, 100]),
        ] {
            let mut frames = path.send(&[100, 100]);
            path.ipv6_of(&mut frames[0]).extensions = first;
            path.ipv6_of(&mut frames[1]).extensions = second;
            path.arrives(&frames, expected);
        }
    }
}

#[test]
fn an_ipv6_fragment_between() {
    for path in Path::ipv6() {
        for more in [false, true] {
            let mut frames = path.send(&[100; 4]);
            path.ipv6_of(&mut frames[2]).extensions.push(Extension::Fragment { offset: 0, more, id: 1 });
            let run = in_order(&packets(&frames));
            assert_eq!(counts(&run), [2, 1, 1], "{}", path.name);
            assert_eq!((run.outputs[0].payload(), run.outputs[2].payload()), (200, 100), "{}", path.name);
        }
    }
}

#[test]
fn as_many_as_fit() {
    for path in Path::all() {
        let offsets = path.base.offsets();
        let headers = offsets.payload - 14;
        let maximum = 65_535 - headers;
        let segment = 1500 - headers;
        let (whole, remainder) = (maximum / segment, maximum % segment);
        assert!(remainder > 0 && remainder + 1 < segment);
        let mut lengths = vec![segment; whole];
        lengths.push(remainder);
        path.arrives(&path.send(&lengths), &[maximum]);
        // One byte more.
        *lengths.last_mut().expect("a remainder") += 1;
        path.arrives(&path.send(&lengths), &[maximum - remainder, remainder + 1]);
        // A whole segment more than there is room for begins the next.
        path.arrives(&path.send(&vec![segment; whole + 2]), &[whole * segment, 2 * segment]);
    }
}

#[test]
fn identifications_that_increment_do_as_well_as_fixed_ones() {
    for path in Path::all() {
        let mut frames = path.base.run(8);
        path.arrives(&frames, &[800]);
        frames[7].payload.truncate(1);
        path.arrives(&frames, &[701]);
    }
}
