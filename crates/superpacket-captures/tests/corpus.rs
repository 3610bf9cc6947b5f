//! Analyses of captures that are read in parts and added up.

use std::io::{Cursor, Read};
use std::ops::ControlFlow;
use std::path::Path;

use superpacket_captures::{
    AnalyzeOptions, AnalyzeReport, Corpus, Error, FlowRow, Index, IndexOptions, Input, PacketsRow,
    PartAnalysis, PartOptions, Progress, Reader, Stepping, analyze, analyze_part, index,
};

/// Returns the repository's capture as plain bytes, several times in a row with increasing times.
fn bytes(times: u32) -> Vec<u8> {
    let file = std::fs::File::open(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/demo.pcap.gz"),
    )
    .expect("it is there");
    let mut demo = Vec::new();
    flate2::read::GzDecoder::new(file).read_to_end(&mut demo).expect("gzip");
    let mut all = demo[..24].to_vec();
    for time in 0..times {
        let mut records = demo[24..].to_vec();
        let mut at = 0;
        while at < records.len() {
            let word =
                |at: usize| u32::from_le_bytes(records[at..at + 4].try_into().expect("4 bytes"));
            let (seconds, length) = (word(at) + 60 * time, word(at + 8) as usize);
            records[at..at + 4].copy_from_slice(&seconds.to_le_bytes());
            at += 16 + length;
        }
        all.extend_from_slice(&records);
    }
    all
}

fn indexed(file: &[u8], grain: u64, multiple: u64) -> Index {
    index("file", Box::new(Cursor::new(file.to_vec())), IndexOptions { grain, multiple }, &mut ())
        .expect("a capture")
}

/// The rows of flows and of packets.
type Kept = (Vec<FlowRow>, Vec<PacketsRow>);

fn options(batch: u64) -> AnalyzeOptions {
    AnalyzeOptions {
        stepping: Stepping { batch, ..Stepping::default() },
        ..AnalyzeOptions::default()
    }
}

/// Analyzes every part separately, as workers do. Each is read from the place before its first
/// packet on. The results are converted to JSON and back.
fn in_parts(file: &[u8], index: &Index, batch: u64, kept: &mut Kept) -> Vec<PartAnalysis> {
    with_lead(file, index, batch, 1, kept)
}

/// Like `in_parts`, but each part is read from an earlier place on.
fn with_lead(
    file: &[u8],
    index: &Index,
    batch: u64,
    places: usize,
    kept: &mut Kept,
) -> Vec<PartAnalysis> {
    let ends =
        index.places.iter().skip(1).map(|next| next.place.offset as usize).chain([file.len()]);
    let parts = index.places.iter().zip(ends).enumerate().map(|(number, (noted, end))| {
        let lead = index.places[number.saturating_sub(places)];
        let records = file[lead.place.offset as usize..end].to_vec();
        let preamble = index.preamble[..lead.preamble].to_vec();
        let reader = Reader::of_part("file", preamble, lead.place, Box::new(Cursor::new(records)))
            .expect("a capture");
        let continues = number + 1 < index.places.len();
        let first = noted.place.packets + 1;
        let options =
            PartOptions { analyze: options(batch), interval: 1_000_000_000, first, continues };
        let found = analyze_part(Input::from(reader), &options, kept, &mut ()).expect("a capture");
        serde_json::from_str(&serde_json::to_string(&found).expect("serializes")).expect("reads")
    });
    parts.collect()
}

fn whole(file: &[u8], batch: u64) -> AnalyzeReport {
    let reader =
        Reader::from_stream("file", Box::new(Cursor::new(file.to_vec()))).expect("a capture");
    analyze(vec![Input::from(reader)], &options(batch), &mut ()).expect("a capture")
}

fn corpus(file: &str, parts: Vec<PartAnalysis>, batch: u64) -> AnalyzeReport {
    let mut corpus = Corpus::new(&options(batch));
    corpus.add(file.to_owned(), parts);
    corpus.report()
}

