//! Pseudo-terminals, to check what a command draws, and to close the terminal of a running command.

use std::os::fd::OwnedFd;
use std::process::{Child, Command, Output, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, ioctl_fionbio, read};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Opens a terminal of `columns` columns, and returns the controller's end and the program's.
fn open_terminal(columns: u16) -> (OwnedFd, OwnedFd) {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
        .expect("a pseudo-terminal");
    grantpt(&controller).and_then(|()| unlockpt(&controller)).expect("unlocks");
    let name = ptsname(&controller, Vec::new()).expect("has a name");
    // Without NOCTTY, the terminal would become the controlling one of a session that has none.
    let terminal =
        open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).expect("opens");
    tcsetwinsize(&terminal, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
        .expect("takes a size");
    (controller, terminal)
}

/// A terminal that a test holds; dropping it closes it.
pub struct Terminal {
    controller: OwnedFd,
    drawn: Vec<u8>,
}

impl Terminal {
    /// Starts a command with a new terminal for standard input, output and error.
    pub fn start(mut command: Command) -> (Child, Terminal) {
        let (controller, terminal) = open_terminal(100);
        ioctl_fionbio(&controller, true).expect("does not block");
        let same = || terminal.try_clone().expect("a descriptor");
        command
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .stdin(same())
            .stdout(same())
            .stderr(same());
        (command.spawn().expect("runs"), Terminal { controller, drawn: Vec::new() })
    }

    /// Returns everything drawn so far. It must be called repeatedly, because programs block when
    /// the terminal's buffer is full.
    pub fn drawn(&mut self) -> String {
        let mut piece = [0; 4096];
        loop {
            match read(&self.controller, &mut piece[..]) {
                Ok(length) if length > 0 => self.drawn.extend_from_slice(&piece[..length]),
                Err(Errno::INTR) => {}
                // No more data for now, or the terminal is closed at the other end.
                _ => return String::from_utf8_lossy(&self.drawn).into_owned(),
            }
        }
    }
}

/// Runs a command with a terminal of `columns` columns as standard error. Returns its output, and
/// the text written to the terminal.
pub fn on_a_terminal(mut command: Command, columns: u16) -> (Output, String) {
    let (controller, terminal) = open_terminal(columns);
    command
        .env("TERM", "xterm-256color")
        .env_remove("NO_COLOR")
        .stdout(Stdio::piped())
        .stderr(terminal);
    let child = command.spawn().expect("runs");
    // The reader sees the end only when no process holds the terminal any more.
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
