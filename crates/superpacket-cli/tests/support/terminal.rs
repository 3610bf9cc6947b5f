//! A pseudo-terminal, to look at what a command draws on it.

use std::process::{Command, Output, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Runs a command with a terminal of so many columns for its standard error: how it ended, and what
/// was written to the terminal.
pub fn on_a_terminal(mut command: Command, columns: u16) -> (Output, String) {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a pseudo-terminal");
    grantpt(&controller).and_then(|()| unlockpt(&controller)).expect("unlocks");
    let name = ptsname(&controller, Vec::new()).expect("has a name");
    // Not to become the terminal of a session that has none.
    let terminal = open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).expect("opens");
    tcsetwinsize(&terminal, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).expect("takes a size");
    command.env("TERM", "xterm-256color").env_remove("NO_COLOR").stdout(Stdio::piped()).stderr(terminal);
    let child = command.spawn().expect("runs");
    // Whoever reads learns of the end when nobody holds the terminal any more.
    drop(command);
    let reader = std::thread::spawn(move || {
        let (mut drawn, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            match read(&controller, &mut piece[..]) {
                Ok(0) | Err(Errno::IO) => return drawn,
                Ok(length) => drawn.extend_from_slice(&piece[..length]),
                Err(Errno::INTR) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
    let output = child.wait_with_output().expect("ends");
    (output, String::from_utf8(reader.join().expect("no panic")).expect("is text"))
}
