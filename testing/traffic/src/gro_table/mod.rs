//! The cases of the kernel's own GRO test (`tools/testing/selftests/net/lib/gro.c`): the frames,
//! and the payload lengths that must arrive.
//!
//! Each case runs over IPv4 and IPv6, and through IPIP, 4in6, SIT and IP6IP6, where edits of the IP
//! header apply once to the inner and once to the outer one. Unless a case says otherwise, packets
//! have a payload of 100 bytes, TTL 8, DF and ID 0.
//!
//! ```
//! use superpacket_traffic::gro_table;
//!
//! for case in gro_table::same_size() {
//!     let [burst] = &case.bursts[..] else { unreachable!("all is sent at once") };
//!     assert_eq!((burst.frames.len(), &burst.arrives[..]), (2, &[200][..]));
//! }
//! ```

mod path;

pub use path::{Burst, Case, ip_in_ip};

use path::Path;

use crate::frame::{ACK, CWR, Checksum, Extension, Frame, Ip, PSH, RST, SYN, URG, timestamps};

/// Time between two bursts of a case, in nanoseconds.
pub const BURST_INTERVAL: u64 = 100_000_000;

/// Returns the cases of all rows of the table.
pub fn all() -> Vec<Case> {
    let rows = [
        single,
        same_size,
        larger_then_smaller,
        smaller_then_larger,
        one_byte_tail,
        two_bursts,
        pure_acks,
        push_on_the_third_of_five,
        control_flags_on_an_empty_packet_between_pairs,
        cwr_on_the_second_and_third_of_five,
        second_checksum_bad,
        second_sequence_one_further,
        second_ecn_tos_or_ttl_differs,
        timestamps_and_layouts_of_options,
        window_scale_in_place_of_timestamps,
        middle_ipv4_checksum_bad,
        middle_with_an_ipv4_option,
        second_with_df_and_mf,
        identifications,
        ipv6_extension_headers,
        an_ipv6_fragment_between,
        as_many_as_fit,
        identifications_that_increment_do_as_well_as_fixed_ones,
    ];
    rows.into_iter().flat_map(|row| row()).collect()
}

/// Returns the cases of a row of the table, for each of these encapsulations.
fn each<C: IntoIterator<Item = Case>>(paths: Vec<Path>, cases: impl Fn(&Path) -> C) -> Vec<Case> {
    paths.iter().flat_map(cases).collect()
}

/// Returns cases of a single packet, which passes unchanged.
pub fn single() -> Vec<Case> {
    each(Path::all(), |path| [path.case("single", path.send(&[100]), &[100])])
}

/// Returns cases of two packets of the same size, which merge.
pub fn same_size() -> Vec<Case> {
    each(Path::all(), |path| [path.case("same size", path.send(&[100, 100]), &[200])])
}

/// Returns cases in which the second packet is smaller, and joins as the last one.
pub fn larger_then_smaller() -> Vec<Case> {
    each(Path::all(), |path| [path.case("larger then smaller", path.send(&[100, 50]), &[150])])
}

/// Returns cases in which the second packet is larger, and does not join.
pub fn smaller_then_larger() -> Vec<Case> {
    each(Path::all(), |path| [path.case("smaller then larger", path.send(&[50, 100]), &[50, 100])])
}

/// Returns cases in which the second packet has one byte of payload, and joins.
pub fn one_byte_tail() -> Vec<Case> {
    each(Path::all(), |path| [path.case("1-byte tail", path.send(&[100, 1]), &[101])])
}

/// Returns cases of two bursts, which do not merge with each other: no packet is held for
/// [`BURST_INTERVAL`] unless a hold time is set.
pub fn two_bursts() -> Vec<Case> {
    each(Path::all(), |path| {
        let mut first = path.send(&[100; 4]);
        let second = first.split_off(2);
        [path.bursts("two bursts", vec![(first, &[200]), (second, &[200])])]
    })
}

