//! Handles the signals that end the program.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

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
pub(crate) fn end_program() -> io::Result<()> {
    handle(|_| end(crate::INTERRUPTED))
}

/// The number of the first signal that was received, or 0.
static RECEIVED: AtomicI32 = AtomicI32::new(0);

/// Whether the command currently polls [`end_requested`].
static ASKING: AtomicBool = AtomicBool::new(false);

/// The time within which two signals are one request. `timeout` sends each signal twice, and a
/// terminal that is closed may do so too.
const ONE_REQUEST: Duration = Duration::from_millis(200);

/// Starts a thread that waits for signals. If the command polls [`end_requested`], the first signal
/// only makes that function return `true`. Otherwise, and when a second signal arrives, unfinished
/// files are removed, and the program ends with the exit code for the signal.
///
/// # Errors
/// If the signals cannot be handled.
pub(crate) fn end_input() -> io::Result<()> {
    let mut first = None;
    handle(move |signal| match first {
        None if ASKING.load(Ordering::SeqCst) => {
            first = Some(Instant::now());
            RECEIVED.store(signal, Ordering::SeqCst);
        }
        Some(at) if at.elapsed() < ONE_REQUEST => {}
        _ => end(exit_code(signal)),
    })
}

/// Returns whether a signal has requested that the command stop reading its input. From the first
/// call on, the command must call this function regularly.
pub(crate) fn end_requested() -> bool {
    ASKING.store(true, Ordering::SeqCst);
    RECEIVED.load(Ordering::SeqCst) != 0
}

/// States that the command will not call [`end_requested`] for some time, so the next signal ends
/// the program.
pub(crate) fn stop_asking() {
    ASKING.store(false, Ordering::SeqCst);
}

/// Returns the exit code for a command that the first signal ended.
pub(crate) fn interrupted() -> u8 {
    match RECEIVED.load(Ordering::SeqCst) {
        0 => crate::INTERRUPTED,
        signal => exit_code(signal),
    }
}

/// Returns the exit code that shells report for a process that a signal has ended.
fn exit_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(crate::INTERRUPTED)
}

/// Starts a thread that calls `each` for every signal that ends a command.
#[cfg(unix)]
fn handle(each: impl FnMut(i32) + Send + 'static) -> io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new(ending())?;
    let wait = move || signals.forever().for_each(each);
    std::thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
}

/// Starts a thread that calls `each` for every signal that ends a command.
#[cfg(not(unix))]
fn handle(mut each: impl FnMut(i32) + Send + 'static) -> io::Result<()> {
    use std::sync::Arc;

    use signal_hook::consts::{SIGINT, SIGTERM};

    let arrived = [SIGINT, SIGTERM].map(|signal| (signal, Arc::new(AtomicBool::new(false))));
    for (signal, flag) in &arrived {
        signal_hook::flag::register(*signal, Arc::clone(flag))?;
    }
    // Only on Unix can a thread sleep until a signal arrives. On other systems it checks flags.
    let wait = move || {
        loop {
            for (signal, flag) in &arrived {
                if flag.swap(false, Ordering::Relaxed) {
                    each(*signal);
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
}

/// Removes unfinished files, and ends the program.
fn end(code: u8) {
    superpacket_captures::file::remove_unfinished();
    std::process::exit(i32::from(code));
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
