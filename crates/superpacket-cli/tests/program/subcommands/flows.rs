//! `superpacket analyze --flows`: the file with all flows.

use std::collections::HashMap;

use crate::support::*;
use superpacket_captures::file::{Interface, LinkType, TimeResolution};
use superpacket_traffic::frame::Frame;

const COLUMNS: &str = "protocol,source,source_port,destination,destination_port,tunnel,vlan,\
    interface,packets,bytes,packets_after,packets_saved,super_packets,packets_after_lro,\
    packets_after_gro,packets_after_lro_acks,main_reason,main_reason_means,reasons,file";

/// A row of a table, by the names of the columns.
type Row = HashMap<String, String>;

/// Reads a CSV table.
fn rows(csv: &[u8]) -> Vec<Row> {
    let mut reader = csv::Reader::from_reader(csv);
    assert_eq!(reader.headers().expect("names").iter().collect::<Vec<_>>().join(","), COLUMNS);
    reader.deserialize().collect::<Result<_, _>>().expect("as many cells as columns")
}

#[track_caller]
fn sum(rows: &[Row], column: &str) -> u64 {
    rows.iter().map(|row| row[column].parse::<u64>().expect("a number")).sum()
}

/// Returns the packets by reason of a row.
fn reasons_of(row: &Row) -> Vec<(String, u64)> {
    let pairs = row["reasons"].split_whitespace().map(|pair| pair.split_once('=').expect("a pair"));
    pairs.map(|(name, count)| (name.to_owned(), count.parse().expect("a number"))).collect()
}

/// Returns two TCP flows of which only one merges, acknowledgements, UDP in a VLAN, and a frame
/// that is not IP.
fn traffic() -> Vec<CapturedFrame> {
    let mut frames = tcp_flow(20, 1000);
    frames.extend(tcp_flow(10, 500).into_iter().map(|frame| from_host(frame, 7).with_flags(0x18)));
    frames.extend((1..4).map(|number| {
        from_host(Frame::tcp4(9, 0), 8).with(|frame| frame.tcp_mut().acknowledgement = number)
    }));
    frames.extend(Frame::udp4(100).with_id(1).tagged(5).run(4));
    let mut frames = spaced(&frames);
    frames.push(CapturedFrame::at(50_000, vec![0xff; 60]));
    frames
}

