//! The load generator as a program, over the loopback interface.

use superpacket_lab::allowed_cpus;

use crate::support::Bench;

#[test]
fn requests_are_spread_over_threads_at_both_ends() {
    let bench = Bench::new();
    let cpus = allowed_cpus().expect("Linux says").len();
    for (options, threads) in [
        ("--connections 6 --threads 3", 3),
        // No thread is without a connection.
        ("--connections 2 --threads 8", 2),
        ("--connections 6", cpus.min(6)),
        ("--connections 1", 1),
    ] {
        let line = format!("load rr 127.0.0.1 --time 50ms --verify {options}");
        let report = bench.json(line.as_str());
        assert_eq!(report["threads"], serde_json::json!([threads, threads]), "{line}: {report}");
        assert!(report["transactions_per_second"].as_f64() > Some(0.0), "{report}");
    }
    let printed = bench.prints("load rr 127.0.0.1 --time 50ms --connections 4 --threads 2");
    assert!(printed.starts_with("TCP_RR, 4 connections, 2 threads at each end\n"), "{printed}");
    let other = bench.json("load stream 127.0.0.1 --bytes 1M");
    assert!(other["threads"].is_null(), "{other}");
    bench.refuses("load stream 127.0.0.1 --threads 2", "--threads is not for stream");
}