#[test]
fn parts_that_begin_with_a_poll_add_up_to_the_whole() {
    let file = bytes(3);
    for grain in [1, 100_000, 1_000_000] {
        let index = indexed(&file, grain, 64);
        assert!(index.places.len() > 2, "{}", index.places.len());
        let mut kept = Kept::default();
        let parts = in_parts(&file, &index, 64, &mut kept);
        let (report, expected) = (corpus("file", parts, 64), whole(&file, 64));
        let json =
            |report: &AnalyzeReport| serde_json::to_value(&report.findings).expect("serializes");
        let (found, expected_json) = (json(&report), json(&expected));
        for part in ["traffic", "reasons", "packets_out", "merged"] {
            assert_eq!(found[part], expected_json[part], "{part} by {grain}");
        }
        for policy in ["lro", "gro", "gro_udp"] {
            assert_eq!(
                found["policies"][policy], expected_json["policies"][policy],
                "{policy} by {grain}"
            );
        }
        // Aggregation of pure ACKs remembers a flow's newest acknowledgement. Packets whose result
        // may differ because a part does not know it are counted.
        let lost = |report: &AnalyzeReport| {
            let acks = |report: &AnalyzeReport| report.findings.policies.lro_acks.totals.merged;
            acks(report).abs_diff(acks(&expected))
        };
        let cuts = report.cuts.as_ref().expect("parts");
        let [lro, gro, gro_udp, lro_acks] = cuts.held.in_order();
        assert_eq!((cuts.parts, [lro, gro, gro_udp]), (index.places.len() as u64, [0; 3]));
        assert!(lost(&report) <= lro_acks, "{} of {lro_acks} by {grain}", lost(&report));
        let without = corpus("file", with_lead(&file, &index, 64, 0, &mut Kept::default()), 64);
        let shown = without.cuts.as_ref().expect("parts").held.lro_acks;
        assert!((1..=shown).contains(&lost(&without)), "{} of {shown} by {grain}", lost(&without));
        assert!(lro_acks < shown, "{lro_acks}, {shown} by {grain}");
        let all =
            corpus("file", with_lead(&file, &index, 64, usize::MAX, &mut Kept::default()), 64);
        assert_eq!(all.cuts.as_ref().expect("parts").held.in_order(), [0; 4]);
        assert_eq!(json(&all)["policies"], expected_json["policies"], "by {grain}");
        assert_eq!(
            report.findings.timeline.rates().count(),
            expected.findings.timeline.rates().count()
        );
        // The sums of the rows are the same.
        let totals = &expected.findings.totals;
        assert_eq!(kept.1.iter().map(|row| row.packets_in).sum::<u64>(), totals.packets_in);
        assert_eq!(kept.1.iter().map(|row| row.bytes_out).sum::<u64>(), totals.bytes_out);
        for top in &expected.findings.top_flows {
            let name = |row: &FlowRow| {
                let tunnel = row.tunnel.map(|tunnel| format!(" ({tunnel})")).unwrap_or_default();
                let end = |address, port| std::net::SocketAddr::new(address, port).to_string();
                format!(
                    "{} {} > {}{tunnel}",
                    row.protocol,
                    end(row.source, row.source_port),
                    end(row.destination, row.destination_port)
                )
            };
            let rows = kept.0.iter().filter(|row| name(row) == top.flow);
            let sums = rows.fold((0, 0, 0), |sums, row| {
                (sums.0 + row.packets_in, sums.1 + row.bytes_in, sums.2 + row.packets_out)
            });
            assert_eq!(sums, (top.packets_in, top.bytes, top.packets_out), "{}", top.flow);
        }
        let page = report.page().expect("plots");
        assert!(page.contains(if lro_acks == 0 {
            "cut where nothing was held"
        } else {
            "Where they were cut, "
        }));
        assert!(page.contains("Packets over time"));
    }
}