/// Returns cases of packets without payload, which do not merge.
pub fn pure_acks() -> Vec<Case> {
    each(Path::all(), |path| {
        let mut frames = path.send(&[0, 0, 0]);
        frames[2].tcp_mut().acknowledgement += 1;
        [path.case("pure ACKs", frames, &[0, 0, 0])]
    })
}

/// Returns cases in which the third of five packets has PSH, which ends the merged packet.
pub fn push_on_the_third_of_five() -> Vec<Case> {
    each(Path::all(), |path| {
        let mut frames = path.send(&[100; 5]);
        frames[2].tcp_mut().flags |= PSH;
        [path.case("PSH on the third of five", frames, &[300, 200])]
    })
}

/// Returns cases of a packet with SYN, RST or URG between others. It passes unmerged, and in order.
pub fn control_flags_on_an_empty_packet_between_pairs() -> Vec<Case> {
    each(Path::all(), |path| {
        [("SYN", SYN), ("RST", RST), ("URG", URG)].map(|(name, flag)| {
            let mut frames = path.send(&[100, 100, 0, 100, 100]);
            frames[2].tcp_mut().flags = ACK | flag;
            path.case(&format!("{name} between pairs"), frames, &[200, 0, 200])
        })
    })
}

/// Returns cases in which two of five packets have CWR. They merge only with each other (since
/// Linux 7.0, for accurate ECN, RFC 9768).
pub fn cwr_on_the_second_and_third_of_five() -> Vec<Case> {
    each(Path::all(), |path| {
        let mut frames = path.send(&[100; 5]);
        for frame in &mut frames[1..3] {
            frame.tcp_mut().flags |= CWR;
        }
        [path.case("CWR on the second and third of five", frames, &[100, 200, 200])]
    })
}

/// Returns cases in which the second packet has a wrong checksum, and does not merge.
pub fn second_checksum_bad() -> Vec<Case> {
    each(Path::all(), |path| {
        [Checksum::Wrong, Checksum::Zero].map(|checksum| {
            let mut frames = path.send(&[100, 100]);
            frames[1].tcp_mut().checksum = checksum;
            path.case(&format!("second checksum {checksum:?}"), frames, &[100, 100])
        })
    })
}

/// Returns cases in which the second packet is out of sequence, and does not merge.
pub fn second_sequence_one_further() -> Vec<Case> {
    each(Path::all(), |path| {
        let mut frames = path.send(&[100, 100]);
        frames[1].tcp_mut().sequence += 1;
        [path.case("second sequence + 1", frames, &[100, 100])]
    })
}

/// Returns cases in which ECN, TOS or TTL of the second packet differs, so that it does not merge.
pub fn second_ecn_tos_or_ttl_differs() -> Vec<Case> {
    each(Path::all(), |path| {
        [("ECN 2", 2, 0), ("ECN 3", 3, 0), ("TOS", 0x10, 0), ("TTL", 0, 1)].map(
            |(name, tos, ttl)| {
                let mut frames = path.send(&[100, 100]);
                match path.ip(&mut frames[1]) {
                    Ip::V4(ip) => (ip.tos, ip.ttl) = (ip.tos ^ tos, ip.ttl + ttl),
                    Ip::V6(ip) => {
                        (ip.traffic_class, ip.hop_limit) =
                            (ip.traffic_class ^ tos, ip.hop_limit + ttl)
                    }
                }
                path.case(&format!("second {name} differs"), frames, &[100, 100])
            },
        )
    })
}

/// Returns cases in which the timestamps or the layouts of TCP options differ. TCP options must be
/// equal byte for byte to merge.
pub fn timestamps_and_layouts_of_options() -> Vec<Case> {
    each(Path::all(), |path| {
        let mut frames = path.send(&[100; 5]);
        let first = timestamps(0, 0);
        let later = timestamps(100, 0);
        // The timestamps option before its padding, and between the two bytes of it.
        let before = [&later[2..], &later[..2]].concat();
        let between = [&later[..1], &later[2..], &later[1..2]].concat();
        for (frame, options) in frames.iter_mut().zip([&first, &first, &later, &before, &between]) {
            frame.tcp_mut().options.clone_from(options);
        }
        [path.case("timestamps and layouts of options", frames, &[200, 100, 100, 100])]
    })
}

