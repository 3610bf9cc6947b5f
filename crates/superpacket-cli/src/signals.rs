//! Handles the signals that end the program.

use std::io;

/// Returns the signals that end a command in an orderly way: SIGINT, SIGTERM, and SIGHUP, which is
/// sent when the terminal is closed.
///
/// SIGHUP is left out if the process ignores it, as a program started by `nohup` does.
#[cfg(unix)]
pub(crate) fn ending() -> Vec<i32> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

    // Without /proc it is unknown whether SIGHUP is ignored, and it counts as not ignored.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if is_ignored(&status, SIGHUP) { vec![SIGINT, SIGTERM] } else { vec![SIGINT, SIGTERM, SIGHUP] }
}

/// Returns whether a process ignores a signal, according to its `/proc/PID/status`
/// (proc_pid_status(5)).
#[cfg(unix)]
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Starts a thread that waits for a signal, then removes unfinished files and ends the program.
///
/// # Errors
/// If the signals cannot be handled.
#[cfg(unix)]
pub(crate) fn end_program() -> io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new(ending())?;
    let wait = move || signals.forever().take(1).for_each(|_| end());
    std::thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
}

/// Starts a thread that waits for a signal, then removes unfinished files and ends the program.
///
/// # Errors
/// If the signals cannot be handled.
#[cfg(not(unix))]
pub(crate) fn end_program() -> io::Result<()> {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use signal_hook::consts::{SIGINT, SIGTERM};

    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, ended.clone())?;
    }
    // Only on Unix can a thread sleep until a signal arrives. On other systems it checks a flag.
    let wait = move || {
        while !ended.load(Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        end();
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
}

fn end() {
    superpacket_captures::file::remove_unfinished();
    std::process::exit(i32::from(crate::INTERRUPTED));
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_known() {
        let status = "Name:\tsuperpacket\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000004002\n";
        assert_eq!(
            [1, 2, 13, 15, 64].map(|signal| is_ignored(status, signal)),
            [true, false, true, false, false]
        );
        assert!(!is_ignored("", 1));
    }
}
