//! Captures over TCP connections (PCAP-over-IP).

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::live::{FILE_HEADER, arrivals, ends, records, signal, spawn, wait_for, with_pauses};
use crate::support::*;

/// Listens on a free port of this host, and returns the address.
fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    (listener, address)
}

/// Returns the address of a port that is free at present.
fn free_address() -> String {
    listen().1
}

/// Connects to an address as soon as somebody listens there.
#[track_caller]
fn connect(address: &str) -> TcpStream {
    let started = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return stream,
            Err(error) if started.elapsed() > Duration::from_secs(20) => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

#[test]
fn a_capture_is_read_from_a_connection() {
    let bench = Bench::new();
    let (header, records) = records(&bench, 5);
    let bytes = [header, records.concat()].concat();
    let (listener, address) = listen();
    let child = spawn(&bench, &format!("coalesce tcp://{address} -o out.pcap"));
    let mut stream = listener.accept().expect("it connects").0;
    stream.write_all(&bytes).expect("it reads");
    drop(stream);
    assert_eq!(ends(child).status.code(), Some(0));
    assert_eq!(bench.read("out.pcap").len(), 5);
    let address = free_address();
    let child = spawn(&bench, &format!("analyze tcp-listen://{address} --json"));
    connect(&address).write_all(&bytes).expect("it reads");
    let report: Value = serde_json::from_slice(&ends(child).stdout).expect("JSON");
    assert_eq!(report["packets_in"], 5);
    assert_eq!(report["files"][0]["file"], format!("tcp-listen://{address}"));
}

#[test]
fn a_capture_is_written_to_a_connection() {
    let bench = Bench::new();
    bench.capture("in.pcap", &spaced(&tcp_flow(9, 1000)));
    bench.json("coalesce in.pcap -o expected.pcap");
    let expected = bench.bytes("expected.pcap");
    let (listener, address) = listen();
    let child = spawn(&bench, &format!("coalesce in.pcap -o tcp://{address}"));
    let mut received = Vec::new();
    listener.accept().expect("it connects").0.read_to_end(&mut received).expect("it writes");
    assert_eq!(ends(child).status.code(), Some(0));
    assert!(received == expected);
    let address = free_address();
    let child = spawn(&bench, &format!("coalesce in.pcap -o tcp-listen://{address}"));
    received.clear();
    connect(&address).read_to_end(&mut received).expect("it writes");
    assert_eq!(ends(child).status.code(), Some(0));
    assert!(received == expected);
}

#[test]
fn packets_pass_from_connection_to_connection_at_once() {
    let bench = Bench::new();
    let (header, records) = records(&bench, 4);
    let (sender, from) = listen();
    let (receiver, to) = listen();
    let child = spawn(&bench, &format!("segment tcp://{from} -o tcp://{to} --json"));
    let mut input = sender.accept().expect("it connects").0;
    input.write_all(&header).expect("it reads");
    let output = arrivals(receiver.accept().expect("it connects").0);
    for (index, record) in records.iter().enumerate() {
        input.write_all(record).expect("it reads");
        wait_for(&output, record.len() + if index == 0 { FILE_HEADER } else { 0 });
    }
    signal(&child, "INT");
    let output = ends(child);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_json(&report, json!({ "packets_in": 4, "interrupted": true }));
    drop(input);
}

#[test]
fn errors_name_the_address() {
    let bench = Bench::new();
    bench.capture("in.pcap", &spaced(&tcp_flow(3, 100)));
    let address = format!("tcp://{}", free_address());
    let refused = format!("{address}: cannot be opened: ");
    bench.refuses(&format!("analyze {address}")[..], &refused);
    bench.refuses(&format!("segment in.pcap -o {address}")[..], &refused);
    bench.refuses("analyze tcp://localhost", "tcp://localhost: cannot be opened: needs an address");
    let (listener, address) = listen();
    bench.refuses(
        &format!("analyze tcp-listen://{address}")[..],
        &format!("tcp-listen://{address}: cannot be opened: "),
    );
    // A receiver that goes away is an error: what was sent is not complete.
    bench.json("generate big.pcap --size 8M");
    let child = spawn(&bench, &format!("segment big.pcap -o tcp://{address}"));
    drop(listener.accept().expect("it connects"));
    let output = ends(child);
    assert_eq!(output.status.code(), Some(2));
    let error = stderr(&output);
    assert!(error.contains(&format!("tcp://{address}: cannot be written")), "{error}");
}

#[test]
fn a_signal_ends_the_wait_for_a_connection() {
    let bench = Bench::new();
    bench.capture("in.pcap", &spaced(&tcp_flow(3, 100)));
    for direction in ["analyze ADDRESS", "segment in.pcap -o ADDRESS"] {
        let line = direction.replace("ADDRESS", &format!("tcp-listen://{}", free_address()));
        with_pauses(|pause| {
            let child = spawn(&bench, &line);
            std::thread::sleep(pause);
            signal(&child, "TERM");
            let output = ends(child);
            match output.status.code() == Some(143) {
                true => Ok(()),
                false => Err(format!("{line}: {:?}", output.status)),
            }
        });
    }
}

#[test]
fn a_connection_may_use_ipv6() {
    let bench = Bench::new();
    let (header, records) = records(&bench, 2);
    // Not every host has it.
    let Ok(listener) = TcpListener::bind("[::1]:0") else { return };
    let address = listener.local_addr().expect("an address");
    let child = spawn(&bench, &format!("segment tcp://{address} -o out.pcap"));
    let bytes = [header, records.concat()].concat();
    listener.accept().expect("it connects").0.write_all(&bytes).expect("it reads");
    assert_eq!(ends(child).status.code(), Some(0));
    assert_eq!(bench.read("out.pcap").len(), 2);
}