/// Returns cases in which the third packet has another TCP option, and does not merge.
pub fn window_scale_in_place_of_timestamps() -> Vec<Case> {
    each(Path::all(), |path| {
        let mut frames = path.send(&[100; 3]);
        for frame in &mut frames[..2] {
            frame.tcp_mut().options = timestamps(0, 0);
        }
        frames[2].tcp_mut().options = vec![1, 3, 3, 0];
        [path.case("window scale in place of timestamps", frames, &[200, 100])]
    })
}

/// Returns cases in which the second of three packets has a wrong IPv4 header checksum, and does
/// not merge.
pub fn middle_ipv4_checksum_bad() -> Vec<Case> {
    each(Path::ipv4(), |path| {
        let mut frames = path.send(&[100; 3]);
        path.ipv4_of(&mut frames[1]).checksum = Checksum::Wrong;
        [path.case("middle IPv4 checksum bad", frames, &[100, 100, 100])]
    })
}

/// Returns cases in which the second of three packets has an IPv4 option, and does not merge.
pub fn middle_with_an_ipv4_option() -> Vec<Case> {
    each(Path::ipv4(), |path| {
        let mut frames = path.send(&[100; 3]);
        path.ipv4_of(&mut frames[1]).options = vec![1, 1, 1, 0];
        [path.case("middle with an IPv4 option", frames, &[100, 100, 100])]
    })
}

/// Returns cases in which the second packet is an IPv4 fragment, and does not merge.
pub fn second_with_df_and_mf() -> Vec<Case> {
    each(Path::ipv4(), |path| {
        let mut frames = path.send(&[100, 100]);
        path.ipv4_of(&mut frames[1]).more_fragments = true;
        [path.case("second with DF and MF", frames, &[100, 100])]
    })
}

/// Returns cases of IPv4 identifications that count up by one or stay the same, and of others that
/// end the merged packet.
pub fn identifications() -> Vec<Case> {
    let ids = [
        (&[8, 9][..], &[200][..]),
        (&[8, 8], &[200]),
        (&[8, 9, 9], &[200, 100]),
        (&[8, 8, 9], &[200, 100]),
    ];
    let case = |path: &Path, dont_fragment, ids: &[u16], arrives: &[usize]| {
        let mut frames = path.send(&vec![100; ids.len()]);
        for (frame, &id) in frames.iter_mut().zip(ids) {
            let ip = path.ipv4_of(frame);
            (ip.id, ip.dont_fragment) = (id, dont_fragment);
        }
        path.case(&format!("identifications {ids:?}, DF {dont_fragment}"), frames, arrives)
    };
    each(Path::ipv4_to_identify(), |path| {
        let cases =
            |dont_fragment| ids.map(|(ids, arrives)| case(path, dont_fragment, ids, arrives));
        [false, true].map(cases).concat()
    })
}

/// Returns cases of IPv6 extension headers, which must be equal byte for byte to merge.
pub fn ipv6_extension_headers() -> Vec<Case> {
    let options = |byte: u8| vec![Extension::DestinationOptions(vec![0x1e, 4, byte, 0, 0, 0])];
    let hop_by_hop = |byte: u8| vec![Extension::HopByHop(vec![0x1e, 4, byte, 0, 0, 0])];
    each(Path::ipv6(), |path| {
        [
            ("destination options, identical", options(1), options(1), &[200][..]),
            ("destination options, different", options(1), options(2), &[100, 100]),
            ("hop-by-hop options, identical", hop_by_hop(1), hop_by_hop(1), &[200]),
            ("hop-by-hop options, different", hop_by_hop(1), hop_by_hop(2), &[100, 100]),
            ("destination options, then none", options(1), Vec::new(), &[100, 100]),
            ("no options, then destination options", Vec::new(), options(1), &[100, 100]),
        ]
        .map(|(row, first, second, arrives)| {
            let mut frames = path.send(&[100, 100]);
            path.ipv6_of(&mut frames[0]).extensions = first;
            path.ipv6_of(&mut frames[1]).extensions = second;
            path.case(row, frames, arrives)
        })
    })
}

