//! This machine's GRO and GSO against the engine's: every difference has a kind.

#![cfg(target_os = "linux")]

use superpacket::virtio::Format;
use superpacket_lab::{LabError, enter_user_namespace_before_main};
use superpacket_oracle::kernel::{KernelGro, KernelGso};
use superpacket_oracle::matrix::{Answer, Matrix, Row};
use superpacket_oracle::merged::Merged;
use superpacket_oracle::run::{self, RunReport};
use superpacket_oracle::segment::GeneratedPackets;
use superpacket_oracle::traffic::Batches;
use superpacket_oracle::{Kind, cells, traffic};

enter_user_namespace_before_main!();

/// Returns the value; `None` if this machine does not support it, which is a failure in CI.
fn available<T>(result: Result<T, LabError>) -> Option<T> {
    if std::env::var_os("CI").is_some() {
        return Some(result.unwrap_or_else(|error| panic!("{error}")));
    }
    superpacket_lab::available_or_skip(result)
}

/// Fails with the frames of a difference that has no kind.
fn assert_explained(report: &RunReport, seed: u64) {
    if let Some(fault) = report.faults.first() {
        let saved = fault.save(&format!("superpacket-oracle-{seed}.pcap"));
        panic!(
            "seed {seed}: a difference that no kind explains; frames in {saved:?}\n{}",
            fault.text
        );
    }
}

/// Some 15 s: only many frames have each rare difference, and the kernel needs 5 ms for a poll of
/// 60 frames.
#[test]
fn every_difference_in_what_merges_has_a_kind() -> Result<(), LabError> {
    let Some(mut kernel) = available(KernelGro::new()) else { return Ok(()) };
    let (seed, frames) = (1, 100_000);
    let mut report = RunReport::default();
    let combinations = traffic::combinations(kernel.rules());
    run::receive(&mut kernel, &mut Batches::new(seed, combinations), frames, &mut report)?;
    assert_explained(&report, seed);
    assert!(report.frames >= frames && report.merged > report.frames / 4, "{report:?}");
    // A kernel that is interrupted between two frames cannot serve as an oracle.
    assert!(report.repeated < report.frames / 1_000, "{} polls were repeated", report.repeated);
    for kind in [Kind::Overtaken, Kind::ChecksumForms, Kind::FinalDestination] {
        assert!(report.kinds.contains_key(&kind), "traffic in which {} never happens", kind.name());
    }
    Ok(())
}

#[test]
fn every_difference_in_two_tunnels_has_a_kind() -> Result<(), LabError> {
    let Some(mut kernel) = available(KernelGro::new()) else { return Ok(()) };
    let (seed, frames) = (1, 20_000);
    let nested = traffic::in_two_tunnels(kernel.rules());
    if nested.is_empty() {
        // Kernels before 7.0, or without these devices.
        return Ok(());
    }
    let mut report = RunReport::default();
    run::receive(&mut kernel, &mut Batches::new(seed, nested), frames, &mut report)?;
    run::receive_behind_geneve(&mut kernel, &mut report)?;
    assert_explained(&report, seed);
    assert!(report.hinted_merged > report.hinted / 10 && report.behind_geneve > 0, "{report:?}");
    for kind in [Kind::NestedWithoutHint, Kind::NestedHeaders, Kind::NestedLengths] {
        assert!(report.kinds.contains_key(&kind), "traffic in which {} never happens", kind.name());
    }
    Ok(())
}

#[test]
fn what_the_kernel_takes_it_cuts_into_the_same_bytes_or_not_at_all() -> Result<(), LabError> {
    let Some(matrix) = available(Matrix::ask()) else { return Ok(()) };
    println!("{matrix}");
    // Kinds that no header can express, or that not every kernel reads.
    let is_other = |row: &Row| {
        let special = row.cell.special;
        row.header.is_err()
            || row.cell.link.contains("offload")
            || special.contains("stay")
            || special.contains("100,000")
            || special.contains("180,000")
    };
    for row in matrix.rows.iter().filter(|row| !is_other(row)) {
        for (entrance, answer) in &row.answers {
            let (link, special, protocol) = (row.cell.link, row.cell.special, row.cell.protocol);
            let where_ = format!("{protocol} in {special} behind {link}, {}", entrance.name());
            assert!(!matches!(answer, Answer::Other(_) | Answer::Whole), "{where_}: {answer}");
            if cells::is_segmented_since_6_2(&row.cell) {
                assert_eq!(*answer, Answer::Segments, "{where_}");
            }
        }
    }
    assert!(matrix.rows.len() > 900, "{} kinds", matrix.rows.len());
    Ok(())
}

#[test]
fn super_packets_of_engines_for_a_device_are_cut_into_the_same_bytes() -> Result<(), LabError> {
    let Some(kernel) = available(KernelGso::new()) else { return Ok(()) };
    let tap = superpacket_lab::available_or_skip(KernelGso::of_tunnels());
    let kernels = [Some((kernel, Format::Plain)), tap.map(|tap| (tap, Format::Tunnel))];
    for (mut kernel, format) in kernels.into_iter().flatten() {
        let (seed, packets) = (1, 2_000);
        let mut report = RunReport::default();
        run::segment(&mut kernel, &mut Merged::new(seed, format), packets, &mut report)?;
        assert_explained(&report, seed);
        assert!(report.packets == packets && report.segments > 2 * packets, "{report:?}");
        // The kernel accepts the header of every merged packet.
        assert_eq!(report.refused, 0, "{report:?}");
    }
    Ok(())
}

#[test]
fn super_packets_in_tunnels_are_cut_into_the_same_bytes() -> Result<(), LabError> {
    // Kernels before 6.17 accept none.
    let Some(mut kernel) = superpacket_lab::available_or_skip(KernelGso::of_tunnels()) else {
        return Ok(());
    };
    let (seed, packets) = (1, 4_000);
    let mut report = RunReport::default();
    run::segment(&mut kernel, &mut GeneratedPackets::in_tunnels(seed), packets, &mut report)?;
    assert_explained(&report, seed);
    let explained: u64 = report.kinds.values().sum();
    assert!(report.packets == packets && report.segments > 10 * packets, "{report:?}");
    assert!(report.refused > 0 && report.refused + explained < packets / 5, "{report:?}");
    Ok(())
}

#[test]
fn super_packets_are_cut_into_the_same_bytes() -> Result<(), LabError> {
    let Some(mut kernel) = available(KernelGso::new()) else { return Ok(()) };
    let (seed, packets) = (1, 16_000);
    let mut report = RunReport::default();
    run::segment(&mut kernel, &mut GeneratedPackets::new(seed), packets, &mut report)?;
    assert_explained(&report, seed);
    let explained: u64 = report.kinds.values().sum();
    assert!(report.packets == packets && report.segments > 10 * packets, "{report:?}");
    // Of the datagrams to be fragmented, half of those over IPv4 have DF; half of those over IPv6
    // have a header that Linux counts in the offsets.
    assert!(report.refused > 0 && report.refused + explained < packets * 3 / 10, "{report:?}");
    for kind in [
        Kind::OddFragment,
        Kind::FragmentFlags,
        Kind::FragmentPlace,
        Kind::FragmentOffset,
        Kind::HeaderDestination,
    ] {
        assert!(
            report.kinds.contains_key(&kind),
            "datagrams of which {} never happens",
            kind.name()
        );
    }
    Ok(())
}
