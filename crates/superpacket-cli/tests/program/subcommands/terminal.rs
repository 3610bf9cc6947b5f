//! A progress bar is drawn only if standard error is a terminal.

use crate::support::terminal::{Terminal, on_a_terminal};
use crate::support::*;
use superpacket_traffic::frame::Frame;

/// First byte of every escape sequence.
const ESCAPE: &str = "\x1b";

/// Returns a directory with `in.pcap`, which is long enough for a bar to appear.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.capture("in.pcap", &spaced(&Frame::tcp4(1, 1000).run(20_000)));
    bench
}

#[test]
fn on_a_terminal_there_is_a_bar_while_it_runs() {
    let bench = bench();
    let length = std::fs::metadata(bench.path("in.pcap")).expect("is there").len();
    let whole = format!("/{:.2} MiB", length as f64 / f64::from(1 << 20));
    for arguments in [
        &["coalesce", "in.pcap", "-o", "out.pcap"][..],
        &["verify", "in.pcap"],
        &["segment", "in.pcap", "-o", "out.pcap"],
    ] {
        let (output, drawn) = on_a_terminal(bench.command(arguments), 100);
        assert!(
            drawn.contains("in.pcap") && drawn.contains(&whole),
            "the file, and how much there is of it, {whole}: {drawn:?}"
        );
        assert!(
            drawn.contains('█') && drawn.contains(ESCAPE),
            "a bar that grows, in colour: {drawn:?}"
        );
        // At the end the line is empty again.
        let last = drawn.rsplit('\r').next().expect("one at least");
        assert_eq!(last, "\x1b[2K", "{drawn:?}");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && !printed.contains(ESCAPE),
            "a report in a file has no escape codes: {printed:?}"
        );
    }
}

#[test]
fn in_a_pipe_there_is_none() {
    let bench = bench();
    for arguments in [
        &["coalesce", "in.pcap", "-o", "out.pcap"][..],
        &["verify", "in.pcap"],
        &["segment", "in.pcap", "-o", "out.pcap"],
    ] {
        let output = bench.command(arguments).env("TERM", "xterm-256color").output().expect("runs");
        assert!(output.status.success());
        assert_eq!(stderr(&output), "", "{arguments:?}");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(!printed.is_empty() && !printed.contains(ESCAPE), "{printed:?}");
    }
}

#[test]
fn quiet_draws_none_on_a_terminal_either() {
    let bench = bench();
    let (output, drawn) = on_a_terminal(bench.command("coalesce in.pcap -o out.pcap --quiet"), 100);
    assert_eq!((output.status.code(), drawn.as_str()), (Some(0), ""));
}

#[test]
fn a_capture_is_not_written_to_a_terminal() {
    let bench = bench();
    for command in ["coalesce", "segment"] {
        let (mut child, mut terminal) =
            Terminal::start(bench.command(&[command, "in.pcap", "-o", "-"]));
        let ended = child.wait().expect("ends");
        let drawn = terminal.drawn();
        assert_eq!(ended.code(), Some(2), "{drawn:?}");
        assert!(drawn.contains("redirect it or name a file"), "{drawn:?}");
    }
}