/// Returns cases of an IPv6 fragment among other packets. It ends the merged packet, and the packet
/// behind it begins a new one.
pub fn an_ipv6_fragment_between() -> Vec<Case> {
    each(Path::ipv6(), |path| {
        [false, true].map(|more| {
            let mut frames = path.send(&[100; 4]);
            path.ipv6_of(&mut frames[2]).extensions.push(Extension::Fragment {
                offset: 0,
                more,
                id: 1,
            });
            path.case(
                &format!("an IPv6 fragment header between, more {more}"),
                frames,
                &[200, 100, 100],
            )
        })
    })
}

/// Returns cases of as many segments as 65,535 bytes hold, with a remainder that fits or does not.
pub fn as_many_as_fit() -> Vec<Case> {
    each(Path::all(), |path| {
        let headers = path.base().offsets().payload - 14;
        let maximum = 65_535 - headers;
        let segment = 1500 - headers;
        let (whole, remainder) = (maximum / segment, maximum % segment);
        assert!(remainder > 0 && remainder + 1 < segment);
        let lengths = |remainder| [&vec![segment; whole][..], &[remainder]].concat();
        [
            path.case("a remainder that just fits", path.send(&lengths(remainder)), &[maximum]),
            path.case(
                "a remainder of one byte more",
                path.send(&lengths(remainder + 1)),
                &[maximum - remainder, remainder + 1],
            ),
            // A whole segment for which there is no room begins the next packet.
            path.case(
                "more segments than fit",
                path.send(&vec![segment; whole + 2]),
                &[whole * segment, 2 * segment],
            ),
        ]
    })
}

/// Returns cases of eight packets with identifications that count up, as most senders have them.
/// The kernel's table does not have these cases.
pub fn identifications_that_increment_do_as_well_as_fixed_ones() -> Vec<Case> {
    each(Path::all(), |path| {
        let frames = path.base().run(8);
        let mut shorter = frames.clone();
        shorter[7].payload.truncate(1);
        [
            path.case("eight that increment", frames, &[800]),
            path.case("seven that increment, and a byte", shorter, &[701]),
        ]
    })
}

/// Returns, for each encapsulation, two packets of 200 bytes per flow. Flows differ in their source
/// ports. The first packets of all flows come before the second ones, which have PSH.
///
/// The two packets of a flow merge, and the order of the flows stays. Each sequence has the name of
/// its path.
pub fn capacity(flows: u16) -> Vec<(String, Vec<Frame>)> {
    let frames = |path: &Path| {
        let both = path.send(&[200; 2]);
        let of_all = |frame: &Frame, flags: u16| {
            (0..flows)
                .map(move |flow| {
                    let mut frame = frame.clone();
                    frame.tcp_mut().source_port += flow;
                    frame.tcp_mut().flags |= flags;
                    frame
                })
                .collect::<Vec<_>>()
        };
        [of_all(&both[0], 0), of_all(&both[1], PSH)].concat()
    };
    Path::all().iter().map(|path| (path.name().to_owned(), frames(path))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_whole_and_has_its_own_name() {
        let cases = all();
        let mut names: Vec<_> = cases.iter().map(|case| &case.name[..]).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), cases.len());
        for case in &cases {
            assert!(!case.bursts.is_empty(), "{}", case.name);
            for burst in &case.bursts {
                assert_eq!(burst.packets().concat().len(), burst.frames.len(), "{}", case.name);
            }
        }
    }
}