#[test]
fn packets_affected_by_cuts_are_counted() {
    let file = bytes(40);
    let index = indexed(&file, 8_000_000, 1);
    let parts = in_parts(&file, &index, 0, &mut Kept::default());
    let (report, expected) = (corpus("file", parts, 0), whole(&file, 0));
    let held = report.cuts.as_ref().expect("parts").held.in_order();
    for (((name, found), (_, expected)), held) in report
        .findings
        .policies
        .in_order()
        .into_iter()
        .zip(expected.findings.policies.in_order())
        .zip(held)
    {
        let lost = expected.totals.merged.abs_diff(found.totals.merged);
        assert!(lost <= held, "{name}: {lost} of {held} held");
        assert!(
            lost * 1000 <= expected.totals.merged,
            "{name}: {lost} of {} merges",
            expected.totals.merged
        );
        assert_eq!(found.totals.packets_in, expected.totals.packets_in);
    }
    assert!(held.iter().any(|&held| held > 0), "without polls, something is held everywhere");
    assert!(report.page().expect("plots").contains("Where they were cut, "));
}

#[test]
fn compressed_captures_are_not_indexed_and_damage_is_told_at_its_place() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/demo.pcap.gz");
    let gzip = std::fs::read(path).expect("it is there");
    assert_eq!(indexed(&gzip, 1000, 64).places, []);
    let mut file = bytes(1);
    let end = indexed(&file, 1, 1).places.last().expect("records").place;
    file[end.offset as usize + 8..end.offset as usize + 12].fill(0xff);
    let broken =
        index("file", Box::new(Cursor::new(file)), IndexOptions { grain: 1, multiple: 1 }, &mut ())
            .expect_err("damaged");
    assert!(
        broken.to_string().contains(&format!("packet {}, byte {}", end.packets + 1, end.offset)),
        "{broken}"
    );
    struct Stop;
    impl Progress for Stop {
        fn advance(&mut self, _packets: u64, _bytes: u64) -> ControlFlow<()> {
            ControlFlow::Break(())
        }
    }
    let stopped = index(
        "file",
        Box::new(Cursor::new(bytes(2))),
        IndexOptions { grain: 1, multiple: 1 },
        &mut Stop,
    );
    assert!(matches!(stopped, Err(Error::Interrupted)));
}

#[test]
fn a_corpus_of_several_captures_has_the_sums_of_the_program() {
    let file = bytes(1);
    let readers = [1, 2].map(|_| {
        Input::from(
            Reader::from_stream("file", Box::new(Cursor::new(file.clone()))).expect("a capture"),
        )
    });
    let expected = analyze(readers.into(), &options(64), &mut ()).expect("captures");
    let mut corpus = Corpus::new(&options(64));
    for grain in [u64::MAX / 2, 50_000] {
        corpus.add(
            "file".to_owned(),
            in_parts(&file, &indexed(&file, grain, 64), 64, &mut Kept::default()),
        );
    }
    corpus.unreadable("bad <b>.pcap: \u{1b}[2J is not a capture");
    let report = corpus.report();
    assert_eq!((report.captures, report.files.len(), report.unreadable_captures), (2, 2, 1));
    let json = |report: &AnalyzeReport| serde_json::to_value(&report.findings).expect("serializes");
    assert_eq!(json(&report)["policies"], json(&expected)["policies"]);
    assert_eq!(json(&report)["traffic"], json(&expected)["traffic"]);
    let page = report.page().expect("plots");
    assert!(page.contains("Not read") && page.contains("&lt;b&gt;") && !page.contains('\u{1b}'));
    for _ in 0..2000 {
        corpus.add("more".to_owned(), Vec::new());
        corpus.unreadable("bad");
    }
    let report = corpus.report();
    assert_eq!(
        (report.captures, report.files.len(), report.unreadable.messages.len()),
        (2002, 1000, 1000)
    );
    let page = report.page().expect("plots");
    assert!(
        page.contains("2,002 captures")
            && page.contains("And 1,002 more, which count above.")
            && page.contains("And 1,001 more.")
    );
}