#[test]
fn every_flow_has_a_row_with_its_effect_and_reasons() {
    let bench = Bench::new();
    bench.capture("in.pcap", &traffic());
    bench.prints("analyze in.pcap --flows flows.csv");
    let rows = rows(&bench.bytes("flows.csv"));
    let cells = |row: usize, names: &str| {
        names.split(' ').map(|name| rows[row][name].as_str()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(rows.len(), 5);
    assert_eq!(
        cells(0, "protocol source source_port destination destination_port interface file"),
        "TCP 10.0.0.1 40000 10.0.0.2 443 0 in.pcap"
    );
    assert_eq!(cells(0, "packets bytes packets_after packets_saved"), "20 21080 1 19");
    assert_eq!(cells(0, "super_packets main_reason reasons"), "1 poll_end poll_end=1");
    assert_eq!(cells(0, "main_reason_means"), "The poll ended, so nothing was held any longer.");
    assert_eq!(cells(1, "source packets packets_after super_packets"), "10.0.0.7 10 10 0");
    assert_eq!(cells(1, "main_reason reasons"), "push push=10");
    assert_eq!(cells(2, "protocol vlan packets packets_after"), "UDP 5 4 1");
    assert_eq!(cells(2, "packets_after_gro packets_after_lro"), "4 4");
    assert_eq!(cells(3, "source packets packets_after_lro_acks"), "10.0.0.8 3 1");
    assert_eq!(cells(3, "main_reason reasons vlan"), "no_payload no_payload=3 ");
    assert_eq!(cells(4, "protocol source source_port packets bytes"), "other   1 60");
    assert_eq!(cells(4, "reasons interface"), "not_ip=1 ");
}

#[test]
fn sort_shows_the_flows_that_profit_most() {
    // The help and the page sort by this column.
    assert_eq!(COLUMNS.split(',').nth(12 - 1), Some("packets_saved"));
    let bench = Bench::new();
    let help = bench.prints("analyze --help");
    assert!(help.contains("sort -t, -k12,12nr flows.csv"), "{help}");
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/captures.md");
    let page = std::fs::read_to_string(page).expect("it is there");
    assert!(page.contains("sort -t, -k12,12nr flows.csv"));
    for column in COLUMNS.split(',') {
        assert!(page.contains(&format!("`{column}`")), "the page describes {column}");
    }
}

#[test]
fn the_rows_of_a_capture_add_up_to_its_report() {
    let bench = Bench::new();
    let real = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures");
    for name in ["demo.pcap.gz", "real/bulk/zeek_iso-download.pcap.gz"] {
        let path = real.join(name).display().to_string();
        for batch in ["1", "64", "0"] {
            let report = bench.json(&["analyze", &path, "--flows", "flows.csv", "--batch", batch]);
            let rows = rows(&bench.bytes("flows.csv"));
            for (column, value) in [
                ("packets", &report["packets_in"]),
                ("bytes", &report["bytes_in"]),
                ("packets_after", &report["packets_out"]),
                ("packets_saved", &report["merged"]),
                ("super_packets", &report["super_packets"]),
                ("packets_after_lro", &report["policies"]["lro"]["packets_out"]),
                ("packets_after_gro", &report["policies"]["gro"]["packets_out"]),
                ("packets_after_lro_acks", &report["policies"]["lro_acks"]["packets_out"]),
            ] {
                assert_eq!(sum(&rows, column), number(value), "{name}: {column}");
            }
            let mut counts: HashMap<String, u64> = HashMap::new();
            for (reason, count) in rows.iter().flat_map(reasons_of) {
                *counts.entry(reason).or_default() += count;
            }
            assert_eq!(json!(counts), report["reasons"], "{name}");
            let flows: Vec<_> = rows.iter().filter(|row| !row["source"].is_empty()).collect();
            let bytes = flows.iter().map(|row| row["bytes"].parse::<u64>().expect("a number"));
            assert!(bytes.rev().is_sorted(), "{name}");
            let top = &report["top_flows"][0];
            assert_eq!(number(&top["packets_in"]).to_string(), flows[0]["packets"]);
            assert_eq!(number(&top["packets_out"]).to_string(), flows[0]["packets_after"]);
        }
    }
}

#[test]
fn json_has_the_same_rows() {
    let bench = Bench::new();
    bench.capture("in.pcap", &traffic());
    for name in ["flows.csv", "flows.json", "flows.ndjson"] {
        bench.prints(&["analyze", "in.pcap", "--flows", name]);
    }
    let array: Vec<Value> = serde_json::from_slice(&bench.bytes("flows.json")).expect("an array");
    let text = String::from_utf8(bench.bytes("flows.ndjson")).expect("UTF-8");
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    assert_eq!(array, lines);
    let rows = rows(&bench.bytes("flows.csv"));
    assert_eq!(rows.len(), array.len());
    for (row, object) in rows.iter().zip(&array) {
        assert_eq!(object.as_object().map(serde_json::Map::len), Some(row.len()));
        for (name, cell) in row {
            match &object[name] {
                Value::Null => assert_eq!(cell, ""),
                Value::String(text) => assert_eq!(cell, text),
                Value::Object(_) => {
                    let expected: HashMap<_, _> = reasons_of(row).into_iter().collect();
                    assert_eq!(object[name], json!(expected));
                }
                other => assert_eq!(*cell, other.to_string()),
            }
        }
    }
}

#[test]
fn the_same_addresses_elsewhere_are_another_flow() {
    let bench = Bench::new();
    let interface = || Interface::new(LinkType::ETHERNET, TimeResolution::NANOSECONDS);
    let mut frames = spaced(&[Frame::tcp4(1, 100), Frame::tcp4(1, 100).in_gre()]);
    frames.push(CapturedFrame { interface: 1, ..frames[0].clone() });
    bench.capture_of("in.pcapng", &[interface(), interface()], &frames);
    bench.prints("analyze in.pcapng --flows flows.csv");
    let rows = rows(&bench.bytes("flows.csv"));
    let found: Vec<_> =
        rows.iter().map(|row| (row["tunnel"].as_str(), row["interface"].as_str())).collect();
    assert_eq!(found, [("GRE", "0"), ("", "0"), ("", "1")]);
    assert!(rows.iter().all(|row| row["source"] == "10.0.0.1"), "the innermost: {rows:?}");
}

#[test]
fn several_captures_share_a_table() {
    let bench = Bench::new();
    let comma = "one, \"two\".pcap";
    bench.capture(if cfg!(windows) { "one.pcap" } else { comma }, &traffic());
    bench.capture("b.pcap", &traffic());
    bench.write("c.pcap", "no capture");
    let first = if cfg!(windows) { "one.pcap" } else { comma };
    let output = bench.run(&["analyze", first, "c.pcap", "b.pcap", "--flows", "flows.csv"]);
    assert_eq!(output.status.code(), Some(2), "one cannot be read");
    let rows = rows(&bench.bytes("flows.csv"));
    let files: Vec<_> = rows.iter().map(|row| row["file"].as_str()).collect();
    assert_eq!(files, [[first; 5], ["b.pcap"; 5]].concat());
    assert_eq!(sum(&rows, "packets"), 2 * traffic().len() as u64);
}

#[test]
fn standard_output_gets_the_table_alone() {
    let bench = Bench::new();
    bench.capture("in.pcap", &traffic());
    let output = bench.run("analyze in.pcap --flows -");
    assert_eq!(rows(&output.stdout).len(), 5);
    assert!(stderr(&output).contains("GRO with UDP"), "the report: {}", stderr(&output));
    bench.refuses("analyze in.pcap --flows - --json", "choose a file for them");
}

#[test]
fn a_capture_without_packets_gives_an_empty_table() {
    let bench = Bench::new();
    bench.capture("in.pcap", &[]);
    for name in ["flows.csv", "flows.json", "flows.ndjson"] {
        bench.prints(&["analyze", "in.pcap", "--flows", name]);
    }
    assert_eq!(bench.bytes("flows.csv"), format!("{COLUMNS}\n").as_bytes());
    assert_eq!(
        (bench.bytes("flows.json"), bench.bytes("flows.ndjson")),
        (b"[]\n".to_vec(), vec![])
    );
}

#[test]
fn names_without_a_format_and_inputs_are_refused() {
    let bench = Bench::new();
    bench.capture("in.csv.pcap", &traffic());
    for name in ["flows", "flows.txt", "flows.csv.gz", "flows.pcap"] {
        bench.refuses(&["analyze", "in.csv.pcap", "--flows", name], ".csv, .json, .ndjson or");
        assert!(!bench.path(name).exists(), "{name}");
    }
    std::fs::rename(bench.path("in.csv.pcap"), bench.path("in.csv")).expect("renamed");
    bench.refuses("analyze in.csv --flows in.csv", "is an input too");
    bench.refuses("analyze in.csv --flows absent/flows.csv", "absent/flows.csv: cannot be created");
    // After an error, an old table is as it was.
    bench.write("flows.csv", "old");
    bench.refuses("analyze absent.pcap --flows flows.csv", "absent.pcap");
    assert_eq!(bench.bytes("flows.csv"), b"old");
    #[cfg(not(feature = "parquet"))]
    bench.refuses("analyze in.csv --flows flows.parquet", "--features parquet");
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_has_the_same_rows() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    let bench = Bench::new();
    bench.capture("in.pcap", &traffic());
    for name in ["flows.csv", "flows.parquet"] {
        bench.prints(&["analyze", "in.pcap", "in.pcap", "--flows", name]);
    }
    let file = std::fs::File::open(bench.path("flows.parquet")).expect("opens");
    let reader = SerializedFileReader::new(file).expect("Parquet");
    let expected = rows(&bench.bytes("flows.csv"));
    let found: Vec<_> =
        reader.get_row_iter(None).expect("rows").map(|row| row.expect("a row")).collect();
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        let names: Vec<_> = found.get_column_iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.join(","), COLUMNS);
        for (name, field) in found.get_column_iter() {
            let cell = expected[name].as_str();
            match field {
                Field::Null => assert_eq!(cell, "", "{name}"),
                Field::Str(text) => assert_eq!(cell, text, "{name}"),
                Field::ULong(count) => assert_eq!(cell, count.to_string(), "{name}"),
                Field::MapInternal(map) => {
                    let mut pairs: Vec<_> = map
                        .entries()
                        .iter()
                        .map(|(name, count)| match (name, count) {
                            (Field::Str(name), Field::ULong(count)) => (name.clone(), *count),
                            other => panic!("{other:?}"),
                        })
                        .collect();
                    let mut expected = reasons_of(expected);
                    pairs.sort();
                    expected.sort();
                    assert_eq!(pairs, expected);
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }
    bench.capture("empty.pcap", &[]);
    bench.prints("analyze empty.pcap --flows empty.parquet");
    let file = std::fs::File::open(bench.path("empty.parquet")).expect("opens");
    let reader = SerializedFileReader::new(file).expect("Parquet");
    assert_eq!(reader.metadata().file_metadata().num_rows(), 0);
}
