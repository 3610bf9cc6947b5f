//! A progress bar is for who looks: drawn where standard error is a terminal, and nowhere else.

#![cfg(target_os = "linux")]

mod support;

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use superpacket_traffic::frame::Frame;
use support::*;

/// What every escape code begins with.
const ESCAPE: &str = "\x1b";

/// Both ends of a pseudo-terminal of 100 columns: what a terminal emulator reads from, and what a program has for a terminal.
fn pseudo_terminal() -> (File, File) {
    let emulator = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
    grantpt(&emulator).expect("may be used");
    unlockpt(&emulator).expect("unlocks");
    let name = ptsname(&emulator, Vec::new()).expect("has a name");
    // Not to become the terminal of a session that has none.
    let terminal = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlags::NOCTTY.bits() as i32)
        .open(name.to_str().expect("a path"))
        .expect("opens");
    let size = Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal.as_fd(), size).expect("takes a size");
    (emulator.into(), terminal)
}

/// Runs a command, which must succeed, with a terminal for its standard error: what was written to standard output, and what to the terminal.
fn on_a_terminal(bench: &Bench, arguments: &[&str]) -> (String, String) {
    let (mut emulator, terminal) = pseudo_terminal();
    let mut command = bench.command(arguments);
    let mut child =
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR").stdout(Stdio::piped()).stderr(terminal).spawn().expect("runs");
    // It keeps this process's copy of the terminal open.
    drop(command);
    let (mut drawn, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match emulator.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => drawn.extend_from_slice(&piece[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // The last end was closed.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let mut printed = String::new();
    child.stdout.take().expect("is piped").read_to_string(&mut printed).expect("is text");
    let drawn = String::from_utf8(drawn).expect("is text");
    assert!(child.wait().expect("ends").success(), "{drawn}");
    (printed, drawn)
}

/// A directory with `in.pcap`, long enough to be worth a bar.
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
    for arguments in [&["coalesce", "in.pcap", "-o", "out.pcap"][..], &["verify", "in.pcap"], &["segment", "in.pcap", "-o", "out.pcap"]] {
        let (printed, drawn) = on_a_terminal(&bench, arguments);
        assert!(drawn.contains("in.pcap") && drawn.contains(&whole), "the file, and how much there is of it, {whole}: {drawn:?}");
        assert!(drawn.contains('█') && drawn.contains(ESCAPE), "a bar that grows, in colour: {drawn:?}");
        // At the end the line is empty again.
        let last = drawn.rsplit('\r').next().expect("one at least");
        assert_eq!(last, "\x1b[2K", "{drawn:?}");
        assert!(!printed.contains(ESCAPE), "a report in a file has no escape codes: {printed:?}");
    }
}

#[test]
fn in_a_pipe_there_is_none() {
    let bench = bench();
    for arguments in [&["coalesce", "in.pcap", "-o", "out.pcap"][..], &["verify", "in.pcap"], &["segment", "in.pcap", "-o", "out.pcap"]] {
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
    let (_, drawn) = on_a_terminal(&bench, &["coalesce", "in.pcap", "-o", "out.pcap", "--quiet"]);
    assert_eq!(drawn, "");
}
