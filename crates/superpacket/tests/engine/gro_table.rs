//! The kernel's own GRO test, case by case: the table is `superpacket_traffic::gro_table`, which is
//! also sent from host to host (`superpacket-lab`, test `bridge`).

use crate::expect::*;
use crate::support::*;
use superpacket::aggregate::Reason;
use superpacket_traffic::gro_table::{self, Case};

/// Only what the table says arrives, and the frames come back in order.
fn arrives(case: &Case) {
    let [burst] = &case.bursts[..] else { panic!("{}: bursts need a clock", case.name) };
    let run = in_order(&packets(&burst.frames));
    let expected = burst.packets();
    assert_eq!(
        counts(&run),
        expected.iter().map(|frames| frames.len() as u32).collect::<Vec<_>>(),
        "{}",
        case.name
    );
    for ((output, frames), &length) in run.outputs.iter().zip(expected).zip(&burst.arrives) {
        // What is alone is what was sent; so says `in_order`.
        if frames.len() > 1 {
            assert_eq!(output.payload(), length, "{}", case.name);
            assert_eq!(
                output.metadata.gso.map(|gso| gso.size.get()),
                Some(frames[0].payload.len()),
                "{}",
                case.name
            );
        }
    }
}

macro_rules! rows {
    ($($row:ident)*) => {
        $(
            #[test]
            fn $row() {
                gro_table::$row().iter().for_each(arrives);
            }
        )*

        #[test]
        fn no_row_is_left_out() {
            let names = |cases: Vec<Case>| cases.into_iter().map(|case| case.name).collect::<std::collections::BTreeSet<_>>();
            let rows = [gro_table::two_bursts(), $(gro_table::$row()),*];
            assert_eq!(names(rows.concat()), names(gro_table::all()));
        }
    };
}

rows! {
    single
    same_size
    larger_then_smaller
    smaller_then_larger
    one_byte_tail
    pure_acks
    push_on_the_third_of_five
    control_flags_on_an_empty_packet_between_pairs
    cwr_on_the_second_and_third_of_five
    second_checksum_bad
    second_sequence_one_further
    second_ecn_tos_or_ttl_differs
    timestamps_and_layouts_of_options
    window_scale_in_place_of_timestamps
    middle_ipv4_checksum_bad
    middle_with_an_ipv4_option
    second_with_df_and_mf
    identifications
    ipv6_extension_headers
    an_ipv6_fragment_between
    as_many_as_fit
    identifications_that_increment_do_as_well_as_fixed_ones
}

#[test]
fn two_bursts() {
    for case in gro_table::two_bursts() {
        // Two polls, and no hold time bridges them.
        let size = case.bursts[0].frames.len();
        assert!(case.bursts.iter().all(|burst| burst.frames.len() == size));
        let timed = |(number, burst): (usize, &gro_table::Burst)| {
            let time = number as u64 * gro_table::BURST_INTERVAL;
            burst.frames.iter().map(|frame| Packet { time, ..frame.into() }).collect::<Vec<_>>()
        };
        let packets: Vec<_> = case.bursts.iter().enumerate().flat_map(timed).collect();
        let expected: Vec<_> = case.bursts.iter().flat_map(|burst| burst.arrives.clone()).collect();
        for policy in [PARTIAL_GRO, PARTIAL_GRO.with_hold_time(gro_table::BURST_INTERVAL / 2)] {
            let run = run_polls(policy, &packets, size);
            assert_reversed(&packets, &run);
            assert_eq!(run.payloads(), expected, "{}", case.name);
        }
        // One that does.
        let run =
            run_polls(PARTIAL_GRO.with_hold_time(2 * gro_table::BURST_INTERVAL), &packets, size);
        assert_eq!(run.payloads(), [expected.iter().sum::<usize>()], "{}", case.name);
    }
}

#[test]
fn a_fragment_goes_for_its_own_reason() {
    for case in gro_table::second_with_df_and_mf() {
        let run = in_order(&packets(&case.bursts[0].frames));
        assert_eq!(run.reasons(), [Reason::Overtaken, Reason::Fragment], "{}", case.name);
    }
}

#[test]
fn as_many_flows_as_a_poll_has_all_merge_and_keep_their_order() {
    for flows in [4, 32, 512] {
        for (path, frames) in gro_table::capacity(flows) {
            let came = packets(&frames);
            let run = reversed(&came);
            assert_eq!(counts(&run), vec![2; usize::from(flows)], "{path}: {flows} flows");
            for (output, first) in run.outputs.iter().zip(&came) {
                assert_eq!(output.cut()[0], first.bytes, "{path}: {flows} flows, in order");
            }
        }
    }
}
